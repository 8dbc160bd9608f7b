"""SwanLab's logs, written by swanlab itself, against what its own store reads of them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import ROOT, Count

FIXTURES = ROOT / "tests" / "data" / "swanlab"
TRUTH: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/data/truth/swanlab.json").read_text(encoding="utf-8"))
# Logs by the directory that is read: a fixture of one run whole, each run of a fixture of several by itself.
RUNS: dict[str, list[str]] = defaultdict(list)
for _log in sorted(TRUTH):
    if _log.endswith(".swanlab") and not _log.startswith("board"):
        RUNS[str(Path(_log).parent) if _log.startswith("backup") else _log.split("/")[0]].append(_log)
NORM = "train/grad_norm"


def number(value: Any) -> float:
    """The older generation writes "INF" for both signs."""
    return float(value.replace("INF", "inf")) if isinstance(value, str) else float(value)


@pytest.mark.parametrize("run", RUNS)
def test_every_value_is_that_of_swanlabs_own_store(run: str, count: Count) -> None:
    recording = gs.read(FIXTURES / run)
    want: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for log in RUNS[run]:
        for name, points in TRUTH[log]["metrics"].items():
            want[name] += [(step, number(value)) for step, value in points]
    assert sorted(recording.names) == sorted(want)
    for name, points in want.items():
        steps, values = recording.series(name)
        np.testing.assert_array_equal(steps, [step for step, _ in points], err_msg=name)
        np.testing.assert_array_equal(values, [value for _, value in points], err_msg=name)
    count(f"points of swanlab/{run}", sum(map(len, want.values())))


def test_nan_and_inf_are_found_at_their_steps() -> None:
    found = 0
    for run, logs in RUNS.items():
        truth = [(step, number(value)) for log in logs for step, value in TRUTH[log]["metrics"].get(NORM, [])]
        bad = [step for step, value in truth if not np.isfinite(value)]
        findings = gs.scan(FIXTURES / run, progress=False).findings.filter(check="nonfinite", metric=NORM)
        assert findings["first_step"].to_list() == bad[:1], run
        found += len(bad)
    assert found >= 4, "no fixture holds NaN and Inf"


def test_a_killed_run_keeps_all_that_reached_the_disk() -> None:
    recording = gs.read(FIXTURES / "killed")
    assert recording.metadata["state"] == "running or killed"
    assert recording.faults.filter(severity="warning").is_empty()
    assert len(recording.series(NORM)[0]) > 100


def test_a_missing_value_is_no_row() -> None:
    recording = gs.read(FIXTURES / "healthy")
    lengths = {len(recording.series(name)[0]) for name in recording.names}
    assert len(lengths) > 1, "no metric is logged at other steps"
    assert not any(np.isnan(recording.series(name)[1]).any() for name in recording.names)
    assert recording.metadata["state"] == "finished"


def test_a_resumed_run_is_one_recording_with_its_attempts() -> None:
    (run,) = gs.scan(FIXTURES / "resumed", progress=False).runs.iter_rows(named=True)
    assert (run["run"], run["attempts"]) == ("run-20260102_030405-resumed1", 2)
