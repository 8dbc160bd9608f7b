"""From the tables of the compiled module to a `Scan`, and the settings that every kind of scan takes."""

from __future__ import annotations

from typing import Any, TypedDict

import polars as pl

import gradscan
from gradscan import _core, arguments, wording
from gradscan.result import SCHEMAS, Scan

__all__ = ["Columns", "columns", "finish", "rule_knobs"]


class Columns(TypedDict):
    """The columns of a table that the caller names; None: found by the usual names."""

    run: str | None
    step: str | None
    name: str | None
    value: str | None


def rule_knobs(spike_ratio: Any, min_spikes: Any, min_points: Any, min_norm: Any, opening: Any) -> dict[str, Any]:
    """The settings of the checks, each of its type; the compiled module checks their ranges."""
    return {
        "spike_ratio": arguments.number("spike_ratio", spike_ratio),
        "min_spikes": arguments.integer("min_spikes", min_spikes),
        "min_points": arguments.integer("min_points", min_points),
        "min_norm": arguments.number("min_norm", min_norm),
        "opening": arguments.text("opening", opening),
    }


def columns(run: Any, step: Any, name: Any, value: Any) -> Columns:
    """The four names, each a string or None."""

    def checked(argument: str, column: Any) -> str | None:
        return None if column is None else arguments.text(argument, column)

    given = Columns(
        run=checked("run", run), step=checked("step", step), name=checked("name", name), value=checked("value", value)
    )
    seen: dict[str, str] = {}
    for argument, column in given.items():
        if isinstance(column, str):
            if column in seen:
                raise ValueError(f"{argument}: got column {column!r}, which is {seen[column]} already")
            seen[column] = argument
    return given


def finish(tables: _core.ScanTables, knobs: dict[str, Any], seconds: float) -> Scan:
    """The tables of the compiled module as frames, with the sentences put in."""
    runs, series = pl.DataFrame(tables.runs), pl.DataFrame(tables.series)
    return Scan(
        runs=_runs(runs, knobs["min_points"]),
        series=_shaped("series", series),
        findings=_findings(pl.DataFrame(tables.findings), series, runs),
        suspicions=_suspicions(pl.DataFrame(tables.suspicions)),
        faults=_shaped("faults", pl.DataFrame(tables.faults)),
        directories=_shaped("directories", pl.DataFrame(tables.directories)),
        skipped_files=tables.skipped_files,
        bytes=tables.bytes,
        roots=tuple(tables.roots),
        knobs=knobs,
        version=gradscan.__version__,
        seconds=seconds,
        interrupted=tables.interrupted,
    )


def _shaped(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    schema = SCHEMAS[table]
    shaped = frame.select(schema.keys())
    other = {name: dtype for name, dtype in schema.items() if shaped.schema[name] != dtype}
    return shaped.cast(other) if other else shaped  # type: ignore[arg-type]


def _runs(frame: pl.DataFrame, min_points: int) -> pl.DataFrame:
    columns = frame.select("reason_code", "reason_detail", "other_metrics")
    reasons = [
        wording.reason(code, detail, min_points=min_points, metrics=metrics or ())
        for code, detail, metrics in columns.iter_rows()
    ]
    return _shaped("runs", frame.with_columns(pl.Series("reason", reasons, dtype=pl.String)))


def _findings(frame: pl.DataFrame, series: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    found = frame.select("run").unique()
    ours = series.select("run", "metric", "n").join(found, on="run", how="semi")
    # A series of several trainings has rows of each of them: what was found in one is no share of all.
    judged_apart = set(runs.filter(pl.col("notes").list.contains("restarted"))["run"])
    rows = {(run, metric): n for run, metric, n in ours.iter_rows() if run not in judged_apart}
    said: list[str] = []
    # Most findings share their list of actions: each distinct one becomes a value of polars once.
    places: dict[tuple[str, ...], int] = {}
    chosen: list[int] = []
    for row in frame.drop("steps").iter_rows(named=True):
        said.append(wording.explanation(row, rows.get((row["run"], row["metric"]))))
        chosen.append(places.setdefault(tuple(wording.actions(row)), len(places)))
    tries = pl.Series("actions", [list(texts) for texts in places], dtype=pl.List(pl.String))
    texts = [pl.Series("explanation", said, dtype=pl.String), tries.gather(chosen)]
    return _shaped("findings", frame.with_columns(texts))


def _suspicions(frame: pl.DataFrame) -> pl.DataFrame:
    said = [wording.suspicion_sentence(row) for row in frame.iter_rows(named=True)]
    texts = [pl.Series("sentence", said, dtype=pl.String), pl.lit("warning").alias("severity")]
    return _shaped("suspicions", frame.with_columns(texts))
