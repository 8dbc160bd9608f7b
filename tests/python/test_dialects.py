"""The JSON-lines dialects of real trainers, each as its tool writes it: series, step and first bad step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gradscan as gs
from makers import INF, NAN, Training, dreamer, llamafactory, ms_swift, norms, plain_jsonl, rllib, rlprobe_run, verl

Writer = Callable[[Path, Training], Path]

DIALECTS = [
    (plain_jsonl, "metrics.jsonl", "grad_norm"),
    (ms_swift, "logging.jsonl", "grad_norm"),
    (verl, "experiment.jsonl", "actor/grad_norm"),
    (rllib, "result.json", "grad_gnorm"),
    (dreamer, "metrics.jsonl", "world_model_grad_norm"),
]


@pytest.mark.parametrize(("write", "name", "metric"), DIALECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_healthy_is_clean(tmp_path: Path, write: Writer, name: str, metric: str) -> None:
    scan = gs.scan(write(tmp_path / name, Training(norms(80), [10 * k for k in range(1, 81)])), progress=False)
    assert scan.runs.select("status", "format").rows() == [("clean", "jsonl")]
    series = scan.series.filter(scan.series["metric"].str.ends_with(metric))
    assert series.select("role", "n", "nan", "first_step", "last_step").rows() == [("grad_norm", 80, 0, 10, 800)]


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize(("write", "name", "metric"), DIALECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_not_finite_is_found(tmp_path: Path, write: Writer, name: str, metric: str, bad: float) -> None:
    """In whatever disguise: bare tokens, or null where other rows have a number (verl)."""
    training = Training(norms(80, put={60: bad, 61: bad}), [10 * k for k in range(1, 81)])
    (found,) = gs.scan(write(tmp_path / name, training), progress=False).findings.iter_rows(named=True)
    assert found["metric"].endswith(metric)
    assert (found["check"], found["first_step"], found["last_good_step"], found["count"]) == ("nonfinite", 610, 600, 2)


@pytest.mark.parametrize(("write", "name", "metric"), DIALECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_spikes_are_found(tmp_path: Path, write: Writer, name: str, metric: str) -> None:
    training = Training(norms(80, put={50: 40.0, 60: 50.0, 70: 60.0}), [10 * k for k in range(1, 81)])
    (found,) = gs.scan(write(tmp_path / name, training), progress=False).findings.iter_rows(named=True)
    assert found["metric"].endswith(metric)
    assert (found["check"], found["phase"], found["steps"], found["max"]) == ("spikes", "run", [510, 610, 710], 60.0)


def test_llamafactory_is_clean_by_its_loss(tmp_path: Path) -> None:
    scan = gs.scan(llamafactory(tmp_path / "trainer_log.jsonl", Training(norms(80))), progress=False)
    assert scan.runs["status"].to_list() == ["clean"]
    assert scan.runs["step_name"].to_list() == ["current_steps"]
    assert "loss-only" in scan.runs["notes"][0]


def test_rlprobe_event_alone_is_damage(tmp_path: Path) -> None:
    """A run that died at once: the event was written, the row of that step never was."""
    events = [("checkpoint", 40), ("nan_detected", 81)]
    scan = gs.scan(rlprobe_run(tmp_path / "run", Training(norms(80)), events=events), progress=False)
    (found,) = scan.findings.iter_rows(named=True)
    assert (found["check"], found["first_step"], found["last_good_step"]) == ("nonfinite", 81, 80)
    assert (found["restore_step"], found["restore_status"]) == (40, "clean")


def test_rlprobe_parts_of_a_killed_run(tmp_path: Path) -> None:
    """Parts disagree on the types of columns that are empty in one of them."""
    training = Training(norms(250))
    path = rlprobe_run(tmp_path / "run", training, nan_counts={220: 3}, missing=range(100), close=False)
    assert len(list((path / "steps").iterdir())) == 3
    scan = gs.scan(path, progress=False)
    assert scan.series.filter(scan.series["metric"] == "grad_norm")["n"].to_list() == [150]
    (found,) = scan.findings.iter_rows(named=True)
    assert (found["metric"], found["first_step"], found["nan"]) == ("nan_count", 221, 3)
