"""Writes the trackers' fixtures with the trackers themselves: `python tests/data/trackers.py [tracker ...]`, or `make vendor`.

Each package gets a virtual environment of its own below `target/vendor` (versions: `ENVIRONMENTS`), in which this script
runs again as `--write`: it trains nothing, it logs seeded values. What no reader needs (debug logs, lists of packages)
is removed, and directories that a tracker names by the clock get a fixed name. Seeded are the values; the times inside
of the files, and random ids where a tracker takes none from outside, differ from one writing to the next.

`--truth` then lets the tracker read what stands beside this script and keeps its answer in `truth/<format>.json`. In
these, NaN and Inf are the texts "NaN", "Infinity", "-Infinity". README.md says what each fixture is for.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    # Else it would share W&B's helper with this process.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
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
        narrow = {"numpy/float16": np.float16(norm), "numpy/float32": np.float32(norm), "numpy/float64": np.float64(norm)}
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


def wandb_killed(directory: Path) -> None:
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
        extra = {"flag": step % 2 == 0, "text": f"row {step}", "none": None, "nested": {"list": [step, 2.5], "at": -step}}
        run.log({**train, **evaluation, **extra, "train/global_step": step})
    run.finish()
    wandb_tidy(directory)


def wandb_old_write(home: Home) -> None:
    """What clients before the core in Go wrote."""
    wandb_common(home, "-0.15")


def wandb_truth(_: str) -> dict[str, Row]:
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


# --- machinery -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracker:
    """Writers by environment, and the reader of the truth with its environment."""

    writers: Mapping[str, Callable[[Home], None]]
    truth: tuple[str, Callable[[str], dict[str, Row]]] | None = None
    formats: Sequence[str] = field(default=())


TRACKERS: dict[str, Tracker] = {
    "wandb": Tracker(
        {"wandb": wandb_write, "wandb-new": wandb_new_write, "wandb-old": wandb_old_write}, ("wandb", wandb_truth)
    ),
}
# Parts of a writer that run in a process of their own, to be killed.
VICTIMS: dict[str, Callable[[Path], None]] = {"wandb-killed": wandb_killed}


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
        variables = {"PATH": os.environ["PATH"], "HOME": home, "USER": "trainer", "LOGNAME": "trainer", "LANG": "C.UTF-8"}
        subprocess.run([python, __file__, *arguments], check=True, cwd=home, env=variables)


def write(name: str, directory: Path) -> None:
    """Writes the fixtures of one environment below `directory`, each as `<format>/<fixture>`."""
    socket.gethostname = lambda: "node"
    if name in VICTIMS:
        VICTIMS[name](directory)
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


def truth(name: str) -> None:
    """Lets a tracker read its fixtures and keeps what it says."""
    reader = TRACKERS[name].truth
    assert reader is not None
    for kind, told in reader[1](name).items():
        file = HERE / "truth" / f"{kind}.json"
        file.parent.mkdir(exist_ok=True)
        lines = (f"{json.dumps(key)}: {json.dumps(told[key], ensure_ascii=False, allow_nan=False)}" for key in told)
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(arguments: Iterable[str]) -> None:
    """Writes the fixtures of the trackers that are named, of all by default."""
    match list(arguments):
        case ["--write", name, directory]:
            write(name, Path(directory))
        case ["--truth", name]:
            truth(name)
        case names:
            for name in names or TRACKERS:
                tracker = TRACKERS[name]
                for each in tracker.writers:
                    with tempfile.TemporaryDirectory() as directory:
                        run(environment(each), "--write", each, directory)
                        collect(Path(directory))
                if tracker.truth:
                    run(environment(tracker.truth[0]), "--truth", name)


if __name__ == "__main__":
    main(sys.argv[1:])
