"""Renderers: a finished `Scan` in, text out.

One format a file; none of them computes, filters by a rule or reads a recording.
"""

from __future__ import annotations

import os
import stat
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradscan.result import Scan

__all__ = ["FORMATS", "SUFFIXES", "atomic", "render", "suffix_format", "write"]

FORMATS = ("table", "json", "jsonl", "csv", "markdown", "html")
"""What `--format` takes."""

SUFFIXES = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".md": "markdown",
    ".html": "html",
    ".txt": "table",
}
"""Format of a report file by its suffix."""


def render(scan: Scan, format: str, table: str = "findings") -> str:
    """The scan as text in one of the data formats, or as a plain, uncoloured report for `table`."""
    if format == "table":
        return str(import_module("gradscan.report.terminal").render(scan, width=100))
    module = import_module(f"gradscan.report.{format}")
    return str(module.render(scan) if format == "json" else module.render(scan, table))


def suffix_format(path: str | Path) -> str:
    """The format that a report file of that name gets; ValueError for an unknown suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: got suffix {suffix or 'none'!r}, want one of {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


def write(scan: Scan, path: str | Path, table: str = "findings") -> None:
    """Write a report whole or not at all, its format by suffix."""
    format = suffix_format(path)
    frame = scan.table(table)
    if format == "parquet":
        import io

        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        atomic(path, buffer.getvalue())
    else:
        atomic(path, render(scan, format, table).encode())


def atomic(path: str | Path, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, and a killed process leaves the old."""
    target = Path(path)
    try:
        special = not stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        special = False
    if special and not target.is_dir():  # /dev/stdout, a FIFO: nothing there to replace
        target.write_bytes(content)
        return
    if target.is_symlink():  # keep the link, replace what it points to
        target = target.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
