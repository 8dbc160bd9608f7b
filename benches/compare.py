"""gradscan against its peers, side by side: same data, same process, page cache warm, answers compared before times.

    python benches/compare.py [--only NAME]... [--quick] [--threads N] [--json FILE]

Prints `name  ours  peer  ratio  must  aim  ok`. `must` is the floor that the project promises, `aim` what it wants.
A row whose two sides disagree about the data stops the run, whatever its times. `--quick` shrinks every size: it shows
that each row runs and that the answers agree, and judges no ratio. Exit code 1 if a ratio is below its floor, or if no
row ran. A row whose data is absent says so and does not count.

The peers are what a competent user would write with the usual tools. Kernel rows run on one thread on both sides. A
peer that has but one thread (`json.loads`, rlprobe) meets gradscan with all of them, unless `--threads` says otherwise;
pyarrow and TensorBoard's data server get as many as gradscan.

A round is ours and the peer in turn, and each side's best round counts. A peer of minutes runs once, between six runs
of ours, and its processor time counts if it is less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from importlib import import_module
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import bottleneck
import ml_dtypes  # noqa: F401 (numpy learns bfloat16 from it, which safetensors asks for)
import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.testing import assert_frame_equal
from rlprobe.doctor import REGISTRY, diagnose
from rlprobe.schemas import Event, RunManifest, StepRecord
from rlprobe.storage import RunWriter
from safetensors import safe_open

import gradscan as gs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import event_files as ef  # noqa: E402
from tensorboard_readers import DataServer, Points, accumulated  # noqa: E402

SPIKE_RATIO = 10.0
MIN_SPIKES = 3
MB = 1e6

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


# --- Answers ---------------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What both sides must say of one run. Steps are null where the check does not fire, spikes are 0."""

    n: int
    nan: int
    inf: int
    median: float | None
    first_bad: int | None
    spikes: int
    first_spike: int | None


def judge(steps: Ints, norms: Floats, bad: npt.NDArray[np.bool_]) -> Facts:
    """The two checks as a numpy user writes them. `bad`: rows that another signal than the gradient norm damns."""
    finite = np.isfinite(norms)
    values = norms[finite]
    median = float(np.median(values)) if values.size else None
    spikes = np.flatnonzero(finite & (norms > SPIKE_RATIO * median)) if median else np.empty(0, np.int64)
    damaged = np.flatnonzero(~finite | bad)
    fires = spikes.size >= MIN_SPIKES
    return Facts(
        n=norms.size,
        nan=int(np.isnan(norms).sum()),
        inf=int(np.isinf(norms).sum()),
        median=median,
        first_bad=int(steps[damaged[0]]) if damaged.size else None,
        spikes=int(spikes.size) if fires else 0,
        first_spike=int(steps[spikes[0]]) if fires else None,
    )


def facts_of_scan(scan: gs.Scan) -> dict[str, Facts]:
    """The same facts out of a finished scan, by the first part of the run's name."""
    series = scan.series.filter(pl.col("role") == "grad_norm")
    first = {(row["run"], row["check"]): row for row in scan.findings.iter_rows(named=True)}
    out = {}
    for row in series.iter_rows(named=True):
        nonfinite, spikes = first.get((row["run"], "nonfinite")), first.get((row["run"], "spikes"))
        out[Path(row["run"]).parts[0]] = Facts(
            n=row["n"],
            nan=row["nan"],
            inf=row["inf"],
            median=row["median"],
            first_bad=nonfinite["first_step"] if nonfinite else None,
            spikes=spikes["count"] if spikes else 0,
            first_spike=spikes["first_step"] if spikes else None,
        )
    return out


def same_facts(ours: gs.Scan, peer: Mapping[str, Facts]) -> None:
    """Same runs, same facts; and the archive must hold damage of both kinds, or agreeing means little."""
    mine = facts_of_scan(ours)
    assert mine.keys() == peer.keys(), f"runs differ: {sorted(mine.keys() ^ peer.keys())[:5]}"
    wrong = {run: (mine[run], peer[run]) for run in mine if mine[run] != peer[run]}
    assert not wrong, f"{len(wrong)} runs differ, such as {next(iter(wrong.items()))}"
    assert any(f.first_bad is not None for f in peer.values()), "no run of the archive has a NaN"
    assert any(f.spikes for f in peer.values()), "no run of the archive has spikes"


# --- Data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One training: steps, gradient norms in single precision (as torch computes them), a falling loss."""

    steps: Ints
    norms: Floats
    losses: Floats


def curves(runs: int, rows: int, *, interval: int = 1, seed: int = 0) -> Iterator[Curve]:
    """Mostly healthy runs; of every ten one dies of NaN, one has a single Inf, one has spikes."""
    rng = np.random.default_rng(seed)
    for run in range(runs):
        norms = rng.lognormal(-0.3, 0.45, rows).astype(np.float32).astype(np.float64)
        losses = 1.5 + 2.0 * np.exp(-np.arange(rows) / (rows / 4)) + rng.normal(0, 0.05, rows)
        if run % 10 == 3:
            norms[rows * 3 // 4 :] = losses[rows * 3 // 4 :] = np.nan
        elif run % 10 == 5:
            norms[rows // 3] = np.inf
        elif run % 10 == 7:
            norms[rng.choice(np.arange(rows // 2, rows), 5, replace=False)] *= 80.0
        yield Curve(np.arange(1, rows + 1) * interval, norms, losses)


def matrix(runs: int, rows: int, *, infinities: bool) -> Floats:
    """The norms of many runs as one array."""
    table = np.stack([curve.norms for curve in curves(runs, rows)])
    # bottleneck's median takes Inf for a value: its rows hold none, so that both sides compute the same.
    if not infinities:
        table[np.isinf(table)] = np.nan
    return table


class TrainerState:
    """trainer_state.json as transformers writes it: `json.dumps(asdict(state), indent=2, sort_keys=True) + "\\n"`."""

    @staticmethod
    def skeleton(history: list[dict[str, object]], steps: int) -> str:
        control = {"should_epoch_stop": False, "should_evaluate": False, "should_log": False, "should_save": True}
        state = {
            "best_global_step": None,
            "best_metric": None,
            "best_model_checkpoint": None,
            "epoch": 3.0,
            "eval_steps": 500,
            "global_step": steps,
            "is_hyper_param_search": False,
            "is_local_process_zero": True,
            "is_world_process_zero": True,
            "log_history": history,
            "logging_steps": 10,
            "max_steps": steps,
            "num_input_tokens_seen": 0,
            "num_train_epochs": 3,
            "save_steps": 500,
            "stateful_callbacks": {"TrainerControl": {"args": control, "attributes": {}}},
            "total_flos": 1.650178932629255e19,
            "train_batch_size": 8,
            "trial_name": None,
            "trial_params": None,
        }
        return json.dumps(state, indent=2, sort_keys=True) + "\n"

    @staticmethod
    def entry(step: int, norm: float, loss: float) -> dict[str, object]:
        return {
            "epoch": step / 6666,
            "grad_norm": norm,
            "learning_rate": 2e-05 * (1 - step / 1e9),
            "loss": loss,
            "step": step,
        }

    @classmethod
    def write(cls, path: Path, curve: Curve) -> None:
        """A whole training: its rows, an evaluation every 200 rows, and the summary of a finished run at the end."""
        history: list[dict[str, object]] = []
        last = int(curve.steps[-1])
        rows = zip(curve.steps.tolist(), curve.norms.tolist(), curve.losses.tolist(), strict=True)
        for k, (step, norm, loss) in enumerate(rows):
            history.append(cls.entry(step, norm, loss))
            if k % 200 == 199:
                history.append(
                    {
                        "epoch": step / 6666,
                        "eval_loss": 1.75,
                        "eval_runtime": 16.2797,
                        "eval_samples_per_second": 14.497,
                        "step": step,
                    }
                )
        history.append(
            {"epoch": 3.0, "step": last, "total_flos": 1.65e19, "train_loss": 1.62, "train_runtime": 2959.8245}
        )
        path.parent.mkdir(parents=True)
        path.write_text(cls.skeleton(history, last))

    @classmethod
    def write_big(cls, path: Path, size: int) -> int:
        """About `size` bytes, the last row NaN; returns the number of rows.

        Rows are rendered from a pool: dumping a gigabyte takes minutes.
        """
        pool = []
        for curve in curves(1, 1000):
            for norm, loss in zip(curve.norms.tolist(), curve.losses.tolist(), strict=True):
                text = json.dumps(cls.entry(0, norm, loss), indent=2, sort_keys=True).replace("\n", "\n    ")
                pool.append(("\n    " + text).rpartition("0")[0])
        rows = size // (sum(map(len, pool)) // len(pool) + 15)
        head, tail = cls.skeleton([], rows).split('"log_history": []')
        end = "\n    },"
        with path.open("w") as file:
            file.write(head + '"log_history": [')
            for start in range(1, rows, 20_000):
                file.write("".join(f"{pool[k % 1000]}{k}{end}" for k in range(start, min(start + 20_000, rows))))
            last = json.dumps(cls.entry(rows, float("nan"), 1.5), indent=2, sort_keys=True).replace("\n", "\n    ")
            file.write(f"\n    {last}\n  ]{tail}")
        return rows


class JsonLines:
    """A JSON object a line, by `json.dumps`."""

    @staticmethod
    def write(path: Path, curve: Curve) -> None:
        with path.open("w") as file:
            for step, norm, loss in zip(curve.steps.tolist(), curve.norms.tolist(), curve.losses.tolist(), strict=True):
                row = {
                    "step": step,
                    "loss": loss,
                    "grad_norm": norm,
                    "learning_rate": 2e-05 * (1 - step / 1e9),
                    "epoch": step / 6666,
                }
                file.write(json.dumps(row) + "\n")

    @staticmethod
    def write_big(path: Path, size: int) -> int:
        """About `size` bytes of the wide rows of a GRPO trainer, the last row NaN; returns the number of rows."""
        rng = np.random.default_rng(1)
        names = [
            f"{group}/{part}"
            for group in ("completions", "rewards", "sampling", "clip_ratio")
            for part in ("mean", "min", "max", "std", "p95", "low")
        ]
        pool = []
        for norm in next(curves(1, 1000)).norms.tolist():
            row = {"loss": float(rng.normal()), "grad_norm": norm, "learning_rate": 1e-06} | {
                name: float(rng.normal()) for name in names
            }
            pool.append(", " + json.dumps(row)[1:] + "\n")
        rows = size // (sum(map(len, pool)) // len(pool) + 15)
        with path.open("w") as file:
            for start in range(1, rows, 5_000):
                file.write("".join(f'{{"step": {k}{pool[k % 1000]}' for k in range(start, min(start + 5_000, rows))))
            file.write(json.dumps({"step": rows, "loss": 0.5, "grad_norm": float("nan")}) + "\n")
        return rows


class Rlprobe:
    """rlprobe recordings by rlprobe's own writer: the fields that a GRPO trainer fills."""

    @staticmethod
    def write(path: Path, curve: Curve, seed: int) -> None:
        rng = np.random.default_rng(seed)
        manifest = RunManifest(
            run_id=path.name, created_at="2026-01-01T00:00:00+00:00", algorithm="grpo", model_name="synthetic/toy"
        )
        noise = rng.normal(0, 0.02, (curve.steps.size, 12))
        with RunWriter(path, manifest) as writer:
            for k, (step, norm, loss) in enumerate(
                zip(curve.steps.tolist(), curve.norms.tolist(), curve.losses.tolist(), strict=True)
            ):
                x = noise[k].tolist()
                finite = bool(np.isfinite(norm))
                writer.add_step(
                    StepRecord(
                        step=step,
                        timestamp=1.76e9 + 2.0 * step,
                        reward_mean=0.4 + x[0],
                        reward_std=0.35 + x[1],
                        reward_min=x[2],
                        reward_max=1 + x[3],
                        reward_components={"correctness": 0.3 + x[0], "format": 0.1 + x[1]},
                        kl_mean=0.05 + x[4],
                        kl_max=0.2 + x[5],
                        kl_positional=[0.05 + v for v in x[:8]],
                        entropy_mean=1.5 + x[6],
                        logprob_mean=-1.2 + x[7],
                        clip_fraction=0.1 + x[8],
                        adv_mean=x[9],
                        adv_std=1 + x[10],
                        loss=loss,
                        lr=1e-6,
                        grad_norm=norm,
                        grad_norm_post_clip=min(norm, 1.0) if finite else norm,
                        nan_count=int(np.isnan(norm)),
                        inf_count=int(np.isinf(norm)),
                        completion_len_mean=200 + x[11],
                        step_time_s=2 + x[0],
                    )
                )
                if step % 500 == 0:
                    writer.log_event(
                        Event(timestamp=1.76e9 + 2.0 * step, kind="checkpoint", step=step, message=f"ckpt-{step}")
                    )


class EventFiles:
    """TensorBoard event files as torch's SummaryWriter writes them: five scalars a step, a record each."""

    NORM, LOSS = "train/grad_norm", "train/loss"
    FIRST_BIG_STEP = 2**21 + 1

    @classmethod
    def write(cls, directory: Path, curve: Curve, seed: int) -> Path:
        """One event file."""
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.02, (3, curve.steps.size)).astype(np.float32)
        tags = {
            cls.LOSS: curve.losses,
            cls.NORM: curve.norms,
            "train/learning_rate": 2e-05 * (1 - curve.steps / 1e9),
            "train/entropy": 1.5 + noise[0],
            "perf/step_time": 2 + noise[1],
        }
        walls = ef.WALL + 2.0 * curve.steps + noise[2]
        return ef.big_event_file(directory / ef.file_name(), curve.steps, walls, tags)

    @classmethod
    def write_big(cls, directory: Path, size: int) -> int:
        """About `size` bytes, the last gradient norm NaN; returns the number of steps."""
        rows = size // 276
        (curve,) = curves(1, rows)
        curve.norms[-1] = np.nan
        cls.write(directory, Curve(curve.steps + cls.FIRST_BIG_STEP - 1, curve.norms, curve.losses), seed=1)
        return rows


class Tables:
    """One Parquet file of many runs, as a fleet is exported: run ids as text, run after run, pyarrow's defaults."""

    RUNS_A_WRITE = 250

    @classmethod
    def write(cls, path: Path, runs: int, rows: int) -> Path:
        writer: pq.ParquetWriter | None = None
        rng = np.random.default_rng(3)
        found = enumerate(curves(runs, rows))
        for batch in iter(lambda: list(islice(found, cls.RUNS_A_WRITE)), []):
            size = len(batch) * rows
            table = pa.table(
                {
                    "run": np.repeat([f"team-{k % 7}/sweep-{k // 100:03}/run-{k:05}" for k, _ in batch], rows),
                    "step": np.concatenate([curve.steps for _, curve in batch]),
                    "loss": np.concatenate([curve.losses for _, curve in batch]),
                    "grad_norm": np.concatenate([curve.norms for _, curve in batch]),
                    "learning_rate": np.concatenate([2e-05 * (1 - curve.steps / 1e9) for _, curve in batch]),
                    "reward": rng.normal(0.4, 0.1, size),
                }
            )
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        return path


class WandbLogs:
    """A transaction log as wandb's core writes it, framed and serialised by the wandb package itself."""

    OTHERS = ("train/learning_rate", "train/epoch", "train/entropy", "perf/step_time")

    @staticmethod
    def package() -> tuple[Any, Any]:
        """Its messages and its data store: untyped, and seconds to import."""
        messages = import_module("wandb.proto.wandb_internal_pb2")
        return messages.Record, import_module("wandb.sdk.internal.datastore").DataStore

    @classmethod
    def write(cls, path: Path, curve: Curve, seed: int) -> None:
        Record, DataStore = cls.package()
        rng = np.random.default_rng(seed)
        path.parent.mkdir(parents=True)
        store = DataStore()
        store.open_for_write(str(path))
        begin = Record(num=1)
        begin.run.run_id = path.stem.removeprefix("run-")
        store.write(begin)
        for k, (step, norm, loss) in enumerate(zip(curve.steps, curve.norms, curve.losses, strict=True)):
            row = {"train/grad_norm": float(norm), "train/loss": float(loss), "train/global_step": int(step)}
            row |= dict.fromkeys(cls.OTHERS, 0.001 * k) | {"_step": k, "_runtime": 0.5 * k, "_timestamp": ef.WALL + k}
            history, summary = Record(num=2 * k + 2), Record(num=2 * k + 3)
            history.history.step.num = k
            # The core takes the items of a row from a hash map, and follows each row by the summary.
            for name in rng.permutation(list(row)):
                text = json.dumps(row[name])
                history.history.item.add(nested_key=[name], value_json=text)
                summary.summary.update.add(nested_key=[name], value_json=text)
            store.write(history)
            store.write(summary)
        end = Record(num=2 * len(curve.steps) + 2)
        end.exit.exit_code = 0
        store.write(end)
        store.close()

    @classmethod
    def rows(cls, path: Path) -> Iterator[dict[str, Any]]:
        """The rows of the history, as the package's own reader and json give them."""
        Record, DataStore = cls.package()
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
        store.close()


# --- The race --------------------------------------------------------------------------------------------------------


class MlflowStore:
    """MLflow's SQL store as 3.17 makes it, keys and indexes included; eight runs log at a time."""

    TABLES = """
        CREATE TABLE experiments (experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL,
            lifecycle_stage VARCHAR(32), CONSTRAINT experiment_pk PRIMARY KEY (experiment_id));
        CREATE TABLE runs (run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), status VARCHAR(9), start_time BIGINT,
            end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER,
            CONSTRAINT run_pk PRIMARY KEY (run_uuid));
        CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
            run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
            CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan));
        CREATE TABLE latest_metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT,
            step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL, run_uuid VARCHAR(32) NOT NULL,
            CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid));
        CREATE INDEX index_metrics_run_uuid ON metrics (run_uuid);
        CREATE INDEX index_metrics_run_uuid_key_step ON metrics (run_uuid, "key", step);
        CREATE INDEX index_latest_metrics_run_uuid ON latest_metrics (run_uuid);
        INSERT INTO experiments VALUES (1, 'bench', 'active');
    """
    OTHERS = ("learning_rate", "epoch", "train_samples_per_second")
    AT_ONCE = 8

    @staticmethod
    def run_id(run: int) -> str:
        # Ids are random: runs that are close in time are not close in the index.
        return f"{run * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"

    @classmethod
    def rows(cls, runs: Sequence[tuple[int, Curve]]) -> Iterator[tuple[str, float, int, str, int, bool]]:
        ids = [cls.run_id(run) for run, _ in runs]
        begin = 1_700_000_000_000 + runs[0][0] * 10_000_000
        for k, step in enumerate(runs[0][1].steps.tolist()):
            for at, (key, (_, curve)) in enumerate(zip(ids, runs, strict=True)):
                moment = begin + 1000 * k + 13 * at
                values = {"grad_norm": float(curve.norms[k]), "loss": float(curve.losses[k])}
                for name, value in (values | dict.fromkeys(cls.OTHERS, 0.001 * k)).items():
                    is_nan = value != value
                    stored = 0.0 if is_nan else max(min(value, sys.float_info.max), -sys.float_info.max)
                    yield name, stored, moment, key, step, is_nan

    @classmethod
    def write(cls, path: Path, runs: int, rows: int) -> Path:
        with closing(sqlite3.connect(path)) as store:
            store.executescript(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-400000;" + cls.TABLES
            )
            ids = [(cls.run_id(run), f"run-{run}") for run in range(runs)]
            store.executemany("INSERT INTO runs VALUES (?, ?, 'FINISHED', 0, 0, 'active', 1)", ids)
            found = enumerate(curves(runs, rows))
            for group in iter(lambda: list(islice(found, cls.AT_ONCE)), []):
                store.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", cls.rows(group))
            store.execute(
                "INSERT INTO latest_metrics SELECT key, value, max(timestamp), step, is_nan, run_uuid FROM metrics"
                " GROUP BY key, run_uuid"
            )
            store.commit()
        return path

    @staticmethod
    def facts(path: Path) -> dict[str, Facts]:
        """The two wanted metrics by SQL, run after run, and numpy."""
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as store:
            rows = store.execute(
                "SELECT run_uuid, key, step, value, is_nan FROM metrics WHERE key IN (?, ?)"
                " ORDER BY run_uuid, key, step, timestamp",
                ("grad_norm", "loss"),
            )
            out = {}
            for run, own in groupby(rows, key=itemgetter(0)):
                series = {name: list(of_one) for name, of_one in groupby(own, key=itemgetter(1))}
                values = {}
                for name, points in series.items():
                    stored = np.array([point[3] for point in points])
                    stored[np.abs(stored) == sys.float_info.max] *= np.inf
                    stored[np.array([point[4] for point in points], dtype=bool)] = np.nan
                    values[name] = stored
                steps = np.array([point[2] for point in series["grad_norm"]])
                out[f"{path.name}#{run}"] = judge(steps, values["grad_norm"], ~np.isfinite(values["loss"]))
        return out


@dataclass
class Lab:
    """Where a row finds its data: sizes, and archives that are written once and shared by the rows that use them."""

    folder: Path
    quick: bool
    threads: int | None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @cached_property
    def trainer_states(self) -> Path:
        root = self.folder / "trainer_state"
        for k, curve in enumerate(curves(self.size(200, 10), self.size(2000, 250), interval=10)):
            TrainerState.write(root / f"run-{k:03}" / "trainer_state.json", curve)
        return root

    @cached_property
    def jsonl(self) -> Path:
        root = self.folder / "jsonl"
        root.mkdir()
        for k, curve in enumerate(curves(self.size(200, 10), self.size(2000, 250))):
            JsonLines.write(root / f"run-{k:03}.jsonl", curve)
        return root

    @cached_property
    def rlprobe(self) -> Path:
        root = self.folder / "rlprobe"
        for k, curve in enumerate(curves(self.size(100, 10), self.size(2000, 250))):
            Rlprobe.write(root / f"run-{k:03}", curve, seed=k)
        return root

    @cached_property
    def tensorboard(self) -> Path:
        root = self.folder / "tensorboard"
        for k, curve in enumerate(curves(self.size(200, 10), self.size(5000, 250))):
            EventFiles.write(root / f"run-{k:03}", curve, seed=k)
        return root

    @cached_property
    def wandb(self) -> Path:
        root = self.folder / "wandb"
        for k, curve in enumerate(curves(self.size(100, 10), self.size(2000, 250))):
            name = f"bench{k:03}"
            WandbLogs.write(root / f"offline-run-20260101_{k:06}-{name}" / f"run-{name}.wandb", curve, seed=k)
        return root

    @cached_property
    def mlflow_sql(self) -> Path:
        return MlflowStore.write(self.folder / "mlflow.db", self.size(2000, 20), self.size(500, 100))

    @cached_property
    def table(self) -> Path:
        return Tables.write(self.folder / "runs.parquet", self.size(5000, 40), self.table_rows)

    @property
    def table_rows(self) -> int:
        return self.size(4000, 250)

    def scan(self, path: Path) -> gs.Scan:
        return gs.scan(path, threads=self.threads, progress=False)


@dataclass(frozen=True)
class Race:
    """Two ways to the same answer; `agree` raises if it is not the same.

    `slow`: the peer takes minutes and runs once. `end` stops what the peer leaves running, outside its time.
    """

    ours: Callable[[], Any]
    peer: Callable[[], Any]
    agree: Callable[[Any, Any], None]
    slow: bool = False
    end: Callable[[Any], None] = lambda _: None

    def run(self, quick: bool) -> tuple[float, float]:
        """Seconds of ours and of the peer: the best of several rounds, in turns so that a noisy machine hurts both."""
        if self.slow:
            return self.run_once()
        found, theirs = self.ours(), self.peer()  # also warms the page cache and every lazy import
        try:
            self.agree(found, theirs)
        finally:
            self.end(theirs)
        if quick:
            return self.clock(self.ours), self.clock(self.peer)
        times: list[tuple[float, float]] = []
        spent = 0.0
        while len(times) < 3 or (spent < 6.0 and len(times) < 25):
            times.append((self.clock(self.ours), self.clock(self.peer)))
            spent += sum(times[-1])
        return min(ours for ours, _ in times), min(peer for _, peer in times)

    def run_once(self) -> tuple[float, float]:
        """One run of the peer between several of ours, the first of which warms the page cache for both.

        Its processor time counts if that is less than what the clock says: where others use the machine, the one run
        would look slow, and the best of ours would not.
        """
        found = self.ours()
        before = [self.clock(self.ours) for _ in range(3)]
        start, used = time.perf_counter(), time.process_time()
        theirs = self.peer()
        peer = min(time.perf_counter() - start, time.process_time() - used)
        self.agree(found, theirs)
        return min(before + [self.clock(self.ours) for _ in range(3)]), peer

    def clock(self, work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - start
        if work is self.peer:
            self.end(found)
        return seconds


@dataclass(frozen=True)
class Budget:
    """A peak of memory that must stay below a limit; both in bytes.

    `rows` is that of the longest series. `last_step`: the first bad step of the one finding; None where there are many.
    `limit`: None for what the contract grants every scan.
    """

    path: Path
    rows: int
    threads: int | None
    last_step: int | None
    recordings: int = 1
    limit: float | None = None

    # The limit of a scan: a base (half of it is importing numpy and polars), norms in flight, a little a recording.
    BASE, A_ROW, A_RECORDING = 150 * MB, 16, 2048

    # VmHWM belongs to the address space that exec made; ru_maxrss also remembers that of the parent at the fork.
    PROBE = """
import json, resource, sys
import gradscan as gs
scan = gs.scan(sys.argv[1], threads=int(sys.argv[2]) or None, progress=False)
try:
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
json.dump({"peak": peak, "n": scan.series["n"].max(), "first": scan.findings["first_step"].to_list()}, sys.stdout)
"""

    def run(self) -> tuple[float, float]:
        command = [sys.executable, "-c", self.PROBE, str(self.path), str(self.threads or 0)]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert answer["n"] == self.rows, f"got {answer['n']} rows, want {self.rows}"
        first = answer["first"]
        if self.last_step is None:
            assert len(first) > 1, f"got first bad steps {first}, want several"
        else:
            assert first == [self.last_step], f"got first bad steps {first}, want [{self.last_step}]"
        granted = self.BASE + self.A_ROW * self.rows + self.A_RECORDING * self.recordings
        return float(answer["peak"]), granted if self.limit is None else self.limit


# --- Rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Absent:
    """A row that cannot be measured here."""

    reason: str


Prepare = Callable[["Lab"], "Race | Budget | Absent"]


@dataclass(frozen=True)
class Row:
    """One line of the table: how it is measured, the least that its ratio must be, and what it should be."""

    name: str
    must: float
    aim: float | None
    prepare: Prepare


ROWS: list[Row] = []


def row(name: str, *, must: float, aim: float | None) -> Callable[[Prepare], Prepare]:
    """Registers a row."""

    def register(prepare: Prepare) -> Prepare:
        ROWS.append(Row(name, must, aim, prepare))
        return prepare

    return register


class LoopRow(NamedTuple):
    n: int
    nan: int
    inf: int
    first_nonfinite: int | None
    median: float | None
    max: float | None
    spikes: int
    first_spike: int | None


def numpy_loop(table: Floats) -> list[LoopRow]:
    """One run after the other with numpy: what `batch_stats` returns."""
    out = []
    for values in table:
        nan, inf = np.isnan(values), np.isinf(values)
        finite = np.isfinite(values)
        kept = values[finite]
        median = float(np.median(kept)) if kept.size else None
        above = finite & (values > SPIKE_RATIO * median) if median else np.zeros(values.size, bool)
        spikes = int(above.sum())
        out.append(
            LoopRow(
                n=values.size,
                nan=int(nan.sum()),
                inf=int(inf.sum()),
                first_nonfinite=None if kept.size == values.size else int(np.argmin(finite)),
                median=median,
                max=float(kept.max()) if kept.size else None,
                spikes=spikes,
                first_spike=int(np.argmax(above)) if spikes else None,
            )
        )
    return out


def same_loop(ours: pl.DataFrame, peer: list[LoopRow]) -> None:
    mine = [LoopRow(**values) for values in ours.select(LoopRow._fields).iter_rows(named=True)]
    assert len(mine) == len(peer), f"got {len(mine)} rows, want {len(peer)}"
    wrong = [(k, a, b) for k, (a, b) in enumerate(zip(mine, peer, strict=True)) if a != b]
    assert not wrong, f"{len(wrong)} rows differ, such as {wrong[0]}"


def bottleneck_columns(table: Floats) -> tuple[Floats, Ints, Ints]:
    """All runs at once with bottleneck: median, number of spikes, first spike (-1: none)."""
    median = bottleneck.nanmedian(table, axis=1)
    above = table > SPIKE_RATIO * median[:, None]
    spikes = above.sum(axis=1)
    return median, spikes, np.where(spikes > 0, above.argmax(axis=1), -1)


def same_columns(ours: pl.DataFrame, peer: tuple[Floats, Ints, Ints]) -> None:
    median, spikes, first = peer
    np.testing.assert_array_equal(ours["median"].to_numpy(), median)
    np.testing.assert_array_equal(ours["spikes"].to_numpy(), spikes)
    np.testing.assert_array_equal(ours["first_spike"].fill_null(-1).to_numpy(), first)


def batch_race(runs: int, rows: int, *, loop: bool) -> Race:
    table = matrix(runs, rows, infinities=loop)

    def ours() -> pl.DataFrame:
        return gs.batch_stats(table, spike_ratio=SPIKE_RATIO, threads=1)

    if loop:
        return Race(ours, lambda: numpy_loop(table), same_loop)
    return Race(ours, lambda: bottleneck_columns(table), same_columns)


@row("batch_stats 2,000 x 10,000 / numpy loop", must=10, aim=25)
def batch_long_loop(lab: Lab) -> Race:
    return batch_race(lab.size(2_000, 20), lab.size(10_000, 1_000), loop=True)


@row("batch_stats 20,000 x 500 / numpy loop", must=30, aim=60)
def batch_wide_loop(lab: Lab) -> Race:
    return batch_race(lab.size(20_000, 200), 500, loop=True)


@row("batch_stats 2,000 x 10,000 / bottleneck", must=4, aim=10)
def batch_long_bottleneck(lab: Lab) -> Race:
    return batch_race(lab.size(2_000, 20), lab.size(10_000, 1_000), loop=False)


@row("batch_stats 20,000 x 500 / bottleneck", must=4, aim=10)
def batch_wide_bottleneck(lab: Lab) -> Race:
    return batch_race(lab.size(20_000, 200), 500, loop=False)


@cache
def tensor(size: int) -> npt.NDArray[np.float32]:
    """A tensor of single-precision numbers with a handful of non-finite ones."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal(size, np.float32)
    values[rng.choice(size, 5, replace=False)] = [np.nan, np.nan, np.nan, np.inf, -np.inf]
    return values


@row("count_nonfinite 100 MB f32 / numpy", must=3, aim=None)
def count_numpy(lab: Lab) -> Race:
    array = tensor(lab.size(25_000_000, 100_000))

    def agree(ours: gs.NonFinite, peer: tuple[int, int]) -> None:
        assert (ours.nan, ours.inf) == peer == (3, 2), f"got {(ours.nan, ours.inf)}, want {peer}"

    return Race(
        lambda: gs.count_nonfinite(array), lambda: (int(np.isnan(array).sum()), int(np.isinf(array).sum())), agree
    )


@row("count_nonfinite 100 MB f32 / a.sum()", must=0.8, aim=1)
def count_reading(lab: Lab) -> Race:
    array = tensor(lab.size(25_000_000, 100_000))

    def agree(ours: gs.NonFinite, peer: float) -> None:
        # No peer but the yardstick of reading memory: the sum only knows whether any value is non-finite.
        assert (ours.nan + ours.inf > 0) == (not np.isfinite(peer))
        assert ours.first == int(np.flatnonzero(~np.isfinite(array))[0])

    return Race(lambda: gs.count_nonfinite(array), lambda: float(array.sum()), agree)


class Tensors:
    """A checkpoint as safetensors lays it out: half of the bytes bfloat16, half float32, a few values not finite."""

    @staticmethod
    def write(path: Path, size: int) -> None:
        rng = np.random.default_rng(3)
        columns, count = 1024, 8
        rows = size // 2 // count // columns
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for kind, width in (("F32", 4), ("BF16", 2)):
            for k in range(count):
                shape = [rows // width, columns]
                end = at + shape[0] * columns * width
                header[f"model.layers.{k}.{kind.lower()}.weight"] = {
                    "dtype": kind,
                    "shape": shape,
                    "data_offsets": [at, end],
                }
                at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for width in (4, 2):
                for k in range(count):
                    values = rng.standard_normal((rows // width, columns), np.float32)
                    if k == count - 1:
                        values[rows // width // 2, 7:10] = [np.nan, np.inf, -np.inf]
                    bits = values.view(np.uint32)
                    file.write((values if width == 4 else (bits >> 16).astype(np.uint16)).tobytes())


def tensor_sums(path: Path) -> dict[str, tuple[int, int]]:
    """NaN and Inf of every tensor by numpy; bfloat16 by its bits, which is faster than what ml_dtypes does."""
    found = {}
    with safe_open(path, "np") as file:
        for name in file.keys():  # noqa: SIM118 (the file is no mapping)
            values = file.get_tensor(name)
            if values.dtype == np.float32:
                found[name] = (int(np.isnan(values).sum()), int(np.isinf(values).sum()))
            else:
                magnitude = values.view(np.uint16) & 0x7FFF
                found[name] = (int((magnitude > 0x7F80).sum()), int((magnitude == 0x7F80).sum()))
    return found


@row("audit 1 GB safetensors / safetensors + numpy", must=3, aim=None)
def audit_safetensors(lab: Lab) -> Race:
    path = lab.folder / "model.safetensors"
    Tensors.write(path, lab.size(1 << 30, 1 << 22))

    def agree(ours: pl.DataFrame, peer: dict[str, tuple[int, int]]) -> None:
        mine = {name: (nan, inf) for name, nan, inf in ours.select("name", "nan", "inf").iter_rows()}
        assert mine == peer, f"got {mine}, want {peer}"
        assert sum(map(sum, peer.values())) == 6, "the damage is not there"

    return Race(lambda: gs.audit(path, threads=1), lambda: tensor_sums(path), agree)


def facts_of_rows(rows: Iterable[Mapping[str, Any]]) -> Facts:
    """The checks over logged rows that are dicts."""
    steps, norms, losses = [], [], []
    for entry in rows:
        norm = entry.get("grad_norm")
        if norm is not None:
            steps.append(entry["step"])
            norms.append(norm)
            losses.append(entry["loss"])
    return judge(np.array(steps), np.array(norms), ~np.isfinite(np.array(losses)))


@row("trainer_state.json 200 x 2,000 / json + numpy", must=15, aim=40)
def trainer_state(lab: Lab) -> Race:
    root = lab.trainer_states

    def peer() -> dict[str, Facts]:
        out = {}
        for path in sorted(root.glob("*/trainer_state.json")):
            out[path.parent.name] = facts_of_rows(json.loads(path.read_bytes())["log_history"])
        return out

    return Race(lambda: lab.scan(root), peer, same_facts)


@row("JSONL 200 x 2,000 / json + numpy", must=20, aim=50)
def json_lines(lab: Lab) -> Race:
    root = lab.jsonl

    def peer() -> dict[str, Facts]:
        out = {}
        for path in sorted(root.glob("*.jsonl")):
            with path.open("rb") as file:
                out[path.name] = facts_of_rows(map(json.loads, file))
        return out

    return Race(lambda: lab.scan(root), peer, same_facts)


@row("wandb 100 x 2,000 / its data store + json", must=100, aim=None)
def wandb_logs(lab: Lab) -> Race:
    root = lab.wandb

    def facts(path: Path) -> Facts:
        steps, norms, losses = [], [], []
        for row in WandbLogs.rows(path):
            steps.append(row["train/global_step"])
            norms.append(row["train/grad_norm"])
            losses.append(row["train/loss"])
        return judge(np.array(steps), np.array(norms), ~np.isfinite(np.array(losses)))

    def peer() -> dict[str, Facts]:
        return {path.parent.name: facts(path) for path in sorted(root.glob("*/*.wandb"))}

    return Race(lambda: lab.scan(root), peer, same_facts, slow=True)


@row("mlflow sqlite 2,000 x 500 x 5 / sqlite3 + numpy", must=5, aim=10)
def mlflow_sqlite(lab: Lab) -> Race:
    path = lab.mlflow_sql
    return Race(lambda: lab.scan(path), lambda: MlflowStore.facts(path), same_facts)


@row("rlprobe 100 x 2,000 / rlprobe diagnose", must=100, aim=400)
def rlprobe_itself(lab: Lab) -> Race:
    root = lab.rlprobe
    alone = {detector.id.lower(): {"enabled": False} for detector in REGISTRY if detector.id != "GRAD_PATHOLOGY"}

    def peer() -> dict[str, list[Any]]:
        return {path.name: diagnose(path, config=alone) for path in sorted(root.iterdir())}

    def agree(ours: gs.Scan, theirs: dict[str, list[Any]]) -> None:
        mine = facts_of_scan(ours)
        assert mine.keys() == theirs.keys(), f"runs differ: {sorted(mine.keys() ^ theirs.keys())[:5]}"
        fired = 0
        for run, findings in theirs.items():
            facts = mine[run]
            counts = next((f for f in findings if "nan_count+inf_count" in f.evidence[0]["metric"]), None)
            assert facts.first_bad == (counts.first_step if counts else None), (
                f"{run}: first bad step {facts.first_bad}, rlprobe {counts}"
            )
            # To rlprobe a NaN norm is missing and an Inf a spike: both mean the same spikes where all norms are finite.
            if facts.nan == facts.inf == 0:
                spikes = next((f for f in findings if f.evidence[0]["metric"] == "grad_norm"), None)
                assert facts.first_spike == (spikes.first_step if spikes else None), (
                    f"{run}: first spike {facts.first_spike}, rlprobe {spikes}"
                )
                if spikes:
                    assert (facts.spikes, facts.median) == (
                        spikes.evidence[0]["n_spikes"],
                        spikes.evidence[0]["median"],
                    )
            fired += bool(findings)
        assert fired, "rlprobe found nothing in its own archive"

    return Race(lambda: lab.scan(root), peer, agree)


RLPROBE_COLUMNS = ["step", "grad_norm", "nan_count", "inf_count"]


def rlprobe_facts(table: pa.Table) -> Facts:
    steps, norms, nan, inf = (column.to_numpy() for column in table.columns)
    return judge(steps, norms, (nan > 0) | (inf > 0))


@row("rlprobe 100 x 2,000 / pyarrow 4 columns", must=2, aim=5)
def rlprobe_pyarrow(lab: Lab) -> Race:
    """As people write it: `read_table` of the wanted columns, on pyarrow's own threads."""
    root = lab.rlprobe

    def peer() -> dict[str, Facts]:
        files = sorted(root.glob("*/steps.parquet"))
        return {file.parent.name: rlprobe_facts(pq.read_table(file, columns=RLPROBE_COLUMNS)) for file in files}

    return Race(lambda: lab.scan(root), peer, same_facts)


@row("rlprobe 100 x 2,000 / pyarrow at its best", must=1, aim=2)
def rlprobe_pyarrow_pool(lab: Lab) -> Race:
    """Without the dataset layer of `read_table`, and a file a thread: what such small tables want."""
    root = lab.rlprobe

    def one(path: Path) -> tuple[str, Facts]:
        with pq.ParquetFile(path / "steps.parquet") as file:
            return path.name, rlprobe_facts(file.read(columns=RLPROBE_COLUMNS, use_threads=False))

    def peer() -> dict[str, Facts]:
        with ThreadPoolExecutor(lab.threads or os.cpu_count()) as pool:
            return dict(pool.map(one, sorted(root.iterdir())))

    return Race(lambda: lab.scan(root), peer, same_facts)


def facts_of_points(series: Mapping[str, Points]) -> Facts:
    """The checks over the gradient norm and the loss of one run, which have the same steps."""
    (steps, norms), (others, losses) = series[EventFiles.NORM], series[EventFiles.LOSS]
    np.testing.assert_array_equal(steps, others)
    return judge(steps, norms, ~np.isfinite(losses))


@row("TensorBoard 200 x 5,000 x 5 / EventAccumulator", must=700, aim=2000)
def tensorboard_accumulator(lab: Lab) -> Race:
    """As scripts read event files: an EventAccumulator a run that keeps every scalar, then numpy."""
    root, wanted = lab.tensorboard, (EventFiles.NORM, EventFiles.LOSS)

    def peer() -> dict[str, Facts]:
        keep = {"scalars": 0, "tensors": 0}
        return {
            path.name: facts_of_points(accumulated(path, keep=keep, only=wanted)) for path in sorted(root.iterdir())
        }

    return Race(lambda: lab.scan(root), peer, same_facts, slow=True)


@row("TensorBoard 200 x 5,000 x 5 / data server", must=10, aim=25)
def tensorboard_data_server(lab: Lab) -> Race:
    """TensorBoard's own reader in Rust, from the start of its process until it says that all is loaded.

    It then has every point in memory and has judged none: asking for them over gRPC is not in its time, nor is numpy.
    Its start is (a few milliseconds), as the walk and the tables are in that of `gs.scan`. It does not check the
    checksums of payloads, gradscan does. Both have as many threads.
    """
    root, wanted = lab.tensorboard, (EventFiles.NORM, EventFiles.LOSS)

    def agree(ours: gs.Scan, server: DataServer) -> None:
        runs = server.runs()
        same_facts(ours, {run: facts_of_points(server.series(run, wanted)) for run in runs})
        points = sum(len(steps) for steps, _ in server.series(runs[0]).values())
        assert points == 5 * facts_of_scan(ours)[runs[0]].n, f"the data server kept {points} points of {runs[0]}"

    threads = lab.threads or os.cpu_count()
    return Race(lambda: lab.scan(root), lambda: DataServer(root, threads), agree, end=DataServer.close)


class FleetFacts(NamedTuple):
    """What both sides must say of one recording of the fleet; a restarted training is judged apart."""

    series: dict[str, tuple[int, int, int]]  # metric: n, NaN, Inf
    median: float | None  # of the gradient norm
    findings: list[tuple[str, int]]  # check and first step, by training


FLEET_SERIES = ("grad_norm", "loss")


def trainings_of(steps: Ints) -> list[slice]:
    """Where the step falls to or below where the training began, another one begins."""
    bounds = [0]
    for fall in (np.flatnonzero(np.diff(steps) < 0) + 1).tolist():
        if steps[fall] <= steps[bounds[-1]]:
            bounds.append(fall)
    return [slice(low, high) for low, high in pairwise([*bounds, len(steps)])]


def fleet_facts(series: Mapping[str, Points]) -> FleetFacts:
    """The checks over one recording of the fleet, whose loss has the steps of its gradient norm where both exist."""
    findings: list[tuple[str, int]] = []
    steps, losses = series.get("loss") or series["grad_norm"]
    norms = series["grad_norm"][1] if "grad_norm" in series else np.ones(len(steps))
    for part in trainings_of(steps):
        facts = judge(steps[part], norms[part], ~np.isfinite(losses[part]))
        fine = facts.n - facts.nan - facts.inf
        findings += [("nonfinite", facts.first_bad)] if facts.first_bad is not None else []
        findings += [("spikes", facts.first_spike)] if facts.first_spike is not None and fine >= 10 else []
    values = series["grad_norm"][1] if "grad_norm" in series else np.empty(0)
    finite = values[np.isfinite(values)]
    return FleetFacts(
        {name: (len(v), int(np.isnan(v).sum()), int(np.isinf(v).sum())) for name, (_, v) in series.items()},
        float(np.median(finite)) if finite.size else None,
        sorted(findings),
    )


def fleet_of_scan(scan: gs.Scan) -> dict[str, FleetFacts]:
    """The same out of a scan, by source; recordings without either series are left out."""
    source = dict(scan.runs.select("run", "source").iter_rows())
    out: dict[str, FleetFacts] = {}
    for row in scan.series.filter(pl.col("metric").is_in(FLEET_SERIES)).iter_rows(named=True):
        found = out.setdefault(source[row["run"]], FleetFacts({}, None, []))
        found.series[row["metric"]] = row["n"], row["nan"], row["inf"]
        if row["metric"] == "grad_norm":
            out[source[row["run"]]] = found._replace(median=row["median"])
    for row in scan.findings.filter(pl.col("metric").is_in(FLEET_SERIES)).iter_rows(named=True):
        out[row["source"]].findings.append((row["check"], row["first_step"]))
    return {path: facts._replace(findings=sorted(facts.findings)) for path, facts in out.items()}


def columns_of_csv(path: Path) -> dict[str, Points]:
    """Gradient norm and loss of a CSV file with pandas, to whom an empty cell and a NaN are one."""
    frame = pd.read_csv(path)
    out = {}
    for name in FLEET_SERIES:
        if name in frame:
            kept = frame[["global_step", name]].dropna()
            out[name] = kept["global_step"].to_numpy(np.int64), kept[name].to_numpy(np.float64)
    return out


@row("real fleet / pandas + EventAccumulator + numpy", must=50, aim=300)
def real_fleet(lab: Lab) -> Race | Absent:
    """Event files and CSV of one real fleet: `read_csv` a file, an EventAccumulator a directory, numpy for the checks.

    Both sides read all of it, also what holds neither series. `--quick` takes the trainings that tuned themselves.
    """
    root = ROOT.parent / "shared" / "fleet" / "runs"
    if not root.is_dir():
        return Absent("../shared/fleet is not there")
    if lab.quick:
        root = root / "previous_leaderboards" / "algoperf_v05" / "logs" / "self_tuning"

    def peer() -> dict[str, FleetFacts]:
        found = {str(path.relative_to(root)): columns_of_csv(path) for path in sorted(root.rglob("*.csv"))}
        for home in sorted({path.parent for path in root.rglob("*tfevents*")}):
            found[str(home.relative_to(root))] = accumulated(home, only=FLEET_SERIES)
        return {path: fleet_facts(series) for path, series in found.items() if series}

    def agree(ours: gs.Scan, theirs: dict[str, FleetFacts]) -> None:
        mine = fleet_of_scan(ours)
        assert mine.keys() == theirs.keys(), f"recordings differ: {sorted(mine.keys() ^ theirs.keys())[:5]}"
        wrong = {path: (mine[path], theirs[path]) for path in mine if mine[path] != theirs[path]}
        assert not wrong, f"{len(wrong)} recordings differ, such as {next(iter(wrong.items()))}"
        checks = {check for facts in theirs.values() for check, _ in facts.findings}
        assert checks == {"nonfinite", "spikes"}, f"the fleet has only {checks}"

    return Race(lambda: lab.scan(root), peer, agree, slow=True)


def grouped(path: Path) -> pl.DataFrame:
    """The checks as one lazy `group_by`.

    The in-memory engine: the streaming one, the medians joined back or as a window, and run ids as categories were no
    faster. The spikes are counted in every run, whether the check fires or not.
    """
    norm = pl.col("grad_norm")
    finite = norm.filter(norm.is_finite())
    bad = ~(norm.is_finite() & pl.col("loss").is_finite())
    return (
        pl.scan_parquet(path)
        .group_by("run")
        .agg(
            n=norm.count(),
            nan=norm.is_nan().sum(),
            inf=norm.is_infinite().sum(),
            median=finite.median(),
            max=finite.max(),
            spikes=(finite > SPIKE_RATIO * finite.median()).sum(),
            first_bad=pl.col("step").filter(bad).first(),
        )
        .collect(engine="in-memory")
    )


def same_groups(ours: gs.Scan, peer: pl.DataFrame) -> None:
    bad = ours.findings.filter(pl.col("check") == "nonfinite").select("run", first_bad="first_step")
    names = ["n", "nan", "inf", "median", "max", "spikes"]
    mine = ours.series.filter(pl.col("role") == "grad_norm").select("run", *names).join(bad, on="run", how="left")
    mine = mine.with_columns(pl.col("run").str.split("#").list.last()).sort("run")
    theirs = peer.select("run", *(pl.col(name).cast(mine.schema[name]) for name in [*names, "first_bad"])).sort("run")
    assert_frame_equal(mine, theirs, check_exact=True)
    assert theirs["first_bad"].count() > 0, "no run of the table has a NaN"
    assert (theirs["spikes"] >= MIN_SPIKES).any(), "no run of the table has spikes"


def as_many_threads(lab: Lab) -> Absent | None:
    """polars takes its threads from the environment when it is imported."""
    wanted = lab.threads or os.cpu_count()
    return None if pl.thread_pool_size() == wanted else Absent(f"polars has other threads: POLARS_MAX_THREADS={wanted}")


@row("multi-run Parquet / polars group_by", must=3, aim=5)
def parquet_group_by(lab: Lab) -> Race | Absent:
    """20 million rows of 5,000 runs: one scan against one lazy query that gives the same columns."""
    path = lab.table
    return as_many_threads(lab) or Race(lambda: lab.scan(path), lambda: grouped(path), same_groups)


@row("multi-run Parquet / polars only reading", must=0.4, aim=0.8)
def parquet_reading(lab: Lab) -> Race | Absent:
    """The yardstick for the row above: polars decodes the four columns that the checks need, and judges nothing."""
    path = lab.table

    def agree(ours: gs.Scan, peer: pl.DataFrame) -> None:
        norms = ours.series.filter(pl.col("role") == "grad_norm")
        assert norms["n"].sum() == len(peer)
        assert norms["nan"].sum() == peer["grad_norm"].is_nan().sum()

    def peer() -> pl.DataFrame:
        return pl.scan_parquet(path).select("run", "step", "grad_norm", "loss").collect(engine="in-memory")

    return as_many_threads(lab) or Race(lambda: lab.scan(path), peer, agree)


@row("memory: 1 GB trainer_state.json / limit", must=1, aim=None)
def memory_trainer_state(lab: Lab) -> Budget:
    path = lab.folder / "big" / "trainer_state.json"
    path.parent.mkdir()
    rows = TrainerState.write_big(path, lab.size(1_000_000_000, 300_000))
    if lab.quick:
        text = path.read_text()
        assert json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n" == text, "not what json.dumps writes"
    return Budget(path, rows, lab.threads, rows)


@row("memory: 1 GB JSONL / limit", must=1, aim=None)
def memory_jsonl(lab: Lab) -> Budget:
    path = lab.folder / "big.jsonl"
    rows = JsonLines.write_big(path, lab.size(1_000_000_000, 300_000))
    return Budget(path, rows, lab.threads, rows)


@row("memory: 2 GB TensorBoard / limit", must=1, aim=None)
def memory_tensorboard(lab: Lab) -> Budget:
    """7.5 million gradient norms in one event file, and four other scalars a step."""
    path = lab.folder / "big" / "tensorboard"
    rows = EventFiles.write_big(path, lab.size(7_500_000 * 276, 300_000))
    return Budget(path, rows, lab.threads, EventFiles.FIRST_BIG_STEP + rows - 1)


@row("memory: multi-run Parquet / 500 MB", must=1, aim=None)
def memory_table(lab: Lab) -> Budget:
    """20 million rows of 5,000 runs: memory for the runs in flight, and not for the table."""
    return Budget(lab.table, lab.table_rows, lab.threads, None, limit=500 * MB)


@row("memory: 100,000 recordings / limit", must=1, aim=None)
def memory_recordings(lab: Lab) -> Budget:
    root, count, rows = lab.folder / "small", lab.size(100_000, 200), 12
    lines = [f'{{"step": {k}, "grad_norm": {1 + k / 100}, "loss": {2 - k / 100}}}\n' for k in range(1, rows + 1)]
    damaged = [*lines[:-1], f'{{"step": {rows}, "grad_norm": NaN, "loss": 1.5}}\n']
    for k in range(count):
        folder = root / f"team-{k // 10_000}" / f"sweep-{k // 100:04}" / f"run-{k:06}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(damaged if k == count // 2 else lines))
    return Budget(root, rows, lab.threads, rows, count)


# --- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A measured row: seconds, or bytes where `unit` is B."""

    name: str
    ours: float
    peer: float
    unit: str
    must: float
    aim: float | None
    quick: bool
    ratio: float = field(init=False)
    ok: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", self.peer / self.ours)
        reached = "aim" if self.aim is not None and self.ratio >= self.aim else "must"
        object.__setattr__(self, "ok", "agree" if self.quick else reached if self.ratio >= self.must else "NO")

    def show(self, amount: float) -> str:
        if self.unit == "B":
            return f"{amount / MB:.0f} MB"
        return f"{amount:.2f} s" if amount >= 1 else f"{amount * 1e3:.2f} ms"

    def line(self) -> str:
        aim = "-" if self.aim is None else f"{self.aim:g}x"
        times = f"{self.show(self.ours):>10} {self.show(self.peer):>10} {self.ratio:>8.2f}x"
        return f"{self.name:<46} {times} {f'{self.must:g}x':>6} {aim:>6}  {self.ok}"


def measure(row: Row, lab: Lab) -> Result | Absent:
    contest = row.prepare(lab)
    if isinstance(contest, Absent):
        return contest
    ours, peer = contest.run() if isinstance(contest, Budget) else contest.run(lab.quick)
    return Result(row.name, ours, peer, "B" if isinstance(contest, Budget) else "s", row.must, row.aim, lab.quick)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="rows whose name contains NAME (repeatable)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: every row runs and the answers agree; no ratio is judged"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the scans (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if not options.only or any(part.lower() in row.name.lower() for part in options.only)]
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, gradscan {gs.__version__}"
    )
    print(f"{'name':<46} {'ours':>10} {'peer':>10} {'ratio':>9} {'must':>6} {'aim':>6}  ok", flush=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="gradscan-compare-") as folder:
        lab = Lab(Path(folder), options.quick, options.threads)
        for row in rows:
            result = measure(row, lab)
            if isinstance(result, Absent):
                print(f"{row.name:<46} skipped, does not count: {result.reason}", flush=True)
            else:
                results.append(result)
                print(result.line(), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    if not results:
        print("no row was measured" if rows else f"no row is named like {options.only}", file=sys.stderr)
        return 1
    return int(any(result.ok == "NO" for result in results))


if __name__ == "__main__":
    sys.exit(main())
