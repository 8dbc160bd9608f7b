"""Writes the fixtures beside this file again: `python tests/data/make.py`, with the packages of the `test` group.

Everything is seeded. The bytes of Parquet files depend on the version of pyarrow, those of all other files do not.
README.md says what each fixture is for.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from tensorboardX import SummaryWriter  # noqa: E402

import event_files as ef  # noqa: E402
import makers  # noqa: E402
from makers import INF, NAN, Training, norms  # noqa: E402

Row = Mapping[str, Any]


def line(row: Row) -> str:
    """One line of JSON Lines."""
    return json.dumps(row) + "\n"


def rows(training: Training) -> list[dict[str, Any]]:
    """The rows of a training as a script's own logger writes them."""
    return [{"step": step, "loss": loss, "grad_norm": norm} for step, norm, loss in training.rows()]


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def hf_trainer(home: Path) -> None:
    """`trainer_state.json` as transformers saves it."""
    makers.trainer_state(home / "healthy", Training(norms(24, seed=1)))

    chain = {29: 17.5, 31: 24.0, 32: NAN, 33: NAN, 34: INF, 35: NAN}
    damaged = Training(norms(36, seed=2, put=chain), steps=list(range(10, 370, 10)))
    makers.trainer_state(home / "nan", damaged, checkpoints=(100, 200, 300), finished=False)

    # Resumed from checkpoint-20 after a first attempt that saved checkpoint-40 with NaN in it.
    first = Training(norms(40, seed=3, put={33: NAN, 34: NAN}))
    makers.trainer_state(home / "branches", first, checkpoints=(20, 40), finished=False)
    second = Training(norms(20, seed=3) + norms(30, seed=4))
    (home / "branches" / "trainer_state.json").write_text(makers.trainer_state_text(second))

    spikes = {k: 30.0 + k for k in (140, 171, 172, 199)}
    makers.trainer_state(home / "spikes", Training(norms(220, seed=5, put=spikes)))

    whole = makers.trainer_state_text(Training(norms(12, seed=6)))
    cut = home / "cut" / "trainer_state.json"
    cut.parent.mkdir()
    cut.write_text(whole[: whole.index('"step": 9')])
    makers.git_lfs_pointer(home / "lfs-pointer" / "trainer_state.json")

    broken = home / "broken-entry" / "trainer_state.json"
    broken.parent.mkdir()
    broken.write_text(whole.replace('"step": 4', '"step": 4 4 ]['))


# --- JSON Lines ------------------------------------------------------------------------------------------------------


def jsonl(home: Path) -> None:
    """Dialects of trainers, and what shells, editors and crashes make of lines."""
    makers.plain_jsonl(home / "plain.jsonl", Training(norms(40, seed=10, put={30: NAN, 31: -INF})))
    makers.plain_jsonl(home / "long.jsonl", Training(norms(400, seed=11, put={250: 44.0, 300: 51.0, 301: 60.5})))
    makers.ms_swift(home / "ms-swift" / "logging.jsonl", Training(norms(20, seed=12, put={15: NAN})))
    makers.verl(home / "verl.jsonl", Training(norms(24, seed=13, put={20: NAN, 21: NAN})))
    makers.llamafactory(home / "llamafactory" / "trainer_log.jsonl", Training(norms(24, seed=14)))
    makers.rllib(home / "rllib" / "result.json", Training(norms(14, seed=15)))
    makers.dreamer(home / "dreamer" / "metrics.jsonl", Training(norms(16, seed=16)))

    attempt = rows(Training(norms(30, seed=17, put={25: NAN, 26: NAN})))
    resumed = rows(Training(norms(30, seed=18), steps=list(range(21, 51))))
    restarted = rows(Training(norms(15, seed=19)))
    makers.jsonl(home / "resumed.jsonl", [*attempt, *resumed, *restarted])
    ahead, behind = (rows(Training(norms(24, seed=20 + rank, put={17 + rank: NAN}))) for rank in range(2))
    # The second rank writes three steps late.
    pairs = zip([*ahead, *[None] * 3], [*[None] * 3, *behind], strict=True)
    makers.jsonl(home / "interleaved.jsonl", [row for pair in pairs for row in pair if row is not None])
    makers.jsonl(home / "falling.jsonl", rows(Training(norms(20, seed=22, put={4: NAN})))[::-1])

    quoted = (
        {key: str(value) for key, value in row.items()} for row in rows(Training(norms(16, seed=23, put={9: NAN})))
    )
    makers.jsonl(home / "quoted.jsonl", quoted)
    sparse = rows(Training(norms(20, seed=24)))
    for k in (7, 8, 12):
        del sparse[k]["grad_norm"]
        sparse[k]["loss"] = None
    makers.jsonl(home / "missing.jsonl", sparse)

    lines = [line(row) for row in rows(Training(norms(16, seed=25, put={12: NAN})))]
    text = "".join(lines)
    bom = "\ufeff".encode()
    (home / "crlf-bom.jsonl").write_bytes(bom + text.replace("\n", "\r\n").encode())
    (home / "utf16.jsonl").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    (home / "nul-runs.jsonl").write_bytes(
        "".join([*lines[:5], "\0" * 300 + "\n", *lines[5:9], "\0" * 7, *lines[9:]]).encode()
    )
    (home / "one-line.jsonl").write_text(" ".join(each.strip() for each in lines) + "\n")
    (home / "unterminated.jsonl").write_text(text.rstrip("\n"))
    (home / "cut.jsonl").write_text(text[: text.rindex('"grad_norm"') + 15])
    (home / "broken-lines.jsonl").write_text(
        "".join([*lines[:4], "Traceback (most recent call last):\n", '{"step": 5, "lo\n', *lines[4:]])
    )


# --- delimited text --------------------------------------------------------------------------------------------------


def csv(home: Path) -> None:
    """Dialects of loggers, and what spreadsheets, shells and crashes make of a table."""
    makers.plain_csv(home / "plain.csv", Training(norms(40, seed=50, put={30: NAN, 31: -INF})))
    makers.plain_csv(home / "long.csv", Training(norms(400, seed=51, put={250: 44.0, 300: 51.0, 301: 60.5})))
    makers.pandas_csv(home / "pandas.csv", Training(norms(30, seed=52, put={24: NAN, 25: NAN, 26: NAN, 27: INF})))
    makers.lightning_csv(
        home / "lightning" / "metrics.csv", Training(norms(60, seed=53, put={50: NAN})), validate_every=15
    )
    losses = [1.0 + 1.0 / k for k in range(1, 16)] + [NAN]
    makers.keras_csv(home / "keras" / "training.csv", Training([0.0] * 16, losses=losses))
    makers.sb3_csv(home / "sb3" / "progress.csv", Training(norms(16, seed=54)))
    makers.deepspeed_csv(home / "deepspeed.csv", Training([0.0] * 20, losses=losses[:14] + losses[6:12]), restart_at=14)
    makers.dvclive_tsv(home / "dvclive.tsv", Training(norms(20, seed=55, put={17: INF})))
    chart = Training(norms(24, seed=56, put={20: NAN}), steps=list(range(250, 6250, 250)))
    makers.tensorboard_csv(home / "run-a_train-tag-train_grad_norm.csv", chart)
    makers.tensorboard_json(home / "grad_norm (1).json", chart)
    write(home / "quoted" / "grad_norm.json", [(home / "grad_norm (1).json").read_text().replace("NaN", '"NaN"')])
    write(home / "cut" / "grad_norm.json", [(home / "grad_norm (1).json").read_text()[:-9]])
    makers.wandb_chart_csv(home / "chart.csv", Training(norms(20, seed=57)))

    first, again = Training(norms(20, seed=58, put={15: NAN})), Training(norms(20, seed=59), steps=list(range(11, 31)))
    names = ["step", "loss", "grad_norm"]
    own = [[step, loss, norm] for step, norm, loss in first.rows()]
    resumed = [[step, loss, norm] for step, norm, loss in again.rows()]
    makers.table(home / "resumed.csv", names, [*own, names, *resumed])
    makers.table(home / "falling.csv", names, own[::-1])
    # A key appears: the header is written again in the middle, with other columns.
    wider = [["epoch", *names[:2], "kl", "grad_norm"], *([0, *row[:2], 0.01, row[2]] for row in own[10:])]
    makers.table(home / "wider.csv", names, [*own[:10], *wider])
    makers.table(home / "duplicates.csv", names, [row for row in own[:14] for _ in range(3)])
    sparse = [
        [step, loss, None if step in (7, 8, 12) else norm, mark]
        for (step, loss, norm), mark in zip(own, MARKS, strict=True)
    ]
    makers.table(home / "missing.csv", [*names, "note"], sparse)

    text = (home / "plain.csv").read_text()
    lines = text.splitlines(keepends=True)
    write(home / "crlf-bom.csv", ["\ufeff", text.replace("\n", "\r\n")])
    write(home / "mac.csv", [text.replace("\n", "\r")])
    write(home / "utf16.csv", [b"\xff\xfe" + text.encode("utf-16-le")])
    write(home / "padded.csv", ["# seed 7\n# grad_norm, run 3\n\n", text.replace(",", " , ")])
    write(home / "semicolons.csv", [text.replace(",", ";").replace(".", ",")])
    write(home / "blanks.csv", ["# ", text.replace(",", "   ")])
    write(home / "bars.csv", [text.replace(",", "|")])
    write(
        home / "nul-runs.csv",
        ["".join(lines[:6]), "\0" * 300 + "\n", "".join(lines[6:9]), "\0" * 7, "".join(lines[9:])],
    )
    write(home / "unterminated.csv", [text.rstrip("\n")])
    write(home / "cut.csv", [text[: text.rindex(",") - 3]])
    config = '"{""lr"": 0.001, ""betas"": [0.9, 0.999]}"'
    notes = [config, "", '"two\nlines, one cell"', 'a 5" disk', "tensor(1., device='cuda:0')"]
    quoted = [
        [step, note, f'"{norm}"' if step % 2 else norm] for (step, _, norm), note in zip(own, notes * 4, strict=True)
    ]
    makers.table(home / "quoted.csv", ["step", "config", "grad_norm"], quoted)
    stray = [*lines[:5], lines[5].replace(",", ',"', 1), *lines[6:]]
    write(home / "stray-quote.csv", stray)
    write(home / "stray-quote-header.csv", ['"', text])
    odd = [*lines[:4], "Traceback (most recent call last):\n", "4,0.5,0.25,9,9\n", "5,1.0\n", ",,\n", *lines[5:]]
    write(home / "odd-rows.csv", odd)
    tensors = [f"{step},tensor({loss}, device='cuda:0'),tensor({norm}, device='cuda:0')\n" for step, loss, norm in own]
    write(home / "tensors.csv", ["step,loss,grad_norm\n", *tensors])
    words = [
        "nan",
        "NaN",
        "-nan",
        "1.#QNAN",
        "inf",
        "-Infinity",
        "+INF",
        "1.#INF",
        "0.05%",
        "1e999",
        "NA",
        "-",
        "True",
    ]
    makers.table(home / "words.csv", ["iteration", "grad_norm"], ([f"{k}/13", word] for k, word in enumerate(words)))
    makers.table(
        home / "names.csv",
        ["", "step", "loss", "loss", " grad_norm ", ""],
        ([k, *row, 7] for k, row in enumerate([s, x, x, n] for s, x, n in own)),
    )
    write(home / "table.csv", ["id,step,text\n", *(f'{k},{k},"Break an egg, or {k}"\n' for k in range(5))])
    write(home / "empty" / "metrics.csv", [])
    makers.git_lfs_pointer(home / "lfs-pointer.csv")
    csv_of_runs(home)


def csv_of_runs(home: Path) -> None:
    """Tables with the rows of several runs: wide, long, and W&B's chart."""
    runs = {
        "sunny": Training(norms(16, seed=60)),
        "rainy": Training(norms(16, seed=61, put={12: NAN, 13: -INF})),
    }
    names = ["run_id", "step", "loss", "grad_norm"]
    wide = [[run, step, loss, norm] for run, training in runs.items() for step, norm, loss in training.rows()]
    makers.table(home / "runs.csv", names, wide)
    # A blank cell is the run of the row above; the run is told last.
    turns = sorted(([*row[1:], row[0]] for row in wide), key=lambda row: row[0])
    turns[-1][-1] = None
    makers.table(home / "runs-in-turns.csv", [*names[1:], names[0]], turns)
    text = (home / "runs.csv").read_text()
    write(home / "runs-cut.csv", [text[: text.index("-inf") + 2]])

    metrics = ("grad_norm", "loss", "tokens")
    tall = [
        [run, step, metric, value]
        for run, training in runs.items()
        for step, norm, loss in training.rows()
        for metric, value in zip(metrics, (norm, loss, 4096 * step), strict=True)
    ]
    makers.table(home / "long-by-step.csv", ["run", "step", "name", "value"], tall)
    tall.sort(key=lambda row: metrics.index(row[2]))
    makers.table(
        home / "long-by-metric.csv", ["", "run", "step", "variable", "value"], ([k, *r] for k, r in enumerate(tall))
    )
    # As a client of MLflow's database gives the table `metrics`: NaN is 0 with a mark, Inf the largest double.
    stored = {INF: "1.7976931348623157e+308", -INF: "-1.7976931348623157e+308"}
    mlflow = [
        [
            metric,
            0.0 if value != value else stored.get(value, value),
            1_750_000_000_000 + 1000 * step,
            step,
            value != value,
            run,
        ]
        for run, step, metric, value in tall
        if metric != "tokens"
    ]
    makers.table(home / "mlflow.csv", ["key", "value", "timestamp", "step", "is_nan", "run_uuid"], mlflow)

    # Each point stands for ten steps: NaN shows in the smallest value alone, spikes in the largest.
    means = {"sunny - 1": norms(24, seed=62), "Group: rainy": norms(24, seed=63)}
    low = {"sunny - 1": {20: NAN}, "Group: rainy": {}}
    high = {"sunny - 1": {}, "Group: rainy": {14: 40.0, 17: 31.0, 21: 52.0}}
    columns = [f"{run} - train/grad_norm{end}" for run in means for end in ("", "__MIN", "__MAX")]
    chart = [
        [
            10 * k,
            *(
                x
                for run in means
                for x in (means[run][k], low[run].get(k, means[run][k]), high[run].get(k, means[run][k]))
            ),
        ]
        for k in range(24)
    ]
    # The second run is shorter.
    chart[23][4:] = ["", "", ""]
    quoted = ([f'"{makers.cell(x)}"' for x in row] for row in chart)
    makers.table(home / "chart-of-runs.csv", [f'"{name}"' for name in ["Step", *columns]], quoted)


# One kind of missing value after the other.
MARKS = ["", "NA", "N/A", "None", "null", "-", "<NA>", " "] * 2 + ["a", "b", "c", "d"]


# --- tables ----------------------------------------------------------------------------------------------------------


def two_runs() -> pl.DataFrame:
    """A wide table of two runs, the second of which ends in NaN and Inf."""
    runs = {
        "run-a": Training(norms(30, seed=60)),
        "run-b": Training(norms(24, seed=61, put={18: 40.0, 20: NAN, 21: NAN, 22: INF, 23: NAN})),
    }
    table = [
        {"run_id": run, "step": step, "loss": loss, "grad_norm": norm, "lr": 3e-4}
        for run, training in runs.items()
        for step, norm, loss in training.rows()
    ]
    return pl.DataFrame(table)


def long_table() -> pl.DataFrame:
    """The same, a row a value."""
    return two_runs().unpivot(["loss", "grad_norm", "lr"], index=["run_id", "step"], variable_name="metric")


def wandb_history(steps: range, put: Mapping[int, float]) -> pa.Table:
    """Columns of W&B's history: losses every step, evaluations and system metrics sparse, `_step` a double."""
    values = norms(len(steps), seed=62 + steps.start)
    columns: dict[str, list[Any]] = {
        "_step": [float(step) for step in steps],
        "_timestamp": [1.7e9 + 2.5 * step for step in steps],
        "train/loss": [1.0 + 1.0 / (step + 1) for step in steps],
        "train/grad_norm": [
            put.get(step, value) if step % 2 == 0 else None for step, value in zip(steps, values, strict=True)
        ],
        "eval/loss": [1.1 + 1.0 / (step + 1) if step % 10 == 9 else None for step in steps],
        "system/gpu.0.temp": [None for _ in steps],
    }
    return pa.table({name: pa.array(column, pa.float64()) for name, column in columns.items()})


def mlflow_metrics() -> pa.Table:
    """The `metrics` table of MLflow's store: a NaN is 0 beside `is_nan`, an Inf is the largest double."""
    largest = 1.7976931348623157e308
    rows = []
    for run, put in (("0f3a9c", {}), ("b81d22", {12: NAN, 13: INF})):
        for step, norm, loss in Training(norms(16, seed=64, put=put)).rows():
            at = 1_700_000_000_000 + 1500 * step
            for key, value in (("loss", loss), ("grad_norm", norm)):
                stored = 0.0 if math.isnan(value) else max(-largest, min(largest, value))
                rows.append((key, stored, at, step, math.isnan(value), run))
    names = ["key", "value", "timestamp", "step", "is_nan", "run_uuid"]
    types = [pa.string(), pa.float64(), pa.int64(), pa.int64(), pa.bool_(), pa.string()]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names)


def trackio_export() -> pa.Table:
    """trackio's table of a project: a column a metric beside id, run, time and step."""
    rows = [
        {
            "id": f"{run}-{step}",
            "run_id": run,
            "timestamp": f"2026-01-01T00:00:{step:02}",
            "run_name": name,
            "step": step,
            "train/loss": loss,
            "train/grad_norm": norm,
        }
        for run, name, put in (("r1", "calm-fox", {}), ("r2", "loud-owl", {9: NAN}))
        for step, norm, loss in Training(norms(12, seed=65, put=put)).rows()
    ]
    return pa.Table.from_pylist(rows)


def odd_types() -> pa.Table:
    """One run without a name: halves, decimals, times, an all-null metric, a list and a struct beside them."""
    training = Training(norms(20, seed=66, put={15: NAN, 16: -INF}))
    steps = training.steps
    decimal = pa.array([f"{loss:.4f}" for loss in training.losses]).cast(pa.decimal128(12, 4))
    return pa.table(
        {
            "step": pa.array(steps, pa.int32()),
            "time": pa.array([1_700_000_000_000_000 + step for step in steps], pa.timestamp("us", "UTC")),
            "grad_norm": pa.array(np.array(training.norms, np.float16)),
            "loss": decimal,
            "reward": pa.nulls(len(steps), pa.float64()),
            "nothing": pa.nulls(len(steps)),
            "embedding": pa.array([[step, step + 0.5] for step in steps], pa.list_(pa.float32(), 2)),
            "layers": pa.array([[float(step)] * (step % 3) for step in steps], pa.list_(pa.float64())),
            "extra": pa.array([{"lr": 0.1, "note": None} for _ in steps]),
        }
    )


def parquet(home: Path) -> None:
    """Tables by polars and pyarrow."""
    two_runs().write_parquet(home / "wide.parquet")
    long_table().write_parquet(home / "long.parquet", row_group_size=60)
    two_runs().with_columns(pl.lit("2026-01").alias("date")).write_parquet(
        home / "partitions", partition_by=["date", "run_id"], mkdir=True
    )
    export = home / "wandb"
    export.mkdir()
    for part, steps in enumerate((range(40), range(40, 60))):
        put = {44: NAN, 46: INF} if part else {20: 12.0}
        table = wandb_history(steps, put)
        pq.write_table(table, export / f"team_llm_ab12cd34_{part}.runhistory.parquet", compression="snappy")
    pq.write_table(mlflow_metrics(), home / "mlflow.parquet", compression="zstd")
    pq.write_table(trackio_export(), home / "trackio.parquet", data_page_version="2.0")
    dictionary = (
        two_runs().to_arrow().cast(two_runs().with_columns(pl.col("run_id").cast(pl.Categorical)).to_arrow().schema)
    )
    pq.write_table(dictionary, home / "dictionary.parquet", compression="gzip", row_group_size=20)
    pq.write_table(two_runs().filter(pl.col("run_id") == "run-b").drop("run_id").to_arrow(), home / "one-run.parquet")
    pq.write_table(odd_types(), home / "types.parquet", compression="brotli")
    whole = (home / "one-run.parquet").read_bytes()
    write(home / "cut.parquet", [whole[: len(whole) - 200]])
    makers.git_lfs_pointer(home / "lfs-pointer.parquet")


def arrow(home: Path) -> None:
    """The same by Arrow's writers of files and streams."""
    two_runs().write_ipc(home / "wide.arrow", compression="lz4")
    two_runs().with_columns(pl.col("run_id").cast(pl.Categorical)).write_ipc(
        home / "categorical.feather", compression="zstd"
    )
    long_table().write_ipc_stream(home / "long.arrows")
    types = odd_types()
    with pa.ipc.new_file(home / "types.arrow", types.schema) as writer:
        writer.write_table(types, max_chunksize=8)
    parts = (
        two_runs()
        .to_arrow()
        .cast(
            pa.schema(
                [
                    (name, pa.string() if name == "run_id" else kind)
                    for name, kind in zip(two_runs().columns, two_runs().to_arrow().schema.types, strict=True)
                ]
            )
        )
    )
    with pa.ipc.new_stream(home / "cut.arrows", parts.schema) as writer:
        writer.write_table(parts, max_chunksize=12)
    whole = (home / "cut.arrows").read_bytes()
    write(home / "cut.arrows", [whole[: len(whole) - 300]])
    with pa.ipc.new_file(home / "no-footer.arrow", parts.schema) as writer:
        writer.write_table(parts, max_chunksize=12)
    whole = (home / "no-footer.arrow").read_bytes()
    footer = int.from_bytes(whole[-10:-6], "little")
    write(home / "no-footer.arrow", [whole[: len(whole) - 10 - footer]])
    makers.git_lfs_pointer(home / "lfs-pointer.arrow")


# --- rlprobe ---------------------------------------------------------------------------------------------------------


def rlprobe(home: Path) -> None:
    """Recordings by rlprobe's own RunWriter."""
    damaged = Training(norms(40, seed=30, put={36: NAN, 37: NAN}))
    events = [("train_begin", 1), ("checkpoint", 20), ("checkpoint", 38), ("nan_detected", 37)]
    makers.rlprobe_run(home / "closed", damaged, nan_counts={36: 12, 37: 480}, events=events)

    # Killed: the parts of a live run, the last event line cut, no end.
    crashed = makers.rlprobe_run(home / "crashed", Training(norms(130, seed=31)), events=events[:3], close=False)
    with (crashed / "events.jsonl").open("a") as file:
        file.write('{"timestamp": 1700000131.0, "kind": "nan_de')

    # Dead before its first flush, yet the event says why.
    makers.rlprobe_run(home / "no-steps", Training([]), events=[("train_begin", 0), ("nan_detected", 1)])

    # The NaN is only in what rank 3 saw.
    makers.rlprobe_run(home / "ranks", Training(norms(16, seed=32)))
    rank = Training(norms(16, seed=33, put={11: NAN}))
    makers.rlprobe_run(home / "ranks" / "rank-003", rank, nan_counts={11: 3})
    for empty in home.rglob("samples"):
        if not any(empty.iterdir()):
            empty.rmdir()


# --- TensorBoard -----------------------------------------------------------------------------------------------------


def events(directory: Path, training: Training, *, second: int = 0) -> Path:
    """An event file of loss and gradient norm, begun at `second`."""
    return ef.event_file(directory, ef.rows(training, second), name=ef.file_name(ef.WALL + second))


def tensorboard_x(directory: Path, log: Callable[[SummaryWriter], None]) -> None:
    """What tensorboardX's SummaryWriter makes of the calls of `log`, at one second and on one host."""
    with mock.patch("time.time", return_value=ef.WALL), mock.patch("socket.gethostname", return_value="host"):
        writer = SummaryWriter(str(directory))
        log(writer)
        writer.close()
    for path in sorted(directory.rglob("*tfevents*")):
        # A part of the name is drawn at random.
        path.rename(path.with_name(ef.file_name()))


def changed(path: Path, change: Callable[[bytes, Sequence[int]], bytes]) -> None:
    """Rewrites an event file; `change` gets its bytes and where its records begin."""
    path.write_bytes(change(path.read_bytes(), ef.offsets(path)))


def flipped(whole: bytes, at: int) -> bytes:
    """One bit of one byte is wrong."""
    return whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]


def tensorboard(home: Path) -> None:
    """Event files: the encodings of each tracker, what restarts and crashes make of them, and what is no scalar."""
    tensorboard_encodings(home)
    tensorboard_attempts(home)
    tensorboard_damage(home)
    tensorboard_neighbours(home)


def tensorboard_encodings(home: Path) -> None:
    chain = Training(norms(24, seed=50, put={17: 17.5, 19: 24.0, 20: NAN, 21: INF, 22: NAN, 23: NAN}))
    events(home / "plain", chain)

    def both(training: Training, encode: Callable[[str, float], bytes]) -> list[bytes]:
        return [
            ef.event(step, ef.summary(encode(tag, value)))
            for step, norm, loss in training.rows()
            for tag, value in (("loss", loss), ("grad_norm", norm))
        ]

    dead = Training(norms(12, seed=51, put={10: NAN, 11: NAN}))
    ef.event_file(home / "tf2", both(dead, ef.tf2), name=ef.file_name(suffix=".v2"))
    ef.event_file(home / "torch-new-style", both(dead, ef.torch_new_style))
    doubles = both(dead, lambda tag, value: ef.torch_new_style(tag, value, double=True))
    ef.event_file(home / "torch-double", doubles)

    ef.event_file(home / "dtypes", dtypes())

    # TF1 strips the metadata from all values of a tag but the first; the second file carries none at all.
    first = [ef.event(1, ef.summary(ef.tf2("grad_norm", 0.5), ef.tensor("note", ef.STRING, ef.chunk(8, "x"))))]
    numbers = ef.chunk(5, ef.single(1.5))
    first.append(ef.event(1, ef.summary(ef.tensor("curve", ef.FLOAT, numbers, plugin="pr_curves"))))
    later = [
        ef.event(
            step,
            ef.summary(
                ef.tf2("grad_norm", NAN if step == 13 else 0.5 + step / 64, plugin=None),
                ef.tensor("curve", ef.FLOAT, ef.chunk(5, ef.single(NAN)), plugin=None),
            ),
        )
        for step in range(2, 15)
    ]
    ef.event_file(home / "metadata-first", [*first, *later[:7]], name=ef.file_name())
    ef.event_file(home / "metadata-first", later[7:], name=ef.file_name(ef.WALL + 9))

    # One event with all values of a step, as TF1's merged summaries.
    merged = Training(norms(14, seed=52, put={12: NAN}))
    ef.event_file(
        home / "merged",
        [
            ef.event(
                step, ef.summary(ef.simple("loss", loss), ef.simple("lr", 1e-3), ef.simple("global/grad_norm", norm))
            )
            for step, norm, loss in merged.rows()
        ],
    )
    odd = [ef.event(step, ef.summary(ef.simple("grad_norm", 0.5 - step / 64))) for step in range(-6, 0)]
    odd += [ef.event(None, ef.summary(ef.simple("grad_norm", NAN)))]
    odd += [ef.event(step, ef.summary(ef.simple("grad_norm", 0.5 + step / 64))) for step in range(1, 8)]
    ef.event_file(home / "odd-steps", odd)

    samples = Training(norms(14, seed=53, put={12: NAN}))
    twins = []
    for step, norm, loss in samples.rows():
        for tag, value in (("lm loss", loss), ("grad-norm", norm)):
            twins.append(ef.event(step, ef.summary(ef.simple(tag, value))))
            twins.append(ef.event(step * 32, ef.summary(ef.simple(f"{tag} vs samples", value))))
    ef.event_file(home / "megatron", twins)
    deepspeed = [
        ef.event(step * 256, ef.summary(ef.simple(f"Train/Samples/{tag}", value)))
        for step, norm, loss in samples.rows()
        for tag, value in (("train_loss", loss), ("lr", 1e-5), ("grad_norm", -1.0 if norm != norm else norm))
    ]
    ef.event_file(home / "deepspeed", deepspeed)


def dtypes() -> list[bytes]:
    """The same four values in every numeric type that a tensor may have, NaN the third."""
    values = np.array([0.5, 1.5, NAN, 2.5], np.float32)
    whole = np.array([0, 0, 3, 0])
    bits = {
        "half": values.astype(np.float16).view(np.uint16).tolist(),
        "bfloat16": (values.view(np.uint32) >> 16).tolist(),
        # torch's add_tensor puts the bits of a float32 where 16 bits belong, under another plugin.
        "torch_half": values.view(np.uint32).tolist(),
    }
    out = []
    for k, value in enumerate(values.tolist()):
        count = int(whole[k])

        def halves(name: str, k: int = k) -> bytes:
            return ef.chunk(13, ef.varint(bits[name][k]))

        out += [
            ef.event(k, ef.summary(found))
            for found in (
                ef.tensor("half/grad_norm", ef.HALF, halves("half")),
                ef.tensor("bfloat16/grad_norm", ef.BFLOAT16, halves("bfloat16")),
                ef.tensor("torch_half/grad_norm", ef.HALF, halves("torch_half"), shape=None, plugin="tensor"),
                ef.tensor("double/grad_norm", ef.DOUBLE, ef.chunk(4, struct.pack("<d", value))),
                ef.tensor("unpacked/grad_norm", ef.DOUBLE, ef.fixed64(6, value)),
                ef.tensor("vector/grad_norm", ef.FLOAT, ef.chunk(5, ef.single(value)), shape=ef.dimensions(1)),
                ef.tensor("matrix/grad_norm", ef.FLOAT, ef.chunk(4, ef.single(value) * 2), shape=ef.dimensions(2)),
                ef.tensor("int32/nan_count", ef.INT32, ef.chunk(7, ef.varint(count))),
                ef.tensor("int64/nan_count", ef.INT64, ef.chunk(4, struct.pack("<q", count))),
                ef.tensor("uint8/nan_count", ef.UINT8, ef.chunk(4, bytes([count]))),
                ef.tensor("bool/found_inf", ef.BOOL, ef.chunk(11, ef.varint(count > 0))),
                ef.tensor("e5m2/grad_norm", ef.FLOAT8_E5M2, ef.chunk(18, bytes([0x7E if value != value else 0x3C]))),
                ef.tensor("e4m3/grad_norm", ef.FLOAT8_E4M3FN, ef.chunk(18, bytes([0x7F if value != value else 0x38]))),
            )
        ]
    return out


def tensorboard_attempts(home: Path) -> None:
    resumed = home / "resumed"
    events(resumed, Training(norms(16, seed=54, put={12: NAN, 13: NAN})))
    events(resumed, Training(norms(14, seed=55), steps=list(range(11, 25))), second=100)
    restarted = home / "restarted"
    events(restarted, Training(norms(14, seed=56, put={11: INF})))
    events(restarted, Training(norms(14, seed=57)), second=100)

    # torch's `purge_step`: TensorBoard forgets what the first file holds from there on.
    purged = home / "purged"
    events(purged, Training(norms(16, seed=58, put={12: NAN, 13: NAN})))
    again = ef.rows(Training(norms(8, seed=59), steps=list(range(11, 19))), 100)
    ef.event_file(purged, [ef.session(11, ef.START), *again], name=ef.file_name(ef.WALL + 100))

    saved = []
    for step, norm, loss in Training(norms(18, seed=60, put={14: NAN})).rows():
        saved += [ef.event(step, ef.summary(ef.simple("loss", loss), ef.simple("grad_norm", norm)))]
        if step % 5 == 0:
            saved.append(ef.session(step, ef.CHECKPOINT, f"model.ckpt-{step}"))
    ef.event_file(home / "checkpoints", [ef.session(None, ef.START), *saved, ef.session(18, ef.STOP)])


def tensorboard_damage(home: Path) -> None:
    damaged = Training(norms(16, seed=61, put={13: NAN}))
    payload = events(home / "bad-payload-checksum", damaged)
    changed(payload, lambda whole, at: flipped(whole, at[9] + 12 + 30))
    length = events(home / "bad-length-checksum", damaged)
    changed(length, lambda whole, at: flipped(whole, at[9] + 2))

    cut = home / "cut"
    changed(events(cut, Training(norms(12, seed=62))), lambda whole, at: whole[: at[-1] + 33])
    events(cut, Training(norms(6, seed=63, put={3: NAN}), steps=list(range(13, 19))), second=100)
    changed(events(home / "cut-length", damaged), lambda whole, at: whole[: at[-1] + 5])
    changed(events(home / "zero-tail", damaged), lambda whole, _: whole + bytes(600))
    ef.event_file(home / "header-only", [])
    ef.event_file(home / "empty-file", [], begin=False)
    makers.git_lfs_pointer(home / "lfs-pointer" / ef.file_name())

    later = events(home / "nan-wall-time", damaged)
    hole = ef.record(ef.event(7, ef.summary(ef.simple("train/loss", 1.25)), wall=NAN))
    changed(later, lambda whole, at: whole[: at[13]] + hole + whole[at[14] :])


def tensorboard_neighbours(home: Path) -> None:
    training = Training(norms(12, seed=64, put={10: NAN}))

    def big(writer: SummaryWriter) -> None:
        rng = np.random.default_rng(65)
        for step, norm, loss in training.rows():
            writer.add_scalar("train/loss", loss, step, walltime=ef.WALL + step)
            if step == 6:
                # Above 4 KiB, so that a reader which skips large records unseen is seen.
                writer.add_histogram("layer1/weight", rng.normal(size=64), step, bins=260, walltime=ef.WALL + step)
                writer.add_image("sample", rng.integers(0, 255, (3, 4, 4), np.uint8), step, walltime=ef.WALL + step)
                writer.add_text("sample", "NaN grad_norm", step, walltime=ef.WALL + step)
            writer.add_scalar("train/grad_norm", norm, step, walltime=ef.WALL + step)

    tensorboard_x(home / "big-records", big)

    def twins(writer: SummaryWriter) -> None:
        for step, norm, loss in training.rows():
            writer.add_scalars("losses", {"policy": loss, "value": norm}, step, walltime=ef.WALL + step)
            writer.add_scalar("grad_norm", norm, step, walltime=ef.WALL + step)

    tensorboard_x(home / "add-scalars", twins)

    def hparams(writer: SummaryWriter) -> None:
        for step, norm, _ in training.rows():
            writer.add_scalar("grad_norm", norm, step, walltime=ef.WALL + step)
        writer.add_hparams({"lr": 0.1}, {"hparam/loss": NAN}, name="1700000000.5", global_step=12)

    tensorboard_x(home / "hparams", hparams)

    # Keras: a sub-directory each for training and validation, the step is the epoch.
    for part, training_of in (("train", training), ("validation", Training(norms(12, seed=66)))):
        losses = [
            ef.event(step - 1 or None, ef.summary(ef.tf2("epoch_loss", norm))) for step, norm, _ in training_of.rows()
        ]
        ef.event_file(home / "keras" / part, losses, name=ef.file_name(suffix=".v2"))

    events(home / "profile-empty", training)
    (home / "profile-empty" / ef.file_name(suffix=".profile-empty")).write_bytes(b"")


# --- hostile ---------------------------------------------------------------------------------------------------------


def zigzag(value: int) -> bytes:
    """A number that is not negative as Thrift's compact protocol writes it."""
    return ef.varint(2 * value)


def parquet_run(directory: Path, forge: Callable[[bytes, pq.FileMetaData], bytes]) -> None:
    """An rlprobe directory whose `steps.parquet` is sound until `forge` changes it."""
    makers.rlprobe_run(directory, Training([]))
    shutil.rmtree(directory / "samples", ignore_errors=True)
    path = directory / "steps.parquet"
    table = pa.table({"step": list(range(16)), "loss": [1.0] * 16, "grad_norm": norms(16, seed=40)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    whole, metadata = path.read_bytes(), pq.read_metadata(path)
    path.write_bytes(forge(whole, metadata))


def replace_once(whole: bytes, old: bytes, new: bytes) -> bytes:
    """Replaces what occurs exactly once, so that a forgery hits its place or fails."""
    assert whole.count(old) == 1, (old, whole.count(old))
    return whole.replace(old, new)


def footer_forged(whole: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The file with a changed footer, and the length that belongs to it."""
    (length,) = struct.unpack("<I", whole[-8:-4])
    footer = change(whole[-8 - length : -8])
    return whole[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def page_forged(whole: bytes, metadata: pq.FileMetaData, sizes: Callable[[int, int], tuple[int, int]]) -> bytes:
    """The file with other sizes in the page header of its last column, whose bytes nothing follows but the footer.

    The longer header is paid for in the footer: the page lies within its column as before.
    """
    column = metadata.row_group(0).column(metadata.num_columns - 1)
    at, plain, stored = column.data_page_offset, column.total_uncompressed_size, column.total_compressed_size
    assert whole[at : at + 2] == b"\x15\x00", "a data page"
    fields = whole[at + 2 :]
    numbers, used = [], 0
    for _ in range(2):
        assert fields[used] == 0x15
        used += 1
        value, shift = 0, 0
        while True:
            byte = fields[used]
            value |= (byte & 0x7F) << shift
            used, shift = used + 1, shift + 7
            if byte < 0x80:
                break
        numbers.append(value // 2)
    uncompressed, compressed = sizes(numbers[0], numbers[1])
    header = b"\x15" + zigzag(uncompressed) + b"\x15" + zigzag(compressed)
    forged = whole[: at + 2] + header + fields[used:]
    before = b"\x16" + zigzag(plain) + b"\x16" + zigzag(stored)
    after = b"\x16" + zigzag(plain) + b"\x16" + zigzag(stored + len(header) - used)
    return footer_forged(forged, lambda footer: replace_once(footer, before, after))


def hostile(home: Path) -> None:
    """Each is one attack; README.md tells its story."""
    depth = 20_000
    opening, closing = '{"a":' * depth, "}" * depth
    deep = f'{{"step": 2, "loss": 1.0, "grad_norm": 0.5, "tree": {opening}1{closing}}}\n'
    write(home / "deep.jsonl", [line({"step": 1, "loss": 1.0, "grad_norm": 0.5}), deep, "[" * depth, "\n"])
    state = makers.trainer_state_text(Training(norms(4, seed=41)))
    brackets = "[" * depth + "]" * depth
    write(home / "deep-state" / "trainer_state.json", [state.replace('"max_steps": 4', f'"max_steps": {brackets}')])
    write(home / "cut-header" / "trainer_state.json", [state[: state.index('"log_history"') + 8]])
    write(home / "empty" / "trainer_state.json", [])
    write(home / "no-history" / "trainer_state.json", ['{"global_step": 7}\n'])
    write(home / "history-is-no-list" / "trainer_state.json", ['{"log_history": {"step": 1, "loss": NaN}}\n'])

    numbers = [
        '{"step": 1, "loss": 1e999, "grad_norm": -1e999}\n',
        '{"step": 9223372036854775807, "loss": 1e-400, "grad_norm": -0.0}\n',
        '{"step": 123456789012345678901234567890, "loss": 1, "grad_norm": 1}\n',
        '{"step": -5, "loss": 0x10, "grad_norm": 1}\n',
        '{"step": NaN, "loss": 1, "grad_norm": 1}\n',
        '{"step": null, "loss": 01, "grad_norm": 1.}\n',
        '{"step": 3.75, "loss": 1, "grad_norm": "1e3"}\n',
        '{"step": "10/0", "loss": +1, "grad_norm": .5}\n',
        f'{{"step": 8, "loss": {"9" * 900}, "grad_norm": 0.{"1" * 900}}}\n',
    ]
    write(home / "numbers.jsonl", numbers)
    keys: list[str | bytes] = [
        '{"step": 1, "step": 2, "grad_norm": 1, "grad_norm": NaN, "": 5}\n',
        '{"step": 3, "grad_norm": 1, "\\u0000\\ud800": 1, "<img src=x onerror=alert(1)>": 2, '
        "\"=cmd|' /C calc'!A0\": 3}\n",
        b'{"step": 4, "grad_norm": 1, "\xff\xfe loss": NaN, "\x1b[31mloss": NaN}\n',
        f'{{"step": 5, "grad_norm": 1, "{"loss" * 700}": NaN}}\n',
        '{"step": 6, "grad_norm": 1, "a/b": {"c/d": {"loss": 2}}, "a": {"b/c": {"d/loss": 3}}}\n',
    ]
    write(home / "keys.jsonl", keys)
    write(home / "open-quotes.csv", ["step,grad_norm,note\n", *(f'{k},0.5,"{k}\n' for k in range(1, 40))])
    write(
        home / "cells.csv",
        [
            "step,loss,grad_norm\n",
            "9223372036854775807,1e-400,-0.0\n",
            "123456789012345678901234567890,1,1\n",
            "-5,0x10,1_000\n",
            "nan,1,1\n",
            "7.5,1,1e3\n",
            f"8,{'9' * 900},0.{'1' * 900}\n",
            b"9,\xff\xfe,1\n",
            "\0\0\n",
            "10,\0,\x1b[31m\n",
            "=cmd|' /C calc'!A0,1,1\n",
            f"11{',2' * 5000}\n",
        ],
    )
    noise = bytes((k * k * 31 + k // 7 * 17) % 256 for k in range(2048))
    write(home / "noise.jsonl", [noise])
    write(home / "web-app" / "manifest.json", ['{"name": "app", "short_name": "a", "icons": [], "start_url": "/"}\n'])
    write(
        home / "newer-schema" / "manifest.json",
        [json.dumps({"schema_version": 99, "run_id": "r", "algorithm": "grpo", "created_at": "2026-01-01"})],
    )

    parquet_run(home / "forged-footer-length", lambda whole, _: whole[:-8] + struct.pack("<I", 0xFFFF_FFF0) + b"PAR1")
    parquet_run(home / "cut-footer", lambda whole, _: whole[: len(whole) - 40])
    rows_before, rows_after = b"\x16" + zigzag(16) + b"\x19", b"\x16" + zigzag(2**40) + b"\x19"
    parquet_run(
        home / "forged-rows",
        lambda whole, _: footer_forged(whole, lambda footer: replace_once(footer, rows_before, rows_after)),
    )
    most = 2**31 - 1
    parquet_run(
        home / "forged-page-size", lambda whole, about: page_forged(whole, about, lambda _, small: (most, small))
    )
    parquet_run(
        home / "forged-page-length", lambda whole, about: page_forged(whole, about, lambda large, _: (large, most))
    )
    parquet_run(home / "not-parquet", lambda *_: b"PK\x03\x04 not a Parquet file at all")
    hostile_events(home)


def hostile_events(home: Path) -> None:
    """Event files whose checksums are right and whose contents are not."""
    before, after = Training(norms(4, seed=42)), Training(norms(4, seed=43), steps=[21, 22, 23, 24])

    def forged(name: str, *payloads: bytes, raw: bytes = b"") -> None:
        """Sound records, the forged ones, raw bytes, sound records."""
        path = ef.event_file(home / name, [*ef.rows(before), *payloads])
        path.write_bytes(path.read_bytes() + raw + b"".join(map(ef.record, ef.rows(after))))

    def framed_length(length: int) -> bytes:
        """The head of a record that promises `length` bytes, with the checksum that belongs to it."""
        head = struct.pack("<Q", length)
        return head + ef.record(head)[-4:]

    forged("forged-record-length", raw=framed_length(2**63) + framed_length(2**40) + framed_length(2**64 - 1))

    long = b"\xff" * 9
    forged(
        "long-varints",
        ef.fixed64(1, ef.WALL) + b"\x10" + long + b"\x01" + ef.summary(ef.simple("train/grad_norm", 0.5)),
        # The eleventh byte and bits beyond the 64th: no number.
        ef.fixed64(1, ef.WALL) + b"\x10" + long + b"\xff\x01" + ef.summary(ef.simple("train/grad_norm", NAN)),
        ef.fixed64(1, ef.WALL) + b"\x10" + long + b"\x7f" + ef.summary(ef.simple("train/loss", 0.5)),
        # A key of ten bytes, and one of field number 0.
        ef.fixed64(1, ef.WALL) + b"\x90" + b"\x80" * 8 + b"\x00\x05" + ef.summary(ef.simple("train/loss", 0.25)),
        b"\x00\x00" + ef.event(9, ef.summary(ef.simple("train/loss", NAN))),
        # A length of 2^64 - 1 inside a record.
        b"\x2a" + long + b"\x01",
    )
    value = ef.simple("train/loss", NAN)
    forged(
        "nested-lengths",
        *(
            ef.fixed64(1, ef.WALL) + ef.number(2, 5) + b"\x2a" + ef.varint(outer) + b"\x0a" + ef.varint(inner) + value
            for outer, inner in ((99, len(value)), (len(value) + 2, 99), (2, len(value)), (2**62, 2**62), (0, 0))
        ),
    )
    shapes = [ef.dimensions(2**40, 2**40), ef.dimensions(-1), ef.dimensions(0), ef.dimensions(*[1] * 300)]
    forged(
        "forged-shapes",
        *(
            ef.event(k, ef.summary(ef.tensor("train/grad_norm", ef.DOUBLE, ef.chunk(4, bytes(8)), shape=shape)))
            for k, shape in enumerate([*shapes, ef.number(3, 1)], start=5)
        ),
        # Elements that do not fill the packed field, and a type that does not exist.
        ef.event(10, ef.summary(ef.tensor("train/grad_norm", ef.DOUBLE, ef.chunk(6, bytes(13))))),
        ef.event(11, ef.summary(ef.tensor("train/grad_norm", 99, ef.chunk(4, bytes(8))))),
        ef.event(12, ef.summary(ef.tensor("train/grad_norm", ef.DOUBLE, ef.chunk(13, ef.varint(2**63))))),
    )
    # Groups are no part of proto3: 3 opens, 4 closes; unbalanced, nested, and with a point inside.
    depth = 2000
    forged(
        "groups",
        ef.event(5, b"\x63" * depth + b"\x64" * depth + ef.summary(ef.simple("train/loss", 0.5))),
        ef.event(6, b"\x63" + ef.summary(ef.simple("train/loss", NAN))),
        ef.event(7, b"\x64" + ef.summary(ef.simple("train/loss", 0.5))),
        ef.event(8, b"\x2b" + ef.chunk(1, ef.simple("train/loss", NAN)) + b"\x2c"),
        ef.event(9, b"\x66\x67" + ef.summary(ef.simple("train/loss", 0.5))),
    )
    nasty = ["", "\x1b[31mloss", "<img src=x onerror=alert(1)>/loss", "=cmd|' /C calc'!A0", "../../grad_norm"]
    bad = [ef.chunk(1, b"\xff\xfe/grad_norm") + ef.fixed32(2, NAN), ef.fixed32(2, NAN), ef.chunk(1, "loss")]
    forged(
        "odd-tags",
        *(ef.event(5, ef.summary(ef.simple(tag, NAN))) for tag in nasty),
        *(ef.event(6, ef.summary(raw)) for raw in bad),
        # Twice the tag, twice the value: the last one counts.
        ef.event(7, ef.summary(ef.chunk(1, "other") + ef.simple("train/loss", NAN) + ef.fixed32(2, 0.5))),
    )
    forged("long-tag", ef.event(5, ef.summary(ef.simple("loss" * 25_000, NAN))))


def write(path: Path, parts: Iterable[str | bytes]) -> None:
    """Writes a file from pieces of text and bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))


def main() -> None:
    """Writes all fixtures; what stood in their folders before is removed."""
    assert math.isnan(NAN)
    for build in (hf_trainer, jsonl, tensorboard, csv, parquet, arrow, rlprobe, hostile):
        home = HERE / build.__name__
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        build(home)
        files = [path for path in home.rglob("*") if path.is_file()]
        print(f"{build.__name__}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
