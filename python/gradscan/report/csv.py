"""One table of a scan as CSV: a header, comma separated, `\\n` line ends.

Lists are JSON text, null is an empty cell, NaN is `NaN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradscan.report.escape import csv_cell
from gradscan.report.json import dump, plain

if TYPE_CHECKING:
    import polars as pl

    from gradscan.result import Scan

__all__ = ["render", "rows"]


def render(scan: Scan, table: str = "findings") -> str:
    """The header and the rows of one table."""
    return rows(scan.table(table))


def rows(frame: pl.DataFrame) -> str:
    """A header and the rows of a frame."""
    lines = [",".join(frame.columns)]
    lines += [",".join(_quoted(_cell(value)) for value in row) for row in frame.iter_rows()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # The csv module leaves a lone carriage return unquoted where lines end in \n alone, and its own reader then takes
    # it for the end of a line.
    return '"' + text.replace('"', '""') + '"' if any(char in text for char in ',"\r\n') else text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # UTF-8 has no lone surrogates; a name that holds one is shown with its code.
        return csv_cell(value.encode("utf-8", "backslashreplace").decode())
    if isinstance(value, (list, dict)):
        return dump(value)
    return str(plain(value))
