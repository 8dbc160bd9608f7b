"""A scan for a person at a terminal: what is damaged, since when, and where to go back to.

The rest stands in as few lines as it needs.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscan.report.columns import NUMERIC, cell, counts
from gradscan.report.escape import terminal as escape

if TYPE_CHECKING:
    import polars as pl

    from gradscan.result import Run, Scan, View

__all__ = ["plain_table", "render", "run_line", "size", "summary_line", "summary_repr", "table", "view"]

PROSE_WIDTH = 120
"""Sentences do not grow wider than this: longer lines are hard to read."""

STYLE = {
    "damaged": "bold red",
    "suspect": "bold yellow",
    "opening": "yellow",
    "unreadable": "magenta",
    "not assessable": "cyan",
    "clean": "green",
    "nonfinite": "red",
    "spikes": "red",
}


class _Page:
    """Lines of styled text, given out as one string."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self._out = io.StringIO()
        # Markup, emoji codes and highlighting are off: text from recordings is never interpreted.
        self._console = Console(
            file=self._out,
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def line(self, *parts: str | tuple[str, str] | Text) -> None:
        """One line; a longer one is broken between words and goes on under its first word."""
        text = Text.assemble(*parts)
        indent = len(text.plain) - len(text.plain.lstrip(" "))
        self.wrapped(text[indent:], indent, self.width)

    def whole(self, *parts: str | tuple[str, str] | Text) -> None:
        """One line that is never broken, so that a path in it can be copied; a terminal folds it."""
        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def prose(self, sentence: str, indent: int = 2, style: str = "") -> None:
        self.wrapped(Text(escape(sentence), style), indent, min(self.width, PROSE_WIDTH))

    def wrapped(self, text: Text, indent: int, width: int) -> None:
        for piece in text.wrap(self._console, max(20, width - indent)):
            piece.rstrip()
            self._console.print(Text(" " * indent) + piece, soft_wrap=True)

    def hanging(self, label: tuple[str, str], text: str) -> None:
        """A label, and text that goes on under its own first word."""
        left = Text(*label)
        for piece in Text(text).wrap(self._console, max(20, self.width - left.cell_len)):
            piece.rstrip()
            self.whole(left, piece)
            left = Text(" " * left.cell_len)

    def blank(self) -> None:
        self._console.print()

    def text(self) -> str:
        return self._out.getvalue()


def size(count: int) -> str:
    """Bytes as people read them: 812 B, 8.2 MB, 1.4 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def _fit(text: str, width: int) -> str:
    """The text in at most that many cells, its middle left out if need be."""
    if cell_len(text) <= width:
        return text
    keep = max(1, (width - 1) // 2)
    head, tail = text[:keep], text[len(text) - keep :]
    while head and cell_len(head) + cell_len(tail) + 1 > width:
        head = head[:-1]
        tail = tail[1:] if cell_len(head) + cell_len(tail) + 1 > width else tail
    return f"{head}…{tail}"


def _pad(text: str, width: int, right: bool = False) -> str:
    space = " " * max(0, width - cell_len(text))
    return space + text if right else text + space


# -------------------------------------------------------------------------------------------- the scan


def render(scan: Scan, *, width: int = 80, color: bool = False, limit: int = 50, show_all: bool = False) -> str:
    """The whole report.

    At most `limit` runs of each status, the rest counted; `show_all` lists opening and clean runs too.
    """
    page = _Page(width, color)
    _damaged(page, scan, limit)
    _suspect(page, scan, limit)
    _opening(page, scan, limit, show_all)
    _reasons(page, scan, scan.unreadable, "unreadable", limit, show_all)
    _reasons(page, scan, scan.not_assessable, "not assessable", limit, show_all)
    _clean(page, scan, limit, show_all)
    _faults(page, scan)
    _summary(page, scan)
    return page.text()


def summary_line(scan: Scan, *, width: int = 80, color: bool = False) -> str:
    """The last line of the report alone."""
    page = _Page(width, color)
    _summary(page, scan)
    return page.text()


def _heading(page: _Page, status: str, count: int) -> None:
    page.line((status, STYLE[status]), (f"  {count:,} {'run' if count == 1 else 'runs'}", "dim"))


def _rest(page: _Page, count: int, limit: int) -> None:
    if count > limit:
        page.line((f"  and {count - limit:,} more (--limit {count} shows them)", "dim"))
        page.blank()


def _name(page: _Page, row: dict[str, Any]) -> None:
    name, format = escape(row["run"]), escape(row["format"])
    if cell_len(name) + 2 + cell_len(format) <= page.width:
        page.line((name, "bold"), (f"  {format}", "dim"))
    else:
        page.whole((name, "bold"))
        page.line((f"  {format}", "dim"))


def _step(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _damaged(page: _Page, scan: Scan, limit: int) -> None:
    runs = scan.damaged
    if len(runs) == 0:
        return
    _heading(page, "damaged", len(runs))
    page.blank()
    shown = list(runs.head(limit).iter_rows(named=True))
    findings = _by_run(scan.findings, [row["run"] for row in shown])
    rows = [row for of_run in findings.values() for row in of_run]
    widths = _widths(rows)
    for row in shown:
        own = findings.get(row["run"], [])
        _name(page, row)
        for finding in own:
            _finding(page, finding, widths)
        if own:
            page.prose(own[0]["explanation"])
        _restore(page, row)
        page.blank()
    _rest(page, len(runs), limit)


_FIELDS = (("step", "first_step"), ("since", "onset_step"), ("last good", "last_good_step"))


def _widths(findings: Iterable[dict[str, Any]]) -> dict[str, int]:
    widths = {column: 1 for _, column in _FIELDS}
    for finding in findings:
        for column, width in widths.items():
            widths[column] = max(width, len(_step(finding[column])))
    return widths


def _finding(page: _Page, finding: dict[str, Any], widths: dict[str, int]) -> None:
    """One aligned row: the check, first bad step, onset, last good step, metric."""
    warning = finding["severity"] == "warning"
    parts: list[str | tuple[str, str]] = ["  ", (_pad(finding["check"], 9), "yellow" if warning else "red")]
    used = 11
    for label, column in _FIELDS:
        value = _step(finding[column])
        parts += [f"  {label} ", (_pad(value, widths[column]), _step_style(finding, column))]
        used += 3 + len(label) + max(widths[column], len(value))
    parts += ["  ", (_fit(escape(finding["metric"] or ""), max(10, page.width - used - 2)), "cyan")]
    page.line(*parts)


def _step_style(finding: dict[str, Any], column: str) -> str:
    if column == "first_step":
        return "bold"
    return "dim" if column == "onset_step" and finding["onset_step"] == finding["first_step"] else ""


def _restore(page: _Page, run: dict[str, Any]) -> None:
    """Where to go back to. That there is nowhere is said by the explanation."""
    status, path = run["restore_status"], run["restore_path"]
    point = escape(path) if path else f"the checkpoint of step {_step(run['restore_step'])}"
    if status in ("clean", "verified"):
        page.whole("  ", ("restore    ", "green"), (point, "bold green"))
    elif status == "uncertain":
        page.whole("  ", ("restore?   ", "yellow"), (point, "bold yellow"))


def _suspect(page: _Page, scan: Scan, limit: int) -> None:
    runs = scan.suspect
    if len(runs) == 0:
        return
    _heading(page, "suspect", len(runs))
    page.blank()
    shown = list(runs.head(limit).iter_rows(named=True))
    traces = _by_run(scan.suspicions, [row["run"] for row in shown])
    for row in shown:
        _name(page, row)
        for trace in traces.get(row["run"], []):
            page.line(
                *("  ", (_pad(trace["rule"], 14), "yellow"), f"  step {_step(trace['first_step'])}"),
                *(f"  last good {_step(trace['last_good_step'])}  ", (escape(trace["metric"] or ""), "cyan")),
            )
            page.prose(trace["sentence"])
        page.blank()
    _rest(page, len(runs), limit)


def _opening(page: _Page, scan: Scan, limit: int, show_all: bool) -> None:
    runs = scan.opening
    if len(runs) == 0:
        return
    if not show_all:
        count = f"  {len(runs):,} {'run' if len(runs) == 1 else 'runs'}"
        said = ", large norms in the first steps only (--all lists them)"
        page.line(("opening", STYLE["opening"]), (count + said, "dim"))
        page.blank()
        return
    _heading(page, "opening", len(runs))
    page.blank()
    shown = list(runs.head(limit).iter_rows(named=True))
    findings = _by_run(scan.findings, [row["run"] for row in shown])
    widths = _widths(row for of_run in findings.values() for row in of_run)
    for row in shown:
        _name(page, row)
        for finding in findings.get(row["run"], []):
            _finding(page, finding, widths)
            page.prose(finding["explanation"])
        page.blank()
    _rest(page, len(runs), limit)


def _reasons(page: _Page, scan: Scan, runs: pl.DataFrame, status: str, limit: int, show_all: bool) -> None:
    """Runs without a verdict, those with the same reason together."""
    if len(runs) == 0:
        return
    _heading(page, status, len(runs))
    groups: dict[str, list[str]] = {}
    for run, reason in runs.select("run", "reason").iter_rows():
        groups.setdefault(reason or "no reason was given", []).append(run)
    most = limit if show_all else 3
    for reason, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        head = f"{len(names):,} x " if len(names) > 1 else ""
        page.prose(head + reason)
        for name in names[:most]:
            page.line(("    " + escape(name), "dim"))
        if len(names) > most:
            page.line((f"    and {len(names) - most:,} more", "dim"))
    page.blank()


def _clean(page: _Page, scan: Scan, limit: int, show_all: bool) -> None:
    """Clean runs are only counted, but a clean run whose signal ends early is named: the rest of it was never seen."""
    runs = scan.clean
    if len(runs) == 0:
        return
    shown, ends = [], _signal_ends(scan)
    for run, notes, last in runs.select("run", "notes", "last_step").iter_rows():
        if "partial-coverage" in notes:
            shown.append((run, f"until step {_step(ends.get(run))} of {_step(last)}"))
        elif show_all:
            shown.append((run, "loss only" if "loss-only" in notes else ""))
    if not shown:
        return
    if show_all:
        _heading(page, "clean", len(runs))
    else:
        early = f"{len(shown):,} {'run' if len(shown) == 1 else 'runs'}"
        page.line(("clean, but not to the end", STYLE["clean"]), (f"  {early}", "dim"))
    most = limit if show_all else min(limit, 10)
    wide = min(max(cell_len(escape(run)) for run, _ in shown[:most]), page.width - 34)
    for run, said in shown[:most]:
        page.line(
            "  ", _pad(_fit(escape(run), wide), wide), (f"  clean {said}".rstrip(), "dim" if not said else "yellow")
        )
    if len(shown) > most:
        page.line((f"  and {len(shown) - most:,} more", "dim"))
    page.blank()


def _signal_ends(scan: Scan) -> dict[str, int]:
    """The last step with a signal, by run."""
    ends: dict[str, int] = {}
    for run, last in scan.series.select("run", "last_step").iter_rows():
        if last is not None:
            ends[run] = max(last, ends.get(run, last))
    return ends


def _faults(page: _Page, scan: Scan) -> None:
    kinds: dict[str, int] = {}
    for kind in scan.faults["kind"]:
        kinds[kind] = kinds.get(kind, 0) + 1
    if kinds:
        said = ", ".join(
            f"{count:,} {escape(kind)}" for kind, count in sorted(kinds.items(), key=lambda kind: -kind[1])
        )
        page.line((f"faults in files: {said} (--table faults says where)", "dim"))
        page.blank()


def _summary(page: _Page, scan: Scan) -> None:
    summary = scan.summary()
    total = summary["recordings"]
    text = Text(f"{total:,} {'run' if total == 1 else 'runs'}", "bold")
    only_loss = sum("loss-only" in (notes or ()) for notes in scan.clean["notes"].to_list())
    for number, (status, count) in enumerate(counts(summary)):
        text.append(": " if number == 0 else ", ", "not bold")
        text.append(f"{count:,} {status}", f"not bold {STYLE[status]}".replace("not bold bold", "bold"))
        if status == "clean" and only_loss:
            text.append(f" ({only_loss:,} loss only)", "not bold dim")
    skipped = summary["skipped_files"]
    tail = f"; {size(scan.bytes)}"
    if skipped:
        tail += f", {skipped:,} other {'file' if skipped == 1 else 'files'} skipped"
    text.append(tail, "not bold dim")
    if scan.interrupted:
        text.append("; interrupted, the rest was not scanned", "bold yellow")
    page.line(text)


def _by_run(frame: pl.DataFrame, runs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    wanted = set(runs)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        if row["run"] in wanted:
            found.setdefault(row["run"], []).append(row)
    return found


# ---------------------------------------------------------------------------------------- plain tables


_TABLES: dict[str, tuple[str, ...]] = {
    "findings": (
        "run",
        "check",
        "first_step",
        "onset_step",
        "last_good_step",
        "metric",
        "count",
        "confidence",
        "restore_path",
        "restore_status",
    ),
    "runs": ("run", "status", "format", "first_step", "onset_step", "records", "last_step", "notes", "reason"),
    "series": ("run", "metric", "role", "n", "nan", "inf", "spikes", "median", "max", "first_step", "last_step"),
    "suspicions": ("run", "rule", "first_step", "last_good_step", "metric", "sentence"),
    "faults": ("source", "kind", "severity", "place", "detail"),
    "directories": ("directory", "recordings", "status", "disagree"),
}
"""Columns of a plain table, the most important first: those that do not fit are left out."""

_TITLES = {
    "first_step": "step",
    "onset_step": "since",
    "last_good_step": "last good",
    "restore_path": "restore",
    "restore_status": "restore status",
}


def table(scan: Scan, name: str, *, width: int = 80, color: bool = False, limit: int = 50) -> str:
    """One table of a scan in aligned columns, at most `limit` rows; columns that do not fit are named at the end."""
    frame = scan.table(name)
    page = _Page(width, color)
    if len(frame) == 0:
        return f"no {name}\n"
    columns = _TABLES[name]
    rows = [[cell(value) for value in row] for row in frame.select(columns).head(limit).iter_rows()]
    # A series has a first step, a finding the step of its first bad row.
    short = {} if name == "series" else _TITLES
    left_out = _grid(page, columns, [short.get(column, column.replace("_", " ")) for column in columns], rows)
    if len(frame) > limit:
        page.line((f"and {len(frame) - limit:,} more (--limit {len(frame)} shows them)", "dim"))
    if left_out:
        page.line((f"too wide for this terminal: {', '.join(left_out)} (--format csv has all columns)", "dim"))
    return page.text()


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int = 80, color: bool = False) -> str:
    """Any rows of text in aligned columns; the last column is wrapped under itself."""
    page = _Page(width, color)
    escaped = [[escape(value) for value in row] for row in rows]
    wide = [max(cell_len(text) for text in column) for column in zip(columns, *escaped, strict=True)]
    indent = sum(wide[:-1]) + 2 * (len(wide) - 1)
    if indent > width - 24:
        # Too narrow for columns: one block a row, each value under the name of its column.
        for row in escaped:
            page.line((row[0], "bold"))
            for name, value in zip(columns[1:], row[1:], strict=True):
                if value:
                    page.wrapped(Text(f"{name}: {value}"), 2, page.width)
        return page.text()
    for row, style in [(list(columns), "dim"), *((row, "") for row in escaped)]:
        head = "  ".join(_pad(text, size) for text, size in zip(row[:-1], wide[:-1], strict=True))
        pieces = Text(row[-1]).wrap(page._console, max(20, width - indent)) or [Text("")]
        for number, piece in enumerate(pieces):
            left = head + "  " if number == 0 else " " * indent
            page._console.print(Text((left + piece.plain).rstrip(), style), soft_wrap=True)
    return page.text()


def _grid(page: _Page, columns: Sequence[str], titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Print aligned columns, empty ones left out; gives the titles of those that did not fit."""
    cells = [[escape(value) for value in row] for row in rows]
    filled = [number for number in range(len(columns)) if any(row[number] for row in cells)]
    wide = [max(cell_len(text) for text in column) for column in zip(titles, *cells, strict=True)]
    # The name may be cut in its middle down to a third of the line; whatever follows is shown whole or not at all.
    wide[0] = min(wide[0], max(20, page.width // 3))
    shown, used = filled[:1], wide[filled[0]]
    for number in filled[1:]:
        if used + 2 + wide[number] <= page.width:
            shown.append(number)
            used += 2 + wide[number]
        elif number == filled[-1] and columns[number] not in NUMERIC and page.width - used - 2 >= 24:
            wide[number] = page.width - used - 2
            shown.append(number)
    for place, row in enumerate([titles, *cells]):
        text = Text()
        for number in shown:
            style = "dim" if place == 0 else STYLE.get(row[number].replace("_", " "), "")
            right = columns[number] in NUMERIC
            text.append(_pad(_fit(row[number], wide[number]), wide[number], right) + "  ", style)
        text.rstrip()
        page.whole(text)
    return [titles[number] for number in filled if number not in shown]


# --------------------------------------------------------------------------------------------- one run


_MARKS = {"nan": "bold red", "inf": "bold red", "alias": "bold red", "count": "bold red", "spike": "bold yellow"}


def view(view: View, *, width: int = 80, color: bool = False) -> str:
    """The rows around a step (`>`), bad cells marked with `!` (not finite) or `^` (spike), and the samples there."""
    page = _Page(width, color)
    status = view.status.replace("_", " ")
    page.line((escape(view.run), "bold"), (f"  {escape(view.format)}  ", "dim"), (status, STYLE.get(status, "")))
    for sentence in view.sentences:
        page.prose(sentence, 0)
    page.blank()
    if len(view.frame) == 0:
        page.line(("no rows", "dim"))
        return page.text()
    columns = [name for name in view.frame.columns if name != "time"]
    pinned = set(view.pinned)
    columns[1:] = sorted(columns[1:], key=lambda name: name not in pinned)
    # A long name is cut in its middle; a column that was asked for or that is bad is
    # never left out: what does not fit goes into a further block of rows.
    titles = _titles(columns[1:], max(16, page.width // 4))
    blocks: list[list[str]] = []
    shown, start = ["step"], 2 + max(len("step"), *(len(_step(step)) for step in view.frame["step"]))
    body: dict[str, list[str]] = {"step": [_step(step) for step in view.frame["step"]]}
    used, hidden = start, list(view.hidden)
    for name in columns[1:]:
        texts = []
        for row, value in enumerate(view.frame[name]):
            mark = view.marks.get((row, name))
            texts.append(_value(value) + (" " if mark is None else "^" if mark == "spike" else "!"))
        wide = max(cell_len(titles[name]), *(cell_len(text) for text in texts))
        if used + wide + 2 > page.width and len(shown) > 1:
            if name not in pinned:
                hidden.append(name)
                continue
            blocks.append(shown)
            shown, used = ["step"], start
        shown.append(name)
        body[name] = texts
        used += wide + 2
    for number, block in enumerate([*blocks, shown]):
        if number:
            page.blank()
        _rows(page, view, block, body, titles)
    if view.marks:
        page.blank()
        page.line(("! not finite   ^ spike", "dim"))
    if hidden:
        names = ", ".join(escape(name) for name in hidden[:8]) + (
            f" and {len(hidden) - 8:,} more" if len(hidden) > 8 else ""
        )
        page.line((f"also recorded (--metric NAME shows them): {names}", "dim"))
    if view.samples is not None and len(view.samples):
        _samples(page, view.samples)
    return page.text()


def _titles(names: Sequence[str], most: int) -> dict[str, str]:
    """Names as column titles of at most that many cells and room for a mark; those cut alike show where they differ."""
    cut: dict[str, list[str]] = {}
    for name in names:
        cut.setdefault(_fit(escape(name), most), []).append(name)
    titles = {"step": "step"}
    for short, alike in cut.items():
        first, last = min(map(escape, alike)), max(map(escape, alike))
        same = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
        shared = first[: max(first.rfind(mark, 0, same) for mark in "/._") + 1]
        for name in alike:
            text = short
            if len(alike) > 1:
                text = "…" + escape(name)[len(shared) :]
                while cell_len(text) > most:
                    text = text.removesuffix("…")[:-1] + "…"
            titles[name] = text + " "
    return titles


def _rows(page: _Page, view: View, shown: Sequence[str], body: dict[str, list[str]], titles: dict[str, str]) -> None:
    wide = {name: max(cell_len(titles[name]), *map(cell_len, body[name])) for name in shown}
    head = Text("  ", "dim")
    for name in shown:
        head.append(_pad(titles[name], wide[name], right=True) + "  ")
    head.rstrip()
    page._console.print(head, soft_wrap=True)
    for row in range(len(view.frame)):
        here = view.step is not None and view.frame["step"][row] == view.step and view.row in (row, -1)
        text = Text("> " if here else "  ", "bold")
        for name in shown:
            style = _MARKS.get(view.marks.get((row, name), ""), "bold" if here and name == "step" else "not bold")
            text.append(_pad(body[name][row], wide[name], right=True), style)
            text.append("  ")
        text.rstrip()
        page._console.print(text, soft_wrap=True)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return cell(float(value))


def _samples(page: _Page, samples: pl.DataFrame) -> None:
    page.blank()
    page.line(("samples", "bold"), (f"  {len(samples):,} captured around there, outliers first", "dim"))
    for sample in samples.iter_rows(named=True):
        numbers = [f"{name} {cell(sample[name])}" for name in ("reward", "advantage") if sample.get(name) is not None]
        page.blank()
        page.line(("  step ", "dim"), _step(sample.get("step")), (f"  {'  '.join(numbers)}", "cyan"))
        for name in ("prompt", "completion"):
            if sample.get(name):
                page.hanging(("    " + _pad(name, 12), "dim"), _short(sample[name], page.width * 2))


def _short(text: str, most: int) -> str:
    text = escape(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def run_line(run: Run) -> str:
    """One run in a line or two, for `repr`."""
    said = f"\n{escape(run.explanation)}" if run.explanation else ""
    return f"Run({run.run!r}, format={run.format!r}, status={run.status!r}){said}"


def summary_repr(scan: Scan) -> str:
    """A scan in one line, for `repr`."""
    said = ", ".join(f"{count:,} {status}" for status, count in counts(scan.summary()))
    return f"Scan({len(scan):,} runs{': ' if said else ''}{said})"
