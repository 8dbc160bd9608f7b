"""Writes the trackers' fixtures with the trackers themselves: `python tests/data/trackers.py [tracker ...]`.

`make vendor` writes all. Each package gets a virtual environment of its own below `target/vendor` (versions:
`ENVIRONMENTS`), in which this script runs again as `--write`: it trains nothing, it logs seeded values. What no reader
needs (debug logs, lists of packages) is removed, and directories that a tracker names by the clock get a fixed name.
Seeded are the values; the times inside of the files, and random ids where a tracker takes none from outside, differ
from one writing to the next.

`--truth` then lets the tracker read what stands beside this script and keeps its answer in `truth/<format>.json`. In
these, NaN and Inf are the texts "NaN", "Infinity", "-Infinity". README.md says what each fixture is for.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import types
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VENDOR = HERE.parents[1] / "target" / "vendor"
NAN, INF = math.nan, math.inf

# None of these may pull in torch, whose wheels weigh more than all others together.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "wandb": ("wandb==0.29.0", "numpy==2.4.6"),  # the last with a data store in Python
    "wandb-new": ("wandb==0.31.0", "numpy==2.4.6"),
    "wandb-old": ("wandb==0.15.12", "numpy==1.26.4", "setuptools==79.0.1"),  # `key`, not yet `nested_key`
    "trackio": ("trackio==0.43.0",),
    "swanlab": ("swanlab==0.10.3", "numpy==2.4.6"),
    "swanlab-old": ("swanlab[dashboard]==0.6.8", "numpy==2.4.6", "peewee==3.17.9", "setuptools==79.0.1"),
    "mlflow": ("mlflow-skinny==3.17.2", "sqlalchemy==2.1.9", "alembic==1.20.1", "numpy==2.4.6"),
    "dvclive": ("dvclive==3.49.1",),
    "comet": ("comet-ml==3.58.8", "numpy==2.4.6"),
    "clearml": ("clearml==2.1.12",),
    "neptune": ("neptune==1.14.0.post2",),
    "loggers": ("orjson==3.13.0",),
    # One file of each is loaded, with empty modules for what it imports: the packages would need torch or jax.
    "parts": ("--no-deps", "stable-baselines3==2.9.2", "keras==3.15.1", "numpy==2.4.6"),
}

Row = dict[str, Any]
Home = Callable[[str], Path]


# --- values ----------------------------------------------------------------------------------------------------------


def norms(n: int, seed: int, put: Mapping[int, float] | None = None) -> list[float]:
    """`n` gradient norms around 0.75, none near ten times their median; `put` replaces values by step, from 1."""
    draw = random.Random(seed)
    values = [0.75 * math.exp(max(-1.0, min(1.0, draw.gauss(0.0, 0.3)))) for _ in range(n)]
    for step, value in (put or {}).items():
        values[step - 1] = value
    return values


def rows(n: int, seed: int, put: Mapping[int, float] | None = None) -> Iterator[tuple[int, Row, Row]]:
    """Step from 1, its training metrics, its evaluation (every eighth step, else empty)."""
    for step, norm in enumerate(norms(n, seed, put), start=1):
        train = {
            "train/loss": 0.5 + 2.0 / step,
            "train/grad_norm": norm,
            "train/learning_rate": 1e-4 * min(1.0, step / 10),
        }
        yield step, train, {"eval/loss": 0.75 + 2.0 / step, "eval/accuracy": 1 - 1 / step} if step % 8 == 0 else {}


DAMAGE = {31: NAN, 34: INF, 36: -INF}


def plain(value: Any) -> Any:
    """`value` for a truth file."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def killed(job: str, directory: Path) -> None:
    """Runs `job` until it prints READY, then kills its helper processes and it, as a dying node does."""
    command = [sys.executable, __file__, "--write", job, str(directory)]
    # Else it would share W&B's helper, or ClearML's task, with this process.
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "CLEARML_", "TRAINS_"))
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "READY":
                break
        else:
            raise RuntimeError(f"{job} ended by itself")
        for process in [*descendants(child.pid), child.pid]:
            os.kill(process, signal.SIGKILL)


def descendants(process: int) -> list[int]:
    """Processes that `process` started, and theirs."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone since
            continue
        if parent == process:
            child = int(status.parent.name)
            found += [*descendants(child), child]
    return found


def slim(database: Path, tables: Sequence[str]) -> None:
    """Drops all tables but these: the others are most of a small database, and no reader wants them."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if name not in tables and not name.startswith("sqlite_"):
                connection.execute(f'DROP TABLE "{name}"')
        connection.commit()
        # Pages of 4 KiB would be half empty.
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("VACUUM")
        connection.execute(f"PRAGMA journal_mode = {mode}")


# --- W&B -------------------------------------------------------------------------------------------------------------


def wandb_run(directory: Path, run_id: str, **settings: Any) -> Any:
    """An offline run below `directory` that says nothing of this machine."""
    import wandb

    version = tuple(int(part) for part in wandb.__version__.split(".")[:2])
    quiet: Row = {"disable_git": True, "disable_code": True, "save_code": False, "host": "node", "silent": True}
    if version >= (0, 19):
        quiet |= {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
        quiet |= {"x_save_requirements": False, "x_executable": "python", "program": "train.py"}
    else:
        quiet |= {"_disable_stats": True, "_disable_meta": True, "program": "train.py"}
    options = {key: settings.pop(key) for key in ("name", "config", "resume") if key in settings}
    quiet |= {"console": "off"} | settings
    directory.mkdir(parents=True, exist_ok=True)
    return wandb.init(
        dir=str(directory), mode="offline", project="fixtures", id=run_id, settings=wandb.Settings(**quiet), **options
    )


def wandb_tidy(directory: Path, kind: str = "offline-run") -> None:
    """Keeps of `directory/wandb` the run directories alone, named as if by one clock."""
    home = directory / "wandb"
    for at, run in enumerate(sorted(home.glob("offline-run-*"))):
        shutil.rmtree(run / "logs", ignore_errors=True)
        shutil.rmtree(run / "tmp", ignore_errors=True)
        for file in list((run / "files").glob("*")):
            if file.name in ("requirements.txt", "wandb-metadata.json"):
                file.unlink()
        run_id = run.name.split("-", 3)[3]
        run.rename(directory / f"{kind}-2026010{at + 2}_030405-{run_id}")
    shutil.rmtree(home)


def wandb_curves(run: Any, damage: Mapping[int, float], seed: int, steps: int = 48) -> None:
    """A row a step, with evaluations in some."""
    for step, train, evaluation in rows(steps, seed, damage):
        run.log({**train, **evaluation, "train/global_step": step})


def wandb_common(home: Home, suffix: str) -> None:
    """What each generation writes: a healthy run, and NaN and Inf as Python's and numpy's floats."""
    import numpy as np

    directory = home(f"wandb/healthy{suffix}")
    run = wandb_run(directory, "healthy1", name="healthy run", config={"lr": 1e-4, "model": {"depth": 12}})
    wandb_curves(run, {}, seed=1)
    run.finish()
    wandb_tidy(directory)

    directory = home(f"wandb/nonfinite{suffix}")
    run = wandb_run(directory, "nonfinit", name="numpy and Python floats")
    for step, train, evaluation in rows(48, 2, DAMAGE):
        norm = train["train/grad_norm"]
        narrow = {
            "numpy/float16": np.float16(norm),
            "numpy/float32": np.float32(norm),
            "numpy/float64": np.float64(norm),
        }
        run.log({**train, **evaluation, **narrow, "train/global_step": step})
    run.summary["best/grad_norm"] = NAN
    run.finish()
    wandb_tidy(directory)


def wandb_write(home: Home) -> None:
    """All that wandb 0.29.0 is asked for."""
    import wandb

    wandb_common(home, "")

    directory = home("wandb/killed")
    killed("wandb-killed", directory)
    wandb_tidy(directory)

    # The same id twice: the second starts again from a checkpoint of step 24, the NaN is in the first alone.
    directory = home("wandb/resumed")
    run = wandb_run(directory, "resumed1", name="resumed run", resume="allow")
    wandb_curves(run, {33: NAN, 34: NAN}, seed=4, steps=40)
    run.finish(exit_code=1)
    time.sleep(1.1)  # directories are named by the second
    run = wandb_run(directory, "resumed1", name="resumed run", resume="allow")
    for step, train, evaluation in rows(48, 5):
        if step > 24:
            run.log({**train, **evaluation, "train/global_step": step})
    run.finish()
    wandb_tidy(directory)

    directory = home("wandb/names")
    run = wandb_run(directory, "oddnames", name="näme / with: everything")
    for step, norm in enumerate(norms(32, 6, {20: NAN}), start=1):
        run.log(
            {
                "global_step": step,
                "optim": {"grad": {"norm": norm, "clipped": step % 2 == 0}, "a.b": step / 2},
                "Gradient Norm": norm + 1,
                "损失/训练": 1 / step,
                "layer.0/weight norm": 2.0 * step,
                'quote"d\\': step,
                "note": "text " * (step % 3),
                "nothing": None,
                "big": 2**53 + step,
                "tiny": 5e-324,
            }
        )
    run.finish()
    wandb_tidy(directory)

    # `_step` runs apart from the trainer's step: two rows a step, one of them collected over three calls.
    directory = home("wandb/step-metric")
    run = wandb_run(directory, "stepmetr", name="step metric", console="wrap")
    run.define_metric("*", step_metric="train/global_step")
    run.define_metric("eval/*", step_metric="eval/epoch")
    run.define_metric("eval/accuracy", step_metric="eval/epoch", summary="max")
    for step, train, evaluation in rows(40, 7, {27: NAN}):
        run.log({"train/loss": train["train/loss"]}, commit=False)
        run.log({"train/grad_norm": train["train/grad_norm"]}, commit=False)
        run.log({"train/global_step": step * 10, "train/learning_rate": train["train/learning_rate"]})
        run.log({"train/tokens": step * 4096, "train/global_step": step * 10})
        if evaluation:
            run.log({**evaluation, "eval/epoch": step // 8})
            print(f"step {step * 10} loss {train['train/loss']:.4f}", flush=True)
        if step in (10, 20):
            run.log({"weights": wandb.Histogram([0.1, 0.2, 0.2, 0.3]), "train/global_step": step * 10})
    run.alert("loss is nan", "at step 270")
    run.finish()
    wandb_tidy(directory)

    # Only the directory's name and its files say that a run was online: the log is the same.
    directory = home("wandb/online")
    run = wandb_run(directory, "online01", name="online run", config={"lr": 1e-4})
    wandb_curves(run, {41: NAN}, seed=8)
    run.finish()
    wandb_tidy(directory, kind="run")
    files = next(directory.glob("run-*")) / "files"
    files.mkdir(exist_ok=True)
    (files / "config.yaml").write_text("wandb_version: 1\n\nlr:\n  desc: null\n  value: 0.0001\n")
    (files / "wandb-summary.json").write_text('{"train/loss": 0.5416, "train/global_step": 48, "_step": 47}')


def wandb_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    run = wandb_run(directory, "killed01", name="killed run")
    for step, train, evaluation in rows(220, 3, {200: NAN, 201: INF}):
        run.log({**train, **evaluation, "train/global_step": step})
        if step == 220:
            time.sleep(2.0)  # lets the helper write what it has
            print("READY", flush=True)
            time.sleep(60.0)
            return


def wandb_new_write(home: Home) -> None:
    """What wandb 0.31.0 writes otherwise: typed values beside the JSON."""
    wandb_common(home, "-0.31")

    directory = home("wandb/typed-0.31")
    run = wandb_run(directory, "typed001", name="typed values", x_history_value_encoding="json,typed")
    for step, train, evaluation in rows(48, 9, DAMAGE):
        extra = {
            "flag": step % 2 == 0,
            "text": f"row {step}",
            "none": None,
            "nested": {"list": [step, 2.5], "at": -step},
        }
        run.log({**train, **evaluation, **extra, "train/global_step": step})
    run.finish()
    wandb_tidy(directory)


def wandb_old_write(home: Home) -> None:
    """What clients before the core in Go wrote."""
    wandb_common(home, "-0.15")


def wandb_truth() -> dict[str, Row]:
    """All records through wandb's own data store: rows without the clock's items."""
    from wandb.proto import wandb_internal_pb2 as pb
    from wandb.sdk.internal.datastore import DataStore

    truth: Row = {}
    for file in sorted((HERE / "wandb").rglob("*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        told: Row = {"run_id": None, "name": None, "exit_code": None, "rows": [], "step_metrics": [], "records": {}}
        while True:
            try:
                data = store.scan_data()
            except AssertionError as error:
                told["stopped_by"] = f"AssertionError {error}".strip()
                break
            if data is None:
                break
            record = pb.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            told["records"][str(kind)] = told["records"].get(str(kind), 0) + 1
            if kind == "run":
                told["run_id"], told["name"] = record.run.run_id, record.run.display_name
            elif kind == "exit":
                told["exit_code"] = record.exit.exit_code
            elif kind == "metric":
                metric = record.metric
                told["step_metrics"].append([metric.name or metric.glob_name, metric.step_metric])
            elif kind == "history":
                row: Row = {}
                for item in record.history.item:
                    key = ".".join(item.nested_key) if item.nested_key else item.key
                    if key not in ("_timestamp", "_runtime"):
                        row[key] = plain(json.loads(item.value_json))
                told["rows"].append(row)
        truth[file.relative_to(HERE / "wandb").as_posix()] = told
    return {"wandb": truth}


# --- MLflow ----------------------------------------------------------------------------------------------------------

CLOCK = 1_767_323_045_000  # 2026-01-02, in milliseconds
MLFLOW_TABLES = ("alembic_version", "experiments", "latest_metrics", "metrics", "params", "runs", "tags")


def mlflow_client(uri: str) -> Any:
    """A client of a store that names its runs by a seed."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient, set_tracking_uri

    set_tracking_uri(uri)
    return MlflowClient(uri)


def mlflow_start(client: Any, experiment: str, name: str, at: int = 0) -> str:
    """A new run; its id."""
    created = client.create_run(
        experiment, start_time=CLOCK + at, tags={"mlflow.source.name": "train.py"}, run_name=name
    )
    client.log_param(created.info.run_id, "lr", 1e-4)
    return str(created.info.run_id)


def mlflow_log(
    client: Any, run_id: str, curves: Iterable[tuple[int, Row, Row]], at: int = 0, *, at_once: bool = False
) -> None:
    """One batch a step, as Lightning's and Hugging Face's loggers do, or one of all."""
    from mlflow.entities import Metric

    batch = []
    for step, train, evaluation in curves:
        now = CLOCK + at + 1000 * step
        if step % 2 == 0:
            del train["train/learning_rate"]
        batch += [Metric(key, value, now, step) for key, value in {**train, **evaluation}.items()]
        if not at_once:
            client.log_batch(run_id, batch)
            batch = []
    client.log_batch(run_id, batch)


def mlflow_runs(client: Any, start: Callable[[str, str], str], victim: Callable[[str], None]) -> None:
    """Runs of every fate in two experiments, and a third that is deleted."""
    import mlflow
    import numpy as np
    from mlflow.entities import Metric

    pretraining = client.create_experiment("pretraining", artifact_location="artifacts")
    finetuning = client.create_experiment("fine tuning", artifact_location="artifacts")
    run_id = start(pretraining, "healthy")
    mlflow_log(client, run_id, rows(32, 11))
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)

    run_id = start(pretraining, "nonfinite")
    mlflow_log(client, run_id, rows(40, 12, DAMAGE))
    for step in range(1, 9):
        client.log_metric(run_id, "numpy/float32", np.float32("nan" if step == 5 else step), CLOCK + step, step)
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)

    run_id = start(pretraining, "failed")
    mlflow_log(client, run_id, rows(20, 13, dict.fromkeys(range(15, 21), NAN)))
    client.set_terminated(run_id, "FAILED", CLOCK + 50_000)

    run_id = start(finetuning, "stopped")
    mlflow_log(client, run_id, rows(16, 14))
    client.set_terminated(run_id, "KILLED", CLOCK + 50_000)

    victim(start(finetuning, "killed"))

    # Started again from step 17 after it failed: the NaN is in the first attempt alone.
    run_id = start(finetuning, "resumed")
    mlflow_log(client, run_id, rows(24, 16, {20: NAN, 21: NAN}))
    client.set_terminated(run_id, "FAILED", CLOCK + 50_000)
    with mlflow.start_run(run_id=run_id, log_system_metrics=False):
        mlflow_log(client, run_id, (row for row in rows(32, 17) if row[0] > 16), at=100_000)

    run_id = start(finetuning, "deleted")
    mlflow_log(client, run_id, rows(16, 18, {15: NAN}))
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)
    client.delete_run(run_id)

    # All in one millisecond, and a step twice.
    run_id = start(finetuning, "one timestamp")
    for first in (1, 21):
        steps = range(first, first + 20)
        values = norms(40, 19, {30: NAN})
        client.log_batch(run_id, [Metric("grad_norm", values[step - 1], CLOCK, step) for step in steps])
    client.log_metric(run_id, "grad_norm", 0.5, CLOCK, 20)
    client.log_metric(run_id, "without_step", NAN, CLOCK)
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)

    run_id = start("0", "names / of: metrics")
    for step, norm in enumerate(norms(24, 20, {12: NAN}), start=1):
        odd = {"grad norm": norm, "layer.0/weight-norm": 2.0 * norm, "a/b/c d": 1 / step, "größe": step / 4}
        client.log_batch(run_id, [Metric(key, value, CLOCK + step, step) for key, value in odd.items()])
        metric = {"dataset_name": "validation", "dataset_digest": "0a1b2c3d"} if step % 2 == 0 else {}
        client.log_metric(run_id, "eval/loss", 1 / step, CLOCK + step, step, **metric)
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)

    forgotten = client.create_experiment("forgotten", artifact_location="artifacts")
    run_id = start(forgotten, "in a deleted experiment")
    mlflow_log(client, run_id, rows(10, 21, {9: NAN}))
    client.set_terminated(run_id, "FINISHED", CLOCK + 50_000)
    client.delete_experiment(forgotten)


def mlflow_slim(database: Path) -> None:
    """Tables of runs only, and no place of this machine in them."""
    slim(database, MLFLOW_TABLES)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE experiments SET artifact_location = '/artifacts'")
        connection.execute("UPDATE runs SET artifact_uri = '/artifacts'")
        connection.execute("DELETE FROM tags WHERE key IN ('mlflow.user', 'mlflow.source.git.commit')")
        connection.commit()


def mlflow_write(home: Home) -> None:
    """SQL and file store."""
    draw = random.Random(3)
    uuid.uuid4 = lambda: uuid.UUID(int=draw.getrandbits(128), version=4)

    database = home("mlflow_sql/runs") / "mlflow.db"
    database.parent.mkdir()
    client = mlflow_client(f"sqlite:///{database}")
    mlflow_runs(
        client,
        lambda experiment, name: mlflow_start(client, experiment, name),
        lambda run_id: killed(f"mlflow-killed={run_id}", database),
    )
    mlflow_slim(database)

    # The second half, with the NaN, is in the write-ahead log alone.
    database = home("mlflow_sql/wal-of-another") / "mlflow.db"
    database.parent.mkdir()
    client = mlflow_client(f"sqlite:///{database}")
    run_id = mlflow_start(client, client.create_experiment("live", artifact_location="artifacts"), "live")
    curves = list(rows(40, 22, {35: NAN, 37: INF}))
    mlflow_log(client, run_id, curves[:20], at_once=True)
    mlflow_slim(database)
    with contextlib.closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("SELECT count(*) FROM metrics").fetchall()
        mlflow_log(client, run_id, curves[20:], at_once=True)
        copy = home("mlflow_sql/wal")
        copy.mkdir()
        for name in ("mlflow.db", "mlflow.db-wal"):
            shutil.copyfile(database.with_name(name), copy / name)
    shutil.rmtree(database.parent)

    store = home("mlflow/runs") / "mlruns"
    store.parent.mkdir()
    client = mlflow_client(f"file:{store}")
    mlflow_runs(
        client,
        lambda experiment, name: mlflow_start(client, experiment, name),
        lambda run_id: killed(f"mlflow-killed={run_id}", store),
    )
    mlflow_tidy(store)

    store = home("mlflow/odd-lines") / "mlruns"
    store.parent.mkdir()
    client = mlflow_client(f"file:{store}")
    run_id = mlflow_start(client, "0", "edited lines")
    mlflow_log(client, run_id, rows(24, 23, {20: NAN}))
    # A blank in a data set's name makes a line that MLflow itself cannot read.
    client.log_metric(run_id, "eval/loss", 0.5, CLOCK, 25, dataset_name="validation set", dataset_digest="0a1b2c3d")
    metrics = store / "0" / run_id / "metrics" / "train"
    lines = (metrics / "grad_norm").read_text().splitlines()
    lines[6] = "17673230510"  # one field
    lines[9] = f"{CLOCK} 0.7o5 10"
    lines[12] = ""
    lines[15] = f"{CLOCK} 0.5 1_6"
    lines[22] = lines[22].replace(" ", "\t")
    (metrics / "grad_norm").write_text("\n".join(lines)[:-3])  # cut inside of the last line
    two = (line.rsplit(" ", 1)[0] for line in (metrics / "loss").read_text().splitlines())
    (metrics / "loss").write_text("\n".join(two) + "\n")
    mlflow_tidy(store)


def mlflow_tidy(store: Path) -> None:
    """Takes the place of the store out of its own files."""
    for meta in store.rglob("meta.yaml"):
        meta.write_text(
            re.sub("^(artifact_(?:uri|location)): .*$", r"\1: /artifacts", meta.read_text(), flags=re.MULTILINE)
        )
    for folder in [*store.rglob("artifacts"), *store.rglob("outputs"), *store.rglob("inputs"), store / "models"]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def mlflow_killed(run_id: str, store: Path) -> None:
    """Logs until it is killed."""
    client = mlflow_client(f"sqlite:///{store}" if store.suffix == ".db" else f"file:{store}")
    mlflow_log(client, run_id, rows(20, 15, {18: NAN, 19: INF}))
    print("READY", flush=True)
    time.sleep(60.0)


def mlflow_truth() -> dict[str, Row]:
    """Each run's metrics through `MlflowClient.get_metric_history`."""
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    told: dict[str, Row] = {"mlflow_sql": {}, "mlflow": {}}
    for kind, name in (("mlflow_sql", "mlflow.db"), ("mlflow", "mlruns")):
        for found in sorted((HERE / kind).glob(f"*/{name}")):
            # The store writes: it gets a copy.
            with tempfile.TemporaryDirectory() as directory:
                copy = Path(directory) / found.parent.name
                shutil.copytree(found.parent, copy)
                if kind == "mlflow_sql":
                    import mlflow.store.tracking.dbmodels.models  # noqa: F401
                    import sqlalchemy
                    from mlflow.store.db.base_sql_model import Base

                    with sqlalchemy.create_engine(f"sqlite:///{copy / name}").begin() as connection:
                        for table in Base.metadata.sorted_tables:
                            connection.execute(sqlalchemy.schema.CreateTable(table, if_not_exists=True))
                for meta in copy.rglob("meta.yaml"):  # no run for MLflow without its folder of artifacts
                    (meta.parent / "artifacts").mkdir(exist_ok=True)
                client = mlflow_client(f"sqlite:///{copy / name}" if kind == "mlflow_sql" else f"file:{copy / name}")
                for experiment in client.search_experiments(ViewType.ALL):
                    try:
                        found_runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
                    except MlflowException as error:  # one bad line hides all runs of the experiment
                        told[kind][found.parent.name] = {"experiment": experiment.name, "error": str(error)}
                        continue
                    for found_run in found_runs:
                        info = found_run.info
                        run_told: Row = {
                            "experiment": experiment.name,
                            "experiment_id": info.experiment_id,
                            "experiment_stage": experiment.lifecycle_stage,
                            "name": info.run_name,
                            "status": info.status,
                            "lifecycle_stage": info.lifecycle_stage,
                            "metrics": {},
                        }
                        told[kind][f"{found.parent.name}/{info.run_id}"] = run_told
                        for key in sorted(found_run.data.metrics):
                            try:
                                history = client.get_metric_history(info.run_id, key)
                            except MlflowException as error:  # of a deleted experiment in the file store
                                run_told["error"] = str(error)
                                break
                            run_told["metrics"][key] = [[each.step, plain(each.value)] for each in history]
    return told


# --- trackio ---------------------------------------------------------------------------------------------------------


def trackio_run(directory: Path, name: str, resume: str = "never") -> Any:
    """A run in the project `fixtures` below `directory`."""
    os.environ["TRACKIO_DIR"] = str(directory)
    import trackio

    return trackio.init("fixtures", name=name, resume=resume, embed=False, auto_log_cpu=False, auto_log_gpu=False)


def trackio_write(home: Home) -> None:
    """One database of finished runs, one of a run that was killed."""
    directory = home("trackio/runs")
    run = trackio_run(directory, "healthy")
    for step, train, evaluation in rows(40, 31):
        run.log({**train, **evaluation}, step=step)
    run.finish()

    run = trackio_run(directory, "nonfinite")
    for step, train, evaluation in rows(40, 32, DAMAGE):
        run.log({**train, **evaluation, "train/global_step": 10 * step})  # its own step counts the calls
    run.finish()

    run = trackio_run(directory, "resumed")
    for step, train, evaluation in rows(30, 33, {26: NAN}):
        run.log({**train, **evaluation}, step=step)
    run.finish()
    run = trackio_run(directory, "resumed", resume="must")
    for step, train, evaluation in rows(40, 34):
        if step > 20:
            run.log({**train, **evaluation}, step=step)
    run.finish()

    run = trackio_run(directory, "näme / with: everything")
    for step, norm in enumerate(norms(24, 35, {12: NAN}), start=1):
        odd = {
            "grad norm": norm,
            "损失/训练": 1 / step,
            "optim": {"grad_norm": norm, "list": [step, norm]},
            "a.b": step,
        }
        run.log(
            {**odd, "text": "NaN of text" if step % 2 else "Infinity", "flag": step % 2 == 0, "none": None}, step=step
        )
    run.finish()
    trackio_tidy(directory)

    directory = home("trackio/killed")
    killed("trackio-killed", directory)
    trackio_tidy(directory)


def trackio_tidy(directory: Path) -> None:
    """Keeps the database, with the tables of runs."""
    slim(directory / "fixtures.db", ("metrics", "configs", "system_metrics"))
    for file in directory.rglob("*"):
        if file.is_file() and file.suffix != ".db":
            file.unlink()
    for folder in [each for each in directory.rglob("*") if each.is_dir()]:
        shutil.rmtree(folder, ignore_errors=True)


def trackio_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    run = trackio_run(directory, "killed")
    for step, train, evaluation in rows(30, 36, {25: NAN, 26: -INF}):
        run.log({**train, **evaluation}, step=step)
        time.sleep(0.1)
    print("READY", flush=True)
    time.sleep(60.0)


def trackio_truth() -> dict[str, Row]:
    """Each run's metrics through `SQLiteStorage.get_logs`."""
    told: Row = {}
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TRACKIO_DIR"] = directory
        from trackio.sqlite_storage import SQLiteStorage

        for found in sorted((HERE / "trackio").glob("*/*.db")):
            project = f"{found.parent.name}-{found.stem}"
            for suffix in ("", "-wal"):
                if (file := found.with_name(found.name + suffix)).exists():
                    shutil.copyfile(file, Path(directory) / f"{project}.db{suffix}")
            for record in SQLiteStorage.get_run_records(project):
                metrics: Row = {}
                for row in SQLiteStorage.get_logs(project, record["name"], run_id=record["id"]):
                    for key, value in row.items():
                        if key not in ("step", "timestamp"):
                            metrics.setdefault(key, []).append([row["step"], plain(value)])
                told[f"{found.parent.name}/{record['name']}"] = metrics
    return {"trackio": told}


# --- SwanLab ---------------------------------------------------------------------------------------------------------


def reframe(file: Path, old: str, new: str) -> None:
    """Replaces a text in the records of a LevelDB log by one of equal length, and their checksums."""
    before, after = old.encode(), new.encode()
    assert len(before) == len(after)
    data = bytearray(file.read_bytes())
    at = 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        payload = bytes(data[at + 7 : at + 7 + length])
        if before in payload:
            payload = payload.replace(before, after)
            data[at : at + 7 + length] = (
                struct.pack("<IHB", zlib.crc32(bytes([kind]) + payload), length, kind) + payload
            )
        at += 7 + length
    assert before not in data
    file.write_bytes(data)


def swanlab_run(directory: Path, run_id: str, name: str, resume: str = "never") -> Any:
    """An offline run below `directory` that asks for nothing of this machine."""
    import swanlab

    probe = dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)
    settings = swanlab.Settings(probe=probe)
    options: Row = {"project": "fixtures", "name": name, "id": run_id, "resume": resume, "settings": settings}
    return swanlab.init(log_dir=str(directory), mode="offline", config={"lr": 1e-4}, **options)


def swanlab_tidy(directory: Path) -> None:
    """Keeps the logs, with another place in them and in directories of a fixed time."""
    (directory / ".gitignore").unlink()
    for at, run_home in enumerate(sorted(directory.glob("run-*"))):
        for folder in ("debug", "console", "media"):
            shutil.rmtree(run_home / folder, ignore_errors=True)
        for log in run_home.glob("*.swanlab"):
            place = str(directory)
            reframe(log, place, ("/home/trainer/" + "x" * len(place))[: len(place)])
        run_home.rename(directory / f"run-2026010{at + 2}_030405-{run_home.name.split('-', 2)[2]}")


def swanlab_write(home: Home) -> None:
    """What SwanLab 0.10.3 writes."""
    import numpy as np
    import swanlab

    directory = home("swanlab/healthy")
    swanlab_run(directory, "healthy1", "healthy run")
    for step, train, evaluation in rows(40, 41):
        swanlab.log({**train, **evaluation}, step=step)
    swanlab.finish()
    swanlab_tidy(directory)

    directory = home("swanlab/nonfinite")
    swanlab_run(directory, "nonfinit", "NaN and Inf")
    for step, train, evaluation in rows(40, 42, DAMAGE):
        narrow = {"numpy/float32": np.float32(train["train/grad_norm"]), "train/global_step": 10 * step}
        swanlab.log({**train, **evaluation, **narrow})  # its own step counts the calls
    swanlab.finish()
    swanlab_tidy(directory)

    directory = home("swanlab/resumed")
    swanlab_run(directory, "resumed1", "resumed run", "allow")
    for step, train, evaluation in rows(30, 43, {26: NAN}):
        swanlab.log({**train, **evaluation}, step=step)
    swanlab.finish()
    time.sleep(1.1)  # directories are named by the second
    swanlab_run(directory, "resumed1", "resumed run", "allow")
    for step, train, evaluation in rows(40, 44):
        if step > 20:
            swanlab.log({**train, **evaluation}, step=step)
    swanlab.finish(state="crashed", error="out of memory")
    swanlab_tidy(directory)

    directory = home("swanlab/names")
    swanlab_run(directory, "oddnames", "näme / with: everything")
    for step, norm in enumerate(norms(24, 45, {12: NAN}), start=1):
        odd = {
            "grad norm": norm,
            "损失/训练": 1 / step,
            "optim": {"grad": {"norm": norm}},
            "a.b": step,
            "flag": step == 3,
        }
        swanlab.log(odd, step=step)
        if step == 4:
            swanlab.log({"note": swanlab.Text("NaN")}, step=step)
            print("step 4 loss nan")
    swanlab.finish()
    swanlab_tidy(directory)

    directory = home("swanlab/killed")
    killed("swanlab-killed", directory)
    swanlab_tidy(directory)


def swanlab_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    import swanlab

    swanlab_run(directory, "killed01", "killed run")
    for step, train, evaluation in rows(220, 46, {150: NAN, 151: INF}):
        swanlab.log({**train, **evaluation}, step=step)
        if step % 50 == 0:
            time.sleep(0.5)
    print("READY", flush=True)
    time.sleep(60.0)


def swanlab_old_write(home: Home) -> None:
    """What SwanLab 0.6.8 writes: JSON in its log, and files of JSON lines beside a database when it serves itself."""
    import swanlab

    nothing = ("hardware_monitor", "metadata_collect", "collect_hardware", "collect_runtime", "requirements_collect")
    settings = swanlab.Settings(**dict.fromkeys(nothing, False), conda_collect=False)
    for mode, fixture in (("offline", "backup-0.6"), ("local", "board-0.6")):
        directory = home(f"swanlab/{fixture}")
        directory.mkdir()
        options: Row = {"project": "fixtures", "settings": settings, "config": {"lr": 1e-4}}
        for seed, damage in ((47, {}), (48, DAMAGE)):
            name = "nonfinite" if damage else "healthy"
            swanlab.init(logdir=str(directory), mode=mode, experiment_name=name, **options)
            for step, train, evaluation in rows(40, seed, damage):
                swanlab.log({**train, **evaluation, "a": {"b": step}}, step=step)
            swanlab.finish(error="out of memory" if damage else None)
            time.sleep(1.1)
        names = sorted(each.name for each in directory.glob("run-*"))
        ids = {name: f"run-2026010{at + 2}_030405-{'abcdefghijklmnopqrs'}0{at}" for at, name in enumerate(names)}
        for name, new in ids.items():
            (directory / name).rename(directory / new)
            for log in (directory / new).glob("*.swanlab"):
                reframe(log, name, new)
                reframe(log, name.rsplit("-", 1)[1], new.rsplit("-", 1)[1])
        if mode == "local":
            (directory / max(ids.values()) / "backup.swanlab").unlink()  # older versions wrote none beside the board
            # The package keeps its connection: a copy is slimmed, and takes the place.
            database, copy = directory / "runs.swanlab", directory / "copy"
            with (
                contextlib.closing(sqlite3.connect(database)) as connection,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                connection.backup(target)
            slim(copy, ("project", "experiment", "tag"))
            for file in directory.glob("runs.swanlab*"):
                file.unlink()
            copy.rename(database)
            with contextlib.closing(sqlite3.connect(database)) as connection:
                for name, new in ids.items():
                    connection.execute("UPDATE experiment SET run_id = ? WHERE run_id = ?", (new, name))
                connection.commit()
        swanlab_tidy(directory)


def swanlab_truth() -> dict[str, Row]:
    """The records of 0.10.3 through its own reader and messages."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    told: Row = {}
    for file in sorted((HERE / "swanlab").glob("*/*/run-*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        run_told: Row = {"records": {}, "metrics": {}}
        told[file.relative_to(HERE / "swanlab").as_posix()] = run_told
        for data in reader:
            record = Record()
            record.ParseFromString(data)
            kind = str(record.WhichOneof("record_type"))
            run_told["records"][kind] = run_told["records"].get(kind, 0) + 1
            if kind == "scalar":
                curve = run_told["metrics"].setdefault(record.scalar.key, [])
                curve.append([record.scalar.step, plain(record.scalar.value.number)])
    return {"swanlab": told}


def swanlab_old_truth() -> dict[str, Row]:
    """The records of 0.6.8 through its own reader, and the lines of its board through json."""
    from swanlab.data.porter.datastore import DataStore

    told: Row = {}
    for file in sorted((HERE / "swanlab").glob("*/*/backup.swanlab")):
        store = DataStore()
        store.open_for_scan(str(file))
        run_told: Row = {"records": {}, "metrics": {}}
        told[file.relative_to(HERE / "swanlab").as_posix()] = run_told
        for text in store:
            record = json.loads(text)
            kind = record["model_type"]
            run_told["records"][kind] = run_told["records"].get(kind, 0) + 1
            if kind == "Scalar":
                curve = run_told["metrics"].setdefault(record["data"]["key"], [])
                curve.append([record["data"]["step"], record["data"]["metric"]["data"]])
    for board in sorted((HERE / "swanlab").glob("*/runs.swanlab")):
        with contextlib.closing(sqlite3.connect(f"file:{board}?immutable=1", uri=True)) as connection:
            query = """SELECT run_id, experiment.name, status, tag.name, folder
                FROM tag JOIN experiment ON experiment.id = experiment_id"""
            for run_id, name, status, key, folder in connection.execute(query):
                board_told = told.setdefault(
                    f"{board.parent.name}/{run_id}", {"name": name, "status": status, "metrics": {}}
                )
                lines = (board.parent / run_id / "logs" / folder / "1000.log").read_text().splitlines()
                board_told["metrics"][key] = [[point["index"], point["data"]] for point in map(json.loads, lines)]
    return {"swanlab": told}


# --- DVCLive ---------------------------------------------------------------------------------------------------------


def dvclive_run(directory: Path, *, resume: bool = False) -> Any:
    """A run that asks git, DVC and this machine for nothing."""
    from dvclive import Live

    off: Row = {"save_dvc_exp": False, "report": None, "dvcyaml": None, "monitor_system": False}
    return Live(str(directory / "dvclive"), resume=resume, **off)


def dvclive_log(live: Any, curves: Iterable[tuple[int, Row, Row]]) -> None:
    """A row a step; its own step counts from 0."""
    for step, train, evaluation in curves:
        for key, value in {**train, **evaluation}.items():
            live.log_metric(key, value, timestamp=key == "train/loss")
        live.log_metric("global_step", 10 * step)
        live.next_step()


def dvclive_write(home: Home) -> None:
    """All of DVCLive."""
    directory = home("dvclive/healthy")
    with dvclive_run(directory) as live:
        live.log_param("lr", 1e-4)
        dvclive_log(live, rows(40, 51))

    directory = home("dvclive/nonfinite")
    with dvclive_run(directory) as live:
        dvclive_log(live, rows(40, 52, {**DAMAGE, 40: NAN}))

    directory = home("dvclive/resumed")
    with dvclive_run(directory) as live:
        dvclive_log(live, rows(30, 53, {26: NAN}))
    live = dvclive_run(directory, resume=True)
    live.step = 20
    with live:
        dvclive_log(live, (row for row in rows(40, 54) if row[0] > 20))

    directory = home("dvclive/names")
    with dvclive_run(directory) as live:
        for step, norm in enumerate(norms(16, 55, {9: NAN})):
            live.step = step
            live.log_metric("grad norm", norm)
            live.log_metric("損失/訓練 1.5", 1 / (step + 1))
            live.log_metric("flag", step % 2 == 0)
            live.log_metric("text", f"NaN in text {step}", plot=True)

    directory = home("dvclive/killed")
    killed("dvclive-killed", directory)
    for each in ("healthy", "nonfinite", "resumed", "names", "killed"):
        for file in home(f"dvclive/{each}").rglob("*"):
            if file.is_file() and file.suffix not in (".tsv", ".json", ".yaml"):
                file.unlink()


def dvclive_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    dvclive_log(dvclive_run(directory), rows(30, 56, {25: NAN, 26: -INF}))
    print("READY", flush=True)
    time.sleep(60.0)


def dvclive_truth() -> dict[str, Row]:
    """Each metric through DVCLive's own parser of its plots."""
    from dvclive.utils import parse_metrics

    told: Row = {}
    for place in sorted((HERE / "dvclive").glob("*/dvclive")):
        live = types.SimpleNamespace(plots_dir=place / "plots", metrics_file=place / "metrics.json")
        history, latest = parse_metrics(live)
        metrics: Row = {}
        for path, points in sorted(history.items()):
            key = Path(path).relative_to(place / "plots" / "metrics").with_suffix("").as_posix()
            metrics[key] = []
            for point in points:
                value = point[key.rsplit("/", 1)[-1]]
                with contextlib.suppress(ValueError):
                    value = plain(float(value))
                metrics[key].append([int(point["step"]), value])
        told[place.parent.name] = {"metrics": metrics, "latest": latest}
    return {"dvclive": told}


# --- Comet -----------------------------------------------------------------------------------------------------------


def comet_run(directory: Path, key: str, *, existing: bool = False) -> Any:
    """An offline experiment that asks this machine for nothing."""
    import comet_ml

    off = ("log_code", "log_graph", "auto_param_logging", "auto_metric_logging", "parse_args", "log_env_details")
    off += ("log_git_metadata", "log_git_patch", "log_env_gpu", "log_env_cpu", "log_env_host", "log_env_network")
    options: Row = dict.fromkeys(off, False) | {"auto_output_logging": None, "display_summary_level": 0}
    options |= {"offline_directory": str(directory), "project_name": "fixtures", "workspace": "trainer"}
    if existing:
        del options["log_env_network"]
        return comet_ml.ExistingOfflineExperiment(previous_experiment=key, **options)
    return comet_ml.OfflineExperiment(experiment_key=key, **options)


def comet_write(home: Home) -> None:
    """Zip archives, and what a killed experiment leaves."""
    import numpy as np

    directory = home("comet/healthy")
    experiment = comet_run(directory, "healthy1" * 5)
    experiment.set_name("healthy run")
    experiment.log_parameter("lr", 1e-4)
    for step, train, evaluation in rows(40, 61):
        experiment.log_metrics(train, step=step, epoch=step // 20)
        experiment.log_metrics(evaluation, step=step)
    experiment.end()

    directory = home("comet/nonfinite")
    experiment = comet_run(directory, "nonfinit" * 5)
    for step, train, evaluation in rows(40, 62, DAMAGE):
        experiment.log_metrics({**train, **evaluation}, step=step)
        experiment.log_metric("numpy/float32", np.float32(train["train/grad_norm"]), step=step)
    experiment.end()

    directory = home("comet/resumed")
    experiment = comet_run(directory, "resumed1" * 5)
    for step, train, _ in rows(30, 63, {26: NAN}):
        experiment.log_metrics(train, step=step)
    experiment.end()
    experiment = comet_run(directory, "resumed1" * 5, existing=True)
    for step, train, _ in rows(40, 64):
        if step > 20:
            experiment.log_metrics(train, step=step)
    experiment.end()
    # The second archive has a name of the clock and a random part.
    first, second = sorted(directory.glob("*.zip"), key=lambda file: len(file.name))
    second.rename(first.with_name(f"{first.stem}-second.zip"))

    directory = home("comet/names")
    experiment = comet_run(directory, "oddnames" * 5)
    with experiment.train():
        for step, norm in enumerate(norms(16, 65, {9: NAN}), start=1):
            experiment.log_metric("grad norm", norm, step=step)
            experiment.log_metrics({"optim": {"grad": {"norm": norm}}, "損失": 1 / step}, step=step)
            experiment.log_metric("no step", step / 2)
            experiment.log_metric("text", "NaN" if step == 3 else "fine", step=step)
    with experiment.test():
        experiment.log_metric("loss", 0.5, step=16)
    experiment.end()

    directory = home("comet/killed")
    killed("comet-killed", directory)
    left = next(directory.rglob("messages.json")).parent
    left.rename(directory / "tmp0killed")
    (directory / "temporary").rmdir()


def comet_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    tempfile.tempdir = str(directory / "temporary")
    Path(tempfile.tempdir).mkdir(parents=True)
    experiment = comet_run(directory, "killed01" * 5)
    for step, train, _ in rows(30, 66, {25: NAN, 26: -INF}):
        experiment.log_metrics(train, step=step)
    time.sleep(3.0)
    print("READY", flush=True)
    time.sleep(60.0)


def comet_truth() -> dict[str, Row]:
    """The messages through zipfile and json."""
    told: Row = {}
    for file in sorted([*(HERE / "comet").rglob("*.zip"), *(HERE / "comet").rglob("messages.json")]):
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                text = archive.read("messages.json").decode() if names else ""
        else:
            names, text = [each.name for each in file.parent.iterdir()], file.read_text()
        metrics: Row = {}
        for line in text.splitlines():
            message = json.loads(line)
            if message["type"] == "metric_msg":
                metric, context = message["payload"]["metric"], message["payload"].get("context")
                key = metric["metricName"] if context is None else f"{context}:{metric['metricName']}"
                metrics.setdefault(key, []).append([metric.get("step"), metric["metricValue"]])
        told[file.relative_to(HERE / "comet").as_posix()] = {"names": sorted(names), "metrics": metrics}
    return {"comet": told}


# --- ClearML ---------------------------------------------------------------------------------------------------------


def clearml_task(directory: Path, name: str) -> Any:
    """An offline task."""
    os.environ["CLEARML_CACHE_DIR"] = str(directory)
    Path("train.py").write_text("import clearml\n")
    sys.argv[0] = str(Path("train.py").resolve())  # it looks for the script's repository
    from clearml import Task

    Task.set_offline(offline_mode=True)
    off = ("auto_connect_arg_parser", "auto_connect_frameworks", "auto_resource_monitoring", "auto_connect_streams")
    options: Row = dict.fromkeys(off, False) | {"reuse_last_task_id": False, "output_uri": None}
    return Task.init(project_name="fixtures", task_name=name, **options)


def clearml_log(task: Any, curves: Iterable[tuple[int, Row, Row]]) -> None:
    """Title and series of each scalar, as the callbacks of trainers split a name."""
    for step, train, evaluation in curves:
        for key, value in {**train, **evaluation}.items():
            title, series = key.split("/")
            task.get_logger().report_scalar(title, series, value, step)


def clearml_write(home: Home) -> None:
    """Sessions as folders, one as the archive."""
    from clearml import Logger

    cache = home("clearml-cache/offline").parent
    for name, seed, damage in (("healthy", 71, {}), ("nonfinite", 72, DAMAGE), ("nonfinite-kept", 72, DAMAGE)):
        if name == "nonfinite-kept":
            Logger.set_reporting_nan_value(NAN)
            Logger.set_reporting_inf_value(INF)
        task = clearml_task(cache, name)
        clearml_log(task, rows(40, seed, damage))
        if name == "healthy":
            task.get_logger().report_scalar("näme / with: everything", "a.b/c", 1.5, 3)
            task.get_logger().report_single_value("best", 0.25)
            task.get_logger().report_text("step 3 loss nan")
            task.get_logger().report_histogram("weights", "layer", [1.0, 2.0], 3)
        session = Path(task.get_offline_mode_folder())
        task.close()
        clearml_keep(session, home(f"clearml/{name}"), name)
    killed(f"clearml-killed={cache}", home("clearml/killed"))
    clearml_keep(
        max((cache / "offline").glob("offline-*/"), key=lambda each: each.stat().st_mtime),
        home("clearml/killed"),
        "killed",
    )
    shutil.rmtree(cache)

    session = next(home("clearml/nonfinite").iterdir())
    archive = home("clearml/zipped") / f"{session.name}.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(session.iterdir()):
            target.writestr(zipfile.ZipInfo(file.name, (2026, 1, 2, 3, 4, 6)), file.read_bytes(), zipfile.ZIP_DEFLATED)


def clearml_keep(session: Path, place: Path, name: str) -> None:
    """Copies a session under an id of its name, without the script and the machine in its task."""
    new = f"offline-{name.encode().hex():0<32}"[:40]
    (place / new).mkdir(parents=True, exist_ok=True)
    for file in session.iterdir():
        if file.is_dir():
            continue
        text = file.read_text().replace(session.name, new).replace(str(session.parents[1]), "/cache")
        if file.name == "task.json":
            told = json.loads(text)
            told["script"], told["offline_folder"] = {}, f"/cache/offline/{new}"
            text = json.dumps(told, sort_keys=True)
        (place / new / file.name).write_text(text)


def clearml_killed(cache: str, _: Path) -> None:
    """Logs until it is killed."""
    task = clearml_task(Path(cache), "killed")
    clearml_log(task, rows(30, 73, {25: NAN, 26: -INF}))
    time.sleep(8.0)  # its reporter writes every few seconds
    clearml_log(task, rows(5, 74))
    print("READY", flush=True)
    time.sleep(60.0)


def clearml_truth() -> dict[str, Row]:
    """The events through json."""
    told: Row = {}
    for file in sorted((HERE / "clearml").glob("*/*/metrics.jsonl")):
        metrics: Row = {}
        kinds: Row = {}
        for line in file.read_text().splitlines():
            for event in json.loads(line):
                kinds[event["type"]] = kinds.get(event["type"], 0) + 1
                if event["type"] == "training_stats_scalar":
                    key = f"{event['metric']}/{event['variant']}"
                    metrics.setdefault(key, []).append([event["iter"], plain(event["value"])])
        told[file.parent.parent.name] = {"events": kinds, "metrics": metrics}
    return {"clearml": told}


# --- Neptune ---------------------------------------------------------------------------------------------------------


def neptune_run(directory: Path, name: str) -> Any:
    """An offline run that asks this machine for nothing."""
    import neptune

    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    off = ("capture_hardware_metrics", "capture_stdout", "capture_stderr", "capture_traceback", "git_ref")
    options: Row = dict.fromkeys(off, False) | {"source_files": []}
    return neptune.init_run(mode="offline", name=name, project="trainer/fixtures", **options)


def neptune_write(home: Home) -> None:
    """All of Neptune 1.x."""
    run = neptune_run(home("neptune/healthy"), "healthy")
    for step, train, evaluation in rows(40, 81):
        for key, value in {**train, **evaluation}.items():
            run[key].append(value, step=step)
    run["parameters/lr"] = 1e-4
    run.stop()

    run = neptune_run(home("neptune/nonfinite"), "nonfinite")
    for step, train, _ in rows(40, 82, DAMAGE):
        for key, value in train.items():
            run[key].append(value, step=step)
    run.stop()

    run = neptune_run(home("neptune/names"), "näme / with: everything")
    run["batch/loss"].extend([1 / step for step in range(1, 21)], steps=[step / 2 for step in range(1, 21)])
    for step in range(1, 9):
        run["grad norm/a.b"].append({"損失": step / 4, "deeper": {"still": step}})  # no step
        run["console"].append(f"step {step} loss nan")
    run.stop()

    killed("neptune-killed", home("neptune/killed"))
    for each in ("healthy", "nonfinite", "names", "killed"):
        home_of = home(f"neptune/{each}") / ".neptune" / "offline"
        (container,) = home_of.iterdir()
        new = f"run__{uuid.UUID(int=len(each))}__1__{each[:8]:x<8}"
        container.rename(home_of / new)
        metadata = home_of / new / "metadata.json"
        told = json.loads(metadata.read_text())
        told |= {"os": "Linux", "containerId": str(uuid.UUID(int=len(each)))}
        metadata.write_text(json.dumps(told, indent=2))


def neptune_killed(_: str, directory: Path) -> None:
    """Logs until it is killed."""
    run = neptune_run(directory, "killed")
    for step, train, _ in rows(40, 83):
        for key, value in train.items():
            run[key].append(value, step=step)
    time.sleep(2.0)
    print("READY", flush=True)
    time.sleep(60.0)


def neptune_truth() -> dict[str, Row]:
    """The operations through json."""
    told: Row = {}
    for file in sorted((HERE / "neptune").rglob("data-*.log")):
        metrics: Row = {}
        kinds: Row = {}
        decoder, text, at = json.JSONDecoder(), file.read_text(), 0
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            try:
                record, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:  # of a killed run
                break
            operation = record["obj"]
            kinds[operation["type"]] = kinds.get(operation["type"], 0) + 1
            if operation["type"] == "LogFloats":
                points = [[each["step"], plain(each["value"])] for each in operation["values"]]
                metrics.setdefault("/".join(operation["path"]), []).extend(points)
        told[file.relative_to(HERE / "neptune").parts[0]] = {"operations": kinds, "metrics": metrics}
    return {"neptune": told}


# --- loggers without a tracker ---------------------------------------------------------------------------------------


def loggers_write(home: Home) -> None:
    """verl's file by the package that writes its lines; the others are built byte by byte as the logger does."""
    import orjson

    place = home("jsonl/verl-logger") / "fixtures" / "run.jsonl"
    place.parent.mkdir(parents=True)
    with place.open("wb") as file:
        for step, train, evaluation in rows(32, 92, {21: NAN, 24: INF}):
            data = {"actor/grad_norm": train["train/grad_norm"], "actor/loss": train["train/loss"], "actor/lr": 1e-6}
            data |= {f"val-core/{key}": value for key, value in evaluation.items()}
            file.write(orjson.dumps({"step": step, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")

    # mmengine: LocalVisBackend and LoggerHook write the same rows twice, `json.dump` and a line end each.
    place = home("jsonl/mmengine") / "20260102_030405"
    (place / "vis_data").mkdir(parents=True)
    lines = []
    for step, train, evaluation in rows(40, 93, DAMAGE):
        timed = {"data_time": 0.01, "time": 0.25, "epoch": 1 + step // 20, "iter": step, "memory": 1024, "step": step}
        norm = {"loss": train["train/loss"], "grad_norm": train["train/grad_norm"]}
        lines.append({"lr": train["train/learning_rate"], **norm, **timed})
        if evaluation:
            lines.append(
                {"coco/bbox_mAP": evaluation["eval/accuracy"], "data_time": 0.02, "time": 0.5, "step": step // 8}
            )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for file in (place / "vis_data" / "scalars.json", place / "vis_data" / f"{place.name}.json"):
        file.write_text(text)

    # DeepSpeed: `csv.writer` on a file opened for appending, the header again by each process.
    place = home("deepspeed/monitor") / "job"
    place.mkdir(parents=True)
    for first, last, damage in ((1, 20, {18: NAN}), (13, 30, None)):
        for tag in ("train_loss", "lr", "loss_scale"):
            with (place / f"Train_Samples_{tag}.csv").open("a", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["step", tag])
                for step, train, _ in rows(last, 94, damage):
                    values = {
                        "train_loss": train["train/grad_norm"],
                        "lr": train["train/learning_rate"],
                        "loss_scale": 65536.0,
                    }
                    if step >= first:
                        writer.writerow([step * 32, values[tag]])

    # torchtune: DiskLogger's f-strings.
    for name, seed, damage in (("log_1767323045.txt", 95, {}), ("log_1767409445.txt", 96, DAMAGE)):
        place = home("torchtune/" + ("nonfinite" if damage else "healthy")) / name
        place.parent.mkdir()
        with place.open("a") as file:
            for step, train, _ in rows(40, seed, damage):
                payload = {"loss": train["train/loss"], "lr": train["train/learning_rate"]}
                payload |= {"tokens_per_second_per_gpu": 1234.5, "grad_norm": train["train/grad_norm"]}
                file.write(f"Step {step} | " + "".join(f"{key}:{value} " for key, value in payload.items()) + "\n")


def loggers_truth() -> dict[str, Row]:
    """DeepSpeed's cells and torchtune's words as Python's float reads them."""
    told: dict[str, Row] = {"deepspeed": {}, "torchtune": {}}
    for file in sorted((HERE / "deepspeed").rglob("*.csv")):
        with file.open(newline="") as lines:
            cells = [row for row in csv.reader(lines) if row[0] != "step"]
        points = [[int(step), plain(float(value))] for step, value in cells]
        told["deepspeed"][file.relative_to(HERE / "deepspeed").as_posix()] = points
    for file in sorted((HERE / "torchtune").rglob("*.txt")):
        metrics: Row = {}
        for line in file.read_text().splitlines():
            head, _, words = line.partition(" | ")
            for key, _, value in (word.rpartition(":") for word in words.split()):
                metrics.setdefault(key, []).append([int(head.removeprefix("Step ")), plain(float(value))])
        told["torchtune"][file.relative_to(HERE / "torchtune").as_posix()] = metrics
    return told


def load(path: str, **modules: types.ModuleType) -> Any:
    """One file of an installed package, with `modules` for what it imports."""
    import importlib.util

    sys.modules.update({name.replace("__", "."): module for name, module in modules.items()})
    place = next(Path(each) / path for each in sys.path if (Path(each) / path).is_file())
    spec = importlib.util.spec_from_file_location("part", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts_write(home: Home) -> None:
    """The files of Keras' and stable-baselines3's loggers."""
    names = ("keras", "keras.src", "keras.src.utils", "keras.src.callbacks", "keras.src.callbacks.callback")
    modules = {name.replace(".", "__"): types.ModuleType(name) for name in (*names, "keras.src.api_export")}
    modules["keras__src__api_export"].keras_export = lambda _: lambda each: each  # type: ignore[attr-defined]
    modules["keras__src__callbacks__callback"].Callback = type("Callback", (), {"__init__": lambda _: None})  # type: ignore[attr-defined]
    files = types.SimpleNamespace(File=open, exists=os.path.exists, path_to_string=str)
    modules["keras__src__utils"].file_utils = files  # type: ignore[attr-defined]
    module = load("keras/src/callbacks/csv_logger.py", **modules)
    place = home("csv/keras-logger") / "training.csv"
    place.parent.mkdir()
    for first, last in ((1, 12), (11, 20)):  # the second resumes from epoch 10 and appends
        logger = module.CSVLogger(str(place), append=first > 1)
        logger.model = types.SimpleNamespace(stop_training=False)
        logger.on_train_begin()
        for step, train, _ in rows(last, 91, {11: NAN} if first == 1 else None):
            if step >= first:
                logs = {"loss": train["train/grad_norm"], "learning_rate": train["train/learning_rate"]}
                logger.on_epoch_end(step - 1, logs | ({"val_loss": 1 / step} if step % 2 == 0 else {}))
        logger.on_train_end()

    torch = types.ModuleType("torch")
    torch.Tensor = object  # type: ignore[attr-defined]
    module = load("stable_baselines3/common/logger.py", torch=torch)
    place = home("csv/sb3-logger")
    place.mkdir()
    formats = [
        module.CSVOutputFormat(str(place / "progress.csv")),
        module.JSONOutputFormat(str(place / "progress.json")),
    ]
    logger = module.Logger(str(place), formats)
    for step, train, evaluation in rows(24, 97, {18: NAN, 20: INF}):
        logger.record("time/total_timesteps", 2048 * step)
        logger.record("time/iterations", step)
        if step > 1:
            logger.record("train/loss", train["train/loss"])
            logger.record("train/value_loss", train["train/grad_norm"])
        for key, value in evaluation.items():
            logger.record(key, value)
        logger.record("note", 'a "quoted", text', exclude="json")
        logger.dump(2048 * step)
    logger.close()


# --- machinery -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracker:
    """Writers and readers of the truth by environment."""

    writers: Mapping[str, Callable[[Home], None]]
    truth: Mapping[str, Callable[[], dict[str, Row]]]


TRACKERS: dict[str, Tracker] = {
    "wandb": Tracker(
        {"wandb": wandb_write, "wandb-new": wandb_new_write, "wandb-old": wandb_old_write}, {"wandb": wandb_truth}
    ),
    "mlflow": Tracker({"mlflow": mlflow_write}, {"mlflow": mlflow_truth}),
    "trackio": Tracker({"trackio": trackio_write}, {"trackio": trackio_truth}),
    "swanlab": Tracker(
        {"swanlab": swanlab_write, "swanlab-old": swanlab_old_write},
        {"swanlab": swanlab_truth, "swanlab-old": swanlab_old_truth},
    ),
    "dvclive": Tracker({"dvclive": dvclive_write}, {"dvclive": dvclive_truth}),
    "comet": Tracker({"comet": comet_write}, {"comet": comet_truth}),
    "clearml": Tracker({"clearml": clearml_write}, {"clearml": clearml_truth}),
    "neptune": Tracker({"neptune": neptune_write}, {"neptune": neptune_truth}),
    "loggers": Tracker({"loggers": loggers_write, "parts": parts_write}, {"loggers": loggers_truth}),
}
# Parts of a writer that run in a process of their own, to be killed: `name=argument`.
VICTIMS: dict[str, Callable[[str, Path], None]] = {
    "wandb-killed": wandb_killed,
    "mlflow-killed": mlflow_killed,
    "trackio-killed": trackio_killed,
    "swanlab-killed": swanlab_killed,
    "dvclive-killed": dvclive_killed,
    "comet-killed": comet_killed,
    "clearml-killed": clearml_killed,
    "neptune-killed": neptune_killed,
}


def environment(name: str) -> str:
    """Path of a Python with the packages of `name`, made when it is not there."""
    home = VENDOR / name
    python, ready = home / "bin" / "python", home / "packages"
    wanted = "\n".join(ENVIRONMENTS[name])
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *ENVIRONMENTS[name]]
        subprocess.run(install, check=True)
        ready.write_text(wanted)
    return str(python)


def run(python: str, *arguments: str) -> None:
    """This script in another environment, as a user and in a home of no name."""
    with tempfile.TemporaryDirectory() as home:
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "USER": "trainer",
            "LOGNAME": "trainer",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        subprocess.run([python, __file__, *arguments], check=True, cwd=home, env=variables)


def write(name: str, directory: Path) -> None:
    """Writes the fixtures of one environment below `directory`, each as `<format>/<fixture>`."""
    socket.gethostname = lambda: "node"
    victim, _, argument = name.partition("=")
    if victim in VICTIMS:
        VICTIMS[victim](argument, directory)
        return

    def home(path: str) -> Path:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        return directory / path

    next(tracker.writers[name] for tracker in TRACKERS.values() if name in tracker.writers)(home)


def collect(directory: Path) -> None:
    """Moves the fixtures from `directory` to their places."""
    for fixture in sorted(directory.glob("*/*")):
        place = HERE / fixture.relative_to(directory)
        place.parent.mkdir(exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        shutil.move(fixture, place)
        print(place.relative_to(HERE))


def truth(names: Sequence[str]) -> None:
    """Lets a tracker read its fixtures in each of its environments and keeps what it says."""
    told: dict[str, Row] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "told.json"
            run(environment(name), "--truth", name, str(file))
            for kind, fixtures in json.loads(file.read_text()).items():
                told.setdefault(kind, {}).update(fixtures)
    for kind, fixtures in told.items():
        file = HERE / "truth" / f"{kind}.json"
        file.parent.mkdir(exist_ok=True)
        lines = (
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(fixtures.items())
        )
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(arguments: Iterable[str]) -> None:
    """Writes the fixtures of the trackers that are named, of all by default."""
    match list(arguments):
        case ["--write", name, directory]:
            write(name, Path(directory))
        case ["--truth", name, file]:
            reader = next(tracker.truth[name] for tracker in TRACKERS.values() if name in tracker.truth)
            Path(file).write_text(json.dumps(reader(), allow_nan=False))
        case names:
            for name in names or TRACKERS:
                tracker = TRACKERS[name]
                for each in tracker.writers:
                    with tempfile.TemporaryDirectory() as directory:
                        run(environment(each), "--write", each, directory)
                        collect(Path(directory))
                truth(list(tracker.truth))


if __name__ == "__main__":
    main(sys.argv[1:])
