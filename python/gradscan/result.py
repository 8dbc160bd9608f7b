"""What a scan, an audit and a reading give back: `Scan`, `Run`, `Audit`, `Recording`, `NonFinite`, `View`.

They hold polars frames and plain values, pickle, and know nothing of files or of the compiled module. NaN stays NaN
in every frame; null means "not recorded".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from gradscan import arguments
from gradscan.errors import GradPathologyError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "AUDIT_SCHEMA",
    "SCHEMAS",
    "STATUSES",
    "TABLES",
    "Audit",
    "NonFinite",
    "Recording",
    "Run",
    "Scan",
    "View",
    "empty",
]

STATUSES = ("damaged", "suspect", "opening", "unreadable", "not_assessable", "clean")
"""The status of a run, worst first; every run has exactly one."""

AUDIT_SCHEMA: dict[str, Any] = {
    "source": pl.String,
    "name": pl.String,
    "dtype": pl.String,
    "shape": pl.List(pl.Int64),
    "values": pl.Int64,
    "nan": pl.Int64,
    "inf": pl.Int64,
    "first_row": pl.Int64,
    "bad_rows": pl.Int64,
}
"""Columns of an audit: one row a tensor, array or float column."""

_TIME = pl.Datetime("us", "UTC")
_EVIDENCE = pl.Struct(
    {
        "metric": pl.String,
        "role": pl.String,
        "first_step": pl.Int64,
        "value": pl.Float64,
        "last_good_step": pl.Int64,
        "nan": pl.Int64,
        "inf": pl.Int64,
        "count": pl.Int64,
    }
)

_COLUMNS: dict[str, dict[str, Any]] = {
    "findings": (
        {
            "id": pl.String,
            "run": pl.String,
            "directory": pl.String,
            "source": pl.String,
            "format": pl.String,
            "signature": pl.String,
            "check": pl.String,
            "severity": pl.String,
            "confidence": pl.Float64,
            "metric": pl.String,
            "first_step": pl.Int64,
            "first_record": pl.Int64,
            "first_place": pl.String,
            "first_time": _TIME,
            "first_value": pl.Float64,
            "onset_step": pl.Int64,
            "last_good_step": pl.Int64,
            "last_good_value": pl.Float64,
            "last_bad_step": pl.Int64,
            "recovered": pl.Boolean,
            "count": pl.Int64,
            "count_opening": pl.Int64,
            "nan": pl.Int64,
            "inf": pl.Int64,
            "median": pl.Float64,
            "threshold": pl.Float64,
            "max": pl.Float64,
            "phase": pl.String,
            "attempt": pl.Int64,
            "superseded": pl.Boolean,
            "steps": pl.List(pl.Int64),
            "evidence": pl.List(_EVIDENCE),
            "restore_step": pl.Int64,
            "restore_path": pl.String,
            "restore_status": pl.String,
            "checkpoints_after": pl.Int64,
            "explanation": pl.String,
            "actions": pl.List(pl.String),
        }
    ),
    "runs": (
        {
            "run": pl.String,
            "directory": pl.String,
            "source": pl.String,
            "format": pl.String,
            "status": pl.String,
            "reason": pl.String,
            "checks": pl.List(pl.String),
            "phase": pl.String,
            "first_step": pl.Int64,
            "onset_step": pl.Int64,
            "restore_step": pl.Int64,
            "restore_status": pl.String,
            "restore_path": pl.String,
            "records": pl.Int64,
            "step_name": pl.String,
            "first_step_recorded": pl.Int64,
            "last_step": pl.Int64,
            "step_interval": pl.Float64,
            "coverage": pl.Float64,
            "grad_norm_metrics": pl.List(pl.String),
            "loss_metrics": pl.List(pl.String),
            "other_metrics": pl.List(pl.String),
            "attempts": pl.Int64,
            "checkpoints": pl.Int64,
            "notes": pl.List(pl.String),
            "bytes": pl.Int64,
            "started": _TIME,
            "ended": _TIME,
            "name": pl.String,
            "reason_code": pl.String,
        }
    ),
    "series": (
        {
            "run": pl.String,
            "role": pl.String,
            "metric": pl.String,
            "n": pl.Int64,
            "nan": pl.Int64,
            "inf": pl.Int64,
            "median": pl.Float64,
            "max": pl.Float64,
            "spikes": pl.Int64,
            "first_step": pl.Int64,
            "last_step": pl.Int64,
        }
    ),
    "suspicions": (
        {
            "run": pl.String,
            "rule": pl.String,
            "metric": pl.String,
            "severity": pl.String,
            "first_step": pl.Int64,
            "last_good_step": pl.Int64,
            "sentence": pl.String,
        }
    ),
    "faults": (
        {
            "run": pl.String,
            "source": pl.String,
            "kind": pl.String,
            "place": pl.String,
            "detail": pl.String,
            "severity": pl.String,
        }
    ),
    "directories": ({"directory": pl.String, "recordings": pl.Int64, "status": pl.String, "disagree": pl.Boolean}),
}
SCHEMAS = {table: pl.Schema(columns) for table, columns in _COLUMNS.items()}
"""Columns and types of every table of a `Scan`."""

TABLES = tuple(SCHEMAS)


def empty(table: str) -> pl.DataFrame:
    """A frame of that table with its columns and no rows."""
    return pl.DataFrame(schema=SCHEMAS[table])


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How many values of an array are NaN or Inf, and where the first is.

    `first` is its flat index in C order and `index` its index in every dimension (`()` for a scalar); both are None
    where all values are finite. True in a boolean context if there is any: `if gs.count_nonfinite(gradient): ...`.
    """

    nan: int
    inf: int
    first: int | None = None
    index: tuple[int, ...] | None = None

    def __bool__(self) -> bool:
        return self.nan > 0 or self.inf > 0


class Run:
    """One run of a scan: its row of `runs` and its rows of the other tables.

    The columns of `scan.runs` are attributes too: `run.status`, `run.first_step`, `run.restore_path`. The tables
    are `findings`, `series`, `suspicions` and `faults`.
    """

    def __init__(self, row: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self.row = dict(row)
        self.findings = tables["findings"]
        self.series = tables["series"]
        self.suspicions = tables["suspicions"]
        self.faults = tables["faults"]

    @property
    def run(self) -> str:
        """The run's name in the scan."""
        return str(self.row["run"])

    @property
    def status(self) -> str:
        """One of `STATUSES`."""
        return str(self.row["status"])

    @property
    def explanation(self) -> str | None:
        """What is wrong with it or why it has no verdict, in plain words; None for a clean run."""
        if len(self.findings):
            return " ".join(self.findings["explanation"].to_list())
        if len(self.suspicions):
            return " ".join(self.suspicions["sentence"].to_list())
        return cast("str | None", self.row["reason"])

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling ask for attributes before __init__ has run: `row` must not be looked up through itself.
        row = self.__dict__.get("row")
        if row is not None and name in row:
            return row[name]
        raise AttributeError(f"Run has no attribute or column {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.row})

    def __repr__(self) -> str:
        from gradscan.report import terminal

        return terminal.run_line(self)

    def _repr_html_(self) -> str:
        from gradscan.report import html

        return html.run_fragment(self)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Scan:
    """The outcome of a scan: one row a recording in `runs`, one row a problem in `findings`, all as polars frames.

    `len(scan)` is the number of runs, iterating gives their names, `scan["name"]` one `Run`. It pickles. `knobs`
    are the settings that it was made with, `seconds` is the time that it took, `interrupted` says that it was
    stopped and holds only what was done by then.
    """

    runs: pl.DataFrame
    findings: pl.DataFrame = field(default_factory=lambda: empty("findings"))
    series: pl.DataFrame = field(default_factory=lambda: empty("series"))
    suspicions: pl.DataFrame = field(default_factory=lambda: empty("suspicions"))
    faults: pl.DataFrame = field(default_factory=lambda: empty("faults"))
    directories: pl.DataFrame = field(default_factory=lambda: empty("directories"))
    skipped_files: int = 0
    bytes: int = 0
    roots: tuple[str, ...] = ()
    knobs: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    seconds: float = 0.0
    interrupted: bool = False

    def table(self, name: str) -> pl.DataFrame:
        """The frame of that name, one of `TABLES`; ValueError for another."""
        if name not in TABLES:
            raise ValueError(f"table: got {name!r}, want one of {', '.join(TABLES)}")
        return cast("pl.DataFrame", getattr(self, name))

    def _of(self, status: str) -> pl.DataFrame:
        return self.runs.filter(pl.col("status") == status)

    @property
    def damaged(self) -> pl.DataFrame:
        """Runs with NaN/Inf, or with spikes outside their opening."""
        return self._of("damaged")

    @property
    def suspect(self) -> pl.DataFrame:
        """Runs with the traces of a NaN that was not recorded."""
        return self._of("suspect")

    @property
    def opening(self) -> pl.DataFrame:
        """Runs with spikes in their opening only."""
        return self._of("opening")

    @property
    def unreadable(self) -> pl.DataFrame:
        """Recordings of which nothing could be read; `reason` says why."""
        return self._of("unreadable")

    @property
    def not_assessable(self) -> pl.DataFrame:
        """Recordings with too little signal for a verdict; `reason` says why."""
        return self._of("not_assessable")

    @property
    def clean(self) -> pl.DataFrame:
        """Runs that were checked and had nothing."""
        return self._of("clean")

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs["run"].to_list())

    def __contains__(self, run: object) -> bool:
        return isinstance(run, str) and run in self._places["runs"]

    def __getitem__(self, run: str) -> Run:
        at = self._places["runs"].get(run) if isinstance(run, str) else None
        if at is None:
            import difflib

            near = [] if not isinstance(run, str) else difflib.get_close_matches(run, list(self), n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"no run {run!r} among {len(self):,}{hint}")
        row = self.runs.row(at[0], named=True)
        tables = {}
        for name in ("findings", "series", "suspicions", "faults"):
            places = self._places[name].get(run, [])
            if name == "faults":  # those of a file that belong to no single run of it
                places = sorted([*places, *self._places["sources"].get(row["source"], [])])
            tables[name] = self.table(name)[places]
        return Run(row, tables)

    @cached_property
    def _places(self) -> dict[str, dict[str, list[int]]]:
        """The rows of each run in each table, and under `sources` the faults without a run by their source."""

        def places(frame: pl.DataFrame, key: str) -> dict[str, list[int]]:
            rows: dict[str, list[int]] = {}
            for row, value in enumerate(frame[key].to_list()):
                rows.setdefault(value, []).append(row)
            return rows

        found = {name: places(self.table(name), "run") for name in ("runs", "findings", "series", "suspicions")}
        found["faults"] = places(self.faults, "run")
        found["sources"] = {}
        for row in found["faults"].pop(cast("str", None), []):
            found["sources"].setdefault(self.faults["source"][row], []).append(row)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_places"}

    def summary(self) -> dict[str, Any]:
        """Counts: runs by status, findings by check and phase, faults, skipped files, bytes read."""
        status = dict(self.runs["status"].value_counts().iter_rows())
        check, phase = self.findings["check"], self.findings["phase"]
        spikes = check == "spikes"
        return {
            "recordings": len(self.runs),
            "directories": len(self.directories),
            **{name: status.get(name, 0) for name in ("clean", "damaged", "suspect", "opening")},
            **{name: status.get(name, 0) for name in ("not_assessable", "unreadable")},
            "skipped_files": self.skipped_files,
            "findings": {
                "nonfinite": int((check == "nonfinite").sum()),
                "spikes_run": int((spikes & (phase == "run")).sum()),
                "spikes_opening": int((spikes & (phase == "opening")).sum()),
            },
            "faults": len(self.faults),
            "bytes": self.bytes,
        }

    def raise_if_damaged(self, checks: str | Sequence[str] | None = None, min_confidence: float = 0.0) -> None:
        """Raise `GradPathologyError` if a run is damaged; for pipelines that must stop, never zero and continue.

        `checks` (a name or several: "nonfinite", "spikes") and `min_confidence` (0 to 1) narrow it. Spikes in the
        opening of a training never raise. The error has the `run`, `step`, `metric` and `value` of the first of
        them, and all of them in `findings`.
        """
        wanted = ("nonfinite", "spikes") if checks is None else tuple(arguments.strings("checks", checks))
        unknown = [name for name in wanted if name not in ("nonfinite", "spikes")]
        if unknown:
            raise ValueError(f"checks: got {unknown[0]!r}, want 'nonfinite' or 'spikes'")
        if not 0.0 <= arguments.number("min_confidence", min_confidence) <= 1.0:
            raise ValueError(f"min_confidence: got {min_confidence!r}, want a number from 0 to 1")
        bad = self.findings.filter(
            pl.col("check").is_in(wanted)
            & (pl.col("confidence") >= min_confidence)
            & ((pl.col("phase") == "opening").not_() | pl.col("phase").is_null())
        )
        if len(bad) == 0:
            return
        row = bad.row(0, named=True)
        rest = "" if len(bad) == 1 else f" (and {len(bad) - 1:,} more)"
        raise GradPathologyError(
            f"{row['run']}: {row['check']} in {row['metric']} at step {row['first_step']}, "
            f"value {row['first_value']}; {row['explanation']}{rest}",
            run=row["run"],
            step=row["first_step"],
            metric=row["metric"],
            value=row["first_value"],
            findings=bad,
        )

    # The renderers see a finished Scan and this class does not need them to be one: they are loaded only when asked
    # for.

    def to_json(self) -> str:
        """All tables as one strict JSON object; non-finite numbers are "NaN", "Infinity", "-Infinity"."""
        from gradscan.report import json

        return json.render(self)

    def to_markdown(self, table: str = "findings") -> str:
        """The counts and one table as Markdown, escaped."""
        from gradscan.report import markdown

        return markdown.render(self, table)

    def to_html(self, table: str = "findings") -> str:
        """The counts and one table as a standalone HTML page without scripts, escaped."""
        from gradscan.report import html

        return html.render(self, table)

    def write(self, path: str | Path, table: str = "findings") -> None:
        """Write a report, its format by suffix: .json (all tables), .jsonl .csv .parquet .md .html (one table), .txt.

        The file appears whole or not at all. ValueError for another suffix or table.
        """
        from gradscan import report

        report.write(self, path, table)

    def __repr__(self) -> str:
        from gradscan.report import terminal

        return terminal.summary_repr(self)

    def _repr_html_(self) -> str:
        from gradscan.report import html

        return html.fragment(self)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Recording:
    """All that one recording holds: every numeric series, events and checkpoints, as they were recorded.

    `roles` maps each name to the role that it was recognised as, or None. `records` has one row for each record that
    holds a series (`record`, `step`, `attempt`, `time`); `rows` maps each name to the rows of `records` that its values
    belong to. `metadata` is what the tracker says of the run itself: `run_id`, `name`, `exit_code`, `status` ..., as
    texts.
    """

    run: str
    format: str
    source: str
    step_name: str | None
    roles: Mapping[str, str | None]
    arrays: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    rows: Mapping[str, NDArray[np.int64]]
    records: pl.DataFrame
    events: pl.DataFrame
    checkpoints: pl.DataFrame
    faults: pl.DataFrame
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the numeric series, as recorded."""
        return list(self.arrays)

    def series(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """`(steps, values)` of one series in record order: int64 and float64 of one length.

        KeyError for a name that is not there.
        """
        if name not in self.arrays:
            import difflib

            near = difflib.get_close_matches(name, self.arrays, n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise KeyError(f"{self.run}: no series {name!r}{hint}")
        return self.arrays[name]

    def frame(self, names: Sequence[str] | None = None) -> pl.DataFrame:
        """One row a record, in record order: `step`, `time` where recorded, and a column for each series.

        `names` picks the series. Null where a record has no value of one. A resumed run has a step once for each
        attempt.
        """
        wanted = self.names if names is None else list(names)
        rows = len(self.records)
        columns = [self.records["step"]]
        if self.records["time"].null_count() < rows:
            columns.append(self.records["time"])
        for name in wanted:
            _, values = self.series(name)
            column, there = np.full(rows, np.nan), np.zeros(rows, bool)
            column[self.rows[name]], there[self.rows[name]] = values, True
            # The validity is kept apart from the values: a NaN that was recorded stays one, a row without a value
            # is null.
            series = pl.Series(name, column)
            columns.append(pl.select(pl.when(pl.Series(there)).then(series).alias(name)).to_series())
        return pl.DataFrame(columns)

    def around(self, step: int | None, window: int = 5, names: Sequence[str] | None = None) -> pl.DataFrame:
        """The rows of `frame(names)` around a step.

        Those are up to `window` rows before the first row at or after the step, that row, and `window` rows after it.
        `step=None` means the end of the recording.
        """
        return self.window_around(step, window, names)[0]

    def window_around(
        self,
        step: int | None,
        window: int = 5,
        names: Sequence[str] | None = None,
        *,
        attempt: int | None = None,
        metric: str | None = None,
    ) -> tuple[pl.DataFrame, int]:
        """`around`, and the index in it of the row in the middle (-1 if there is none).

        With `attempt` (from 1) and `metric` that is the first row of this attempt at or after the step which has the
        metric; where there is none, the first one at or after the step.
        """
        if window < 0:
            raise ValueError(f"window: got {window}, want 0 or more rows")
        frame = self.frame(names)
        attempts = None if attempt is None else self.records["attempt"]
        if names is None or len(names):
            signal = [pl.col(name).is_not_null() for name in frame.columns if name not in ("step", "time")]
            shown = frame.select(pl.any_horizontal(signal)).to_series() if signal else None
            if shown is not None:
                frame = frame.filter(shown)
                attempts = None if attempts is None else attempts.filter(shown)
        at = len(frame) - 1
        if step is not None and len(frame):
            later = frame["step"].to_numpy() >= step
            meant = later
            if attempts is not None:
                meant = meant & (attempts.to_numpy() == attempt)
            if metric is not None and metric in frame.columns:
                meant = meant & frame[metric].is_not_null().to_numpy()
            found = np.flatnonzero(meant if meant.any() else later)
            at = int(found[0]) if len(found) else len(frame) - 1
        window = min(window, len(frame))
        start = max(0, at - window)
        return frame.slice(start, max(0, at + window + 1 - start)), at - start

    def __repr__(self) -> str:
        rows = max((len(own) for own, _ in self.arrays.values()), default=0)
        return f"Recording({self.run!r}, format={self.format!r}, series={len(self.arrays)}, rows={rows})"


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """What `gradscan show` shows: rows of a recording around a step, bad cells marked, and the samples captured there.

    `row` is the row of `frame` in the middle (-1: none). `marks` maps (row of `frame`, column) to `nan`, `inf`,
    `alias`, `count` or `spike`. `samples` is a polars frame or None. `pinned` columns are shown whatever the width,
    `hidden` names series that are not in `frame`.
    """

    run: str
    format: str
    status: str
    step: int | None
    frame: pl.DataFrame
    marks: Mapping[tuple[int, str], str]
    roles: Mapping[str, str | None]
    row: int = -1
    sentences: tuple[str, ...] = ()
    samples: pl.DataFrame | None = None
    hidden: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """What an audit of files found.

    `tensors` has the columns of `AUDIT_SCHEMA`, `faults` has source, kind, place and detail: one row for each thing
    that kept a file from being read to its end. `files` counts what was looked at, members of archives one by one.
    """

    tensors: pl.DataFrame
    faults: pl.DataFrame
    files: int
    skipped_files: int = 0
    bytes: int = 0
    interrupted: bool = False

    @property
    def bad(self) -> pl.DataFrame:
        """The rows of `tensors` that hold NaN or Inf."""
        return self.tensors.filter((pl.col("nan") > 0) | (pl.col("inf") > 0))

    def source_of(self, path: str) -> str:
        """What `source` is of a file that was named by that path."""
        sources = {*self.tensors["source"], *self.faults["source"]}
        # Names that no report could carry are shown escaped.
        return path if path in sources or len(sources) != 1 else str(next(iter(sources)))

    def frame(self) -> pl.DataFrame:
        """Both tables in one: a row a tensor, and a row a fault, of which only `source` and `fault` are not null."""
        text = pl.format("{}: {}", pl.col("kind"), pl.col("detail"))
        faults = self.faults.select("source", text.alias("fault"))
        both = pl.concat([self.tensors, faults], how="diagonal")
        return both.sort("source", maintain_order=True)

    def summary(self) -> dict[str, int]:
        """Counts: files, tensors, values, those that hold NaN or Inf, faults."""
        bad = self.bad
        return {
            "files": self.files,
            "tensors": len(self.tensors),
            "values": int(self.tensors["values"].sum()),
            "bad": len(bad),
            "nan": int(bad["nan"].sum()),
            "inf": int(bad["inf"].sum()),
            "damaged": self.faults["source"].n_unique(),
            "skipped_files": self.skipped_files,
        }
