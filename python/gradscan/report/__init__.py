"""Renderers: a finished `Scan` in, text out.

One format a file; none of them computes, filters by a rule or reads a recording.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradscan.result import Scan

__all__ = ["FORMATS", "SUFFIXES", "atomic", "check_target", "render", "suffix_format", "write"]

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


def check_target(path: str | Path) -> None:
    """Refuse what `write` could not write to, before any work is done: ValueError for the suffix, else an OSError."""
    suffix_format(path)
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
    folder = target.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
    existing = target.exists()
    regular = not existing or target.is_file()
    if (existing and not os.access(target, os.W_OK)) or (regular and not os.access(folder, os.W_OK | os.X_OK)):
        raise PermissionError(errno.EACCES, "permission denied", str(path))


def atomic(path: str | Path, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, and a killed process leaves the old.

    An existing file keeps its mode. An OSError names `path` and never the temporary file beside it.
    """
    try:
        _replace(Path(path), content)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(target: Path, content: bytes) -> None:
    mode: int | None = None
    with suppress(FileNotFoundError):
        mode = target.stat().st_mode
    special = mode is not None and not stat.S_ISREG(mode)
    if special and not target.is_dir():  # /dev/stdout, a FIFO: nothing there to replace
        target.write_bytes(content)
        return
    if target.is_symlink():  # keep the link, replace what it points to
        target = target.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            if mode is not None and not special:
                os.chmod(temporary, stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
