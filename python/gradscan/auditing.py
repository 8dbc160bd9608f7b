"""`gs.audit`: where NaN and Inf stand in data and weights.

Files are read by the compiled module; frames come over Arrow, those of pandas column by column through numpy, because
its Arrow export turns NaN into null.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np
import polars as pl

from gradscan import _core, api, arguments, frames
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
    - a frame: anything with `__arrow_c_stream__` (polars, pyarrow, duckdb), a polars LazyFrame (collected in
      batches), a pandas DataFrame, or a narwhals frame of one of these. NaN in a column of floats of pandas counts as
      NaN, though pandas may mean a missing value by it, and so does a row without a category where the categories are
      numbers. Columns of Python objects count floats, decimals, and what lists, arrays and mappings hold; a missing
      cell of a column of text is no NaN.

    One row a tensor, array or float column: `name`, `dtype`, `shape`, `values` (looked at; nulls left out), `nan`,
    `inf` (of either sign; a complex value counts once), `first_row` (index along the first axis of the first bad value,
    from 0; null where there is none) and `bad_rows` (how many such indices hold one). A field of a structure is a row
    of its own (`column.field`), lists and fixed-size lists count by row of the table. Text and integers of tables have
    no row.

    Of one file these columns are all, and a file that cannot be read to its end raises UnreadableRecordingError (an
    unknown one UnknownFormatError, one beyond a limit LimitError). Of a directory or several paths `source` comes
    first, and `fault` last: a row in which it is not null stands for a file that could not be read, or not to its end.

    `threads`: None for one a core; one file is read by one thread. Memory does not grow with the size of a file.
    Raises FileNotFoundError for a path that does not exist, TypeError for what is neither a path nor a frame,
    ValueError for a column of Python objects of which nobody knows whether they hold floats; it names the column.
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
    frame = frames.native(frame)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return _PandasFrame(frame, pandas).audit()
    if isinstance(frame, pl.LazyFrame):
        return _of_lazy(frame)
    if isinstance(frame, pl.DataFrame):
        return _of_polars(frame)
    if frames.is_no_table(frame):
        kind = type(frame)
        hint = "series.to_frame()" if hasattr(frame, "to_frame") else "a table of it with a name for the column"
        raise TypeError(
            f"path_or_frame: got a single column ({kind.__module__.partition('.')[0]}.{kind.__qualname__}), "
            f"want a frame: {hint}"
        )
    if isinstance(frame, (np.ndarray, Mapping)):
        got = "an array" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise TypeError(f"path_or_frame: got {got}, want a path or a frame: count_nonfinite(array) counts in arrays")
    if not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(
            f"path_or_frame: got {type(frame).__name__}, want a path, several, or a frame (polars, pandas, pyarrow, "
            "duckdb, anything with __arrow_c_stream__)"
        )
    return _of_stream(frame)


def _of_stream(stream: Any) -> pl.DataFrame:
    try:
        return pl.DataFrame(_core.audit_frame(stream)).drop("source")
    except (TypeError, ValueError) as error:
        raise ValueError(f"path_or_frame: {frames.last_line(str(error))}") from error


def _of_polars(frame: pl.DataFrame) -> pl.DataFrame:
    floats = [name for name, dtype in frame.schema.items() if _holds_floats(dtype)]
    parts = [_of_stream(frame.select(floats))]
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Object):
            parts += _of_objects(name, frame[name])
    return pl.concat(parts)


def _of_lazy(frame: pl.LazyFrame) -> pl.DataFrame:
    """Batch by batch: what was counted in one is added to what was counted in those before it."""
    schema = frame.collect_schema()
    for name, dtype in schema.items():
        if isinstance(dtype, pl.Object):
            raise ValueError(f"path_or_frame: got column {name!r} of Python objects in a LazyFrame, want it collected")
    floats = [name for name, dtype in schema.items() if _holds_floats(dtype)]
    if not floats:
        return _empty()
    known = pl.Schema({name: schema[name] for name in floats})
    total: list[dict[str, Any]] = []
    rows = 0
    for batch in frames.collected(frame.select(floats), known):
        counted = list(_of_stream(batch).iter_rows(named=True))
        total = [_sum(*pair, rows) for pair in zip(total, counted, strict=True)] if total else counted
        rows += batch.height
    return pl.DataFrame(total, schema=_empty().schema, orient="row")


def _sum(before: dict[str, Any], row: dict[str, Any], rows: int) -> dict[str, Any]:
    """Two parts of one column; the second begins at `rows`."""
    first = before["first_row"]
    if first is None and row["first_row"] is not None:
        first = rows + row["first_row"]
    counts = {name: before[name] + row[name] for name in ("values", "nan", "inf", "bad_rows")}
    shape = [before["shape"][0] + row["shape"][0], *before["shape"][1:]]
    return before | counts | {"shape": shape, "first_row": first}


def _holds_floats(dtype: Any) -> bool:
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        return _holds_floats(inner)
    fields = getattr(dtype, "fields", None)
    if fields is not None:
        return any(_holds_floats(field.dtype) for field in fields)
    return bool(dtype.is_float())


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={name: dtype for name, dtype in AUDIT_SCHEMA.items() if name != "source"})


def _row(name: str, dtype: str, rows: int, values: int, nan: int, inf: int, bad: Sequence[int]) -> pl.DataFrame:
    """`bad`: the first bad row, if there is one, and how many there are."""
    row = (name, dtype, [rows], values, nan, inf, bad[0] if bad else None, bad[1] if bad else 0)
    return pl.DataFrame([row], schema=_empty().schema, orient="row")


class _PandasFrame:
    """A pandas frame column by column. `pandas` is the imported module: gradscan never imports it itself."""

    def __init__(self, frame: Any, pandas: Any) -> None:
        self.frame = frame
        self.pandas = pandas

    def audit(self) -> pl.DataFrame:
        parts = [_empty()]
        for position, label in enumerate(self.frame.columns):
            parts += self.column(frames.column_name(label), self.frame.iloc[:, position])
        return pl.concat(parts)

    def column(self, name: str, column: Any) -> Iterable[pl.DataFrame]:
        pandas, dtype, rows = self.pandas, column.dtype, len(column)
        if isinstance(dtype, pandas.CategoricalDtype):
            # A category is never missing, a row without one is NaN; bins (intervals) are as good as text.
            if isinstance(dtype.categories.dtype, (pandas.IntervalDtype, pandas.StringDtype)):
                return
            plain = pandas.Series(column.to_numpy(dtype=object, na_value=np.nan), dtype=object)
            if isinstance(dtype.categories.dtype, np.dtype) and dtype.categories.dtype.kind == "f":
                yield _counted(name, str(dtype.categories.dtype), plain.to_numpy(np.float64), rows)
            elif getattr(dtype.categories.dtype, "kind", "") == "f":
                yield _counted(name, str(dtype.categories.dtype), plain.to_numpy(np.float64, na_value=np.nan), rows)
            else:
                yield from _of_objects(name, plain, "category")
        elif isinstance(dtype, pandas.StringDtype):
            return
        elif isinstance(dtype, pandas.IntervalDtype):
            for side in ("left", "right"):
                yield from self.column(f"{name}.{side}", pandas.Series(getattr(column.array, side)))
        elif isinstance(dtype, pandas.ArrowDtype):
            array = column.array.__arrow_array__()
            try:
                yield _of_stream(sys.modules["pyarrow"].table({name: array}))
            except ValueError as error:
                raise ValueError(
                    f"path_or_frame: got column {name!r} of {dtype}, which cannot be read ({error})"
                ) from error
        elif getattr(dtype, "kind", "") in ("f", "c"):
            missing = 0
            mask = getattr(column.array, "_mask", None)
            if mask is not None:  # Float64 and its like: what is masked is missing, whatever lies below
                missing = int(mask.sum())
                array = column.array.to_numpy(dtype=dtype.numpy_dtype, na_value=0.0)
            else:
                array = np.asarray(column)
            yield _counted(name, str(dtype), array, rows - missing)
        elif getattr(dtype, "kind", "") in ("O", "V"):
            if isinstance(dtype, pandas.PeriodDtype):
                return
            array = np.asarray(column)
            if array.dtype.kind == "O":
                yield from _of_objects(name, column)
            else:
                yield _counted(name, str(dtype), _widened(name, array), rows)


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


# ---------------------------------------------------------------------------------------------- objects


class _Counts(NamedTuple):
    values: int = 0
    nan: int = 0
    inf: int = 0

    def plus(self, other: _Counts) -> _Counts:
        return _Counts(self.values + other.values, self.nan + other.nan, self.inf + other.inf)


_NONE = _Counts()


def _of_objects(name: str, column: Any, dtype: str = "object") -> Iterable[pl.DataFrame]:
    """Cells of any kind: floats among them, and whatever holds floats: lists, arrays, mappings.

    In a column of text or of other things without floats a NaN is what pandas writes for a missing cell.
    """
    total, gaps = _NONE, _NONE
    bad: list[int] = []
    bare: list[int] = []
    others = False
    rows = 0
    for row, cell in enumerate(column):
        rows += 1
        if isinstance(cell, (float, np.floating)) and cell != cell:
            gaps = gaps.plus(_Counts(1, 1, 0))
            bare.append(row)
            continue
        counts = _cell(name, cell)
        total = total.plus(counts)
        if counts.nan or counts.inf:
            bad.append(row)
        others |= not counts.values and isinstance(cell, (*_PLAIN, bool)) and cell is not None
    if total.values or (gaps.values and not others):
        total = total.plus(gaps)
        marks = sorted([*bad, *bare])
        yield _row(name, dtype, rows, *total, (marks[0], len(marks)) if marks else ())


_WITHOUT = (str, bytes, bytearray, int, np.integer, np.bool_, np.str_, np.bytes_, np.datetime64, np.timedelta64)
_PLAIN = (
    str,
    bytes,
    bytearray,
    np.bool_,
    np.str_,
    np.bytes_,
    np.datetime64,
    np.timedelta64,
    date,
    time,
    timedelta,
    UUID,
)


def _cell(name: str, cell: Any) -> _Counts:
    """Floats in a cell; ValueError for one of which nobody knows whether it holds any."""
    if isinstance(cell, (float, np.floating)):
        return _Counts(1, int(cell != cell), int(abs(cell) == np.inf))
    if cell is None or isinstance(cell, (*_WITHOUT, *_PLAIN)):
        return _NONE
    if isinstance(cell, Decimal):
        return _Counts(1, int(cell.is_nan()), int(cell.is_infinite()))
    if isinstance(cell, (complex, np.complexfloating)):
        is_nan = bool(np.isnan(cell))
        return _Counts(1, int(is_nan), int(bool(np.isinf(cell)) and not is_nan))
    if isinstance(cell, Mapping):
        return _cells(name, cell.values())
    if isinstance(cell, (list, tuple, set, frozenset)):
        if all(type(item) is float for item in cell):
            return _array(name, np.asarray(list(cell), dtype=np.float64))
        return _cells(name, cell)
    if hasattr(cell, "drop_nulls"):  # a polars Series, as cells of lists are
        return _cells(name, cell.to_list())
    if hasattr(cell, "as_py"):  # what pyarrow has for a value
        return _cell(name, cell.as_py())
    if type(cell).__module__.startswith("pandas.") and type(cell).__name__ in ("NAType", "NaTType", "Period"):
        return _NONE
    if hasattr(cell, "closed_left") and hasattr(cell, "right"):  # an interval of pandas
        return _cells(name, (cell.left, cell.right))
    if isinstance(cell, np.ndarray) or hasattr(cell, "__array__") or hasattr(cell, "__dlpack__"):
        try:
            return _array(name, api.as_array("cell", cell))
        except TypeError as error:
            raise ValueError(f"path_or_frame: column {name!r}: {error}") from error
    if isinstance(cell, (Enum, Fraction)):
        return _NONE
    raise ValueError(
        f"path_or_frame: got {type(cell).__qualname__} in column {name!r}, want numbers, text, or lists and arrays of "
        "them; drop the column to audit the others"
    )


def _cells(name: str, cells: Iterable[Any]) -> _Counts:
    total = _NONE
    try:
        for cell in cells:
            total = total.plus(_cell(name, cell))
    except RecursionError:
        raise ValueError(f"path_or_frame: got lists in column {name!r} that are nested too deep") from None
    return total


def _array(name: str, array: Any) -> _Counts:
    if array.dtype.kind == "O":
        return _cells(name, array.reshape(-1).tolist())
    if array.dtype.names:
        return _cells(name, (array[field] for field in array.dtype.names))
    if array.dtype.name in ("float16", "float32", "float64") or api.is_bits(array):
        counted = count_nonfinite(array)
        return _Counts(array.size, counted.nan, counted.inf)
    if array.dtype.kind not in "fcV":
        return _NONE
    wide = _widened(name, array)
    is_nan = np.isnan(wide)
    return _Counts(wide.size, int(is_nan.sum()), int((np.isinf(wide) & ~is_nan).sum()))


def _widened(name: str, array: Any) -> Any:
    """Floats that numpy itself does not know (bfloat16, floats of 8 bits) as float32."""
    if array.dtype.kind != "V":
        return array
    if array.dtype.name.startswith(("bfloat", "float")):
        return array.astype(np.float32)
    raise ValueError(f"path_or_frame: got {array.dtype} in column {name!r}, want floats of a known type")
