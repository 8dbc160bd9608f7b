"""A scan as JSON: strict, so that every parser takes it. Non-finite numbers are the strings "NaN", "Infinity" and
"-Infinity".
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gradscan.report.escape import json_text

if TYPE_CHECKING:
    import polars as pl

    from gradscan.result import Scan, View

__all__ = ["SCHEMA", "dump", "plain", "render", "rows", "view"]

SCHEMA = 1


def plain(value: Any) -> Any:
    """The value with only what strict JSON knows: non-finite floats, datetimes and nested lists and structs turned."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def dump(value: Any) -> str:
    """One line of strict JSON, safe to print on a terminal."""
    return json_text(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def render(scan: Scan) -> str:
    """The whole scan as one object; rows stand on lines of their own, so that reports can be compared and searched."""
    summary = scan.summary()
    del summary["bytes"]
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "gradscan": scan.version,
        "root": scan.roots[0] if len(scan.roots) == 1 else list(scan.roots),
        "knobs": dict(scan.knobs),
        "summary": summary,
    }
    if scan.interrupted:
        head["interrupted"] = True
    parts = [f'"{key}": {dump(value)}' for key, value in head.items()]
    for name in ("findings", "suspicions", "runs", "series", "faults"):
        parts.append(f'"{name}": {_rows(scan.table(name))}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(frame: pl.DataFrame) -> str:
    return "[\n" + ",\n".join(rows(frame)) + "\n]" if len(frame) else "[]"


def rows(frame: pl.DataFrame) -> list[str]:
    """Each row of a table as one line of strict JSON, safe to print on a terminal.

    Only columns whose type can hold what JSON does not know are walked through.
    """
    columns = []
    for column in frame.iter_columns():
        values = column.to_list()
        columns.append([plain(value) for value in values] if _needs_care(column) else values)
    names = frame.columns
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
    return [json_text(encode(dict(zip(names, row, strict=True)))) for row in zip(*columns, strict=True)]


def _needs_care(column: pl.Series) -> bool:
    if column.dtype.is_float():
        return not bool(column.is_finite().all())
    return _holds_floats_or_times(column.dtype)


def _holds_floats_or_times(dtype: Any) -> bool:
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        return _holds_floats_or_times(inner)
    fields = getattr(dtype, "fields", None)
    if fields is not None:
        return any(_holds_floats_or_times(field.dtype) for field in fields)
    return bool(dtype.is_float() or dtype.is_temporal())


def view(view: View) -> str:
    """The rows around a step as one object; `bad` lists the cells that are marked, by row."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": view.run,
        "format": view.format,
        "status": view.status,
        "step": view.step,
        "roles": {name: view.roles.get(name) for name in view.frame.columns if name not in ("step", "time")},
        "rows": view.frame.to_dicts(),
        "bad": [
            {"row": row, "step": view.frame["step"][row], "metric": metric, "kind": kind}
            for (row, metric), kind in sorted(view.marks.items())
        ],
        "samples": [] if view.samples is None else view.samples.to_dicts(),
    }
    return dump(document) + "\n"
