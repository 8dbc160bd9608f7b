"""A scan as Markdown: the counts and one table, for a pull request, an issue or a wiki."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscan.report.columns import COLUMNS, NUMERIC, cell, counts
from gradscan.report.escape import markdown as escape

if TYPE_CHECKING:
    from gradscan.result import Scan

__all__ = ["render"]


def render(scan: Scan, table: str = "findings") -> str:
    """A heading, one line of counts and the table (GitHub flavour)."""
    summary = scan.summary()
    said = ", ".join(f"{count:,} {status}" for status, count in counts(summary)) or "no recordings"
    lines = ["# gradscan", "", f"{summary['recordings']:,} recordings: {said}.", ""]
    frame = scan.table(table)
    if len(frame) == 0:
        return "\n".join([*lines, f"No {table}."]) + "\n"
    columns = COLUMNS[table]
    lines.append("| " + " | ".join(name.replace("_", " ") for name in columns) + " |")
    lines.append("|" + "|".join(" ---: " if name in NUMERIC else " --- " for name in columns) + "|")
    for row in frame.select(columns).iter_rows():
        lines.append("| " + " | ".join(escape(cell(value)) for value in row) + " |")
    return "\n".join(lines) + "\n"
