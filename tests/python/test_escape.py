"""Text from recordings does no harm where it is shown."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import frames
from gradscan.report import csv, escape, html, jsonl, markdown, terminal
from gradscan.report import json as json_report
from gradscan.result import Scan

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://example.invalid\x07click\x1b]8;;\x07",
    "\x9b31mC1",
    "bell\x07 back\x08space",
    "over\u202ewritten\u202c",
    "iso\u2066lated\u2069",
    "[bold red]markup[/]",
    ":boom:",
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "a|b`c`[d](http://example.invalid)![e](f)*g*_h_~i~",
    "line\nbreak\r\n# heading",
    '=HYPERLINK("http://example.invalid")',
    "+1+1",
    "-2",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\ud800lone",
    "</style></title>",
]
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec=None), max_size=30))


def texts(test: Callable[[str], None]) -> Callable[[str], None]:
    """The hostile ones, every time, and a few that hypothesis makes."""
    for text in HOSTILE:
        test = example(text)(test)
    return settings(max_examples=20)(given(TEXT)(test))


def hostile_scan(name: str) -> Scan:
    row = frames.finding(run=name, metric=name, restore_path=name, source=name)
    runs = [
        frames.damaged(row),
        frames.run(run=name + "2", status="unreadable", reason=name, reason_code="io-error"),
        frames.run(run=name + "3", notes=["partial-coverage"]),
        frames.run(run=name + "4", status="suspect"),
    ]
    trace = {"run": name + "4", "rule": "vanished", "metric": name, "sentence": name, "severity": "warning"}
    fault = {"run": name, "source": name, "kind": "unparsable", "place": name, "detail": name, "severity": "warning"}
    return frames.scan(runs, [row], suspicions=[trace], faults=[fault])


def encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@given(TEXT)
def test_terminal_text_has_no_controls(text: str) -> None:
    shown = escape.terminal(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode("utf-8")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("color", [False, True])
def test_terminal_report(name: str, color: bool) -> None:
    scan = hostile_scan(encodable(name))
    texts = [terminal.render(scan, width=width, color=color, show_all=True) for width in (40, 80, 200)]
    texts += [terminal.table(scan, table, color=color) for table in ("findings", "runs", "faults", "suspicions")]
    for text in texts:
        own = re.sub("\x1b\\[[0-9;]*m", "", text) if color else text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", own)
    # Markup and emoji codes of rich stand there as they were written.
    if name in ("[bold red]markup[/]", ":boom:"):
        assert name in texts[2]
    assert repr(scan) == "Scan(4 runs: 1 damaged, 1 suspect, 1 unreadable, 1 clean)"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)


OURS = {"html", "head", "meta", "title", "style", "body", "h1", "p", "div", "b", "span", "code"}
OURS |= {"table", "thead", "tbody", "tr", "th", "td"}


@texts
def test_html_has_no_tags_but_ours(name: str) -> None:
    scan = hostile_scan(encodable(name))
    pages = [html.render(scan, table) for table in ("findings", "runs", "faults", "suspicions")]
    pages += [html.fragment(scan), html.run_fragment(scan[scan.runs["run"][0]])]
    for page in pages:
        tags = Tags()
        tags.feed(page)
        assert tags.seen <= OURS
        assert tags.seen


@texts
def test_markdown_table_keeps_its_shape(name: str) -> None:
    text = markdown.render(hostile_scan(encodable(name)), "findings")
    table = [line for line in text.split("\n") if line.startswith("|")]
    assert len(table) == 3
    bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table]
    assert bars[0] == bars[1] == bars[2]
    assert not re.search(r"(?<!\\)[`\[\]]|<|://", table[2])


@texts
def test_csv_has_no_formula_and_reads_back(name: str) -> None:
    name = encodable(name)
    rows = list(stdlib_csv.DictReader(io.StringIO(csv.render(hostile_scan(name), "findings"), newline="")))
    assert len(rows) == 1
    for column in ("run", "metric", "restore_path", "source"):
        shown = rows[0][column]
        assert not shown.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert shown in (name, "'" + name)
    assert rows[0]["first_value"] == "NaN"
    assert json.loads(rows[0]["steps"]) == [5200, 5210]
    assert json.loads(rows[0]["evidence"])[0]["value"] == "NaN"


@texts
def test_json_is_strict_and_means_the_same(name: str) -> None:
    scan = hostile_scan(encodable(name))

    def refuse(constant: str) -> None:
        raise AssertionError(f"bare {constant}")

    text = json_report.render(scan)
    document = json.loads(text, parse_constant=refuse)
    assert document["runs"][0]["run"] == encodable(name)
    assert document["findings"][0]["first_value"] == "NaN"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    line = json.loads(jsonl.render(scan, "runs").split("\n")[0], parse_constant=refuse)
    assert line["run"] == encodable(name)


def test_json_text_keeps_every_character() -> None:
    # Also what is escaped beyond the basic plane, and lone surrogates.
    for text in ("\U000e0041", "\u2028", "\x85", "\ud800", "日本語", "😀"):
        line = json_report.dump({"x": text})
        line.encode("utf-8")
        assert json.loads(line) == {"x": text}
