"""Scans and their reports, over frames made by hand."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json
import math
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import frames
from gradscan import report, samples
from gradscan.report import html, markdown, terminal
from gradscan.report import json as json_report
from gradscan.result import SCHEMAS, TABLES, NonFinite, Recording, Scan, View


@pytest.fixture
def scan() -> Scan:
    nan = frames.finding()
    also = frames.spikes(first_step=5150, onset_step=5150, last_good_step=5140)
    spikes = frames.spikes(run="llama/run-2", restore_status="uncertain")
    opening = frames.spikes(run="warm/up", phase="opening", severity="warning")
    runs = [
        frames.damaged(nan),
        frames.damaged(spikes),
        frames.run(run="warm/up", status="opening"),
        frames.run(run="gone", status="suspect"),
        frames.run(run="lfs", status="unreadable", reason="a Git LFS pointer", reason_code="git-lfs-pointer"),
        *[frames.run(run=f"short/{n}", status="not_assessable", reason="too few points") for n in range(5)],
        frames.run(run="loss", notes=["loss-only"]),
        frames.run(run="early", notes=["partial-coverage"], last_step=179665, coverage=0.0006),
        frames.run(),
    ]
    trace = {
        "run": "gone",
        "rule": "vanished",
        "metric": "grad_norm",
        "severity": "warning",
        "first_step": 4100,
        "last_good_step": 4090,
        "sentence": "the gradient norm vanished.",
    }
    faults = [
        {"run": "llama/run-0", "source": "s", "kind": "truncated", "severity": "info"},
        {"run": None, "source": "llama/run-0/trainer_state.json", "kind": "bad-checksum", "severity": "warning"},
    ]
    series = [{"run": "early", "role": "loss", "metric": "loss", "n": 100, "last_step": 99}]
    return frames.scan(
        runs, [nan, also, spikes, opening], 8000, suspicions=[trace], faults=faults, series=series, skipped_files=2
    )


def test_scan_is_a_mapping_of_runs(scan: Scan) -> None:
    assert len(scan) == 13
    assert list(scan)[:2] == ["llama/run-1", "llama/run-2"]
    assert "llama/run-1" in scan
    assert "nope" not in scan
    run = scan["llama/run-1"]
    assert (run.status, run.first_step, run.restore_path) == ("damaged", 5200, "llama/run-1/checkpoint-5000")
    assert len(run.findings) == 2
    assert str(run.explanation).startswith("grad_norm is NaN")
    assert len(scan["llama/run-0"].faults) == 2
    assert scan["lfs"].explanation == "a Git LFS pointer"
    with pytest.raises(KeyError, match="did you mean 'llama/run-1'"):
        scan["lama/run-1"]
    with pytest.raises(AttributeError, match="colour"):
        _ = run.colour


def test_status_frames_part_the_runs(scan: Scan) -> None:
    parts = [scan.damaged, scan.suspect, scan.opening, scan.unreadable, scan.not_assessable, scan.clean]
    assert [len(part) for part in parts] == [2, 1, 1, 1, 5, 3]
    assert sum(len(part) for part in parts) == len(scan)


def test_summary(scan: Scan) -> None:
    assert scan.summary() == {
        "recordings": 13,
        "directories": 0,
        "clean": 3,
        "damaged": 2,
        "suspect": 1,
        "opening": 1,
        "not_assessable": 5,
        "unreadable": 1,
        "skipped_files": 2,
        "findings": {"nonfinite": 1, "spikes_run": 2, "spikes_opening": 1},
        "faults": 2,
        "bytes": 8_200_000,
    }


def test_scan_and_run_pickle(scan: Scan) -> None:
    again = pickle.loads(pickle.dumps(scan))
    for table in TABLES:
        assert_frame_equal(again.table(table), scan.table(table))
    assert again.knobs == scan.knobs
    run = pickle.loads(pickle.dumps(scan["llama/run-1"]))
    assert run.row == scan["llama/run-1"].row


def test_reprs_are_short(scan: Scan) -> None:
    assert repr(scan) == "Scan(13 runs: 2 damaged, 1 suspect, 1 opening, 1 unreadable, 5 not assessable, 3 clean)"
    assert repr(scan["llama/run-1"]).startswith("Run('llama/run-1', format='hf_trainer', status='damaged')\ngrad_norm")
    assert repr(frames.scan([])) == "Scan(0 runs)"
    assert "<table>" in scan._repr_html_()
    assert "<table>" in scan["llama/run-1"]._repr_html_()
    many = frames.scan([frames.damaged(frames.finding())], [frames.finding()] * 30)
    assert "and 10 more" in many._repr_html_()
    assert many._repr_html_().count("<tr>") == 21


def test_json_has_the_documented_shape(scan: Scan) -> None:
    document = json.loads(scan.to_json())
    head = ["schema", "gradscan", "root", "knobs", "summary"]
    assert list(document) == [*head, "findings", "suspicions", "runs", "series", "faults"]
    assert (document["schema"], document["gradscan"], document["root"]) == (1, "0.1.0", "archive")
    summary = scan.summary()
    del summary["bytes"]
    assert document["summary"] == summary
    assert list(document["findings"][0]) == list(SCHEMAS["findings"])
    assert document["findings"][0]["first_time"] == "2026-03-01T12:30:00Z"
    assert document["findings"][0]["first_value"] == "NaN"
    assert document["findings"][0]["evidence"][0]["value"] == "NaN"
    for table in ("findings", "suspicions", "runs", "series", "faults"):
        assert len(document[table]) == len(scan.table(table))
    assert json.loads(frames.scan([], roots=("a", "b"), interrupted=True).to_json())["interrupted"] is True


def test_time_is_no_part_of_a_report(scan: Scan) -> None:
    slow = frames.scan([frames.run()], seconds=123.456)
    quick = frames.scan([frames.run()], seconds=0.001)
    for format in report.FORMATS:
        assert report.render(slow, format) == report.render(quick, format)


@pytest.mark.parametrize("table", TABLES)
def test_write_every_format_and_table(scan: Scan, tmp_path: Path, table: str) -> None:
    for suffix in report.SUFFIXES:
        scan.write(tmp_path / f"out{suffix}", table=table)
    frame = scan.table(table)
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet"), frame)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [list(json.loads(line)) for line in lines] == [frame.columns] * len(frame)
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(stdlib_csv.reader(file))
    assert rows[0] == frame.columns
    assert len(rows) == len(frame) + 1
    assert "| ---" in (tmp_path / "out.md").read_text() or len(frame) == 0
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"out{suffix}" for suffix in report.SUFFIXES)


def test_write_refuses_what_it_does_not_know(scan: Scan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got suffix '.xlsx', want one of .json"):
        scan.write(tmp_path / "out.xlsx")
    with pytest.raises(ValueError, match="table: got 'finding', want one of findings"):
        scan.write(tmp_path / "out.csv", table="finding")
    for render in (scan.to_html, scan.to_markdown):
        with pytest.raises(ValueError, match="table: got 'bad'"):
            render("bad")
    with pytest.raises(FileNotFoundError) as caught:
        scan.write(tmp_path / "nowhere" / "out.csv")
    assert caught.value.filename == str(tmp_path / "nowhere" / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_write_is_atomic(scan: Scan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def fail(source: object, destination: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        scan.write(target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_write_keeps_the_mode(scan: Scan, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    target.chmod(0o640)
    scan.write(target)
    assert target.stat().st_mode & 0o777 == 0o640
    assert json.loads(target.read_text())["schema"] == 1


def test_runs_are_found_whatever_the_order_of_the_rows() -> None:
    first, second = frames.finding(run="a"), frames.finding(run="b")
    fault = {"kind": "truncated", "place": "", "detail": "", "severity": "info"}
    faults = [
        fault | {"run": None, "source": "b.jsonl"},
        fault | {"run": "a", "source": "a.jsonl"},
        fault | {"run": "b", "source": "b.jsonl"},
    ]
    runs = [frames.run(run=name, source=f"{name}.jsonl") for name in ("a", "b", "c")]
    scan = frames.scan(runs, [first, second, first], faults=faults)
    assert [len(scan[name].findings) for name in scan] == [2, 1, 0]
    assert [len(scan[name].faults) for name in scan] == [1, 2, 0]
    assert pickle.loads(pickle.dumps(scan))["b"].findings["run"].to_list() == ["b"]
    for wrong in (0, None):
        assert wrong not in scan
        with pytest.raises(KeyError, match=f"no run {wrong} among 3"):
            scan[wrong]  # type: ignore[index]


def test_json_rows_turn_what_json_does_not_know() -> None:
    frame = pl.DataFrame(
        {
            "a": [1.5, math.nan, None, -math.inf],
            "b": [[{"x": math.inf}], [], None, [{"x": 1.0}]],
            "c": ["\x9b", "é", None, ""],
            "d": [[1], [], None, [2]],
        }
    )
    assert json_report.rows(frame) == [json_report.dump(row) for row in frame.iter_rows(named=True)]
    assert json.loads(json_report.rows(frame)[1])["a"] == "NaN"


def test_view_shortens_names_and_never_leaves_out_a_pinned_column() -> None:
    names = [f"layer.{n}.{'x' * 40}.grad_norm" for n in range(12)]
    frame = pl.DataFrame({"step": [1], "loss": [1.0]} | {name: [0.5] for name in names})
    view = View(run="r", format="jsonl", status="damaged", step=1, frame=frame, marks={}, roles={}, pinned=tuple(names))
    lines = terminal.view(view, width=60).split("\n")
    assert sum(line.count(" 0.5") for line in lines) == len(names)
    assert all(len(line) <= 60 for line in lines if line.startswith((">", "  ")))
    titles = [title for line in lines if line.startswith("  step") for title in line.split()[1:] if title != "loss"]
    assert len(set(titles)) == len(titles) == len(names)
    assert sum(title.startswith("…1") for title in titles) == 3


def test_write_keeps_a_link(scan: Scan, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    scan.write(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["schema"] == 1


# ------------------------------------------------------------------------------------------- terminal


def plain(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_terminal_order_and_content(scan: Scan) -> None:
    text = terminal.render(scan, width=80)
    order = ["damaged  2 runs", "suspect  1 run", "opening  1 run", "unreadable  1 run", "not assessable  5 runs"]
    places = [text.index(part) for part in [*order, "clean, but not to the end", "13 runs: 2 damaged"]]
    assert places == sorted(places)
    assert "step 5,200  since 5,150  last good 5,140  grad_norm" in text
    assert "restore    llama/run-1/checkpoint-5000" in text
    assert "restore?   llama/run-1/checkpoint-5000" in text
    assert "5 x too few points" in text
    assert "and 2 more" in text
    assert "clean until step 99 of 179,665" in text
    assert "warm/up" not in text
    assert text.endswith("\n")
    last = " ".join(text.split("\n\n")[-1].split())
    assert last == (
        "13 runs: 2 damaged, 1 suspect, 1 opening, 1 unreadable, 5 not assessable, 3 clean (1 loss only); 8.2 MB, "
        "2 other files skipped"
    )


def test_terminal_fits_its_width(scan: Scan) -> None:
    for width in (60, 80, 100, 140):
        lines = terminal.render(scan, width=width, show_all=True).split("\n")
        assert max(map(len, lines)) <= width
        for table in TABLES:
            assert max(map(len, terminal.table(scan, table, width=width).split("\n"))) <= width


def test_terminal_color_changes_nothing_but_color(scan: Scan) -> None:
    colored = terminal.render(scan, width=80, color=True)
    assert "\x1b[" in colored
    assert plain(colored) == terminal.render(scan, width=80, color=False)
    assert "\x1b" not in terminal.render(scan, width=80, color=False)


def test_terminal_all_lists_opening_and_clean(scan: Scan) -> None:
    text = terminal.render(scan, width=80, show_all=True)
    for run in ("warm/up", "short/4", "loss", "llama/run-0"):
        assert run in text
    assert "clean loss only" in text


def test_terminal_limit_counts_the_rest() -> None:
    rows = [frames.finding(run=f"run-{number:03}") for number in range(60)]
    scan = frames.scan([frames.damaged(row) for row in rows], rows)
    text = terminal.render(scan, limit=50)
    assert "run-049" in text
    assert "run-050" not in text
    assert "and 10 more (--limit 60 shows them)" in text


def test_terminal_never_breaks_a_path(scan: Scan) -> None:
    path = "/archive/" + "/".join(["a-long-directory-name"] * 8) + "/checkpoint-5000"
    row = frames.finding(run="x" * 200, restore_path=path)
    text = terminal.render(frames.scan([frames.damaged(row)], [row]), width=80)
    assert path in text
    assert "x" * 200 in text


def test_terminal_of_nothing_and_of_all_clean() -> None:
    assert terminal.render(frames.scan([])) == "0 runs; 8.2 MB\n"
    assert terminal.render(frames.scan([frames.run()])) == "1 run: 1 clean; 8.2 MB\n"
    stopped = terminal.render(frames.scan([frames.run()], interrupted=True))
    assert "interrupted, the rest was not scanned" in stopped


def test_size() -> None:
    sizes = {0: "0 B", 812: "812 B", 8_200_000: "8.2 MB", 1_400_000_000: "1.4 GB", 883_000_000: "883 MB"}
    for count, text in sizes.items():
        assert terminal.size(count) == text


def test_plain_table_wide_and_narrow() -> None:
    rows = [("hf_trainer", "trainer_state.json", "the summary entry " * 5)]
    wide = terminal.plain_table(("format", "files", "not read"), rows, width=100)
    assert wide.split("\n")[0] == "format      files               not read"
    assert max(map(len, wide.split("\n"))) <= 100
    narrow = terminal.plain_table(("format", "files", "not read"), rows, width=40)
    assert "  files: trainer_state.json" in narrow


# ------------------------------------------------------------------------------------------- other formats


def test_markdown_and_html_say_when_there_is_nothing() -> None:
    empty = frames.scan([])
    assert "No findings." in markdown.render(empty)
    assert "No findings." in html.render(empty)
    assert "0 recordings: no recordings" in markdown.render(empty)


def test_html_page_stands_alone(scan: Scan) -> None:
    page = html.render(scan)
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "href" not in page
    assert page.count("<tr>") == 1 + len(scan.findings)


def test_csv_nulls_and_numbers() -> None:
    row = frames.finding(last_good_step=None, last_good_value=float("-inf"))
    text = report.render(frames.scan([frames.damaged(row)], [row]), "csv")
    parsed = next(iter(stdlib_csv.DictReader(io.StringIO(text, newline=""))))
    assert parsed["last_good_step"] == ""
    assert parsed["last_good_value"] == "-Infinity"
    assert parsed["recovered"] == "false"
    assert parsed["first_time"] == "2026-03-01T12:30:00Z"


# ------------------------------------------------------------------------------------------- recordings


def recording(steps: list[int], **series: tuple[list[int], list[float]]) -> Recording:
    """Each series is given by the rows of `steps` that it belongs to, and its values."""
    rows = {name: np.array(own, np.int64) for name, (own, _) in series.items()}
    arrays = {name: (np.array(steps)[own], np.array(series[name][1], np.float64)) for name, own in rows.items()}
    nothing = pl.DataFrame()
    return Recording(
        run="r",
        format="jsonl",
        source="r.jsonl",
        step_name="step",
        roles=dict.fromkeys(series),
        arrays=arrays,
        rows=rows,
        records=pl.DataFrame(
            {"step": pl.Series(steps, dtype=pl.Int64), "time": pl.Series([None] * len(steps), dtype=pl.Datetime)}
        ),
        events=nothing,
        checkpoints=nothing,
        faults=nothing,
    )


def test_frame_keeps_nan_apart_from_missing() -> None:
    item = recording([1, 2, 3], a=([0, 1, 2], [1.0, float("nan"), 3.0]), b=([0, 2], [7.0, 8.0]))
    frame = item.frame()
    assert frame["step"].to_list() == [1, 2, 3]
    assert frame["a"].null_count() == 0
    assert frame["a"].is_nan().to_list() == [False, True, False]
    assert frame["b"].to_list() == [7.0, None, 8.0]


def test_frame_of_a_resumed_run_has_both_attempts() -> None:
    steps = [1, 2, 3, 4, 2, 3, 4, 5]
    item = recording(steps, a=([*range(8)], [1, 2, 3, 4, 20, 30, 40, 50]), b=([1, 3, 6, 7], [2, 4, 40, 50]))
    frame = item.frame()
    assert frame["step"].to_list() == steps
    assert frame["a"].to_list() == [1, 2, 3, 4, 20, 30, 40, 50]
    assert frame["b"].to_list() == [None, 2, None, 4, None, None, 40, 50]
    assert item.around(5, 1)["a"].to_list() == [40, 50]


def test_frame_of_nothing() -> None:
    assert recording([]).frame().shape == (0, 1)
    assert len(recording([]).around(None)) == 0


def test_around_skips_rows_without_the_metric() -> None:
    item = recording(list(range(100)), a=(list(range(100)), [0.0] * 100), b=(list(range(0, 100, 10)), [1.0] * 10))
    assert item.around(50, 2, ["b"])["step"].to_list() == [30, 40, 50, 60, 70]
    assert item.around(None, 2, ["a"])["step"].to_list() == [97, 98, 99]
    assert item.around(10**9, 1, ["a"])["step"].to_list() == [98, 99]
    with pytest.raises(ValueError, match="window: got -1"):
        item.around(5, -1)
    with pytest.raises(KeyError, match="did you mean 'a'"):
        item.frame(["aa"])


def test_view_marks_cells() -> None:
    frame = pl.DataFrame({"step": [1, 2, 3], "grad_norm": [0.5, 41.5, float("nan")], "loss": [1.0, None, 0.5]})
    captured = pl.DataFrame(
        {
            "step": [2],
            "reward": [0.25],
            "advantage": [-3.5],
            "prompt": ["why\x1b[31m?\n" * 200],
            "completion": ["because"],
        }
    )
    view = View(
        run="r",
        format="rlprobe",
        status="damaged",
        step=2,
        frame=frame,
        marks={(1, "grad_norm"): "spike", (2, "grad_norm"): "nan"},
        roles={"grad_norm": "grad_norm", "loss": "loss"},
        samples=captured,
        hidden=("kl",),
    )
    text = terminal.view(view, width=80)
    assert ">    2       41.5^     -" in text
    assert "NaN!" in text
    assert "advantage -3.5" in text
    assert "\x1b" not in text
    assert "…" in text
    assert "also recorded (--metric NAME shows them): kl" in text
    document = json.loads(json_report.view(view))
    assert document["bad"] == [
        {"row": 1, "step": 2, "metric": "grad_norm", "kind": "spike"},
        {"row": 2, "step": 3, "metric": "grad_norm", "kind": "nan"},
    ]
    assert document["rows"][2]["grad_norm"] == "NaN"
    assert document["samples"][0]["completion"] == "because"


def shard(path: Path, **columns: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_parquet(path)


def test_samples_outliers_first(tmp_path: Path) -> None:
    shard(
        tmp_path / "samples" / "shard-00000.parquet",
        step=[7] * 8 + [8],
        sample_id=[str(n) for n in range(9)],
        prompt_text=[f"p{n}" for n in range(9)],
        completion_text=[None] * 9,  # rlprobe leaves a column of nulls without a type
        reward_total=[0.5] * 9,
        advantage=[0.1, -3.0, 2.0, None, float("nan"), 0.2, 0.3, 0.4, 9.0],
    )
    shard(tmp_path / "rank-001" / "samples" / "shard-00000.parquet", step=[7], prompt_text=["r"], advantage=[-2.5])
    frame, problem = samples.read(tmp_path, 7, 1, 9)
    assert problem is None
    assert frame is not None
    assert frame["prompt"].to_list() == ["p4", "p1", "r", "p2", "p7"]
    assert frame.columns == ["step", "reward", "advantage", "prompt", "completion"]
    near, _ = samples.read(tmp_path, 9, 8, 9)
    assert near is not None
    assert near["prompt"].to_list() == ["p8"]
    assert samples.read(tmp_path, 99, 99, 99) == (None, None)


def test_samples_without_advantages_go_by_the_reward_and_a_broken_shard_is_passed_over(tmp_path: Path) -> None:
    rewards = [0.5, 0.5, 0.9, -2.0, 0.5]
    shard(tmp_path / "samples" / "a.parquet", step=[1] * 5, prompt_text=list("abcde"), reward_total=rewards)
    (tmp_path / "samples" / "b.parquet").write_bytes(b"PAR1")
    frame, problem = samples.read(tmp_path, 1, 1, 1)
    assert frame is not None
    assert frame["prompt"].to_list()[:2] == ["d", "c"]
    assert problem is not None
    assert problem.startswith("b.parquet: its samples could not be read")
    assert samples.read(tmp_path / "nothing", 1, 1, 1) == (None, None)


def test_nonfinite_is_true_if_any() -> None:
    assert not NonFinite(0, 0)
    assert NonFinite(0, 1, 3, (1, 1))
    assert pickle.loads(pickle.dumps(NonFinite(2, 0, 0, ()))) == NonFinite(2, 0, 0, ())
