"""One table of a scan as JSON Lines: strict JSON, one row a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscan.report.json import rows

if TYPE_CHECKING:
    from gradscan.result import Scan

__all__ = ["render"]


def render(scan: Scan, table: str = "findings") -> str:
    """The rows of one table; the empty string for none."""
    return "".join(row + "\n" for row in rows(scan.table(table)))
