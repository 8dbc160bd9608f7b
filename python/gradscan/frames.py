"""`scan_frame`: tables of many runs that lie in memory or come as a stream.

Everything crosses to the compiled module as batches of Arrow columns. pandas frames have a door of their own, since
their Arrow export turns NaN into null: a run that died of NaN would read as one with gaps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple
from uuid import UUID

import numpy as np
import polars as pl
import polars.selectors as cs

from gradscan import _core, arguments, assemble
from gradscan.result import Scan

__all__ = ["scan_frame"]

_BATCH = 1 << 20
"""Rows of a pandas frame that are converted at a time."""

_Pairs = list[tuple[str, str]]


def scan_frame(
    frame: Any,
    run: str | None = None,
    step: str | None = None,
    name: str | None = None,
    value: str | None = None,
    nan: Literal["missing", "damage"] | None = None,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: Literal["report", "strict", "ignore"] = "report",
    metrics: Mapping[str, str | Sequence[str]] | None = None,
    threads: int | None = None,
) -> Scan:
    """Check every run of a table in memory for NaN/Inf gradients and gradient-norm spikes.

    `frame`: anything with `__arrow_c_stream__` (polars and pyarrow tables, record batch readers, DuckDB relations), a
    polars LazyFrame, a pandas DataFrame, or a narwhals frame of one of these. Of a LazyFrame only the needed columns
    are collected, in batches.

    - Wide tables have a row a step and a column a metric, long ones a row a value with a column of metric names and
      one of values; which of them it is shows in the columns. `run`, `step`, `name` and `value` name the columns of
      run ids, of steps, of metric names and of values; None finds them by their usual names. Without a column of run
      ids the table is one run; without steps its findings name records, counted from 0 (note `no-step`).
    - Run ids are strings, dictionaries (categoricals) or integers; steps integers or floats (rounded down, note
      `fractional-step`); metrics floats of 16, 32 or 64 bits, integers, decimals, or numbers as text. A null run id
      is the run `null`.
    - Rows of one run are taken in the order of the stream, wherever they lie in it: a step that falls is a resumed or
      restarted run. How the rows are cut into chunks or batches makes no difference.
    - null is a value that was not recorded, NaN is NaN. `nan="missing"` takes NaN for not recorded as well, for tables
      from tools that have no null; `nan="damage"` says that NaN is NaN.
    - pandas: float columns of numpy write both as NaN, so NaN in them is ambiguous. Without `nan` a run that has such
      cells in a signal is `suspect` (rule `ambiguous-nan`), never `clean`. Nullable (`Float64`) and Arrow-backed
      columns tell both apart; in categories of numbers a row without one is NaN, ambiguous as well. NaN as text and as
      `Decimal` is certain. Named levels of the index are columns too, unless a column has that name. What became an
      Arrow table or a DuckDB relation of a pandas frame before it came here has lost its NaN and cannot be told apart
      from one with gaps.

    The other arguments are those of `gradscan.scan`. Memory: the table itself, which is not copied where its layout
    allows; runs whose rows lie apart from each other, and streams that can be read only once, need at most 16 bytes a
    value of the signals beside it.

    TypeError for what is no table; ValueError for a bad setting, for a column that is missing or of a wrong type, for
    run ids that are all null, and for a table without columns or rows: it says what is there and what is wanted.
    """
    if nan not in (None, "missing", "damage"):
        raise ValueError(f"nan: got {nan!r}, want 'missing', 'damage' or None")
    rules = assemble.rule_knobs(spike_ratio, min_spikes, min_points, min_norm, opening)
    columns = assemble.columns(run, step, name, value)
    pairs = arguments.metric_globs(metrics)
    threads = None if threads is None else arguments.integer("threads", threads)
    start = time.perf_counter()
    table = _opened(frame, columns, pairs, nan)
    ambiguous = table.ambiguous if nan is None else []
    meaning = "ambiguous" if ambiguous else "missing" if nan == "missing" else "value"
    try:
        tables = _core.scan_frame(
            table.batches,
            **columns,
            nan=meaning,
            ambiguous=ambiguous,
            **rules,
            metrics=pairs,
            threads=threads,
        )
    except ValueError as error:
        # A foreign stream says all that it knows, tracebacks of other people's code included.
        if "Traceback" not in (message := str(error)) or not message.startswith("frame: "):
            raise
        raise ValueError(f"frame: the stream failed: {last_line(message)}") from error
    if len(tables.runs) == 0:
        raise ValueError("frame: got no rows, want at least one")
    return assemble.finish(tables, {**rules, "metrics": pairs, **columns, "nan": nan}, time.perf_counter() - start)


def native(frame: Any) -> Any:
    """The frame or column that a narwhals one stands for; its own Arrow export would lose the NaN of pandas."""
    narwhals = sys.modules.get("narwhals")
    if narwhals is not None and isinstance(frame, (narwhals.DataFrame, narwhals.LazyFrame, narwhals.Series)):
        return frame.to_native()
    return frame


class _Table(NamedTuple):
    """A table as batches of one schema, and its columns in which NaN may mean that nothing was recorded."""

    batches: Iterable[Any]
    ambiguous: list[str]


def _opened(frame: Any, columns: assemble.Columns, pairs: _Pairs, nan: str | None) -> _Table:
    frame = native(frame)
    if isinstance(frame, pl.LazyFrame):
        schema = frame.collect_schema()
        needed = _needed(schema, columns, pairs)
        picked = frame.select(_typed(needed))
        return _Table(collected(picked, pl.Schema({column: schema[column] for column in needed})), [])
    if isinstance(frame, pl.DataFrame):
        _refuse_empty(frame.height, frame.columns)
        # What a scan needs, and no more: a column of Python objects has no Arrow type to be exported in.
        return _Table([frame.select(_typed(_needed(frame.schema, columns, pairs)))], [])
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return _PandasFrame(frame, pandas, nan).table(columns, pairs)
    if is_no_table(frame):
        raise TypeError(_no_table(frame))
    if hasattr(frame, "__arrow_c_stream__"):
        rows, names = getattr(frame, "num_rows", None), getattr(frame, "column_names", None)
        if isinstance(rows, int) and isinstance(names, list):
            _refuse_empty(rows, names)
        known = _schema_of(frame) if pairs else None
        if known is not None:
            _refuse_unmatched(known, columns, pairs)
        pyarrow = sys.modules.get("pyarrow")
        if pyarrow is not None and isinstance(frame, pyarrow.RecordBatchReader):
            return _Table(_read(frame, pyarrow), [])
        return _Table([frame], [])
    if hasattr(frame, "__arrow_c_array__"):
        return _opened(pl.DataFrame(frame), columns, pairs, nan)
    raise TypeError(_no_table(frame))


def _read(reader: Any, pyarrow: Any) -> Iterator[Any]:
    """The batches of a reader one by one: an exception of whoever fills it stays what it is, which it does not in a
    stream of Arrow."""
    yield pyarrow.Table.from_batches([], reader.schema)
    yield from reader


def _schema_of(frame: Any) -> pl.Schema | None:
    """Names and types of a stream, where they can be had without a row of it."""
    if hasattr(schema := getattr(frame, "schema", None), "empty_table"):
        frame = schema.empty_table()  # type: ignore[union-attr]
    elif type(frame).__name__ == "DuckDBPyRelation":
        frame = frame.limit(0)
    else:
        return None
    try:
        return pl.DataFrame(frame).schema
    except Exception:  # a column of a type that polars does not have
        return None


def _typed(names: Sequence[str]) -> list[pl.Expr]:
    """The columns; those of nothing but nulls get a type, since polars' export of the type Null cannot be read."""
    untyped = cs.by_name(names) & cs.by_dtype(pl.Null)
    return [(cs.by_name(names) - untyped).as_expr(), untyped.cast(pl.Float64)]


_REFUSED = pl.List(pl.Null)
"""Stands for a type that a scan cannot use, nor Arrow carry."""


def _needed(
    schema: pl.Schema, columns: assemble.Columns, pairs: _Pairs, refused: Mapping[str, str] | None = None
) -> list[str]:
    """The columns that a scan needs; `refused` are those of a type that has no name in polars, with its name."""
    odd = {name: str(dtype) for name, dtype in schema.items() if any(kind in str(dtype) for kind in _NOT_CARRIED)}
    odd |= refused or {}
    plain = pl.Schema({name: _REFUSED if name in odd else dtype for name, dtype in schema.items()})
    try:
        needed = _core.frame_columns(plain, **columns, metrics=pairs) if schema else []
    except ValueError as error:
        for name, kind in odd.items():
            said = str(error)
            if f"column {json.dumps(name, ensure_ascii=False)} of type" in said:
                raise ValueError(said.replace("LargeList(Null)", kind)) from None
        raise
    if not needed:
        raise ValueError(f"frame: got {_listed(list(schema))}, want a column of gradient norms or losses")
    _refuse_unmatched(plain, columns, pairs)
    return needed


_NOT_CARRIED = ("Object", "Int128")
"""Types of polars, alone or inside others, that Arrow does not have."""


def _refuse_unmatched(schema: pl.Schema, columns: assemble.Columns, pairs: _Pairs) -> None:
    """ValueError for a glob of `metrics` that names no column of a wide table; those of a long one are in its rows."""
    for role, glob in pairs:
        # Alternatives in braces and escapes mean more than `fnmatch` knows.
        if any(fnmatchcase(name, glob) for name in schema) or any(mark in glob for mark in "{}\\"):
            continue
        try:
            # Without text there are no names of metrics, so that a table with signals all the same is a wide one.
            _core.frame_columns(pl.Schema(dict.fromkeys(schema, pl.Float64())), **columns, metrics=pairs)
        except ValueError:
            return
        raise ValueError(f"metrics[{role!r}]: got {glob!r}, which matches none of {_listed(list(schema))}")


def _refuse_empty(rows: int, names: Sequence[str]) -> None:
    if rows == 0 and names:
        raise ValueError(f"frame: got no rows of {_listed(names)}, want at least one")


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no columns"
    some = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
    return f"the columns {some}"


def is_no_table(frame: Any) -> bool:
    """Whether it is a single column; those speak Arrow as well."""
    if isinstance(frame, pl.Series):
        return True
    pandas, pyarrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas is not None and isinstance(frame, (pandas.Series, pandas.Index)):
        return True
    return pyarrow is not None and isinstance(frame, (pyarrow.Array, pyarrow.ChunkedArray))


def _no_table(frame: Any) -> str:
    kind = type(frame)
    home = kind.__module__.partition(".")[0]
    got = kind.__qualname__ if home == "builtins" else f"{home}.{kind.__qualname__}"
    if isinstance(frame, (str, os.PathLike)):
        hint = "; files and directories are for gradscan.scan"
    elif is_no_table(frame) or isinstance(frame, (np.ndarray, Mapping, list, tuple)):
        hint = "; the arrays of one run are for gradscan.scan_series"
    else:
        hint = ""
    return f"frame: got {got}, want a polars or pandas DataFrame, a LazyFrame, or a table with __arrow_c_stream__{hint}"


def last_line(message: str) -> str:
    """The end of a message that holds a traceback; another message whole."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 and "Traceback" in message else message


def collected(frame: pl.LazyFrame, schema: pl.Schema) -> Iterator[pl.DataFrame]:
    """The batches of a query in order; one without rows if there are none.

    `collect_batches` is marked unstable: polars may change or drop it, and it is called nowhere else.
    """
    collect = getattr(frame, "collect_batches", None)
    batches = [frame.collect(engine="streaming")] if collect is None else collect(maintain_order=True)
    some = False
    for batch in batches:
        some = True
        yield batch
    if not some:
        yield pl.DataFrame(schema=schema)


# ---------------------------------------------------------------------------------------------- pandas

_Read = Callable[[Any], pl.Series]


class _Column(NamedTuple):
    """A column of a pandas frame: its values, how a part of them becomes a polars series, and whether NaN in it may
    mean that nothing was recorded."""

    name: str
    values: Any
    read: _Read
    ambiguous: bool = False
    refused: str | None = None
    """The type, where it is none that a scan can use."""

    def part(self, start: int, stop: int) -> pl.Series:
        return self.read(self.values.iloc[start:stop])


class _PandasFrame:
    """A pandas frame read column by column, without its Arrow export.

    `pandas` is the imported module: gradscan never imports it itself.
    """

    def __init__(self, frame: Any, pandas: Any, nan: str | None) -> None:
        self.frame = frame
        self.pandas = pandas
        self.nan = nan

    def table(self, columns: assemble.Columns, pairs: _Pairs) -> _Table:
        found = self.columns()
        _refuse_empty(len(self.frame), list(found))
        empty = pl.Schema(
            {name: _REFUSED if column.refused else column.part(0, 0).dtype for name, (column, _) in found.items()}
        )
        refused = {name: column.refused for name, (column, _) in found.items() if column.refused is not None}
        needed = _needed(empty, columns, pairs, refused)
        for name in needed:
            if (times := found[name][1]) > 1:
                raise ValueError(f"frame: got {times} columns named {name!r}, want one")
        chosen = [found[name][0] for name in needed]
        return _Table(self.batches(chosen), [column.name for column in chosen if column.ambiguous])

    def batches(self, columns: Sequence[_Column]) -> Iterator[pl.DataFrame]:
        for start in range(0, len(self.frame), _BATCH):
            yield pl.DataFrame([column.part(start, start + _BATCH).alias(column.name) for column in columns])

    def columns(self) -> dict[str, tuple[_Column, int]]:
        """The columns by name, and how many there are of that name; then the named levels of the index."""
        found: dict[str, tuple[_Column, int]] = {}
        for at, label in enumerate(self.frame.columns):
            name = column_name(label)
            column, times = found.get(name) or (self.column(name, self.frame.iloc[:, at]), 0)
            found[name] = column, times + 1
        index = self.frame.index
        for level, label in enumerate(index.names):
            if label is None or column_name(label) in found:
                continue
            if isinstance(index, self.pandas.MultiIndex):
                codes, known = index.codes[level], index.levels[level]
                values = self.pandas.Categorical.from_codes(codes, known)
            else:
                values = index.array
            found[column_name(label)] = self.column(column_name(label), self.pandas.Series(values)), 1
        return found

    def column(self, name: str, values: Any) -> _Column:
        pandas, dtype = self.pandas, values.dtype
        if isinstance(dtype, pandas.CategoricalDtype):
            categories = self.column(name, pandas.Series(values.cat.categories))
            if categories.refused is not None:
                return _no_column(name, values, f"categories of {categories.refused}")
            known = categories.part(0, len(categories.values))
            # NaN is no category: a row without one holds it, or nothing. Text says "NaN" where it means that.
            # Large whole numbers are ids and no metrics; as floats two of them could become one.
            gaps = known.dtype.is_numeric() and bool((values.cat.codes < 0).any()) and not _is_wide(known)
            if gaps:
                known = known.cast(pl.Float64).extend(pl.Series([np.nan]))
            return _Column(name, values, lambda part: _categories(part.cat.codes.to_numpy(), known, gaps), gaps)
        if isinstance(dtype, pandas.ArrowDtype) or (
            isinstance(dtype, pandas.StringDtype) and dtype.storage.startswith("pyarrow")
        ):
            try:
                pl.Series(values.array[:0].__arrow_array__())
            except Exception:  # whatever polars makes of a type that it does not have
                return _no_column(name, values, str(dtype))
            return _Column(name, values, lambda part: pl.Series(part.array.__arrow_array__()))
        if isinstance(dtype, pandas.StringDtype):
            return _Column(name, values, lambda part: _texts(part.to_numpy(object), part.isna().to_numpy()))
        if isinstance(dtype, pandas.DatetimeTZDtype):
            return _Column(name, values, lambda part: _numpy(part.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()))
        if isinstance(values.array, (pandas.arrays.IntegerArray, pandas.arrays.FloatingArray)):
            plain = dtype.numpy_dtype
            return _Column(
                name,
                values,
                lambda part: _masked(part.to_numpy(plain, na_value=plain.type(0)), part.isna().to_numpy()),
            )
        if isinstance(values.array, pandas.arrays.BooleanArray):
            return _Column(
                name, values, lambda part: _masked(part.to_numpy(bool, na_value=False), part.isna().to_numpy())
            )
        if isinstance(dtype, np.dtype) and dtype.kind == "O":
            return self.objects(name, values)
        if getattr(dtype, "name", "") == "bfloat16":
            return _Column(name, values, lambda part: _numpy(part.to_numpy().astype(np.float32)), ambiguous=True)
        kind = values.iloc[:0].to_numpy().dtype.kind  # sparse columns become dense ones
        if kind in "fiubMm":
            return _Column(name, values, lambda part: _numpy(part.to_numpy()), ambiguous=kind == "f")
        return _no_column(name, values, str(dtype))

    def objects(self, name: str, values: Any) -> _Column:
        """A column of Python objects, by what is in it."""
        kind = self.pandas.api.types.infer_dtype(values, skipna=True)

        def missing(cells: Any) -> Any:
            absent = np.array(self.pandas.isna(cells))
            plain = np.asarray(cells, dtype=object)
            # A Decimal that is NaN was written by somebody, though pandas takes it for a gap.
            for at in np.flatnonzero(absent).tolist():
                absent[at] = not isinstance(plain[at], Decimal)
            return absent

        if kind == "string":
            return _Column(name, values, lambda part: _texts(part.to_numpy(), missing(part.to_numpy())))
        if kind in ("mixed", "mixed-integer"):
            # Text beside numbers, where "NaN" as text is certain and NaN as a number is not.
            both = any(_is_nan(cell) for cell in values[missing(values)])
            as_nan = None if self.nan == "missing" else "NaN"
            return _Column(name, values, lambda part: _mixed(name, part, missing(part.to_numpy()), as_nan), both)
        if kind in ("floating", "integer", "mixed-integer-float", "decimal", "boolean", "empty"):
            nan = any(_is_nan(cell) for cell in values[missing(values)])
            whole = kind == "integer" and not nan and _fits(values, missing)
            dtype = np.int64 if whole else np.float64
            return _Column(name, values, lambda part: _numbers(part.to_numpy(), missing(part.to_numpy()), dtype), nan)
        if kind in ("datetime", "datetime64", "date"):
            return _Column(name, values, lambda part: _times(part, missing(part.to_numpy())))
        return _no_column(name, values, kind)


def column_name(label: Any) -> str:
    """The name of a column; the levels of one with several are joined as the parts of a metric's name are."""
    if isinstance(label, tuple):
        return "/".join(str(part) for part in label if part != "")
    return str(label)


def _no_column(name: str, values: Any, kind: str) -> _Column:
    """A column of another type: of no harm as long as nobody asks for it."""

    def read(_: Any) -> pl.Series:
        raise ValueError(f"frame: got column {name!r} of {kind}, want numbers or strings")

    return _Column(name, values, read, refused=kind)


def _numpy(array: np.ndarray[Any, Any]) -> pl.Series:
    """Without making NaN null; times to a unit that polars has."""
    kind = array.dtype.kind
    if kind in "Mm" and np.datetime_data(array.dtype)[0] not in ("ms", "us", "ns"):
        array = array.astype(f"{array.dtype.kind}8[ms]")
    elif kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return pl.Series(array, nan_to_null=False)


def _masked(array: np.ndarray[Any, Any], missing: np.ndarray[Any, Any]) -> pl.Series:
    """The values with null where `missing`; NaN elsewhere stays NaN."""
    values = _numpy(array)
    if not missing.any():
        return values
    return pl.select(pl.when(pl.Series(~missing)).then(values)).to_series()


def _is_wide(known: pl.Series) -> bool:
    return known.dtype.is_integer() and bool((known.cast(pl.Float64).abs() >= 2.0**53).any())


def _categories(codes: np.ndarray[Any, Any], known: pl.Series, gaps: bool) -> pl.Series:
    """The category of each row; for rows without one null, or with `gaps` the last of all."""
    rows = pl.Series(codes.astype(np.int64))
    if gaps:
        rows = pl.select(pl.when(rows < 0).then(len(known) - 1).otherwise(rows)).to_series()
    return known.gather(pl.select(pl.when(rows >= 0).then(rows).cast(pl.UInt32)).to_series())


def _texts(cells: np.ndarray[Any, Any], missing: np.ndarray[Any, Any]) -> pl.Series:
    cells = cells.copy()
    cells[missing] = None
    return pl.Series(cells.tolist(), dtype=pl.String)


def _is_nan(cell: Any) -> bool:
    """Whether a missing cell is NaN, and not None, NA or NaT."""
    return isinstance(cell, (float, np.floating))


def _mixed(name: str, part: Any, missing: np.ndarray[Any, Any], as_nan: str | None) -> pl.Series:
    """Text and numbers as text; a float has the shortest digits that read as the same float."""
    texts: list[str | None] = []
    for cell, absent in zip(part, missing, strict=True):
        if absent:
            texts.append(as_nan if _is_nan(cell) else None)
        elif isinstance(cell, (str, UUID)):
            texts.append(str(cell))
        elif isinstance(cell, Decimal):
            texts.append("NaN" if cell.is_nan() else str(cell))
        elif isinstance(cell, (bool, int, float, np.number)):
            texts.append(str(float(cell) if isinstance(cell, (float, np.floating)) else int(cell)))
        else:
            raise ValueError(f"frame: got {type(cell).__qualname__} in column {name!r}, want numbers or strings")
    return pl.Series(texts, dtype=pl.String)


def _fits(values: Any, missing: Callable[[Any], Any]) -> bool:
    try:
        values[~missing(values)].to_numpy().astype(np.int64)
    except OverflowError:
        return False
    return True


def _numbers(cells: np.ndarray[Any, Any], missing: np.ndarray[Any, Any], dtype: type[Any]) -> pl.Series:
    """Numbers with null where None or NA stands; NaN stays NaN."""
    filled = np.where(missing, 0, cells).astype(dtype)
    nulls = missing.copy()
    for at in np.flatnonzero(missing).tolist():
        if _is_nan(cells[at]):
            filled[at], nulls[at] = np.nan, False
    return _masked(filled, nulls)


def _times(part: Any, missing: np.ndarray[Any, Any]) -> pl.Series:
    cells = [None if absent else cell for cell, absent in zip(part, missing, strict=True)]
    return pl.Series(cells, dtype=pl.Datetime("us"), strict=False)
