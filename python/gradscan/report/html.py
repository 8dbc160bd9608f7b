"""A scan as HTML: a standalone page without scripts or links, and the fragments that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradscan.report.columns import COLUMNS, NUMERIC, cell, counts
from gradscan.report.escape import html as escape

if TYPE_CHECKING:
    from gradscan.result import Run, Scan

__all__ = ["fragment", "render", "run_fragment"]

MOST_ROWS = 20
"""Rows of a notebook's table; the rest is counted."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bad: #c1121f; --warn: #b45309; --good: #2b7a3d }
@media (prefers-color-scheme: dark) { :root { --bad: #ff6b6b; --warn: #f0a53a; --good: #6cc07f; --dim: #999 } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1.5rem }
h1 { font-size: 1.25rem; margin: 0 0 .25rem }
p { margin: 0 0 1.25rem; color: var(--dim) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 600; white-space: nowrap; position: sticky; top: 0; background: Canvas }
th, td { padding: .35rem .75rem; border-bottom: 1px solid var(--line); vertical-align: top }
.n { text-align: right; white-space: nowrap }
.critical, .damaged, .error { color: var(--bad); font-weight: 600 }
.warning, .suspect, .opening, .unreadable { color: var(--warn) }
.clean { color: var(--good) }
"""

_STATES = frozenset(
    {"critical", "warning", "error", "damaged", "suspect", "opening", "unreadable", "not_assessable", "clean"}
)


_SENTENCES = frozenset({"explanation", "sentence", "detail"})
_SENTENCE = ' style="min-width: 24rem; text-align: left"'
"""Columns of prose need room; in a notebook there is no style sheet to give it."""


def render(scan: Scan, table: str = "findings") -> str:
    """A whole page: the counts and one table."""
    frame = scan.table(table)
    columns = COLUMNS[table]
    body = _table(columns, frame.select(columns).iter_rows()) if len(frame) else f"<p>No {escape(table)}.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>gradscan</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>gradscan</h1>\n<p>{_counts(scan)}</p>\n{body}\n</body>\n</html>\n"
    )


def fragment(scan: Scan) -> str:
    """For a notebook: the counts and the worst findings, the rest counted."""
    columns = ("run", "check", "metric", "first_step", "onset_step", "restore_path", "explanation")
    found = scan.findings
    if len(found) == 0:
        return f"<div><b>gradscan</b> {_counts(scan)}</div>"
    hidden = len(found) - MOST_ROWS
    more = f"<div>and {hidden:,} more in <code>scan.findings</code></div>" if hidden > 0 else ""
    table = _table(columns, found.select(columns).head(MOST_ROWS).iter_rows())
    return f"<div><b>gradscan</b> {_counts(scan)}</div>{table}{more}"


def run_fragment(run: Run) -> str:
    """For a notebook: one run's status, what is wrong with it, its findings and its series."""
    said = f"<div>{escape(run.explanation)}</div>" if run.explanation else ""
    status = f'<span class="{escape(run.status)}">{escape(run.status.replace("_", " "))}</span>'
    found = ("check", "metric", "first_step", "onset_step", "last_good_step", "restore_path", "restore_status")
    findings = _table(found, run.findings.select(found).iter_rows()) if len(run.findings) else ""
    series = COLUMNS["series"][1:]
    checked = _table(series, run.series.select(series).head(MOST_ROWS).iter_rows()) if len(run.series) else ""
    return f"<div><b>{escape(run.run)}</b> {status} ({escape(run.format)})</div>{said}{findings}{checked}"


def _counts(scan: Scan) -> str:
    summary = scan.summary()
    said = ", ".join(f"{count:,} {escape(status)}" for status, count in counts(summary))
    return f"{summary['recordings']:,} recordings: {said or 'none'}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    kinds = [_SENTENCE if name in _SENTENCES else ' class="n"' if name in NUMERIC else "" for name in columns]
    head = "".join(f"<th{kind}>{name.replace('_', ' ')}</th>" for kind, name in zip(kinds, columns, strict=True))
    lines = [f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>"]
    for row in rows:
        cells = []
        for kind, value in zip(kinds, row, strict=True):
            state = f' class="{value}"' if isinstance(value, str) and value in _STATES else kind
            cells.append(f"<td{state}>{escape(cell(value))}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    lines.append("</tbody>\n</table>")
    return "\n".join(lines)
