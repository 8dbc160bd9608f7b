"""`scan_frame`: tables in memory against a plain reference, every kind of frame, and what pandas cannot say."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import uuid4

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from polars.testing import assert_frame_equal

import gradscan as gs
from conftest import Count
from makers import jsonl, norms
from rules_twin import Knobs, judge, only_falls, split
from test_rules_reference import KNOBS, recordings, rows_of_scan, rows_of_twin

NAN, INF = math.nan, math.inf

# --- Random tables against the twin ----------------------------------------------------------------------------------

FLOATS: dict[str, Any] = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
WHOLE: dict[str, Any] = {"int8": np.int8, "int32": np.int32, "int64": np.int64, "uint16": np.uint16}
RUN_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "wide dictionary": pa.dictionary(pa.uint64(), pa.large_string()),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
}
STEP_TYPES = [pa.int64(), pa.int32(), pa.uint32(), pa.float64(), pa.float32()]
KINDS = ["polars", "lazy", "table", "batches", "reader", "duckdb"]


@dataclass
class Row:
    run: int
    step: int
    norm: float | None
    loss: float | None


@dataclass
class Archive:
    """Runs by number: what a reference needs, and their rows in the order of a table."""

    series: dict[int, tuple[list[int], list[float]]]
    rows: list[Row]


def narrowed(values: Sequence[float], dtype: str) -> list[float]:
    """The values that a column of that type can hold."""
    if dtype in WHOLE:
        info = np.iinfo(WHOLE[dtype])
        fine = [value if math.isfinite(value) else 3.0 for value in values]
        return [float(min(max(round(value), info.min, -1), info.max, 2**53)) for value in fine]
    with np.errstate(over="ignore"):
        wide: list[float] = np.array(values).astype(FLOATS[dtype]).astype(np.float64).tolist()
    return wide


def distinct(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Drops rows that repeat another one: readers take a row that comes again for a copy, arrays have no copies."""
    kept = {(step, repr(value)): (step, value) for step, value in zip(steps, values, strict=True)}
    return [step for step, _ in kept.values()], [value for _, value in kept.values()]


@st.composite
def archives(draw: st.DrawFn, dtype: str, *, gaps: bool) -> Archive:
    """One to four runs, whose rows lie one after the other, in turns, or shuffled; in a run they keep their order.

    With `gaps`, rows without a gradient norm lie between the others, as those of an evaluation do.
    """
    series: dict[int, tuple[list[int], list[float]]] = {}
    per_run: list[list[Row]] = []
    for run in range(draw(st.integers(1, 4))):
        steps, values = draw(recordings())
        series[run] = steps, values = distinct(steps, narrowed(values, dtype))
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        empty = rng.random(len(steps)) < 0.3 if gaps and not only_falls(steps) else np.zeros(len(steps), bool)
        rows: list[Row] = []
        for k, (step, value) in enumerate(zip(steps, values, strict=True)):
            rows.append(Row(run, step, value, 1.0 + float(rng.random())))
            if empty[k]:
                rows.append(Row(run, step, None, None))
        per_run.append(rows)
    layout = draw(st.sampled_from(["contiguous", "turns", "shuffled"]))
    if layout == "contiguous":
        order = [run for run, rows in enumerate(per_run) for _ in rows]
    else:
        order = [run for k in range(max(map(len, per_run))) for run, rows in enumerate(per_run) if k < len(rows)]
        if layout == "shuffled":
            order = draw(st.randoms(use_true_random=False)).sample(order, len(order))
    turns = [iter(rows) for rows in per_run]
    return Archive(series, [next(turns[run]) for run in order])


def cut(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """The same rows in chunks that begin at `places`: slices of one buffer, so that most have an offset."""
    bounds = [0, *sorted({place % (len(table) + 1) for place in places}), len(table)]
    parts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    return pa.Table.from_batches([batch for part in parts for batch in part.to_batches()], table.schema)


def presented(table: pa.Table, kind: str) -> Any:
    """A pyarrow table as another kind of frame."""
    if kind == "polars":
        return pl.DataFrame(table)
    if kind == "lazy":
        return pl.DataFrame(table).lazy()
    if kind == "batches":  # only what the protocol asks for
        return type("Stream", (), {"__arrow_c_stream__": lambda _, requested_schema=None: table.__arrow_c_stream__()})()
    if kind == "reader":
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    if kind == "duckdb" and pa.float16() not in table.schema.types:  # DuckDB has no such type
        return duckdb.from_arrow(table)
    return table


def typed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Text or whole numbers as a column of that type."""
    if pa.types.is_dictionary(kind):
        index = {value: k for k, value in enumerate(dict.fromkeys(value for value in values if value is not None))}
        codes = pa.array([None if value is None else index[value] for value in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(index), kind.value_type))
    return pa.array(values, kind)


def numbers(values: Sequence[float | None], dtype: str) -> pa.Array:
    """Floats or integers of that type, None as null and NaN as NaN."""
    mask = np.array([value is None for value in values])
    filled = np.array([0.0 if value is None else value for value in values])
    with np.errstate(over="ignore"):
        return pa.array(filled.astype(FLOATS.get(dtype) or WHOLE[dtype]), mask=mask, from_pandas=False)


def id_of(run: int, kind: str) -> Any:
    return run if kind in ("int64", "uint8") else f"team/run {run} é"


OPTIONS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*FLOATS, *FLOATS, *WHOLE]),
        "ids": st.sampled_from(sorted(RUN_TYPES)),
        "steps": st.sampled_from(STEP_TYPES),
        "kind": st.sampled_from(KINDS),
        "cuts": st.lists(st.integers(0, 10_000), max_size=8),
        "knobs": KNOBS,
        "threads": st.sampled_from([1, 2, None]),
    }
)


def compare_with_twin(scan: gs.Scan, archive: Archive, ids: str, knobs: Knobs, seen: dict[str, int]) -> None:
    assert sorted(scan) == sorted(str(id_of(run, ids)) for run in archive.series)
    for run, (steps, values) in archive.series.items():
        found = scan[str(id_of(run, ids))]
        trainings = judge(steps, values, knobs)
        want = rows_of_twin(trainings)
        only = pl.DataFrame(scan.findings).filter(pl.col("run") == found.run)
        assert rows_of_scan(gs.Scan(runs=scan.runs, findings=only)) == want
        series = found.series.filter(pl.col("role") == "grad_norm")
        assert series["n"].sum() == len(values)
        assert series["nan"].sum() == sum(t.nan for t in trainings)
        assert series["inf"].sum() == sum(t.inf for t in trainings)
        if len(trainings) == 1:
            (row,) = series.iter_rows(named=True)
            assert row["median"] == trainings[0].median
            assert row["max"] == max(filter(math.isfinite, values), default=None)
            assert row["spikes"] == trainings[0].spikes
            assert (row["first_step"], row["last_step"]) == (trainings[0].rows[0][0], max(steps))
        assert ("interleaved" in found.notes) == split(steps, values)[1]
        assert found.attempts == max((row[2] for t in trainings for row in t.rows), default=0)
        fired = {(row[0], row[9]) for row in want}
        damaged = ("nonfinite", None) in fired or ("spikes", "run") in fired
        assert (found.status == "damaged") == damaged
        assert (found.status == "opening") == (bool(fired) and not damaged)
        seen["runs"] += 1
        seen["restarted"] += len(trainings) > 1
        seen["interleaved"] += split(steps, values)[1]
        for check in ("nonfinite", "spikes"):
            seen[check] += any(row[0] == check for row in want)


def test_wide_tables_equal_the_twin(count: Count) -> None:
    seen = dict.fromkeys(["runs", "restarted", "interleaved", "nonfinite", "spikes", "null"], 0)

    @settings(max_examples=250)
    @given(st.data(), OPTIONS)
    def compare(data: st.DataObject, options: dict[str, Any]) -> None:
        archive = data.draw(archives(options["dtype"], gaps=True))
        rows, ids = archive.rows, options["ids"]
        columns = {
            "note": pa.array([f"row {k}" for k in range(len(rows))]),
            "step": typed([row.step for row in rows], pa.int64()).cast(options["steps"]),
            "run_id": typed([id_of(row.run, ids) for row in rows], RUN_TYPES[ids]),
            "eval/loss": pa.array([2.0 + k if row.norm is None else None for k, row in enumerate(rows)]),
            "train/grad_norm": numbers([row.norm for row in rows], options["dtype"]),
            "tags": pa.array([["a", None]] * len(rows)),
        }
        table = cut(pa.table(columns), options["cuts"])
        frame = presented(table, options["kind"])
        knobs: Knobs = options["knobs"]
        scan = gs.scan_frame(frame, **vars(knobs), threads=options["threads"])
        assert set(scan.runs["step_name"]) == {"step"}
        compare_with_twin(scan, archive, ids, knobs, seen)
        seen["null"] += sum(row.norm is None for row in rows)

    compare()
    for what, number in seen.items():
        count(f"generated {what}: wide frames with the twin", number)


def test_long_tables_equal_the_twin(count: Count) -> None:
    seen = dict.fromkeys(["runs", "restarted", "interleaved", "nonfinite", "spikes"], 0)

    @settings(max_examples=250)
    @given(st.data(), OPTIONS, st.booleans(), st.sampled_from(["string", "string_view", "dictionary"]))
    def compare(data: st.DataObject, options: dict[str, Any], by_metric: bool, names: str) -> None:
        dtype = options["dtype"] if options["dtype"] in FLOATS else "float64"
        archive = data.draw(archives(dtype, gaps=False))
        ids = options["ids"]
        rows: list[tuple[Row, str, float | None]] = []
        for row in archive.rows:
            rows += [(row, "lr", None), (row, "loss", row.loss), (row, "grad_norm", row.norm)]
        if by_metric:  # as `unpivot` leaves them
            rows.sort(key=lambda item: item[1])
        columns = {
            "run": typed([id_of(row.run, ids) for row, _, _ in rows], RUN_TYPES[ids]),
            "step": typed([row.step for row, _, _ in rows], pa.int64()).cast(options["steps"]),
            "metric": typed([name for _, name, _ in rows], RUN_TYPES[names]),
            "value": numbers([value for _, _, value in rows], dtype),
        }
        table = cut(pa.table(columns), options["cuts"])
        knobs: Knobs = options["knobs"]
        scan = gs.scan_frame(presented(table, options["kind"]), **vars(knobs), threads=options["threads"])
        compare_with_twin(scan, archive, ids, knobs, seen)

    compare()
    for what, number in seen.items():
        count(f"generated {what}: long frames with the twin", number)


NOT_COMPARED = {"id", "run", "directory", "source", "format", "first_place", "bytes", "explanation", "actions"}


def told(scan: gs.Scan, run: str | None = None) -> dict[str, pl.DataFrame]:
    """All that a scan says of a run, or of all, but for where it was read."""
    out = {}
    for name in ("runs", "series", "findings", "suspicions"):
        table = scan.table(name) if run is None else scan.table(name).filter(pl.col("run") == run)
        if name == "series":  # else as their columns come
            table = table.sort("run", "role", "metric")
        out[name] = table.drop(NOT_COMPARED if run is not None else NOT_COMPARED - {"run"}, strict=False)
    return out


def same(ours: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    for name, table in ours.items():
        assert len(table) == len(other[name]), f"{name}: {table} and {other[name]}"
        assert_frame_equal(table, other[name], check_exact=True)


def test_every_field_equals_a_scan_of_the_arrays(count: Count) -> None:
    """With a loss and a counter: all columns of `runs`, `series` and `findings`, run by run."""
    seen = {"runs": 0, "findings": 0, "with a bad loss": 0, "with a count": 0}

    @settings(max_examples=150)
    @given(st.data(), st.sampled_from(sorted(FLOATS)), st.sampled_from(KINDS), st.lists(st.integers(0, 10_000)))
    def compare(data: st.DataObject, dtype: str, kind: str, cuts: list[int]) -> None:
        archive = data.draw(archives(dtype, gaps=False))
        place = st.integers(0, len(archive.rows) - 1)
        for k, value in data.draw(st.lists(st.tuples(place, st.sampled_from([NAN, INF, 0.0])), max_size=3)):
            archive.rows[k].loss = value
        counts = np.zeros(len(archive.rows), np.int64)
        counts[data.draw(st.lists(place, max_size=2))] = 7
        columns = {
            "run": pa.array([f"r{row.run}" for row in archive.rows]),
            "global_step": pa.array([row.step for row in archive.rows]),
            "nan_count": pa.array(counts),
            "grad_norm": numbers([row.norm for row in archive.rows], dtype),
            "loss": pa.array([row.loss for row in archive.rows], from_pandas=False),
        }
        scan = gs.scan_frame(presented(cut(pa.table(columns), cuts), kind))
        for run in archive.series:
            at = [k for k, row in enumerate(archive.rows) if row.run == run]
            arrays = {name: column.take(at).to_numpy() for name, column in columns.items() if name != "run"}
            arrays["steps"] = arrays.pop("global_step")
            alone = gs.scan_series(**arrays)
            got, want = told(scan, f"r{run}"), told(alone, "run")
            # Arrays have no names of columns to find a step by, and no time.
            got["runs"], want["runs"] = (frame["runs"].drop("step_name", "name") for frame in (got, want))
            same(got, want)
            seen["runs"] += 1
            seen["findings"] += len(want["findings"])
            seen["with a bad loss"] += not np.isfinite(arrays["loss"]).all()
            seen["with a count"] += bool(arrays["nan_count"].any())

    compare()
    for what, number in seen.items():
        count(f"generated {what}: frames with scan_series", number)


def test_every_field_equals_a_scan_of_json_lines(count: Count, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same rows as a file a run, whose reader knows no tables: nulls in any cell, rows without any value."""
    seen = {"runs": 0, "findings": 0, "null": 0, "empty rows": 0}

    @settings(max_examples=150)
    @given(st.data(), st.sampled_from(KINDS), st.lists(st.integers(0, 10_000)), st.integers(0, 2**16))
    def compare(data: st.DataObject, kind: str, cuts: list[int], seed: int) -> None:
        archive = data.draw(archives("float64", gaps=True))
        rng = np.random.default_rng(seed)
        share = data.draw(st.sampled_from([0.0, 0.1, 0.6]))
        for row in archive.rows:
            row.loss = None if rng.random() < share else NAN if rng.random() < 0.01 else row.loss
            row.norm = None if rng.random() < share else row.norm
        columns = {
            "run": pa.array([f"r{row.run}" for row in archive.rows]),
            "step": pa.array([row.step for row in archive.rows]),
            "grad_norm": numbers([row.norm for row in archive.rows], "float64"),
            "loss": numbers([row.loss for row in archive.rows], "float64"),
        }
        scan = gs.scan_frame(presented(cut(pa.table(columns), cuts), kind))
        folder = tmp_path_factory.mktemp("lines")
        for run in archive.series:
            rows = [row for row in archive.rows if row.run == run]
            cells = ({"step": row.step, "grad_norm": row.norm, "loss": row.loss} for row in rows)
            lines = ({name: cell for name, cell in line.items() if cell is not None} for line in cells)
            jsonl(folder / f"r{run}.jsonl", lines)
            seen["null"] += sum((row.norm is None) != (row.loss is None) for row in rows)
            seen["empty rows"] += sum(row.norm is None and row.loss is None for row in rows)
        files = gs.scan(folder, progress=False)
        for run in archive.series:
            if all(row.norm is None and row.loss is None for row in archive.rows if row.run == run):
                assert scan[f"r{run}"].status == "not_assessable"  # nothing tells that the file is a recording
                continue
            got, want = told(scan, f"r{run}"), told(files, f"r{run}.jsonl")
            got["runs"], want["runs"] = (frame["runs"].drop("name") for frame in (got, want))
            same(got, want)
            seen["runs"] += 1
            seen["findings"] += len(want["findings"])

    compare()
    for what, number in seen.items():
        count(f"generated {what}: frames with JSON Lines", number)


# --- Every kind of frame ---------------------------------------------------------------------------------------------


def plain() -> pl.DataFrame:
    """Four runs: clean, one that dies of NaN, one with spikes, one with gaps; in turns."""
    rows = 60
    columns: dict[str, list[Any]] = {
        "clean": norms(rows, 1),
        "dead": norms(rows, 2, dict.fromkeys(range(40, 60), NAN)),
        "spiky": norms(rows, 3, {45: 90.0, 50: 120.0, 55: INF, 58: 80.0}),
        "gaps": [None if k % 7 == 3 else norm for k, norm in enumerate(norms(rows, 4))],
    }
    return pl.DataFrame(
        {
            "run": [run for _ in range(rows) for run in columns],
            "step": [10 * (k + 1) for k in range(rows) for _ in columns],
            "grad_norm": [columns[run][k] for k in range(rows) for run in columns],
            "loss": [2.0 - k / 100 for k in range(rows) for _ in columns],
        }
    )


WANT = {"clean": "clean", "dead": "damaged", "spiky": "damaged", "gaps": "clean"}


def masked(frame: pl.DataFrame) -> Any:
    """pandas with nullable columns."""
    values = frame["grad_norm"]
    floats = pd.arrays.FloatingArray(values.fill_null(0.0).to_numpy().copy(), values.is_null().to_numpy())
    loss = pd.array(frame["loss"].to_numpy(), dtype="Float64")
    steps = pd.array(frame["step"].to_list(), dtype="Int64")
    return pd.DataFrame({"run": frame["run"].to_list(), "step": steps, "grad_norm": floats, "loss": loss})


def arrow_backed(frame: pl.DataFrame) -> Any:
    table = frame.to_arrow()
    return pd.DataFrame({name: pd.Series(pd.arrays.ArrowExtensionArray(table[name])) for name in table.column_names})


def objects(frame: pl.DataFrame) -> Any:
    """pandas with Python objects: None for null, "NaN" as text."""
    cells = ["NaN" if norm is not None and norm != norm else norm for norm in frame["grad_norm"]]
    return pd.DataFrame({name: pd.Series(frame[name].to_list(), dtype=object) for name in frame.columns}).assign(
        grad_norm=pd.Series(cells, dtype=object)
    )


def unaligned(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns whose chunks end at different rows."""
    loss = pl.concat([frame["loss"][:50], frame["loss"][50:]], rechunk=False)
    chunked: pl.DataFrame = pl.concat([frame[:33], frame[33:34], frame[34:]], rechunk=False).with_columns(loss)
    return chunked


SOURCES: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda f: f,
    "polars, in chunks": unaligned,
    "polars, a slice": lambda f: pl.concat([f[:9], f, f[:5]]).slice(9, len(f)),
    "polars, categories": lambda f: f.with_columns(pl.col("run").cast(pl.Categorical)),
    "polars, an enumeration": lambda f: f.with_columns(pl.col("run").cast(pl.Enum(sorted(WANT)))),
    "polars, with wide integers": lambda f: f.with_columns(
        pl.lit(1).cast(pl.Int128).alias("a"), pl.concat_list(pl.lit(1).cast(pl.Int128)).alias("b")
    ),
    "polars, with objects": lambda f: f.with_columns(pl.Series("any", [object()] * len(f), dtype=pl.Object)),
    "lazy": lambda f: f.lazy(),
    "lazy, with a filter": lambda f: (
        pl.concat([f, f.with_columns(run=pl.lit("x"))]).lazy().filter(pl.col("run") != "x")
    ),
    "pyarrow table": lambda f: f.to_arrow(),
    "pyarrow table, a slice": lambda f: pl.concat([f[:9], f, f[:5]]).to_arrow().slice(9, len(f)),
    "pyarrow batch": lambda f: f.rechunk().to_arrow().combine_chunks().to_batches()[0],
    "record batch reader": lambda f: pa.RecordBatchReader.from_batches(
        f.to_arrow().schema, f.to_arrow().to_batches(max_chunksize=7)
    ),
    "only __arrow_c_array__": lambda f: type(
        "Batch", (), {"__arrow_c_array__": f.rechunk().to_arrow().combine_chunks().to_batches()[0].__arrow_c_array__}
    )(),
    "duckdb": lambda f: duckdb.from_arrow(f.to_arrow()),
    "narwhals": nw.from_native,
    "narwhals, lazy": lambda f: nw.from_native(f.lazy()),
    "narwhals of pandas": lambda f: nw.from_native(masked(f)),
    "pandas, nullable": masked,
    "pandas, Arrow": arrow_backed,
    "pandas, objects": objects,
    "pandas, categories": lambda f: masked(f).astype({"run": "category"}),
    "pandas, index of steps": lambda f: masked(f).set_index("step"),
    "pandas, index of runs and steps": lambda f: masked(f).set_index(["run", "step"]),
    "pandas, index beside its column": lambda f: masked(f).set_index("step", drop=False),
    "pandas, odd index": lambda f: masked(f).set_index(pd.Index(range(len(f), 0, -1))),
    "pandas, text of Python": lambda f: masked(f).astype({"run": pd.StringDtype("python")}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_sources_say_the_same(source: str) -> None:
    want = gs.scan_frame(plain())
    assert dict(want.runs.select("run", "status").iter_rows()) == WANT
    scan = gs.scan_frame(SOURCES[source](plain()))
    same(told(scan), told(want))


def test_a_long_frame_of_pandas() -> None:
    long = plain().unpivot(index=["run", "step"], variable_name="name", value_name="value")
    frame = long.to_pandas(use_pyarrow_extension_array=True)
    assert dict(gs.scan_frame(frame).runs.select("run", "status").iter_rows()) == WANT
    plainly = pd.DataFrame({name: long[name].to_numpy() for name in long.columns})
    got = dict(gs.scan_frame(plainly, nan="missing").runs.select("run", "status").iter_rows())
    assert got == WANT | {"dead": "clean"}


def test_big_pandas_frames_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscan.frames._BATCH", 7)
    same(told(gs.scan_frame(arrow_backed(plain()))), told(gs.scan_frame(plain())))
    got = gs.scan_frame(objects(plain()).assign(run=pd.Categorical(plain()["run"].to_list())))
    same(told(got), told(gs.scan_frame(plain())))


def test_columns_that_nobody_needs_do_no_harm() -> None:
    rows = len(plain())
    intervals = pa.array([(1, 2, 3)] * rows, pa.month_day_nano_interval())
    frame = masked(plain()).assign(
        note="text",
        config=[{"lr": 1}] * rows,
        bins=pd.cut(np.arange(rows), 4),
        complex=np.ones(rows, complex),
        period=pd.period_range("2020", periods=rows, freq="D"),
        interval=pd.Series(pd.arrays.ArrowExtensionArray(intervals)),
        when=pd.date_range("2020", periods=rows, tz="Europe/Berlin"),
        second=pd.date_range("2020", periods=rows).astype("datetime64[s]"),
        took=pd.to_timedelta(np.arange(rows), unit="s"),
        flag=pd.array([True, None] * (rows // 2), dtype="boolean"),
        wide=np.ones(rows, np.longdouble),
        swapped=np.ones(rows, ">f8"),
        days=pd.Series([date(2020, 1, 1), None] * (rows // 2), dtype=object),
    )
    same(told(gs.scan_frame(frame)), told(gs.scan_frame(plain())))


def test_columns_by_other_names() -> None:
    names = {"run": "who", "step": "when", "grad_norm": "size of the gradient", "loss": "penalty"}
    frame = plain().rename(names)
    metrics = {"grad_norm": "size*", "loss": "penalty"}
    scan = gs.scan_frame(frame, run="who", step="when", metrics=metrics)
    assert dict(scan.runs.select("run", "status").iter_rows()) == WANT
    assert set(scan.runs["step_name"]) == {"when"}
    long = frame.unpivot(index=["who", "when"], variable_name="what", value_name="how much")
    scan = gs.scan_frame(long, run="who", step="when", name="what", value="how much", metrics=metrics)
    assert dict(scan.runs.select("run", "status").iter_rows()) == WANT


def test_rows_without_a_run_id_are_a_run() -> None:
    frame = plain().with_columns(pl.when(pl.col("run") != "dead").then(pl.col("run")).alias("run"))
    want = {"null" if run == "dead" else run: status for run, status in WANT.items()}
    for source in (
        "polars",
        "pandas, nullable",
        "pandas, objects",
        "pandas, categories",
        "pandas, index of runs and steps",
    ):
        scan = gs.scan_frame(SOURCES[source](frame))
        assert dict(scan.runs.select("run", "status").iter_rows()) == want, source


def test_without_a_run_column_it_is_one_run() -> None:
    scan = gs.scan_frame(plain().filter(pl.col("run") == "dead").drop("run"))
    assert scan.runs["status"].to_list() == ["damaged"]
    assert scan.findings["first_step"].to_list() == [410]
    numbered = gs.scan_frame(plain().filter(pl.col("run") == "dead").select("grad_norm"))
    assert numbered.findings.select("first_step", "first_record", "first_place").rows() == [(None, 40, "row 40")]
    assert "no-step" in numbered.runs["notes"][0]


def test_single_precision_and_integers_keep_their_values() -> None:
    frame = plain().with_columns(pl.col("grad_norm").cast(pl.Float32), pl.col("step").cast(pl.Float64) + 0.5)
    scan = gs.scan_frame(frame)
    assert scan["dead"].first_step == 410
    assert "fractional-step" in scan["dead"].notes
    finite = frame.filter(pl.col("run") == "clean")["grad_norm"].cast(pl.Float64)
    assert scan["clean"].series.filter(pl.col("role") == "grad_norm")["median"].to_list() == [finite.median()]


def test_a_scan_of_a_frame_is_a_scan(tmp_path: Any) -> None:
    scan = gs.scan_frame(plain(), spike_ratio=20.0, threads=1)
    assert scan.knobs["spike_ratio"] == 20.0
    assert scan.knobs["nan"] is None
    assert scan.seconds > 0
    assert len(scan) == 4
    assert str(scan["dead"].explanation).startswith("grad_norm is NaN from step 410 on (20 of 60 rows)")
    with pytest.raises(gs.GradPathologyError, match="nonfinite in grad_norm at step"):
        scan.raise_if_damaged()
    for suffix in ("json", "md", "html", "csv", "txt", "parquet"):
        scan.write(tmp_path / f"report.{suffix}")
        assert (tmp_path / f"report.{suffix}").stat().st_size > 100


# --- NaN in pandas ---------------------------------------------------------------------------------------------------


def numpy_backed(frame: pl.DataFrame) -> Any:
    """pandas as most people have it: null and NaN are one."""
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


AMBIGUOUS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "floats": numpy_backed,
    "float32": lambda f: numpy_backed(f).astype({"grad_norm": np.float32}),
    "objects": lambda f: numpy_backed(f).astype({"grad_norm": object}),
    "sparse": lambda f: numpy_backed(f).astype({"grad_norm": pd.SparseDtype(np.float64, 0.0)}),
    "an index": lambda f: numpy_backed(f).set_index(["run", "step"]),
    "narwhals": lambda f: nw.from_native(numpy_backed(f)),
}


@pytest.mark.parametrize("source", AMBIGUOUS)
def test_nan_of_pandas_is_ambiguous(source: str) -> None:
    frame = AMBIGUOUS[source](plain())
    scan = gs.scan_frame(frame)
    # Inf is no gap, and a run without NaN is what it is.
    assert dict(scan.runs.select("run", "status").iter_rows()) == WANT | {"dead": "suspect", "gaps": "suspect"}
    assert scan["gaps"].findings.is_empty()
    rows = {row["run"]: row for row in scan.suspicions.iter_rows(named=True)}
    assert set(rows) >= {"dead", "gaps"}
    assert {row["rule"] for row in rows.values()} == {"ambiguous-nan"}
    dead = rows["dead"]
    assert (dead["metric"], dead["first_step"], dead["last_good_step"], dead["severity"]) == (
        *("grad_norm", 410, 400, "warning"),
    )
    assert dead["sentence"] == (
        "grad_norm has cells that are NaN or were not recorded, which look the same in a column of pandas "
        "(scan_frame with nan='damage' or nan='missing' says which it is) and as null in a log of wandb before 0.28.1; "
        "from step 410, last good step 400."
    )
    damage = gs.scan_frame(frame, nan="damage")
    assert dict(damage.runs.select("run", "status").iter_rows()) == WANT | {"gaps": "damaged"}
    assert damage["dead"].findings["first_step"].to_list() == [410]
    assert damage.suspicions.is_empty()
    missing = gs.scan_frame(frame, nan="missing")
    assert dict(missing.runs.select("run", "status").iter_rows()) == WANT | {"dead": "clean"}
    assert missing["gaps"].series["nan"].to_list() == [0, 0]


@pytest.mark.parametrize("rows", [1, 7, 161, 163])
def test_ambiguous_nan_in_parts(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """The good step before an ambiguous cell may lie in another batch."""
    want = told(gs.scan_frame(numpy_backed(plain())))
    monkeypatch.setattr("gradscan.frames._BATCH", rows)
    same(told(gs.scan_frame(numpy_backed(plain()))), want)


def test_nan_of_a_loss_is_ambiguous_too() -> None:
    """Never clean, whichever signal it is in; other columns do no harm."""
    frame = numpy_backed(plain().filter(pl.col("run") == "clean"))
    frame["lr"] = np.where(frame["step"] == 100, np.nan, 0.1)
    frame["eval_loss"] = np.where(frame["step"] % 100 == 0, 1.5, np.nan)
    assert gs.scan_frame(frame).runs["status"].to_list() == ["clean"]
    frame.loc[frame["step"] == 300, "loss"] = np.nan
    scan = gs.scan_frame(frame)
    assert scan.runs["status"].to_list() == ["suspect"]
    assert scan.suspicions.select("rule", "metric", "first_step").rows() == [("ambiguous-nan", "loss", 300)]


@pytest.mark.parametrize(
    "cells",
    [
        pd.Categorical([0.5, 0.5, NAN, 0.25] * 20),
        pd.Categorical([3, 4, NAN, 5] * 20),
        pd.Categorical(pd.array([0.5, 0.5, None, 0.25] * 20, dtype="Float64")),
        pd.Series([0.5, Decimal("0.5"), NAN, None] * 20, dtype=object),
        np.array([0.5, 0.5, NAN, 0.25] * 20, bfloat16),
    ],
)
def test_nan_that_hides_in_a_column_is_ambiguous(cells: Any) -> None:
    frame = pd.DataFrame({"step": range(80), "grad_norm": cells})
    assert gs.scan_frame(frame).runs["status"].to_list() == ["suspect"]
    damage = gs.scan_frame(frame, nan="damage")
    assert damage.findings["first_step"].to_list() == [2]
    assert gs.scan_frame(frame, nan="missing").runs["status"].to_list() == ["clean"]


def test_nan_of_a_decimal_is_certain() -> None:
    cells = [Decimal("0.5")] * 40 + [None, Decimal("NaN"), Decimal("NaN")]
    frame = pd.DataFrame({"step": range(43), "grad_norm": pd.Series(cells, dtype=object)})
    scan = gs.scan_frame(frame)
    assert scan.runs["status"].to_list() == ["damaged"]
    assert scan.findings.select("first_step", "nan").rows() == [(41, 2)]
    assert gs.scan_frame(frame, nan="missing").runs["status"].to_list() == ["clean"]


def test_text_in_categories_has_no_nan() -> None:
    cells = pd.Categorical(["0.5", "0.25", None, "0.5"] * 20)
    assert gs.scan_frame(pd.DataFrame({"step": range(80), "grad_norm": cells})).runs["status"].to_list() == ["clean"]


def test_large_ids_in_categories_stay_apart() -> None:
    ids = pd.Categorical.from_codes([0, 1, -1] * 20, [2**60, 2**60 + 1])
    frame = masked(plain()[:60]).assign(run=ids)
    assert sorted(gs.scan_frame(frame).runs["run"]) == [str(2**60), str(2**60 + 1), "null"]


def test_run_ids_of_uuid() -> None:
    ids = [uuid4(), uuid4()]
    frame = masked(plain()[:80]).assign(run=pd.Series(ids * 40, dtype=object))
    assert set(gs.scan_frame(frame).runs["run"]) == {str(one) for one in ids}


def test_text_nan_is_no_gap() -> None:
    """Beside numbers as objects, "NaN" was written by somebody; what pandas put there was not."""
    frame = numpy_backed(plain().filter(pl.col("run") == "clean")).astype({"grad_norm": object})
    frame.loc[30, "grad_norm"] = "NaN"
    scan = gs.scan_frame(frame)
    assert scan.runs["status"].to_list() == ["damaged"]
    assert scan.findings["first_step"].to_list() == [310]
    assert gs.scan_frame(frame, nan="missing").runs["status"].to_list() == ["clean"]


@pytest.mark.parametrize("source", ["polars", "pyarrow table", "lazy", "pandas, nullable", "pandas, Arrow"])
def test_nan_is_nan_where_null_is_null(source: str) -> None:
    frame = SOURCES[source](plain())
    assert gs.scan_frame(frame)["dead"].status == "damaged"
    assert gs.scan_frame(SOURCES[source](plain()), nan="damage")["dead"].status == "damaged"
    missing = gs.scan_frame(SOURCES[source](plain()), nan="missing")
    assert (missing["dead"].status, missing["gaps"].status) == ("clean", "clean")


def test_pandas_is_never_imported() -> None:
    code = (
        "import sys, polars as pl, gradscan as gs\n"
        "gs.scan_frame(pl.DataFrame({'step': range(20), 'grad_norm': [0.5] * 20}))\n"
        "print(sorted({'pandas', 'pyarrow', 'duckdb', 'narwhals'} & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- Audits of frames ------------------------------------------------------------------------------------------------

Counts = tuple[int, int, int, int | None, int]


def audited(frame: Any) -> dict[str, Counts]:
    """By column: values, NaN, Inf, first bad row, bad rows."""
    rows = gs.audit(frame).select("name", "values", "nan", "inf", "first_row", "bad_rows").iter_rows()
    return {name: tuple(counts) for name, *counts in rows}


def test_audits_of_narwhals_keep_nan() -> None:
    frame = pd.DataFrame({"a": [1.0, NAN, 2.0]})
    assert audited(nw.from_native(frame)) == audited(frame) == {"a": (3, 1, 0, 1, 1)}
    eager = pl.DataFrame({"a": [1.0, NAN, 2.0, None]})
    assert audited(nw.from_native(eager)) == audited(nw.from_native(eager.lazy())) == {"a": (3, 1, 0, 1, 1)}


def test_audits_of_lazy_frames_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [[1.0, 2.0], None, [NAN], [INF, NAN], [1.0], [], [3.0]]
    frame = pl.DataFrame({"t": ["x"] * 7, "v": [1.0, None, 2.0, NAN, 3.0, -INF, NAN], "l": lists})
    monkeypatch.setattr(pl.LazyFrame, "collect_batches", lambda lazy, **_: lazy.collect().iter_slices(2))
    assert audited(frame.lazy()) == audited(frame) == {"v": (6, 2, 1, 3, 3), "l": (7, 2, 1, 2, 2)}
    assert_frame_equal(gs.audit(frame.lazy()), gs.audit(frame))
    assert audited(frame.lazy().filter(pl.col("t") == "y")) == {"v": (0, 0, 0, None, 0), "l": (0, 0, 0, None, 0)}
    assert audited(frame.lazy().select("t")) == {}


CELLS: list[tuple[Sequence[Any], Counts | None]] = [
    ([1.0, None, NAN], (2, 1, 0, 2, 1)),
    ([1, NAN, 2], (1, 1, 0, 1, 1)),
    ([NAN, NAN], (2, 2, 0, 0, 2)),
    ([[1.0, None, NAN], None, [2]], (2, 1, 0, 0, 1)),
    ([[[1.0, 2.0], [NAN]], [1.0], 3, (INF,)], (5, 1, 1, 0, 2)),
    ([Decimal("NaN"), Decimal(1), None, Decimal("-Infinity")], (3, 1, 1, 0, 2)),
    ([np.ones(2, bfloat16), np.array([NAN, 1], bfloat16), None], (4, 1, 0, 1, 1)),
    ([np.array([1j, complex(NAN, INF)]), complex(INF, 0.0)], (3, 1, 1, 0, 2)),
    ([{"a": NAN}, {"b": [1.0]}, None], (2, 1, 0, 0, 1)),
    (["a", None, NAN], None),
    ([date(2020, 1, 1), NAN, None], None),
    ([uuid4(), NAN], None),
    (["a", 1.0, NAN], (2, 1, 0, 2, 1)),
]


@pytest.mark.parametrize(("cells", "counts"), CELLS)
def test_audits_of_python_objects(cells: Sequence[Any], counts: Counts | None) -> None:
    column = pd.Series(cells, dtype=object)
    assert audited(pd.DataFrame({"c": column})) == ({} if counts is None else {"c": counts})
    objects = pl.DataFrame({"c": pl.Series(list(cells), dtype=pl.Object)})
    assert audited(objects) == ({} if counts is None else {"c": counts})


def test_audits_of_categories_and_text() -> None:
    frame = pd.DataFrame(
        {
            "text": pd.Series(["a", None, NAN], dtype="str"),
            "words": pd.Categorical(["a", None, NAN]),
            "floats": pd.Categorical([1.0, NAN, 2.0]),
            "whole": pd.Categorical([1, NAN, 2]),
            "nullable": pd.Categorical(pd.array([1.0, None, 2.0], dtype="Float64")),
            "bins": pd.cut([1.0, NAN, 2.0], [0.0, 1.5, INF]),
            "half": np.array([1.0, NAN, 2.0], bfloat16),
        }
    )
    one = (3, 1, 0, 1, 1)
    assert audited(frame) == {"floats": one, "whole": one, "nullable": one, "half": one}


@pytest.mark.parametrize("cell", [object(), np.zeros(2, "V3"), [1.0, object()]])
def test_audits_name_the_column_that_nobody_can_judge(cell: Any) -> None:
    with pytest.raises(ValueError, match="column 'odd'"):
        gs.audit(pd.DataFrame({"fine": [1.0, 2.0], "odd": pd.Series([1.0, cell], dtype=object)}))


@pytest.mark.parametrize(
    "column", [pa.chunked_array([[1.0]]), pa.array([1.0]), nw.from_native(pl.Series([1.0]), series_only=True)]
)
def test_audits_of_single_columns_are_refused(column: Any) -> None:
    with pytest.raises(TypeError, match="got a single column"):
        gs.audit(column)


# --- LazyFrames ------------------------------------------------------------------------------------------------------


def test_lazy_frames_collect_only_what_is_needed() -> None:
    def fail(_: pl.Series) -> pl.Series:
        raise AssertionError("a column that nobody needs was computed")

    lazy = plain().lazy().with_columns(pl.col("loss").map_batches(fail, return_dtype=pl.Float64).alias("reward"))
    assert dict(gs.scan_frame(lazy).runs.select("run", "status").iter_rows()) == WANT


def test_lazy_frames_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    collect = pl.LazyFrame.collect_batches

    def watched(self: pl.LazyFrame, **options: Any) -> Any:
        asked.append(options)
        return collect(self, **options)

    monkeypatch.setattr(pl.LazyFrame, "collect_batches", watched)
    same(told(gs.scan_frame(plain().lazy())), told(gs.scan_frame(plain())))
    assert asked == [{"maintain_order": True}]


def test_lazy_frames_without_collect_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is marked unstable in polars."""
    monkeypatch.delattr(pl.LazyFrame, "collect_batches")
    same(told(gs.scan_frame(plain().lazy())), told(gs.scan_frame(plain())))


def test_an_error_of_a_query_passes_through() -> None:
    lazy = plain().lazy().with_columns(pl.col("run").cast(pl.Int64).alias("loss"))
    with pytest.raises(pl.exceptions.InvalidOperationError, match="conversion from `str` to `i64` failed"):
        gs.scan_frame(lazy)


class LostError(Exception):
    pass


def failing() -> pa.RecordBatchReader:
    table = plain().to_arrow()

    def batches() -> Any:
        yield from table.to_batches()
        raise LostError("the connection is lost")

    return pa.RecordBatchReader.from_batches(table.schema, batches())


def test_an_error_of_a_reader_passes_through() -> None:
    with pytest.raises(LostError, match="the connection is lost"):
        gs.scan_frame(failing())


def test_an_error_of_a_foreign_stream_is_one_line() -> None:
    foreign = type("Stream", (), {"__arrow_c_stream__": lambda _, schema=None: failing().__arrow_c_stream__(schema)})()
    with pytest.raises(ValueError, match="the connection is lost") as raised:
        gs.scan_frame(foreign)
    assert "\n" not in str(raised.value)
    assert "Traceback" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    "source", ["polars", "lazy", "pyarrow table", "record batch reader", "duckdb", "pandas, Arrow"]
)
def test_a_glob_that_names_no_column_is_refused(source: str) -> None:
    frame = SOURCES[source](plain())
    with pytest.raises(
        ValueError, match=r"^metrics\['grad_norm'\]: got 'nrom\*', which matches none of the columns 'run'"
    ):
        gs.scan_frame(frame, metrics={"grad_norm": "nrom*"})


@pytest.mark.parametrize("source", ["polars", "pyarrow table", "duckdb", "pandas, Arrow"])
def test_a_glob_that_names_a_column_or_rows_is_fine(source: str) -> None:
    for glob in ("grad*", "{grad,x}_norm"):
        assert gs.scan_frame(SOURCES[source](plain()), metrics={"grad_norm": glob})["dead"].status == "damaged"
    long = plain().unpivot(index=["run", "step"], variable_name="name", value_name="value").to_arrow()
    assert gs.scan_frame(long, metrics={"grad_norm": "grad*"})["dead"].status == "damaged"


# --- The namespace ---------------------------------------------------------------------------------------------------


def test_namespace_of_polars() -> None:
    eager: Any = plain()
    want = gs.scan_frame(plain(), spike_ratio=20.0)
    same(told(eager.gradscan.scan(spike_ratio=20.0)), told(want))
    same(told(eager.lazy().gradscan.scan("run", "step", spike_ratio=20.0)), told(want))


@pytest.mark.parametrize(
    "imports",
    [
        "import polars as pl, gradscan",
        "import gradscan, polars as pl; gradscan.scan",
        "import gradscan, polars as pl; gradscan.Scan",
        "import gradscan.api, polars as pl",
        "import gradscan.namespace, polars as pl",
        "import polars as pl; from gradscan.api import scan",
    ],
)
def test_namespace_is_registered(imports: str) -> None:
    code = imports + "\nprint(pl.DataFrame.gradscan.__name__, pl.LazyFrame.gradscan.__name__)"
    assert run_python(code) == "FrameNamespace LazyFrameNamespace"


def test_importing_gradscan_loads_no_polars() -> None:
    assert run_python("import sys, gradscan; print({'polars', 'numpy'} & set(sys.modules))") == "set()"


def test_the_namespace_takes_what_scan_frame_takes() -> None:
    import inspect

    from gradscan.namespace import FrameNamespace

    ours = list(inspect.signature(FrameNamespace.scan).parameters.values())[1:]
    assert ours == list(inspect.signature(gs.scan_frame).parameters.values())[1:]


# --- What is refused -------------------------------------------------------------------------------------------------


def wanted(got: str, hint: str = "") -> str:
    return f"frame: got {got}, want a polars or pandas DataFrame, a LazyFrame, or a table with __arrow_c_stream__{hint}"


SERIES = "; the arrays of one run are for gradscan.scan_series"
COLUMNS = '"run", "step", "grad_norm", "loss"'
SIGNAL = "want a column of gradient norms or losses"
NO_ROWS = "frame: got no rows of the columns 'run', 'step', 'grad_norm', 'loss', want at least one"


def with_nulls() -> pl.DataFrame:
    return plain()[:3].with_columns(pl.lit(None, pl.String).alias("run"))


def test_ids_that_became_floats() -> None:
    frame = plain()
    ids = frame["run"].rank("dense").cast(pl.Float64)
    floats = gs.scan_frame(frame.with_columns(ids.alias("run")))
    whole = gs.scan_frame(frame.with_columns(ids.cast(pl.Int64).alias("run")))
    assert len(floats.runs) > 1
    assert_frame_equal(floats.runs, whole.runs)


REFUSED: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: plain()["loss"], {}, TypeError, wanted("polars.Series", SERIES)),
    (lambda: np.ones((3, 2)), {}, TypeError, wanted("numpy.ndarray", SERIES)),
    (lambda: [0.5, 0.6], {}, TypeError, wanted("list", SERIES)),
    (lambda: {"grad_norm": [0.5]}, {}, TypeError, wanted("dict", SERIES)),
    (lambda: pd.Series([0.5]), {}, TypeError, wanted("pandas.Series", SERIES)),
    (lambda: pa.chunked_array([[0.5]]), {}, TypeError, wanted("pyarrow.ChunkedArray", SERIES)),
    (lambda: "runs.parquet", {}, TypeError, wanted("str", "; files and directories are for gradscan.scan")),
    (lambda: None, {}, TypeError, wanted("NoneType")),
    (pl.DataFrame, {}, ValueError, f"frame: got no columns, {SIGNAL}"),
    (pl.LazyFrame, {}, ValueError, f"frame: got no columns, {SIGNAL}"),
    (pd.DataFrame, {}, ValueError, f"frame: got no columns, {SIGNAL}"),
    (lambda: plain()[:0], {}, ValueError, NO_ROWS),
    (plain()[:0].to_arrow, {}, ValueError, NO_ROWS),
    (lambda: masked(plain()[:0]), {}, ValueError, NO_ROWS),
    (plain()[:0].lazy, {}, ValueError, "frame: got no rows, want at least one"),
    (lambda: presented(plain()[:0].to_arrow(), "batches"), {}, ValueError, "frame: got no rows, want at least one"),
    (plain, {"run": "runid"}, ValueError, f'run: got "runid", want one of the columns {COLUMNS}'),
    (plain().lazy, {"step": "tick"}, ValueError, f'step: got "tick", want one of the columns {COLUMNS}'),
    (
        plain().to_arrow,
        {"value": "number"},
        ValueError,
        f'value: got "number", want one of the columns {COLUMNS}',
    ),
    (lambda: arrow_backed(plain()), {"name": "key"}, ValueError, f'name: got "key", want one of the columns {COLUMNS}'),
    (plain, {"value": "loss"}, ValueError, f"name: got no column of metric names, want one of the columns {COLUMNS}"),
    (
        lambda: plain().with_columns(tags=pl.concat_list("loss")),
        {"run": "tags"},
        ValueError,
        'run: got column "tags" of type LargeList(Float64), want text or whole numbers',
    ),
    (
        lambda: plain().with_columns(grad_norm=pl.concat_list("grad_norm")),
        {},
        ValueError,
        'frame: got column "grad_norm" of type LargeList(Float64), want numbers',
    ),
    (
        lambda: plain().select("run", "step", size="grad_norm"),
        {},
        ValueError,
        'frame: got the columns "run", "step", "size", want one of gradient norms or losses: '
        'metrics={"grad_norm": NAME} says which it is',
    ),
    (plain, {"name": "step", "value": "loss"}, ValueError, 'name: got column "step" of type Int64, want text'),
    (
        lambda: plain().with_columns(tags=pl.concat_list("loss")),
        {"step": "tags"},
        ValueError,
        'step: got column "tags" of type LargeList(Float64), want whole numbers',
    ),
    (with_nulls, {}, ValueError, 'run: got column "run" of 3 nulls, want an id in at least one row'),
    (with_nulls().lazy, {}, ValueError, 'run: got column "run" of 3 nulls, want an id in at least one row'),
    (
        lambda: pl.DataFrame({"step": [1], "grad_norm": pl.Series([1], dtype=pl.Int128)}),
        {},
        ValueError,
        'frame: got column "grad_norm" of type Int128, want numbers',
    ),
    (
        lambda: pl.DataFrame({"step": [1], "grad_norm": pl.Series([object()], dtype=pl.Object)}),
        {},
        ValueError,
        'frame: got column "grad_norm" of type Object, want numbers',
    ),
    (
        lambda: pd.DataFrame({"step": [1, 2], "grad_norm": np.ones(2, complex)}),
        {},
        ValueError,
        'frame: got column "grad_norm" of type complex128, want numbers',
    ),
    (
        lambda: pd.DataFrame({"step": [1, 2], "grad_norm": pd.interval_range(0, 2)}),
        {},
        ValueError,
        'frame: got column "grad_norm" of type interval[int64, right], want numbers',
    ),
    (
        lambda: pd.DataFrame({"run": [(1, 2)] * 2, "grad_norm": [0.5, 0.5]}),
        {},
        ValueError,
        "frame: got tuple in column 'run', want numbers or strings",
    ),
    (plain, {"run": "run", "step": "run"}, ValueError, "step: got column 'run', which is run already"),
    (plain, {"nan": "drop"}, ValueError, "nan: got 'drop', want 'missing', 'damage' or None"),
    (plain, {"run": 3}, TypeError, "run: got 3, want a string"),
    (plain, {"threads": 0}, ValueError, "threads: got 0, want 1 to 4096, or None for all processors"),
    (plain, {"opening": "late"}, ValueError, 'opening: got "late", want "report", "strict" or "ignore"'),
    (
        lambda: numpy_backed(plain()).assign(loss=[{"lr": 1}] * 240),
        {},
        ValueError,
        "frame: got dict in column 'loss', want numbers or strings",
    ),
    (
        lambda: numpy_backed(plain()).set_axis(["run", "step", "loss", "loss"], axis=1),
        {},
        ValueError,
        "frame: got 2 columns named 'loss', want one",
    ),
]


@pytest.mark.parametrize(("make", "options", "kind", "message"), REFUSED)
def test_refused(make: Callable[[], Any], options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as raised:
        gs.scan_frame(make(), **options)
    assert str(raised.value) == message
