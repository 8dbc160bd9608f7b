"""What MLflow's file store, DVCLive, Neptune, Comet and ClearML left on disk, against what they say themselves."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import ROOT, Count

DATA = ROOT / "tests" / "data"
Metrics = dict[str, list[tuple[int, float]]]


def truth(name: str) -> dict[str, Any]:
    path = DATA / "truth" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert found, f"{path} is empty"
    return found


MLFLOW, DVCLIVE, NEPTUNE = truth("mlflow"), truth("dvclive"), truth("neptune")
COMET, CLEARML = truth("comet"), truth("clearml")
DEEPSPEED, TORCHTUNE = truth("deepspeed"), truth("torchtune")


def numbers(metrics: dict[str, list[list[Any]]]) -> Metrics:
    """Metrics with at least one number; texts and truth values are none. A step of null counts the values before it."""
    found: Metrics = {}
    for name, points in metrics.items():
        rows = [
            (index if step is None else math.floor(step), float(value))
            for index, (step, value) in enumerate(points)
            if not isinstance(value, bool) and (not isinstance(value, str) or value in ("NaN", "Infinity", "-Infinity"))
        ]
        if rows:
            found[name] = rows
    return found


def same(path: Path, want: Metrics, what: str, count: Count) -> gs.Recording:
    """Every value of every metric, in order, at its step."""
    recording = gs.read(path)
    assert sorted(recording.names) == sorted(want)
    compared = 0
    for name, points in want.items():
        steps, values = recording.series(name)
        np.testing.assert_array_equal(steps, [step for step, _ in points], err_msg=name)
        np.testing.assert_array_equal(values, [value for _, value in points], err_msg=name)
        compared += len(points)
    count(f"points of {what}", compared)
    return recording


def bad_steps(points: list[tuple[int, float]]) -> list[int]:
    return [step for step, value in points if not math.isfinite(value)]


def mlflow_run(run_id: str) -> Path:
    found = sorted((DATA / "mlflow" / "runs").glob(f"mlruns/*/{run_id}"))
    assert len(found) == 1, found
    return found[0]


ACTIVE = sorted(
    key for key, run in MLFLOW.items() if run.get("lifecycle_stage") == run.get("experiment_stage") == "active"
)


@pytest.mark.parametrize("key", ACTIVE)
def test_mlflow_says_the_same(key: str, count: Count) -> None:
    run = MLFLOW[key]
    run_id = key.split("/")[1]
    metrics = numbers(run["metrics"])
    if run["name"] == "names / of: metrics":
        # MLflow itself shows step 0 where a line names a data set; the step stands in its third field (FORMATS C1).
        assert {step for step, _ in metrics["eval/loss"][1::2]} == {0}
        metrics["eval/loss"] = [(1 + index, value) for index, (_, value) in enumerate(metrics["eval/loss"])]
    recording = same(mlflow_run(run_id), metrics, f"mlflow/{run['name']}", count)
    said = recording.metadata
    wanted = (run_id, run["name"], run["status"], run["experiment_id"])
    assert (said["run_id"], said["name"], said["status"], said["experiment_id"]) == wanted


def test_mlflow_leaves_out_what_was_deleted(count: Count) -> None:
    scan = gs.scan(DATA / "mlflow" / "runs", progress=False)
    found = {run.rsplit("/", 1)[1] for run in scan}
    assert found == {key.split("/")[1] for key in ACTIVE}
    assert scan.summary()["skipped_files"] > 0
    count("runs of mlflow", len(found))


@pytest.mark.parametrize("name", ["nonfinite", "resumed", "killed", "healthy"])
def test_mlflow_findings(name: str) -> None:
    key = next(key for key in ACTIVE if MLFLOW[key]["name"] == name)
    norms = numbers(MLFLOW[key]["metrics"])["train/grad_norm"]
    scan = gs.scan(mlflow_run(key.split("/")[1]), progress=False)
    bad = bad_steps(norms)
    findings = scan.findings.filter(scan.findings["check"] == "nonfinite")
    assert len(findings) == (1 if bad else 0)
    if bad:
        finding = findings.row(0, named=True)
        assert (finding["metric"], finding["first_step"]) == ("train/grad_norm", bad[0])
        assert finding["first_place"].startswith("metrics/train/grad_norm line ")
    backward = sum(later < earlier for (earlier, _), (later, _) in itertools.pairwise(norms))
    assert scan.runs["attempts"][0] == backward + 1
    assert (backward > 0) == (name == "resumed")


def test_mlflow_reads_on_behind_lines_that_mlflow_refuses() -> None:
    (run,) = (DATA / "mlflow" / "odd-lines").glob("mlruns/0/*/")
    recording = gs.read(run)
    steps, values = recording.series("train/grad_norm")
    assert steps.tolist() == [1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 19, 20, 21, 22, 23]
    assert np.flatnonzero(np.isnan(values)).tolist() == [15]
    steps, values = recording.series("train/loss")
    assert len(values) == 24
    assert recording.series("eval/loss")[0].tolist() == [8, 16, 24, 25]
    faults = recording.faults
    assert faults["kind"].to_list().count("unparsable") == 3
    assert "truncated" in faults["kind"].to_list()


@pytest.mark.parametrize("name", sorted(DVCLIVE))
def test_dvclive_says_the_same(name: str, count: Count) -> None:
    want = numbers(DVCLIVE[name]["metrics"])
    path = DATA / "dvclive" / name / "dvclive"
    recording = same(path, want, f"dvclive/{name}", count)
    scan = gs.scan(path, progress=False)
    bad = bad_steps(want["grad norm" if name == "names" else "train/grad_norm"])
    findings = scan.findings.filter(scan.findings["check"] == "nonfinite")
    assert findings["first_step"].to_list() == bad[:1]
    assert (len(bad) > 0) == (name != "healthy")
    assert scan.runs["attempts"][0] == (2 if name == "resumed" else 1)
    assert recording.faults.is_empty()


def test_a_dvclive_directory_is_read_once() -> None:
    scan = gs.scan(DATA / "dvclive" / "healthy", progress=False)
    assert list(scan) == ["dvclive"]
    assert scan.runs["format"].to_list() == ["dvclive"]


def neptune(name: str) -> Path:
    found = sorted((DATA / "neptune" / name).glob(".neptune/offline/*"))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("name", sorted(NEPTUNE))
def test_neptune_says_the_same(name: str, count: Count) -> None:
    recording = same(neptune(name), numbers(NEPTUNE[name]["metrics"]), f"neptune/{name}", count)
    assert recording.metadata["run_id"]


def test_neptune_drops_nonfinite_values_itself() -> None:
    steps, values = gs.read(neptune("nonfinite")).series("train/grad_norm")
    assert np.isfinite(values).all()
    assert sorted(set(range(1, 41)) - set(steps.tolist())) == [31, 34, 36]


def comet_metrics(fixture: str) -> Metrics:
    """The metrics of all archives of a fixture, the one that came first before those of later starts."""
    points: dict[str, list[list[Any]]] = {}
    files = sorted((name for name in COMET if name.split("/")[0] == fixture), key=lambda name: (len(name), name))
    for file in files:
        for name, found in COMET[file]["metrics"].items():
            # The truth has a context before the name.
            points.setdefault(name.replace(":", "_"), []).extend(found)
    return numbers(points)


@pytest.mark.parametrize("fixture", sorted({name.split("/")[0] for name in COMET}))
def test_comet_says_the_same(fixture: str, count: Count) -> None:
    want = comet_metrics(fixture)
    path = DATA / "comet" / fixture
    recording = same(path / "tmp0killed" if fixture == "killed" else path, want, f"comet/{fixture}", count)
    if fixture != "killed":
        assert recording.metadata["project"] == "fixtures"
    if "train/grad_norm" in want:
        scan = gs.scan(path, progress=False)
        bad = bad_steps(want["train/grad_norm"])
        findings = scan.findings.filter(scan.findings["check"] == "nonfinite")
        assert findings["first_step"].to_list() == bad[:1]
        assert (len(bad) > 0) == (fixture != "healthy")
        assert scan.runs["attempts"].max() == (2 if fixture == "resumed" else 1)


def clearml(fixture: str) -> Path:
    found = sorted((DATA / "clearml" / fixture).iterdir())
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("fixture", sorted(CLEARML))
def test_clearml_says_the_same(fixture: str, count: Count) -> None:
    want = numbers(CLEARML[fixture]["metrics"])
    # A single value has no step, and is no series.
    assert (want.pop("Summary/best", None) is not None) == (fixture == "healthy")
    recording = same(clearml(fixture), want, f"clearml/{fixture}", count)
    assert recording.metadata["name"] == fixture
    bad = bad_steps(want["train/grad_norm"])
    # What ClearML replaces by zeros before it writes is no NaN any more.
    assert (len(bad) > 0) == (fixture == "nonfinite-kept")
    scan = gs.scan(clearml(fixture), progress=False)
    assert scan.findings["first_step"].to_list()[: len(bad)] == bad[:1]


def test_clearml_writes_zeros_for_nonfinite_values() -> None:
    kept = numbers(CLEARML["nonfinite-kept"]["metrics"])["train/grad_norm"]
    steps, values = gs.read(clearml("nonfinite")).series("train/grad_norm")
    assert len(bad_steps(kept)) > 0
    assert steps[values == 0.0].tolist() == bad_steps(kept)


def test_clearml_archive_is_its_session() -> None:
    folder, archive = gs.read(clearml("nonfinite")), gs.read(clearml("zipped"))
    assert folder.names == archive.names
    assert len(folder.names) > 0
    for name in folder.names:
        np.testing.assert_array_equal(folder.series(name), archive.series(name), err_msg=name)


def test_deepspeed_says_the_same(count: Count) -> None:
    path = DATA / "deepspeed" / "monitor" / "job"
    tags = {Path(file).stem.removeprefix("Train_Samples_"): points for file, points in DEEPSPEED.items()}
    want = numbers({f"Train/Samples/{tag}": points for tag, points in tags.items()})
    same(path, want, "deepspeed/monitor", count)
    scan = gs.scan(path, progress=False)
    run = scan.runs.row(0, named=True)
    assert (run["format"], run["step_name"], run["attempts"]) == ("deepspeed", "samples", 2)
    finding = scan.findings.row(0, named=True)
    assert (finding["metric"], finding["first_step"]) == ("Train/Samples/train_loss", 576)
    # Samples are no steps of checkpoints.
    assert finding["restore_status"] == "unknown"


@pytest.mark.parametrize("file", sorted(TORCHTUNE))
def test_torchtune_says_the_same(file: str, count: Count) -> None:
    want = numbers(TORCHTUNE[file])
    path = (DATA / "torchtune" / file).parent
    same(path, want, f"torchtune/{path.name}", count)
    scan = gs.scan(path, progress=False)
    bad = bad_steps(want["grad_norm"])
    assert scan.findings["first_step"].to_list() == bad[:1]
    assert (len(bad) > 0) == (path.name == "nonfinite")


@pytest.mark.parametrize(
    ("fixture", "metric", "first_step", "attempts", "step_name"),
    [
        ("jsonl/mmengine", "grad_norm", 31, 1, "step"),
        ("jsonl/verl-logger", "actor/grad_norm", 21, 1, "step"),
        ("csv/keras-logger", "loss", 10, 2, "epoch"),
        ("csv/sb3-logger", "train/value_loss", 18 * 2048, 1, "time/total_timesteps"),
    ],
)
def test_loggers_without_a_tracker(
    fixture: str, metric: str, first_step: int, attempts: int, step_name: str, count: Count
) -> None:
    scan = gs.scan(DATA / fixture, progress=False)
    runs = scan.runs
    assert set(runs["attempts"].to_list()) == {attempts}
    assert set(runs["step_name"].to_list()) == {step_name}
    found = scan.findings.filter(scan.findings["check"] == "nonfinite")
    assert set(zip(found["metric"], found["first_step"], strict=True)) == {(metric, first_step)}
    assert len(found) == len(runs)
    count(f"recordings of {fixture}", len(runs))


def test_a_missing_value_of_keras_is_no_row() -> None:
    recording = gs.read(DATA / "csv" / "keras-logger" / "training.csv")
    steps, values = recording.series("val_loss")
    assert len(steps) > 0
    assert np.isfinite(values).all()
    assert "val_learning_rate" not in recording.names
