"""An audit as text: a report for a terminal, and the tensors as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from gradscan.report import csv
from gradscan.report.columns import NUMERIC, cell
from gradscan.report.escape import markdown as escape_markdown
from gradscan.report.escape import terminal as escape
from gradscan.report.json import SCHEMA, dump, rows
from gradscan.report.terminal import _fit, _pad, _Page

if TYPE_CHECKING:
    import polars as pl

    from gradscan.result import Audit

__all__ = ["data", "render", "summary_line", "write"]

_SHOWN = ("name", "nan", "inf", "first_row", "bad_rows", "dtype", "shape", "values")
"""The most useful first: where a line is too narrow, the last ones are left out."""


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _closing(audit: Audit) -> list[tuple[str, str]]:
    """Text and style of the last line."""
    summary = audit.summary()
    said = f"{_counted(summary['tensors'], 'tensor')} of {_counted(summary['files'], 'file')}, "
    parts = [(said + f"{_counted(summary['values'], 'value')} checked: ", "")]
    if summary["bad"]:
        parts.append((f"{summary['bad']:,} with NaN or Inf", "bold red"))
    elif summary["values"]:
        parts.append(("no NaN or Inf", "green"))
    else:
        parts.append(("nothing that can be NaN or Inf was looked at", "yellow"))
    if summary["damaged"]:
        parts.append((", ", ""))
        parts.append((f"{_counted(summary['damaged'], 'file')} could not be read", "magenta"))
    if audit.interrupted:
        parts.append((" (interrupted)", "yellow"))
    return parts


def summary_line(audit: Audit, *, width: int = 80, color: bool = False) -> str:
    """The closing line alone."""
    page = _Page(width, color)
    page.line(*_closing(audit))
    return page.text()


def render(audit: Audit, *, width: int = 80, color: bool = False, limit: int = 50, show_all: bool = False) -> str:
    """What holds NaN or Inf by file, what could not be read, and how much was looked at.

    At most `limit` tensors and as many faults, the rest counted; `show_all` lists clean tensors, too.
    """
    page = _Page(width, color)
    tensors = audit.tensors if show_all else audit.bad
    for (source,), group in tensors.head(limit).group_by("source", maintain_order=True):
        page.whole((escape(str(source)), "bold"))
        lines = [[cell(_value(name, value)) for name, value in row.items()] for row in group.select(_SHOWN).to_dicts()]
        _grid(page, lines)
        page.blank()
    if len(tensors) > limit:
        page.line((f"and {len(tensors) - limit:,} more tensors (--limit {len(tensors)} shows them)", "dim"))
        page.blank()
    if len(audit.faults):
        page.line(("could not be read, or not to the end", "bold magenta"))
        for source, kind, place, detail in audit.faults.head(limit).iter_rows():
            page.whole("  ", escape(source))
            where = f"{kind} at {place}" if place else kind
            page.prose(f"{where}: {detail}", indent=4)
        if len(audit.faults) > limit:
            page.line((f"  and {len(audit.faults) - limit:,} more", "dim"))
        page.blank()
    page.line(*_closing(audit))
    return page.text()


def _grid(page: _Page, lines: list[list[str]]) -> None:
    """Aligned columns. Names of tensors differ in their middles: they are cut only where the counts leave no room."""
    titles = [name.replace("_", " ") for name in _SHOWN]
    cells = [titles, *([escape(text) for text in line] for line in lines)]
    wide = [max(cell_len(text) for text in column) for column in zip(*cells, strict=True)]
    shown = len(wide)
    while shown > 5 and sum(wide[:shown]) + 2 * shown > page.width:
        shown -= 1
    wide[0] = min(wide[0], max(16, page.width - sum(wide[1:shown]) - 2 * shown))
    for place, line in enumerate(cells):
        padded = [
            _pad(_fit(text, size), size, name in NUMERIC)
            for text, size, name in zip(line[:shown], wide, _SHOWN, strict=False)
        ]
        page.whole(("  " + "  ".join(padded).rstrip(), "dim" if place == 0 else ""))


def _value(name: str, value: Any) -> Any:
    if name == "shape":
        return "[" + ", ".join(map(str, value or ())) + "]"
    return value


def data(audit: Audit, format: str, *, show_all: bool = False, version: str = "") -> str:
    """The audit as json (all of it), or its tensors as jsonl, csv or markdown; only bad ones without `show_all`."""
    tensors = audit.tensors if show_all else audit.bad
    if format == "json":
        head = {"schema": SCHEMA, "gradscan": version, "summary": audit.summary(), "interrupted": audit.interrupted}
        parts = [f'"{key}": {dump(value)}' for key, value in head.items()]
        for name, frame in (("tensors", tensors), ("faults", audit.faults)):
            parts.append(f'"{name}": ' + ("[\n" + ",\n".join(rows(frame)) + "\n]" if len(frame) else "[]"))
        return "{\n" + ",\n".join(parts) + "\n}\n"
    if format == "jsonl":
        return "".join(row + "\n" for row in rows(tensors))
    if format == "csv":
        return csv.rows(tensors)
    lines = ["# gradscan audit", "", "".join(text for text, _ in _closing(audit)) + ".", ""]
    lines += _table(tensors, ("source", *_SHOWN))
    if len(audit.faults):
        lines += ["", "Could not be read, or not to the end:", ""]
        lines += _table(audit.faults, ("source", "kind", "place", "detail"))
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(frame: pl.DataFrame, columns: tuple[str, ...]) -> list[str]:
    if len(frame) == 0:
        return []
    lines = ["| " + " | ".join(name.replace("_", " ") for name in columns) + " |"]
    lines.append("|" + "|".join(" ---: " if name in NUMERIC else " --- " for name in columns) + "|")
    for row in frame.select(columns).to_dicts():
        cells = (escape_markdown(cell(_value(name, value))) for name, value in row.items())
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def write(audit: Audit, path: str, *, show_all: bool = False, version: str = "") -> None:
    """Write a report file whole or not at all, its format by suffix."""
    from gradscan.report import atomic, suffix_format

    format = suffix_format(path)
    if format == "parquet":
        import io

        buffer = io.BytesIO()
        (audit.tensors if show_all else audit.bad).write_parquet(buffer)
        atomic(path, buffer.getvalue())
    elif format == "table":
        atomic(path, render(audit, width=100, show_all=show_all).encode())
    else:
        atomic(path, data(audit, format, show_all=show_all, version=version).encode())
