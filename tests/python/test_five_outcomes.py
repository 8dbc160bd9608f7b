"""One bad run never stops a batch: whatever lies in an archive, each recording is one outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from makers import NAN, Training, norms, trainer_state, trainer_state_text

HUGE_ROWS = 200_000


def gradscan(*arguments: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradscan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    broken = root / "broken" / "trainer_state.json"
    broken.parent.mkdir()
    text = trainer_state_text(Training(norms(50)))
    broken.write_text(text[: text.index('"log_history"') - 10])
    trainer_state(root / "empty", Training([]))
    (root / "huge").mkdir()
    with (root / "huge" / "metrics.jsonl").open("w") as file:
        pool = norms(997)
        for step in range(HUGE_ROWS):
            row = {"step": step, "loss": 1.0 + pool[step % 991], "grad_norm": pool[step % 997], "note": "x" * 100}
            file.write(json.dumps(row) + "\n")
    trainer_state(root / "healthy", Training(norms(300)))
    trainer_state(
        root / "nan", Training(norms(300, put=dict.fromkeys(range(200, 300), NAN))), checkpoints=(100, 200, 250)
    )
    return root


def summary(archive: Path) -> dict[str, Any]:
    done = gradscan("scan", archive, "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def test_five_outcomes(archive: Path) -> None:
    report = summary(archive)
    status = {run["source"].split("/")[0]: run["status"] for run in report["runs"]}
    assert status == {
        "broken": "unreadable",
        "empty": "not_assessable",
        "huge": "clean",
        "healthy": "clean",
        "nan": "damaged",
    }
    totals = report["summary"]
    names = ("recordings", "clean", "damaged", "suspect", "opening", "not_assessable", "unreadable")
    assert {name: totals[name] for name in names} == dict(zip(names, (5, 2, 1, 0, 0, 1, 1), strict=True))


def test_unreadable_and_empty_say_why(archive: Path) -> None:
    runs = {run["source"].split("/")[0]: run for run in summary(archive)["runs"]}
    assert runs["broken"]["reason"]
    assert runs["empty"]["reason"]
    assert "empty" in runs["empty"]["notes"]


def test_huge_is_read_whole(archive: Path) -> None:
    report = summary(archive)
    series = [s for s in report["series"] if s["run"].startswith("huge") and s["role"] == "grad_norm"]
    assert [(s["n"], s["last_step"]) for s in series] == [(HUGE_ROWS, HUGE_ROWS - 1)]


def test_nan_is_pinpointed_and_the_restore_point_named(archive: Path) -> None:
    (found,) = summary(archive)["findings"]
    assert (found["check"], found["metric"], found["first_step"], found["first_value"]) == (
        "nonfinite",
        "grad_norm",
        201,
        "NaN",
    )
    assert (found["last_good_step"], found["count"], found["recovered"]) == (200, 100, False)
    assert (found["restore_step"], found["restore_status"]) == (200, "clean")
    assert found["restore_path"].endswith("checkpoint-200")
    assert found["checkpoints_after"] == 1


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv", "markdown", "html"])
def test_exit_code_is_the_same_for_every_format(archive: Path, output: str) -> None:
    done = gradscan("scan", archive, "--format", output)
    assert done.returncode == 1, done.stderr
    assert "nan" in done.stdout


def test_output_does_not_depend_on_threads(archive: Path) -> None:
    outputs = {
        gradscan("scan", archive, "--format", "json", "--threads", threads).stdout for threads in ("1", "2", "8")
    }
    assert len(outputs) == 1


def test_never_fail(archive: Path) -> None:
    assert gradscan("scan", archive, "--fail-on", "never").returncode == 0


def test_an_unreadable_source_alone_exits_3(archive: Path) -> None:
    assert gradscan("scan", archive / "broken").returncode == 3


def test_a_healthy_archive_exits_0(archive: Path) -> None:
    assert gradscan("scan", archive / "healthy").returncode == 0
