"""Recordings that real archives hold and simple readers misjudge: rows without a step, cut and broken records, copies
that cannot be read, neighbours, odd names. Each states the one right answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import gradscan as gs
from makers import NAN

Row = Mapping[str, Any]


def fine(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"step": k, "loss": 2.0, "grad_norm": 0.7 + 0.01 * (k % 7)} for k in range(first, first + count)]


def jsonl(path: Path, rows: Iterable[Row], tail: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def state(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": 0, "log_history": list(rows)}))
    return path


def finding(path: Path) -> dict[str, Any]:
    (found,) = gs.scan(path, progress=False).findings.iter_rows(named=True)
    return found


def steps(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return found["first_step"], found["onset_step"], found["last_good_step"], found["last_bad_step"]


# --- Steps -----------------------------------------------------------------------------------------------------------


def test_a_better_step_column_takes_over(tmp_path: Path) -> None:
    rows = [{"epoch": 0.0, "loss": 2.3, "grad_norm": 0.5}] + [row | {"epoch": row["step"] / 100} for row in fine(40)]
    path = jsonl(tmp_path / "m.jsonl", [*rows, {"step": 41, "epoch": 0.41, "loss": 2.0, "grad_norm": NAN}])
    assert steps(finding(path)) == (41, 41, 40, 41)
    assert gs.scan(path, progress=False).runs["step_name"].to_list() == ["step"]


def test_a_row_without_a_step_has_none(tmp_path: Path) -> None:
    bad = {"loss": 2.3, "grad_norm": NAN}
    between = finding(jsonl(tmp_path / "between.jsonl", [*fine(40), bad, *fine(10, 41)]))
    assert (steps(between), between["first_record"]) == ((None, None, 40, None), 40)
    before = finding(jsonl(tmp_path / "before.jsonl", [bad, *fine(40, 100)]))
    assert (steps(before), before["first_record"], before["recovered"]) == ((None, None, None, None), 0, True)


def test_a_recording_without_steps_shows_none(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("loss", "grad_norm")} for row in fine(40)]
    rows[30]["grad_norm"] = NAN
    found = finding(jsonl(tmp_path / "m.jsonl", rows))
    assert (steps(found), found["first_record"], found["steps"]) == ((None, None, None, None), 30, [])
    assert "record 30" in found["explanation"]


def test_rows_in_falling_order_are_judged_in_step_order(tmp_path: Path) -> None:
    rows = [{"step": k, "loss": NAN if k >= 40 else 2.0} for k in range(50, 0, -1)]
    found = finding(jsonl(tmp_path / "m.jsonl", rows))
    assert (steps(found), found["recovered"]) == ((40, 40, 39, 50), False)


# --- Several signals -------------------------------------------------------------------------------------------------


def test_the_chain_before_a_clipped_norm_is_that_of_its_unclipped_twin(tmp_path: Path) -> None:
    def row(step: int) -> Row:
        spikes = 57 <= step < 60
        clipped = NAN if step >= 60 else 1.0 if spikes else 0.5
        return {"step": step, "grad_norm": 500.0 if spikes else 0.5, "grad_norm_post_clip": clipped}

    scan = gs.scan(jsonl(tmp_path / "m.jsonl", map(row, range(1, 101))), progress=False)
    (found,) = scan.findings.filter(scan.findings["check"] == "nonfinite").iter_rows(named=True)
    assert (found["metric"], *steps(found)) == ("grad_norm_post_clip", 60, 57, 56, 100)


def test_the_last_good_value_of_a_counter_is_the_norm(tmp_path: Path) -> None:
    rows = [row | {"nan_count": 12 if row["step"] == 50 else 0} for row in fine(60)]
    found = finding(jsonl(tmp_path / "m.jsonl", rows))
    assert (found["metric"], found["nan"], found["last_good_step"], found["last_good_value"]) == (
        "nan_count",
        12,
        49,
        0.7,
    )


def test_only_the_mean_loss_of_a_summary_is_no_point(tmp_path: Path) -> None:
    rows = [row | {"train_runtime": 1.0} for row in fine(30)]
    path = jsonl(tmp_path / "m.jsonl", [*rows, {"step": 31, "grad_norm": NAN, "train_loss": NAN, "train_runtime": 3.0}])
    found = finding(path)
    assert (found["metric"], found["first_step"], len(found["evidence"])) == ("grad_norm", 31, 1)


# --- Cut and broken records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    [
        '{"step": 31, "loss": 2.0, "grad_norm": NaN',
        '{"step": 31, "grad_norm": NaN, "lo',
        '{"step": 31, "grad_norm": NaN, "loss": tr',
        '{"step": 31, "grad_norm": 1.#QNAN}\n',
        '{"step": 31, "grad_norm": NaN, "loss": !}\n',
    ],
)
def test_a_nan_in_a_cut_or_broken_record_counts(tmp_path: Path, tail: str) -> None:
    assert steps(finding(jsonl(tmp_path / "m.jsonl", fine(30), tail))) == (31, 31, 30, 31)


def test_a_finite_value_in_a_cut_record_does_not_count(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "m.jsonl", fine(30), '{"step": 31, "loss": 2.0, "grad_norm": 0.5')
    scan = gs.scan(path, progress=False)
    assert scan.series.filter(scan.series["metric"] == "grad_norm")["n"].to_list() == [30]
    assert scan.faults.select("kind", "severity").rows() == [("truncated", "info")]


def test_a_nan_whose_step_was_cut_away_is_a_fault(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", fine(30))
    path.write_text(path.read_text()[:-2] + ', {"grad_norm": NaN, "loss": 1.0, "st')
    faults = gs.scan(path, progress=False).faults
    assert faults.filter(faults["severity"] == "warning")["detail"].str.contains("NaN or Inf").to_list() == [True]


# --- Copies and neighbours -------------------------------------------------------------------------------------------


def test_a_copy_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    state(tmp_path / "out" / "checkpoint-100" / "trainer_state.json", fine(100))
    (tmp_path / "out" / "trainer_state.json").write_text("")
    scan = gs.scan(tmp_path / "out", progress=False)
    assert scan.faults.select("source", "severity").rows() == [("trainer_state.json", "warning")]
    assert scan.series["n"].to_list() == [100, 100]


def test_a_history_of_null_holds_no_points(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3, "log_history": null}')
    runs = gs.scan(tmp_path, progress=False).runs
    assert runs.select("status", "notes").rows() == [("not_assessable", ["empty"])]


def test_another_training_s_checkpoint_is_no_restore_point(tmp_path: Path) -> None:
    jsonl(tmp_path / "a" / "training_metrics.jsonl", [*fine(50), {"step": 51, "grad_norm": NAN}])
    jsonl(tmp_path / "b" / "training_metrics.jsonl", fine(50))
    (tmp_path / "b" / "step_50.pt").write_text("weights")
    assert finding(tmp_path / "a")["restore_status"] == "unknown"
    (tmp_path / "a" / "step_50.pt").write_text("weights")
    assert finding(tmp_path / "a")["restore_path"] == "step_50.pt"


def test_one_checkpoint_directory_knows_its_siblings(tmp_path: Path) -> None:
    rows = [*fine(59), *({"step": k, "grad_norm": NAN} for k in range(60, 101))]
    for number in (20, 50, 100):
        state(tmp_path / f"checkpoint-{number}" / "trainer_state.json", rows[:number])
    state(tmp_path / "trainer_state.json", rows)
    found = finding(tmp_path / "checkpoint-100")
    assert (found["restore_path"], found["restore_status"]) == ("../checkpoint-50", "clean")


# --- Names -----------------------------------------------------------------------------------------------------------


def test_names_that_are_no_utf8_stay_apart(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name, last in ((b"run-\xe8.jsonl", 0.5), (b"run-\xe9.jsonl", NAN)):
        rows = [*fine(30), {"step": 31, "grad_norm": last}]
        with open(os.path.join(folder, name), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    runs = gs.scan(tmp_path, progress=False).runs
    assert runs.select("run", "status").rows() == [(r"run-\xe8.jsonl", "clean"), (r"run-\xe9.jsonl", "damaged")]


def test_roots_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        jsonl(tmp_path / name / "runs" / "m.jsonl", fine(30))
    folders = gs.scan([tmp_path / "x" / "runs", tmp_path / "y" / "runs"], progress=False)
    assert folders.runs.select("run", "directory").rows() == [
        ("x/runs/m.jsonl", "x/runs"),
        ("y/runs/m.jsonl", "y/runs"),
    ]
    files = gs.scan([tmp_path / "x" / "runs" / "m.jsonl", tmp_path / "y" / "runs" / "m.jsonl"], progress=False)
    assert files.runs["run"].to_list() == ["x/runs/m.jsonl", "y/runs/m.jsonl"]
    assert not files.directories["disagree"].any()


def test_a_pattern_that_matches_nothing_replaces_nothing(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "m.jsonl", [*fine(30), {"step": 31, "grad_norm": NAN}])
    scan = gs.scan(path, metrics={"grad_norm": "nosuch"}, step="nosuch", progress=False)
    assert scan.runs.select("status", "step_name").rows() == [("damaged", "step")]
