"""Writers of small recordings in the words of the trackers and trainers that make them.

Each takes the rows of one training and writes what its tool would: NaN and Inf go to disk in the disguise of that tool.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rlprobe.schemas import Event, RunManifest, StepRecord
from rlprobe.storage import RunWriter

NAN, INF = math.nan, math.inf


@dataclass
class Training:
    """The rows of one training: steps, gradient norms and losses of equal length."""

    norms: list[float]
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = self.steps or list(range(1, len(self.norms) + 1))
        self.losses = self.losses or [1.0 + 1.0 / (k + 1) for k in range(len(self.norms))]
        assert len(self.norms) == len(self.steps) == len(self.losses)

    def rows(self) -> Iterable[tuple[int, float, float]]:
        """Step, gradient norm and loss of each row."""
        return zip(self.steps, self.norms, self.losses, strict=True)


def norms(n: int, seed: int = 0, put: Mapping[int, float] | None = None) -> list[float]:
    """`n` gradient norms around 0.75, none near ten times their median; `put` replaces values by position."""
    values: list[float] = (0.75 * np.exp(np.clip(np.random.default_rng(seed).normal(0, 0.3, n), -1, 1))).tolist()
    for position, value in (put or {}).items():
        values[position] = value
    return values


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def trainer_state_text(training: Training, *, finished: bool = True, evaluate_every: int = 50) -> str:
    """trainer_state.json as `TrainerState.save_to_json` writes it: indented, keys sorted, bare NaN and Infinity."""
    last = max(training.steps, default=0)
    history: list[dict[str, Any]] = []
    for k, (step, norm, loss) in enumerate(training.rows(), start=1):
        history.append({"epoch": step / 100, "grad_norm": norm, "learning_rate": 1e-05, "loss": loss, "step": step})
        if k % evaluate_every == 0:
            history.append({"epoch": step / 100, "eval_loss": 1.5, "eval_runtime": 3.1, "step": step})
    if finished and history:
        history.append(
            {"epoch": last / 100, "step": last, "total_flos": 1e15, "train_loss": 1.2, "train_runtime": 99.5}
        )
    state: dict[str, Any] = {
        "best_global_step": None,
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": last / 100,
        "eval_steps": evaluate_every,
        "global_step": last,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": 1,
        "max_steps": last,
        "num_input_tokens_seen": 0,
        "num_train_epochs": 1,
        "save_steps": 500,
        "stateful_callbacks": {},
        "total_flos": 1e15,
        "train_batch_size": 8,
        "trial_name": None,
        "trial_params": None,
    }
    return json.dumps(state, indent=2, sort_keys=True) + "\n"


def trainer_state(
    directory: Path, training: Training, *, checkpoints: Sequence[int] = (), finished: bool = True
) -> Path:
    """An output directory: trainer_state.json, and a `checkpoint-N` for each of `checkpoints`; returns the file."""
    directory.mkdir(parents=True, exist_ok=True)
    for step in checkpoints:
        rows = [row for row in training.rows() if row[0] <= step]
        until = Training([n for _, n, _ in rows], [s for s, _, _ in rows], [x for _, _, x in rows])
        folder = directory / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(trainer_state_text(until, finished=False))
        (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    path = directory / "trainer_state.json"
    path.write_text(trainer_state_text(training, finished=finished))
    return path


def git_lfs_pointer(path: Path) -> Path:
    """What a clone without Git LFS leaves in place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize 12345\n")
    return path


# --- JSON lines ------------------------------------------------------------------------------------------------------


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, compact: bool = False) -> Path:
    """One `json.dumps` a line; `compact` without blanks, as orjson writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if compact else None
    path.write_text("".join(json.dumps(row, separators=separators) + "\n" for row in rows))
    return path


def plain_jsonl(path: Path, training: Training) -> Path:
    """A script's own log: flat rows."""
    return jsonl(path, ({"step": step, "loss": loss, "grad_norm": norm} for step, norm, loss in training.rows()))


def ms_swift(path: Path, training: Training) -> Path:
    """logging.jsonl: the step only in the text `global_step/max_steps`, 8 decimal places, a large summary last."""
    last = training.steps[-1]
    rows: list[dict[str, Any]] = []
    for step, norm, loss in training.rows():
        row = {
            "loss": round(loss, 8),
            "grad_norm": round(norm, 8),
            "learning_rate": 1e-05,
            "epoch": round(step / 100, 8),
        }
        rows.append(row | {"global_step/max_steps": f"{step}/{last}", "elapsed_time": "6s", "memory(GiB)": 15.97})
    history = [{"loss": loss, "grad_norm": norm, "step": step} for step, norm, loss in training.rows()]
    checkpoint = f"output/checkpoint-{last}"
    summary = {"last_model_checkpoint": checkpoint, "best_metric": 0.3, "global_step": last, "log_history": history}
    return jsonl(path, [*rows, summary])


def verl(path: Path, training: Training) -> Path:
    """verl's file logger: the metrics nested under `data`, and null for NaN and Inf (orjson)."""

    def cell(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return jsonl(
        path,
        (
            {
                "step": step,
                "data": {
                    "actor/grad_norm": cell(norm),
                    "actor/pg_loss": cell(loss),
                    "actor/lr": 1e-06,
                    "critic/grad_norm": 2.5 + step % 7,
                    "response_length/mean": 211.5,
                    "training/global_step": step,
                },
            }
            for step, norm, loss in training.rows()
        ),
        compact=True,
    )


def llamafactory(path: Path, training: Training) -> Path:
    """trainer_log.jsonl: `current_steps`, a loss, and no gradient norm at all."""
    total = training.steps[-1]
    return jsonl(
        path,
        (
            {
                "current_steps": step,
                "total_steps": total,
                "loss": loss,
                "lr": 1e-05,
                "epoch": step / 100,
                "elapsed_time": "0:02:12",
            }
            for step, _, loss in training.rows()
        ),
    )


def rllib(path: Path, training: Training) -> Path:
    """result.json of Tune: nested, the configuration in every line, NaN rewards before the first episode ends."""
    config = {"grad_clip": 40.0, "lr": 0.0005, "tf_session_args": {"device_count": {"CPU": 1}}, "callbacks": {}}
    rows = []
    for step, norm, loss in training.rows():
        stats = {"grad_gnorm": norm, "total_loss": loss, "cur_lr": 0.0005, "var_gnorm": 22.5}
        row = {
            "training_iteration": step,
            "timesteps_total": 4000 * step,
            "config": config,
            "hist_stats": {"episode_reward": [1.0, -2.0]},
        }
        rows.append(
            row
            | {
                "episode_reward_mean": NAN,
                "info": {"learner": {"default_policy": {"learner_stats": stats}}},
                "done": False,
            }
        )
    return jsonl(path, rows)


def dreamer(path: Path, training: Training) -> Path:
    """metrics.jsonl of DreamerV3: three optimizers, rows that hold only a frame rate in between."""
    rows: list[dict[str, Any]] = []
    for step, norm, loss in training.rows():
        rows.append({"step": step, "frames_per_second": 0.5 + step / 7})
        rest = {"actor_grad_norm": 1e-4 + step * 1e-9, "value_grad_norm": 0.08 + step * 1e-6, "value_loss": 0.1}
        rows.append({"step": step, "world_model_loss": loss, "world_model_grad_norm": norm} | rest)
    return jsonl(path, rows)


# --- delimited text --------------------------------------------------------------------------------------------------


def cell(value: Any) -> str:
    """A cell as Python's csv module and pandas write it: None is blank, a float its `repr`."""
    return "" if value is None else str(value)


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], *, by: str = ",", end: str = "\n") -> Path:
    """A header and rows; nothing in them may need quotes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(by.join(map(cell, row)) + end for row in [header, *rows]).encode())
    return path


def plain_csv(path: Path, training: Training) -> Path:
    """A script's own log."""
    return table(path, ["step", "loss", "grad_norm"], ([step, loss, norm] for step, norm, loss in training.rows()))


def pandas_csv(path: Path, training: Training) -> Path:
    """`DataFrame.to_csv` of such a log: an index without a name, and a blank cell for NaN."""
    rows = ([k, *(None if x != x else x for x in row)] for k, row in enumerate(training.rows()))
    return table(path, ["", "step", "grad_norm", "loss"], rows)


def lightning_csv(path: Path, training: Training, *, validate_every: int = 20) -> Path:
    """metrics.csv of Lightning's CSVLogger: sorted columns, training and validation in rows of their own, CRLF."""
    rows: list[list[Any]] = []
    for k, (step, norm, loss) in enumerate(training.rows(), start=1):
        rows.append([0, norm, step, loss, None])
        if k % validate_every == 0:
            rows.append([0, None, step, None, 1.5])
    header = ["epoch", "grad_2.0_norm_total", "step", "train_loss", "val_loss"]
    return table(path, header, rows, end="\r\n")


def keras_csv(path: Path, training: Training) -> Path:
    """Keras' CSVLogger: a row an epoch, `NA` for what a later epoch lacks, no gradient norm."""
    rows = ([step, 0.5, loss, "NA" if step % 7 == 0 else loss + 0.5] for step, _, loss in training.rows())
    return table(path, ["epoch", "accuracy", "loss", "val_loss"], rows)


def sb3_csv(path: Path, training: Training) -> Path:
    """progress.csv of Stable-Baselines3: a row a rollout, the first before any update, NaN explained variance."""
    header = ["time/iterations", "time/total_timesteps", "train/approx_kl", "train/explained_variance", "train/loss"]
    rows: list[list[Any]] = [[1, 2048, None, None, None]]
    rows += ([step + 1, 2048 * (step + 1), 0.01, NAN, loss] for step, _, loss in training.rows())
    return table(path, header, rows)


def deepspeed_csv(path: Path, training: Training, *, restart_at: int | None = None) -> Path:
    """One file of DeepSpeed's csv_monitor: samples for steps, and the header again after each start."""
    rows: list[list[Any]] = [[32 * step, loss] for step, _, loss in training.rows()]
    if restart_at is not None:
        rows.insert(restart_at, ["step", "train_loss"])
    return table(path, ["step", "train_loss"], rows)


def dvclive_tsv(path: Path, training: Training) -> Path:
    """plots/metrics/train/grad_norm.tsv of DVCLive: one metric a file."""
    rows = ([step, norm] for step, norm, _ in training.rows())
    return table(path, ["step", "grad_norm"], rows, by="\t")


def tensorboard_csv(path: Path, training: Training) -> Path:
    """What TensorBoard's page saves of one chart: the metric's name is in the file's name only."""
    rows = ([1.7e9 + step / 2, step, norm] for step, norm, _ in training.rows())
    return table(path, ["Wall time", "Step", "Value"], rows, end="\r\n")


def tensorboard_json(path: Path, training: Training) -> Path:
    """The same chart, saved as JSON: an array of triples on one line."""
    path.write_text(json.dumps([[1.7e9 + step / 2, step, norm] for step, norm, _ in training.rows()]))
    return path


def wandb_chart_csv(path: Path, training: Training, run: str = "fresh-sea-19") -> Path:
    """A chart as W&B's page exports it: everything quoted, the ends of each bin beside its mean."""
    names = ["Step", *(f"{run} - train/grad_norm{suffix}" for suffix in ("", "__MIN", "__MAX"))]
    rows = ([step, norm, norm, norm] for step, norm, _ in training.rows())
    return table(path, [f'"{name}"' for name in names], ([f'"{x}"' for x in row] for row in rows))


# --- rlprobe ---------------------------------------------------------------------------------------------------------


def rlprobe_run(
    directory: Path,
    training: Training,
    *,
    nan_counts: Mapping[int, int] | None = None,
    events: Iterable[tuple[str, int]] = (),
    missing: Iterable[int] = (),
    close: bool = True,
) -> Path:
    """A recording by rlprobe's own writer.

    `nan_counts` and `missing` (rows without a gradient norm) are by position, `events` are (kind, step); `close=False`
    leaves parts behind, as a killed run does.
    """
    manifest = RunManifest(run_id=directory.name, created_at="2026-01-01T00:00:00+00:00", algorithm="grpo")
    writer = RunWriter(directory, manifest)
    absent = set(missing)
    for k, (step, norm, loss) in enumerate(training.rows()):
        value = None if k in absent else norm
        count = (nan_counts or {}).get(k, 0)
        writer.add_step(
            StepRecord(step=step, timestamp=1.7e9 + step, loss=loss, grad_norm=value, nan_count=count, inf_count=0)
        )
        if k % 100 == 99:
            writer.flush()
    for kind, step in events:
        writer.log_event(Event(timestamp=1.7e9 + step, kind=kind, step=step))
    writer.close() if close else writer.flush()
    return directory
