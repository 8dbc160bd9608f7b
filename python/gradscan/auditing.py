"""`gs.audit`: where NaN and Inf stand in data and weights.

Files are read by the compiled module; frames come over Arrow, those of pandas column by column through numpy, because
its Arrow export turns NaN into null.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import polars as pl

from gradscan import _core, arguments
from gradscan import progress as progress_bar
from gradscan.api import count_nonfinite
from gradscan.errors import LimitError, UnknownFormatError, UnreadableRecordingError
from gradscan.paths import expand
from gradscan.progress import Callback
from gradscan.result import AUDIT_SCHEMA, Audit

__all__ = ["audit", "run_audit"]


def audit(path_or_frame: Any, threads: int | None = None) -> pl.DataFrame:
    """Count NaN and Inf in every column or tensor of files, directories or a frame.

    - a path or several, globs too: `.safetensors` (and the `.safetensors.index.json` of a model in shards), `.npy`,
      `.npz`, Parquet, Arrow IPC; each also compressed by gzip or zstd where its format is read in order, or a member of
      a tar or zip archive; a directory stands for all such files below it. Pickles (`.pt`, `.bin`, `.ckpt`) and object
      arrays are never loaded.
    - a frame: anything with `__arrow_c_stream__` (polars, pyarrow, duckdb), a polars LazyFrame, a pandas DataFrame. NaN
      in a float column of pandas counts as NaN, though pandas may mean a missing value by it.

    One row a tensor, array or float column: `name`, `dtype`, `shape`, `values` (looked at; nulls left out), `nan`,
    `inf` (of either sign; a complex value counts once), `first_row` (index along the first axis of the first bad value,
    from 0; null where there is none) and `bad_rows` (how many such indices hold one). A field of a structure is a row
    of its own (`column.field`), lists and fixed-size lists count by row of the table. Text and integers of tables have
    no row.

    Of one file these columns are all, and a file that cannot be read to its end raises UnreadableRecordingError (an
    unknown one UnknownFormatError, one beyond a limit LimitError). Of a directory or several paths `source` comes
    first, and `fault` last: a row in which it is not null stands for a file that could not be read, or not to its end.

    `threads`: None for one a core; one file is read by one thread. Memory does not grow with the size of a file.
    Raises FileNotFoundError for a path that does not exist, TypeError for what is neither a path nor a frame.
    """
    workers = None if threads is None else arguments.integer("threads", threads)
    if isinstance(path_or_frame, (str, os.PathLike)) or _is_paths(path_or_frame):
        return _of_paths(expand(path_or_frame), workers)
    return _of_frame(path_or_frame)


def _is_paths(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset, Iterator)) and not hasattr(value, "__arrow_c_stream__")


def run_audit(
    paths: Sequence[str],
    *,
    threads: int | None = None,
    progress: Callback | Literal[False] | None = None,
    partial: bool = False,
) -> Audit:
    """The audit of paths that exist, damaged files in a table of their own; with `partial` Ctrl-C does not raise."""
    drawn = progress_bar.auto() if progress is None else nullcontext(progress or None)
    with drawn as callback:
        tables = _core.audit(list(paths), threads=threads, progress=callback, partial=partial)
    return Audit(
        tensors=pl.DataFrame(tables.tensors),
        faults=pl.DataFrame(tables.faults),
        files=tables.files,
        skipped_files=tables.skipped_files,
        bytes=tables.bytes,
        interrupted=tables.interrupted,
    )


_ERRORS = {"unknown-format": UnknownFormatError, "limit": LimitError}


def _of_paths(paths: Sequence[str], threads: int | None) -> pl.DataFrame:
    result = run_audit(paths, threads=threads, progress=False)
    sources = set(result.tensors["source"]) | set(result.faults["source"])
    alone = len(paths) == 1 and os.path.isfile(paths[0]) and sources <= {result.source_of(paths[0])}
    if not alone:
        return result.frame()
    if len(result.faults):
        kind, place, detail = result.faults.select("kind", "place", "detail").row(0)
        where = f"{kind} at {place}" if place else kind
        bad = result.bad
        before = f"; before it {len(bad)} of {len(result.tensors)} tensors hold NaN or Inf" if len(bad) else ""
        raise _ERRORS.get(kind, UnreadableRecordingError)(f"{paths[0]}: {where}: {detail}{before}")
    return result.tensors.drop("source")


# ---------------------------------------------------------------------------------------------- frames


def _of_frame(frame: Any) -> pl.DataFrame:
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return _of_pandas(frame)
    if isinstance(frame, (pl.DataFrame, pl.LazyFrame)):
        floats = [name for name, dtype in frame.collect_schema().items() if _holds_floats(dtype)]
        frame = frame.select(floats)
        frame = frame.collect(engine="streaming") if isinstance(frame, pl.LazyFrame) else frame
    if isinstance(frame, pl.Series) or (pandas is not None and isinstance(frame, pandas.Series)):
        raise TypeError("path_or_frame: got a Series, want a frame: series.to_frame()")
    if isinstance(frame, (np.ndarray, Mapping)):
        got = "an array" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise TypeError(f"path_or_frame: got {got}, want a path or a frame: count_nonfinite(array) counts in arrays")
    if not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(
            f"path_or_frame: got {type(frame).__name__}, want a path, several, or a frame (polars, pandas, pyarrow, "
            "duckdb, anything with __arrow_c_stream__)"
        )
    return pl.DataFrame(_core.audit_frame(frame)).drop("source")


def _holds_floats(dtype: Any) -> bool:
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        return _holds_floats(inner)
    fields = getattr(dtype, "fields", None)
    if fields is not None:
        return any(_holds_floats(field.dtype) for field in fields)
    return bool(dtype.is_float())


def _of_pandas(frame: Any) -> pl.DataFrame:
    parts = [_empty()]
    for position, label in enumerate(frame.columns):
        name = "/".join(map(str, label)) if isinstance(label, tuple) else str(label)
        parts += _of_column(name, frame.iloc[:, position])
    return pl.concat(parts)


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={name: dtype for name, dtype in AUDIT_SCHEMA.items() if name != "source"})


def _row(name: str, dtype: str, rows: int, values: int, nan: int, inf: int, bad: Sequence[int]) -> pl.DataFrame:
    """`bad`: the first bad row, if there is one, and how many there are."""
    row = (name, dtype, [rows], values, nan, inf, bad[0] if bad else None, bad[1] if bad else 0)
    return pl.DataFrame([row], schema=_empty().schema, orient="row")


def _of_column(name: str, column: Any) -> Iterable[pl.DataFrame]:
    dtype = column.dtype
    rows = len(column)
    categories = getattr(dtype, "categories", None)
    if categories is not None and categories.dtype.kind in "fcO":
        column = column.astype(categories.dtype)
        dtype = column.dtype
    if getattr(dtype, "pyarrow_dtype", None) is not None:
        arrow = sys.modules["pyarrow"]
        array = column.array.__arrow_array__()
        yield pl.DataFrame(_core.audit_frame(arrow.table({name: array}))).drop("source")
    elif getattr(dtype, "kind", "") in ("f", "c"):
        missing = 0
        mask = getattr(column.array, "_mask", None)
        if mask is not None:  # Float64 and its like: what is masked is missing, whatever lies below
            missing = int(mask.sum())
            array = column.array.to_numpy(dtype=dtype.numpy_dtype, na_value=0.0)
        else:
            array = np.asarray(column)
        yield _counted(name, str(dtype), array, rows - missing)
    elif getattr(dtype, "kind", "") == "O":
        yield from _of_objects(name, column)


def _counted(name: str, dtype: str, array: Any, values: int) -> pl.DataFrame:
    if array.dtype.name in ("float16", "float32", "float64"):
        counted = count_nonfinite(array)
        nan, inf, first = counted.nan, counted.inf, counted.first
    else:  # complex, and floats wider than 64 bits
        is_nan = np.isnan(array)
        is_bad = is_nan | np.isinf(array)
        nan, inf = int(is_nan.sum()), int(is_bad.sum() - is_nan.sum())
        first = int(is_bad.argmax()) if nan + inf else None
    return _row(name, dtype, len(array), values, nan, inf, () if first is None else (first, nan + inf))


def _of_objects(name: str, column: Any) -> Iterable[pl.DataFrame]:
    """Cells of any kind: floats among them, and lists and arrays of floats."""
    values = nan = inf = bad = 0
    first = None
    for row, cell in enumerate(column):
        if isinstance(cell, (float, np.floating)):
            array = np.asarray([cell], dtype=np.float64)
        elif isinstance(cell, (list, tuple, np.ndarray)):
            array = np.asarray(cell)
        else:
            continue
        if array.dtype.kind != "f":
            continue
        is_nan, is_inf = np.isnan(array), np.isinf(array)
        values += array.size
        nan, inf = nan + int(is_nan.sum()), inf + int(is_inf.sum())
        if is_nan.any() or is_inf.any():
            first = row if first is None else first
            bad += 1
    if values:
        yield _row(name, "object", len(column), values, nan, inf, () if first is None else (first, bad))
