"""`gradscan demo DIR`: a small mixed archive with known damage, the same bytes every time.

The files have the shapes that trainers write: a Hugging Face output directory with its checkpoints, JSON Lines of a
resumed run, the loss-only log of LLaMA-Factory, a file that was cut, a Git LFS pointer.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RUNS", "DemoRun", "write"]


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One recording of the archive: where it is, what a scan must say of it, and why."""

    path: str
    status: str
    about: str
    checks: tuple[str, ...] = ()
    first_step: int | None = None
    restore_step: int | None = None


RUNS: tuple[DemoRun, ...] = (
    DemoRun("sft/healthy", "clean", "Hugging Face Trainer, nothing wrong"),
    DemoRun("sft/warm-up", "opening", "large gradient norms in the first steps only", ("spikes",), 10),
    DemoRun(
        "sft/fp16-overflow",
        "damaged",
        "spikes, then NaN to the end; its last checkpoints are poisoned",
        ("nonfinite", "spikes"),
        1640,
        1500,
    ),
    DemoRun("sft/lr-too-high", "damaged", "gradient norms spike again and again", ("spikes",), 810, 750),
    DemoRun("sft/cut", "clean", "a file that ends in the middle of a record"),
    DemoRun("sft/lfs-pointer", "unreadable", "a Git LFS pointer in place of the file"),
    DemoRun("sft/loss-only", "clean", "LLaMA-Factory: it logs no gradient norm, so only the loss is checked"),
    DemoRun(
        "rl/resumed.jsonl", "damaged", "NaN in the first attempt, resumed from before it", ("nonfinite",), 583, 500
    ),
    DemoRun("rl/short.jsonl", "not_assessable", "died after four steps"),
)


def write(directory: Path) -> tuple[DemoRun, ...]:
    """Write the archive into a directory that is empty or does not exist; FileExistsError otherwise."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(17, "exists and is not empty, want an empty or new directory", str(directory))
    sft, rl = directory / "sft", directory / "rl"
    _trainer(sft / "healthy", _norms(seed=1), saves=500)
    _trainer(sft / "warm-up", _norms(seed=2, change=_warm_up), saves=500)
    _trainer(sft / "fp16-overflow", _norms(seed=3, change=_overflow), saves=250)
    _trainer(sft / "lr-too-high", _norms(seed=4, change=_spiky), saves=250)
    _trainer(sft / "cut", _norms(seed=5), saves=None)
    whole = (sft / "cut" / "trainer_state.json").read_text()
    (sft / "cut" / "trainer_state.json").write_text(whole[: len(whole) * 2 // 3])
    _text(
        sft / "lfs-pointer" / "trainer_state.json",
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\nsize 48213\n",
    )
    _llama_factory(sft / "loss-only" / "trainer_log.jsonl")
    _resumed(rl / "resumed.jsonl")
    _text(rl / "short.jsonl", "".join(_line(row) for row in _rl_rows(seed=8, steps=range(1, 5))))
    _text(directory / "README.txt", "Written by `gradscan demo`. Try: gradscan scan .\n")
    return RUNS


Change = Callable[[int, float], float]


def _norms(seed: int, change: Change | None = None) -> list[tuple[int, float]]:
    """Gradient norms of 2,000 steps, logged every 10: lognormal around a level that sinks from 1.3 to 0.7."""
    rng = random.Random(seed)
    rows = []
    for step in range(10, 2001, 10):
        norm = math.exp(rng.gauss(0.0, 0.22)) * (0.7 + 0.6 * math.exp(-step / 400))
        rows.append((step, change(step, norm) if change else norm))
    return rows


def _warm_up(step: int, norm: float) -> float:
    return norm * 400 / step if step <= 30 else norm


def _overflow(step: int, norm: float) -> float:
    if step >= 1640:
        return math.nan
    return norm * 31 if step in (1560, 1590, 1610, 1630) else norm


def _spiky(step: int, norm: float) -> float:
    return norm * (14 + step % 37) if step >= 810 and step % 90 in (0, 60) else norm


def _trainer(directory: Path, norms: list[tuple[int, float]], saves: int | None) -> None:
    """A Hugging Face output directory: trainer_state.json at the top and in every checkpoint.

    Its bytes are those of `TrainerState.save_to_json`.
    """
    rng = random.Random(len(directory.name))
    history: list[dict[str, Any]] = []
    for step, norm in norms:
        # The Trainer's NaN filter logs a loss of 0.0 where every value of the window was NaN.
        loss = 0.0 if math.isnan(norm) else round(1.1 + 1.7 * math.exp(-step / 500) + rng.gauss(0, 0.02), 4)
        history.append(
            {
                "epoch": round(step / 1000, 2),
                "grad_norm": norm,
                "learning_rate": 2e-05 * (1 - step / 2000),
                "loss": loss,
                "step": step,
            }
        )
        if saves is not None and step % saves == 0:
            checkpoint = directory / f"checkpoint-{step}"
            _state(checkpoint / "trainer_state.json", history)
            # An empty safetensors file: the length of its header, then the header.
            (checkpoint / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    _state(directory / "trainer_state.json", history)


def _state(path: Path, history: list[dict[str, Any]]) -> None:
    state = {
        "best_global_step": None,
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": history[-1]["epoch"],
        "eval_steps": 500,
        "global_step": history[-1]["step"],
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": 10,
        "max_steps": 2000,
        "num_input_tokens_seen": 0,
        "num_train_epochs": 2,
        "save_steps": 500,
        "stateful_callbacks": {},
        "total_flos": 0.0,
        "train_batch_size": 8,
        "trial_name": None,
        "trial_params": None,
    }
    _text(path, json.dumps(state, indent=2, sort_keys=True) + "\n")


def _llama_factory(path: Path) -> None:
    rng = random.Random(6)
    lines = []
    for step in range(10, 1501, 10):
        row = {
            "current_steps": step,
            "total_steps": 1500,
            "loss": round(0.9 + 1.2 * math.exp(-step / 300) + rng.gauss(0, 0.03), 4),
            "lr": 1e-4 * (1 - step / 1500),
            "epoch": round(step / 500, 2),
            "percentage": round(100 * step / 1500, 2),
            "elapsed_time": f"0:{step // 60:02d}:{step % 60:02d}",
            "remaining_time": f"0:{(1500 - step) // 60:02d}:{(1500 - step) % 60:02d}",
        }
        lines.append(_line(row))
    _text(path, "".join(lines))


def _rl_rows(seed: int, steps: range, nan_from: int | None = None) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for step in steps:
        norm = 0.35 * math.exp(rng.gauss(0.0, 0.3))
        loss = rng.gauss(0.02, 0.01)
        if nan_from is not None and step >= nan_from:
            norm, loss = math.nan, math.nan
        rows.append(
            {
                "step": step,
                "loss": loss,
                "grad_norm": norm,
                "kl": 0.002 * math.sqrt(step) + abs(rng.gauss(0, 0.002)),
                "reward": 0.8 - 0.6 * math.exp(-step / 250) + rng.gauss(0, 0.03),
                "completion_length": 180 + step / 5 + rng.gauss(0, 12),
                "learning_rate": 1e-6,
            }
        )
    return rows


def _resumed(path: Path) -> None:
    """A run whose norms turn NaN at step 583; it was resumed from its checkpoint of step 500 and goes on to 1,000."""
    rows = [*_rl_rows(seed=7, steps=range(1, 601), nan_from=583), *_rl_rows(seed=9, steps=range(501, 1001))]
    _text(path, "".join(_line(row) for row in rows))
    for step in (250, 500, 750, 1000):
        checkpoint = path.parent / f"step-{step}"
        checkpoint.mkdir()
        (checkpoint / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
