"""Rows and scans made by hand, so that the report can be tested without files and without the compiled module."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from gradscan import wording
from gradscan.result import SCHEMAS, Scan


def evidence(**given: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "metric": "grad_norm",
        "role": "grad_norm",
        "first_step": 5200,
        "value": float("nan"),
        "last_good_step": 5190,
        "nan": 312,
        "inf": 0,
        "count": 312,
    }
    return row | given


def finding(**given: Any) -> dict[str, Any]:
    """A `nonfinite` finding: grad_norm is NaN from step 5,200 on, spikes from 5,150."""
    row: dict[str, Any] = {
        "id": "0123456789abcdef",
        "run": "llama/run-1",
        "directory": "llama/run-1",
        "source": "llama/run-1/trainer_state.json",
        "format": "hf_trainer",
        "signature": "GRAD_PATHOLOGY",
        "check": "nonfinite",
        "severity": "critical",
        "confidence": 0.99,
        "metric": "grad_norm",
        "first_step": 5200,
        "first_record": 519,
        "first_place": "trainer_state.json byte 81234",
        "first_time": datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        "first_value": float("nan"),
        "onset_step": 5150,
        "last_good_step": 5140,
        "last_good_value": 0.83,
        "last_bad_step": 8310,
        "recovered": False,
        "count": 312,
        "count_opening": 0,
        "nan": 312,
        "inf": 0,
        "median": 0.81,
        "threshold": 8.1,
        "max": 41.5,
        "phase": None,
        "attempt": 1,
        "superseded": False,
        "steps": [5200, 5210],
        "evidence": [evidence()],
        "restore_step": 5000,
        "restore_path": "llama/run-1/checkpoint-5000",
        "restore_status": "clean",
        "restore_reason": None,
        "checkpoints_after": 3,
    }
    return row | given


def spikes(**given: Any) -> dict[str, Any]:
    """A `spikes` finding of phase `run`."""
    row = {
        "check": "spikes",
        "confidence": 0.85,
        "first_step": 1240,
        "first_value": 55.0,
        "onset_step": 1240,
        "last_good_step": 1230,
        "last_bad_step": 3900,
        "count": 42,
        "count_opening": 0,
        "nan": 0,
        "median": 0.83,
        "threshold": 8.3,
        "max": 153.0,
        "phase": "run",
        "recovered": True,
        "evidence": [evidence(first_step=1240, value=55.0, nan=0, count=42)],
    }
    return finding() | row | given


def run(**given: Any) -> dict[str, Any]:
    """A clean run."""
    row: dict[str, Any] = dict.fromkeys(SCHEMAS["runs"])
    row |= {
        "run": "llama/run-0",
        "directory": "llama/run-0",
        "source": "llama/run-0/trainer_state.json",
        "format": "hf_trainer",
        "status": "clean",
        "checks": [],
        "restore_status": "unknown",
        "records": 831,
        "step_name": "step",
        "first_step_recorded": 10,
        "last_step": 8310,
        "step_interval": 10.0,
        "coverage": 1.0,
        "grad_norm_metrics": ["grad_norm"],
        "loss_metrics": ["loss"],
        "other_metrics": [],
        "attempts": 1,
        "checkpoints": 8,
        "notes": [],
        "bytes": 120_000,
    }
    return row | given


def damaged(row: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The run of a finding."""
    same = ("run", "directory", "source", "format", "phase", "first_step", "onset_step")
    restore = ("restore_step", "restore_path", "restore_status")
    found = {name: row[name] for name in (*same, *restore)}
    return run(status="damaged", checks=[row["check"]]) | found | given


def frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = SCHEMAS[table]
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema, orient="row")


def scan(
    runs: list[dict[str, Any]], findings: list[dict[str, Any]] | None = None, rows: int | None = None, **given: Any
) -> Scan:
    """A scan of rows; findings get their sentences, other tables come as keyword arguments (lists of rows)."""
    said = [
        row | {"explanation": wording.explanation(row, rows), "actions": wording.actions(row)} for row in findings or []
    ]
    names = ("series", "suspicions", "faults", "directories")
    tables: dict[str, Any] = {name: frame(name, given.pop(name)) for name in names if name in given}
    knobs = {"spike_ratio": 10.0, "min_spikes": 3, "min_points": 10, "min_norm": 0.0, "opening": "report"}
    defaults: dict[str, Any] = {"bytes": 8_200_000, "roots": ("archive",), "knobs": knobs, "version": "0.1.0"}
    return Scan(runs=frame("runs", runs), findings=frame("findings", said), **tables, **(defaults | given))
