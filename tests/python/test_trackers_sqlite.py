"""Databases that MLflow, trackio and SwanLab wrote, against what the trackers themselves say of them."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import tarfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import ROOT, Count

DATA = ROOT / "tests" / "data"
# What MLflow's client says of Inf.
LARGEST = 1.7976931348623157e308

Points = dict[str, list[tuple[int, float]]]


def truth(name: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((DATA / "truth" / f"{name}.json").read_text(encoding="utf-8"))
    return said


def number(value: Any) -> float | None:
    """What counts as a number: quoted NaN and Inf do, null, lists and texts do not."""
    if isinstance(value, (bool, int, float)):
        found = float(value)
        return np.copysign(np.inf, found) if abs(found) == LARGEST else found
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


def compare(recording: gs.Recording, want: Points) -> int:
    compared = 0
    for name, points in want.items():
        steps, values = recording.series(name)
        np.testing.assert_array_equal(steps, [step for step, _ in points], err_msg=name)
        np.testing.assert_array_equal(values, [value for _, value in points], err_msg=name)
        compared += len(points)
    return compared


MLFLOW = truth("mlflow_sql")


def mlflow(fixture: str, name: str) -> gs.Recording:
    recordings = gs.read_all(DATA / "mlflow_sql" / fixture)
    (found,) = [item for item in recordings if item.metadata["name"] == name]
    return found


@pytest.mark.parametrize("fixture", ["runs", "wal"])
def test_mlflow_every_value_of_every_active_run(fixture: str, count: Count) -> None:
    runs = {name.split("/")[1]: run for name, run in MLFLOW.items() if name.startswith(f"{fixture}/")}
    active = {key for key, run in runs.items() if run["lifecycle_stage"] == "active" == run["experiment_stage"]}
    recordings = {item.metadata["run_id"]: item for item in gs.read_all(DATA / "mlflow_sql" / fixture)}
    assert recordings.keys() == active
    compared = 0
    for key, recording in recordings.items():
        said = runs[key]
        assert recording.metadata["name"] == said["name"]
        assert recording.metadata["status"] == said["status"]
        assert recording.metadata["experiment"] == said["experiment"]
        assert sorted(recording.names) == sorted(said["metrics"])
        want = {
            name: [(step, found) for step, value in points if (found := number(value)) is not None]
            for name, points in said["metrics"].items()
        }
        if said["name"] == "one timestamp":
            # MLflow gives rows of one time and one step in no order.
            want = {name: sorted(points, key=lambda point: point[0]) for name, points in want.items()}
            assert len(recording.series("grad_norm")[0]) == len(want.pop("grad_norm"))
        compared += compare(recording, want)
    count(f"points of mlflow_sql/{fixture}", compared)


def test_mlflow_nan_and_inf_at_their_steps() -> None:
    steps, values = mlflow("runs", "nonfinite").series("train/grad_norm")
    assert steps[np.isnan(values)].tolist() == [31]
    assert steps[values == np.inf].tolist() == [34]
    assert steps[values == -np.inf].tolist() == [36]
    found = gs.scan(DATA / "mlflow_sql" / "runs", progress=False)
    names = dict(zip(found.runs["run"], found.runs["name"], strict=True))
    first = {names[row["run"]]: row["first_step"] for row in found.findings.iter_rows(named=True)}
    want = {"nonfinite": 31, "failed": 15, "killed": 18, "resumed": 20}
    assert {name: first[name] for name in want} == want
    assert not first.keys() & {"healthy", "stopped"}


def test_mlflow_a_missing_value_is_no_row() -> None:
    recording = mlflow("runs", "healthy")
    sparse, dense = recording.series("eval/loss"), recording.series("train/loss")
    assert 0 < len(sparse[0]) < len(dense[0])
    assert np.isfinite(sparse[1]).all()


def test_mlflow_a_killed_run_keeps_its_rows() -> None:
    recording = mlflow("runs", "killed")
    assert recording.metadata["status"] == "RUNNING"
    assert "ended" not in recording.metadata
    assert len(recording.series("train/grad_norm")[0]) == 20


def test_mlflow_a_resumed_run_shows_its_attempts() -> None:
    found = gs.scan(DATA / "mlflow_sql" / "runs", progress=False)
    (run,) = found.runs.filter(attempts=2).iter_rows(named=True)
    (row,) = found.findings.filter(run=run["run"]).iter_rows(named=True)
    assert (row["first_step"], row["attempt"], row["superseded"]) == (20, 1, True)


def test_mlflow_rows_in_the_log_are_read_and_nothing_is_written() -> None:
    folder = DATA / "mlflow_sql" / "wal"

    def listing() -> dict[str, tuple[int, int]]:
        return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}

    before = listing()
    found = gs.scan(folder, progress=False)
    assert listing() == before
    assert found.runs["status"].to_list() == ["damaged"]
    assert found.findings["first_step"].to_list() == [35]


TRACKIO = truth("trackio")
# In the order in which gradscan chooses.
STEPS = ("global_step", "train/global_step")


def trackio(fixture: str, name: str) -> gs.Recording:
    (found,) = [item for item in gs.read_all(DATA / "trackio" / fixture) if item.metadata["name"] == name]
    return found


def flat(name: str, points: list[list[Any]]) -> Points:
    """Points of a metric, and of what is nested in it."""
    out: Points = defaultdict(list)
    for step, value in points:
        if isinstance(value, dict):
            for key, inner in value.items():
                for name_of_inner, found in flat(f"{name}/{key}", [[step, inner]]).items():
                    out[name_of_inner] += found
        elif (found_value := number(value)) is not None:
            out[name].append((step, found_value))
    return out


@pytest.mark.parametrize("run", sorted(TRACKIO))
def test_trackio_every_value(run: str, count: Count) -> None:
    fixture, name = run.split("/", 1)
    recording = trackio(fixture, name)
    # trackio's own step counts calls; the trainer's is the step where it was logged.
    own = {step: int(value) for key in STEPS for step, value in TRACKIO[run].get(key, [])}
    want: Points = {}
    for metric, points in TRACKIO[run].items():
        if metric not in STEPS:
            want |= flat(metric, points)
    assert want
    want = {key: [(own.get(step, step), value) for step, value in points] for key, points in want.items()}
    count(f"points of trackio/{run}", compare(recording, want))


def test_trackio_nan_and_inf_at_the_trainers_steps() -> None:
    recording = trackio("runs", "nonfinite")
    assert recording.step_name == "train/global_step"
    steps, values = recording.series("train/grad_norm")
    assert steps[np.isnan(values)].tolist() == [310]
    assert steps[values == np.inf].tolist() == [340]
    assert steps[values == -np.inf].tolist() == [360]


def test_trackio_killed_and_resumed() -> None:
    points = TRACKIO["killed/killed"]["train/grad_norm"]
    assert len(trackio("killed", "killed").series("train/grad_norm")[0]) == len(points) > 20
    found = gs.scan(DATA / "trackio" / "runs", progress=False)
    (run,) = found.runs.filter(attempts=2).iter_rows(named=True)
    (row,) = found.findings.filter(run=run["run"]).iter_rows(named=True)
    assert (row["first_step"], row["attempt"], row["superseded"]) == (26, 1, True)


BOARD = DATA / "swanlab" / "board-0.6"


def test_swanlab_board_names_its_metrics() -> None:
    (only,) = [path for path in BOARD.glob("run-*") if not (path / "backup.swanlab").exists()]
    found = gs.scan(BOARD, progress=False)
    assert found.runs["status"].to_list() == ["clean", "damaged"]
    row = found.runs.filter(run=only.name).row(0, named=True)
    assert row["format"] == "swanlab"
    recording = next(item for item in gs.read_all(BOARD) if item.run == only.name)
    compared = 0
    for folder, name in enumerate(["train/loss", "train/grad_norm"]):
        lines = (only / "logs" / str(folder) / "1000.log").read_text(encoding="utf-8").splitlines()
        said = [json.loads(line) for line in lines]
        steps, values = recording.series(name)
        assert steps.tolist() == [int(line["index"]) for line in said]
        want = [float(str(line["data"]).lower()) for line in said]
        np.testing.assert_array_equal(values, want)
        compared += len(want)
    assert compared > 60


def test_swanlab_board_of_a_real_training(corpus: Path) -> None:
    found = gs.scan(corpus / "swanlab" / "qwen3-qlora", progress=False)
    assert found.runs["status"].to_list() == ["clean"]
    assert found.runs["name"].to_list() == ["qwen3-1.7B-QLoRA"]


def packed(home: Path, form: str) -> Path:
    """The database whose damage is in its log alone, and the log, in one form of packing."""
    home.mkdir()
    files = [DATA / "mlflow_sql" / "wal" / name for name in ("mlflow.db", "mlflow.db-wal")]
    if form == "zip":
        with zipfile.ZipFile(home / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, f"store/{file.name}")
    elif form.startswith("tar"):
        with tarfile.open(home / f"a.{form}", "w:gz" if form.endswith("gz") else "w") as archive:
            for file in files:
                archive.add(file, f"store/{file.name}")
    else:
        for file in files:
            packs = form == "gz" or file.name.endswith(".db")
            content = file.read_bytes()
            (home / (file.name + ".gz" if packs else file.name)).write_bytes(
                gzip.compress(content) if packs else content
            )
    return home


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "gz", "gz of the database alone"])
def test_the_log_of_a_packed_database_is_read(tmp_path: Path, form: str) -> None:
    found = gs.scan(packed(tmp_path / "packed", form), progress=False)
    assert found.runs["records"].to_list() == [40]
    assert found.findings["first_step"].to_list() == [35]
    assert found.faults.is_empty()


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    for name in ("mlflow.db", "mlflow.db-wal"):
        content = bytearray((DATA / "mlflow_sql" / "wal" / name).read_bytes())
        if name.endswith("-wal"):
            content[len(content) // 2] ^= 1
        (tmp_path / name).write_bytes(content)
    found = gs.scan(tmp_path, progress=False)
    assert found.runs["records"].to_list() == [20]
    assert found.faults["kind"].to_list() == ["bad-checksum"]


def test_a_deleted_run_is_no_error_of_those_beside_it() -> None:
    tree = DATA / "mlflow" / "runs"
    assert len(gs.read_all(tree)) == len(gs.scan(tree, progress=False)) > 4


def test_a_trackio_database_with_all_of_its_tables(tmp_path: Path) -> None:
    """Its schema does not fit the first page, as that of every database which trackio itself makes."""
    path = tmp_path / "project.db"
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, timestamp TEXT NOT NULL,"
        " run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT)"
    )
    for number in range(40):
        columns = ", ".join(f"a_column_of_some_length_{k} TEXT" for k in range(20))
        database.execute(f"CREATE TABLE other_table_{number} ({columns})")
    for step in range(60):
        norm = "NaN" if step == 33 else 1.0 + step % 7 / 10
        row = json.dumps({"train/grad_norm": norm}).encode()
        values = ("r1", f"2026-01-01T00:00:{step:02}+00:00", "run one", step, row)
        database.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", values
        )
    database.commit()
    database.close()
    assert path.read_bytes()[100] == 5  # the schema begins with a page of pointers
    found = gs.scan(tmp_path, progress=False)
    assert found.runs.select("format", "status", "records").rows() == [("trackio", "damaged", 60)]
    assert found.findings["first_step"].to_list() == [33]
    (recording,) = gs.read_all(path)
    assert math.isnan(recording.series("train/grad_norm")[1][33])
