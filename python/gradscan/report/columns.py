"""Which columns of each table a person is shown, in Markdown and HTML.

Data formats (JSON, CSV, Parquet) hold all of them.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

__all__ = ["COLUMNS", "NUMERIC", "cell", "counts"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "findings": (
        "run",
        "check",
        "severity",
        "confidence",
        "metric",
        "first_step",
        "onset_step",
        "last_good_step",
        "count",
        "restore_path",
        "restore_status",
        "explanation",
    ),
    "runs": (
        "run",
        "format",
        "status",
        "checks",
        "first_step",
        "onset_step",
        "restore_step",
        "records",
        "last_step",
        "notes",
        "reason",
    ),
    "series": ("run", "role", "metric", "n", "nan", "inf", "median", "max", "spikes", "first_step", "last_step"),
    "suspicions": ("run", "rule", "metric", "first_step", "last_good_step", "sentence"),
    "faults": ("source", "run", "kind", "severity", "place", "detail"),
    "directories": ("directory", "recordings", "status", "disagree"),
}

NUMERIC = frozenset(
    {
        "confidence",
        "first_step",
        "onset_step",
        "last_good_step",
        "count",
        "restore_step",
        "records",
        "last_step",
        "n",
        "nan",
        "inf",
        "median",
        "max",
        "spikes",
        "recordings",
        "values",
        "first_row",
        "bad_rows",
    }
)
"""Columns that are aligned to the right."""


def cell(value: Any) -> str:
    """A value as a person reads it; the empty string for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value)
    return str(value)


def counts(summary: dict[str, Any]) -> list[tuple[str, int]]:
    """The runs by status, worst first, those without a run left out."""
    names = ("damaged", "suspect", "opening", "unreadable", "not_assessable", "clean")
    return [(name.replace("_", " "), summary[name]) for name in names if summary[name]]
