"""W&B's transaction logs, written by wandb itself, against what its own data store reads of them."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import ROOT, Count

FIXTURES = ROOT / "tests" / "data" / "wandb"
TRUTH: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/data/truth/wandb.json").read_text(encoding="utf-8"))
NAMES = sorted({name.split("/")[0] for name in TRUTH})
# In the order in which gradscan chooses, and W&B's own counter, which is no metric.
STEPS = ("global_step", "train/global_step", "_step")
TIMES = ("_timestamp",)
NORM = "train/grad_norm"

Points = dict[str, list[tuple[int, float]]]


def logs(fixture: str) -> list[dict[str, Any]]:
    """The logs of a fixture, in the order of their directories."""
    return [TRUTH[name] for name in sorted(TRUTH) if name.split("/")[0] == fixture]


def number(value: Any) -> float | None:
    """What counts as a number: quoted NaN and Inf do, null, lists and texts do not."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


def wanted(fixture: str) -> Points:
    rows = [row for log in logs(fixture) for row in log["rows"]]
    step_name = next(name for name in STEPS if any(name in row for row in rows))
    points: Points = defaultdict(list)
    step = 0
    for row in rows:
        step = row.get(step_name, step)
        media = {name.removesuffix("._type") for name in row if name.endswith("._type")}
        for name, value in row.items():
            found = number(value)
            if found is None or name in STEPS or name in TIMES or name.rsplit(".", 1)[0] in media:
                continue
            points[name].append((step, found))
    return points


@pytest.mark.parametrize("fixture", NAMES)
def test_every_value_is_that_of_the_data_store(fixture: str, count: Count) -> None:
    recording = gs.read(FIXTURES / fixture)
    points = wanted(fixture)
    read = [name for name in recording.names if name != "_runtime"]
    assert sorted(read) == sorted(points)
    compared = 0
    for name, want in points.items():
        steps, values = recording.series(name)
        np.testing.assert_array_equal(steps, [step for step, _ in want], err_msg=name)
        np.testing.assert_array_equal(values, [value for _, value in want], err_msg=name)
        compared += len(want)
    count(f"points of wandb/{fixture}", compared)


@pytest.mark.parametrize("fixture", NAMES)
def test_metadata_is_what_the_run_record_says(fixture: str) -> None:
    last = logs(fixture)[-1]
    said = gs.read(FIXTURES / fixture).metadata
    assert (said["run_id"], said["name"]) == (last["run_id"], last["name"])
    if last["exit_code"] is None:
        assert said["state"] == "running or killed"
        assert "exit_code" not in said
    else:
        assert (said["exit_code"], said["state"]) == (
            str(last["exit_code"]),
            "failed" if last["exit_code"] else "finished",
        )


@pytest.mark.parametrize("fixture", [name for name in NAMES if name.startswith("nonfinite")])
def test_nan_and_inf_are_found_at_their_steps(fixture: str) -> None:
    steps, values = gs.read(FIXTURES / fixture).series(NORM)
    assert steps[np.isnan(values)].tolist() == [31]
    assert steps[values == np.inf].tolist() == [34]
    assert steps[values == -np.inf].tolist() == [36]
    found = gs.scan(FIXTURES / fixture, progress=False)
    (row,) = found.findings.filter(check="nonfinite").iter_rows(named=True)
    assert (row["metric"], row["first_step"], row["nan"], row["inf"]) == (NORM, 31, 1, 2)


def test_null_of_an_old_numpy_nan_is_suspect_and_no_point() -> None:
    metrics = {"grad_norm": "numpy/float32"}
    new = gs.scan(FIXTURES / "nonfinite", progress=False, metrics=metrics)
    assert new.suspicions.is_empty()
    old = gs.scan(FIXTURES / "nonfinite-0.15", progress=False, metrics=metrics)
    (row,) = old.suspicions.iter_rows(named=True)
    assert (row["rule"], row["metric"], row["first_step"], row["last_good_step"]) == (
        "ambiguous-nan",
        "numpy/float32",
        31,
        30,
    )
    steps, _ = gs.read(FIXTURES / "nonfinite-0.15").series("numpy/float32")
    assert 31 not in steps
    assert len(steps) > 0


def test_a_missing_value_is_no_row() -> None:
    recording = gs.read(FIXTURES / "healthy")
    points = wanted("healthy")
    sparse = [name for name, want in points.items() if len(want) < len(points[NORM])]
    assert sparse, "no metric is logged at other steps"
    assert all(len(recording.series(name)[0]) == len(points[name]) for name in sparse)
    assert not np.isnan(recording.series(NORM)[1]).any()


def test_a_killed_run_keeps_all_that_reached_the_disk() -> None:
    recording = gs.read(FIXTURES / "killed")
    assert len(recording.series(NORM)[0]) == len(TRUTH[next(n for n in TRUTH if n.startswith("killed/"))]["rows"]) > 100
    assert recording.faults["kind"].to_list() == ["truncated"]
    assert recording.faults["severity"].to_list() == ["info"]
    assert gs.scan(FIXTURES / "killed", progress=False).runs["status"].to_list() == ["clean"]


def test_a_resumed_run_is_one_recording_with_its_attempts() -> None:
    found = gs.scan(FIXTURES / "resumed", progress=False)
    (run,) = found.runs.iter_rows(named=True)
    assert (run["run"], run["attempts"]) == ("offline-run-20260102_030405-resumed1", 2)
    (row,) = found.findings.filter(check="nonfinite").iter_rows(named=True)
    assert (row["first_step"], row["attempt"], row["superseded"]) == (33, 1, True)


def test_the_step_is_the_trainers_and_not_the_counter_of_rows() -> None:
    assert gs.read(FIXTURES / "step-metric").step_name == "train/global_step"
    (row,) = gs.scan(FIXTURES / "step-metric", progress=False).findings.filter(check="nonfinite").iter_rows(named=True)
    assert row["first_step"] == 270


def test_what_lies_beside_a_log_is_no_recording() -> None:
    found = gs.scan(FIXTURES, progress=False)
    assert set(found.runs["format"]) == {"wandb"}
    assert len(found.runs) == len(NAMES)


def write_log(path: Path, project: str, norms: list[float]) -> None:
    """A log by wandb's own data store and messages."""
    record: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    store: Any = import_module("wandb.sdk.internal.datastore").DataStore()
    path.parent.mkdir(parents=True)
    store.open_for_write(str(path))
    begin = record(num=1)
    begin.run.run_id, begin.run.project = "seed0", project
    store.write(begin)
    for step, norm in enumerate(norms):
        row = record(num=step + 2)
        for name, value in {"grad_norm": norm, "global_step": step, "_step": step}.items():
            row.history.item.add(nested_key=[name], value_json=json.dumps(value))
        store.write(row)
    store.close()


def test_one_id_in_two_projects_is_two_runs(tmp_path: Path) -> None:
    """An id is unique within its project only: pooled, the large norms of one would hide the spikes of the other."""
    large = [100.0 + k % 3 for k in range(200)]
    spiking = [80.0 if k in (60, 90, 120) else 1.0 + k % 7 / 10 for k in range(200)]
    for day, (project, norms) in enumerate({"a": large, "b": spiking, "a again": []}.items()):
        path = tmp_path / "wandb" / f"offline-run-2026010{day + 1}_030405-seed0" / "run-seed0.wandb"
        write_log(path, project.split()[0], norms or large)
    found = gs.scan(tmp_path, progress=False)
    assert sorted(found.runs.select("status", "records").rows()) == [("clean", 400), ("damaged", 200)]
    assert found.findings.select("check", "first_step", "count").rows() == [("spikes", 60, 3)]
    assert sorted(run.metadata["project"] for run in gs.read_all(tmp_path)) == ["a", "b"]
