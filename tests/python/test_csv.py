"""Tables as real loggers write them.

pandas, Lightning, Keras, Stable-Baselines3, DeepSpeed and DVCLive are not installed here: `makers` writes their bytes.
Python's own `csv` module writes the rest.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradscan as gs
import makers
from conftest import Count
from makers import INF, NAN, Training, norms
from rules_twin import judge

Writer = Callable[[Path, Training], Path]

DIALECTS: list[tuple[Writer, str, str]] = [
    (makers.plain_csv, "log.csv", "grad_norm"),
    (makers.lightning_csv, "metrics.csv", "grad_2.0_norm_total"),
    (makers.dvclive_tsv, "grad_norm.tsv", "grad_norm"),
    (makers.tensorboard_csv, "run-a_train-tag-train_grad_norm.csv", "train_grad_norm"),
    (makers.tensorboard_json, "grad_norm.json", "grad_norm"),
    (makers.wandb_chart_csv, "wandb_export.csv", "train/grad_norm"),
]
EACH = pytest.mark.parametrize(("write", "name", "metric"), DIALECTS, ids=lambda value: getattr(value, "__name__", ""))


@EACH
def test_healthy_is_clean(tmp_path: Path, write: Writer, name: str, metric: str) -> None:
    scan = gs.scan(write(tmp_path / name, Training(norms(80), [10 * k for k in range(1, 81)])), progress=False)
    assert scan.runs.select("status", "format").rows() == [("clean", "csv")]
    series = scan.series.filter(scan.series["metric"] == metric)
    assert series.select("role", "n", "nan", "first_step", "last_step").rows() == [("grad_norm", 80, 0, 10, 800)]
    assert scan.faults.is_empty()


@EACH
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_not_finite_is_found(tmp_path: Path, write: Writer, name: str, metric: str, bad: float) -> None:
    training = Training(norms(80, put={60: bad, 61: bad}), [10 * k for k in range(1, 81)])
    (found,) = gs.scan(write(tmp_path / name, training), progress=False).findings.iter_rows(named=True)
    assert (found["check"], found["metric"], found["first_step"]) == ("nonfinite", metric, 610)
    assert (found["last_good_step"], found["count"]) == (600, 2)


@EACH
def test_spikes_are_found(tmp_path: Path, write: Writer, name: str, metric: str) -> None:
    training = Training(norms(80, put={50: 40.0, 60: 50.0, 70: 60.0}), [10 * k for k in range(1, 81)])
    (found,) = gs.scan(write(tmp_path / name, training), progress=False).findings.iter_rows(named=True)
    # Of a chart's three columns the largest values tell.
    largest = f"{metric}__MAX" if write is makers.wandb_chart_csv else metric
    assert (found["metric"], found["phase"], found["steps"]) == (largest, "run", [510, 610, 710])


@pytest.mark.parametrize(
    ("write", "name", "metric", "step"),
    [
        (makers.keras_csv, "training.csv", "loss", "epoch"),
        (makers.sb3_csv, "progress.csv", "train/loss", "time/total_timesteps"),
        (makers.deepspeed_csv, "Train_Samples_train_loss.csv", "Train/Samples/train_loss", "samples"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_loggers_without_a_gradient_norm(tmp_path: Path, write: Writer, name: str, metric: str, step: str) -> None:
    """Clean by the loss, which says so; a NaN in it is damage. NaN explained variance (SB3) is none."""
    scan = gs.scan(write(tmp_path / "a" / name, Training([0.0] * 80)), progress=False)
    assert scan.runs.select("status", "step_name").rows() == [("clean", step)]
    assert "loss-only" in scan.runs["notes"][0]
    losses = [1.0] * 70 + [NAN] * 10
    (found,) = gs.scan(
        write(tmp_path / "b" / name, Training([0.0] * 80, losses=losses)), progress=False
    ).findings.iter_rows(named=True)
    assert (found["check"], found["metric"], found["count"]) == ("nonfinite", metric, 10)


def test_pandas_writes_nan_as_a_blank_cell(tmp_path: Path) -> None:
    """That is missing, and shows as a gap: `to_csv` leaves no word of it."""
    path = makers.pandas_csv(tmp_path / "log.csv", Training(norms(80, put={40: NAN, 41: NAN, 60: INF})))
    assert ",,1." in path.read_text()
    scan = gs.scan(path, progress=False)
    assert scan.series.filter(scan.series["metric"] == "grad_norm").select("n", "nan", "inf").rows() == [(78, 0, 1)]
    assert "gap" in scan.runs["notes"][0]
    assert scan.findings["first_step"].to_list() == [61]


def test_deepspeed_writes_its_header_again(tmp_path: Path) -> None:
    training = Training([0.0] * 40, steps=[*range(1, 31), *range(21, 31)])
    path = makers.deepspeed_csv(tmp_path / "loss.csv", training, restart_at=30)
    scan = gs.scan(path, progress=False)
    assert scan.runs.select("records", "attempts").rows() == [(40, 2)]
    assert scan.faults.is_empty()


def written(rows: list[list[Any]], **options: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **options).writerows(rows)
    return text.getvalue().encode()


WRITERS: list[dict[str, Any]] = [
    {},
    {"delimiter": "\t"},
    {"delimiter": ";", "lineterminator": "\n"},
    {"delimiter": "|", "lineterminator": "\r", "quoting": csv.QUOTE_ALL},
    {"quoting": csv.QUOTE_ALL},
    {"quoting": csv.QUOTE_NONNUMERIC},
]


@pytest.mark.parametrize("options", WRITERS, ids=str)
def test_the_csv_module(tmp_path: Path, options: dict[str, Any]) -> None:
    """Cells with everything in them that a writer must quote, before and behind the numbers."""
    training = Training(norms(60, seed=3, put={50: NAN}))
    notes = [json.dumps({"lr": 1e-5, "betas": [0.9, 0.99]}), "a, b; c|d\te", 'say "nan"', "two\nlines", "", "0.5\r\n1"]
    rows: list[list[Any]] = [["config", "step", "grad_norm", "note", "loss"]]
    for k, (step, norm, loss) in enumerate(training.rows()):
        rows.append([notes[k % 6], step, norm, notes[(k + 3) % 6], loss])
    path = tmp_path / "log.csv"
    path.write_bytes(written(rows, **options))
    steps, values = gs.read(path).series("grad_norm")
    assert steps.tolist() == training.steps
    np.testing.assert_array_equal(values, training.norms)
    np.testing.assert_array_equal(gs.read(path).series("loss")[1], training.losses)
    (found,) = gs.scan(path, progress=False).findings.iter_rows(named=True)
    line = path.read_bytes().decode().replace("\r\n", "\n").replace("\r", "\n").split(",nan,")[0].count("\n") + 1
    if not options:
        # A place is the line on which the record begins; here its first cell may span lines.
        begin = line - str(rows[51][0]).replace("\r\n", "\n").count("\n")
        assert found["first_place"].endswith(f"line {begin}")


@given(
    st.lists(
        st.one_of(
            st.floats(allow_subnormal=True),
            st.sampled_from([None, "NA", "nan", "inf", "-Infinity", "1.#QNAN", "tensor(nan, device='cuda:0')", "oops"]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_every_value_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[Any], chance: random.Random
) -> None:
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    rows = [["step", "grad_norm", "x"], *([k, cell, chance.choice([1, None, "b"])] for k, cell in enumerate(cells))]
    path.write_bytes(written(rows, delimiter=chance.choice([",", "\t"])))
    words = {"nan": NAN, "inf": INF, "-Infinity": -INF, "1.#QNAN": NAN, "tensor(nan, device='cuda:0')": NAN}
    want = [(k, words.get(cell, cell)) for k, cell in enumerate(cells) if cell not in (None, "NA", "oops")]
    recording = gs.read(path)
    if not want:
        assert "grad_norm" not in recording.names
        return
    steps, values = recording.series("grad_norm")
    assert steps.tolist() == [step for step, _ in want]
    np.testing.assert_array_equal(values, [value for _, value in want])


def test_agrees_with_the_plain_rules(tmp_path: Path, count: Count) -> None:
    """The rules written a second time (rules_twin), over seeded trainings with restarts, spikes and NaN."""
    compared = 0
    for seed in range(40):
        chance = random.Random(seed)
        put = {chance.randrange(80): chance.choice([NAN, INF, 30.0, 45.0, 50.0]) for _ in range(chance.randrange(8))}
        steps = list(range(1, 81))
        if seed % 3 == 0:
            steps[50:] = range(30, 60)
        training = Training(norms(80, seed=seed, put=put), steps)
        path = makers.plain_csv(tmp_path / f"{seed}.csv", training)
        got = gs.scan(path, progress=False).findings.filter(metric="grad_norm")
        want = []
        for found in judge(training.steps, training.norms):
            for check, bad in (("nonfinite", found.nonfinite_finding), ("spikes", found.spikes_finding)):
                if bad is not None:
                    want.append((check, bad.first_step, bad.onset_step, bad.count, bad.last_good_step))
        rows = got.select("check", "first_step", "onset_step", "count", "last_good_step").rows()
        assert sorted(rows, key=str) == sorted(want, key=str), seed
        compared += 1
    count("tables judged twice", compared)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipe.csv", "id,step,text\n1,1,crack an egg\n2,2,stir\n"),
        ("prompts.csv", "prompt,completion\nhello,world\n"),
        ("lrs.csv", "seed,lr,accuracy\n1,0.1,0.5\n"),
        ("notes.txt", "step,loss\n1,0.5\n2,0.4\n"),
        ("triples.json", "[[0.5, 0.25, 1], [1.5, 2.25, 3]]\n"),
    ],
)
def test_other_tables_are_skipped(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    scan = gs.scan(tmp_path, progress=False)
    assert len(scan) == 0
    assert scan.summary()["skipped_files"] == 1


def test_a_table_of_any_name_that_the_user_names(tmp_path: Path) -> None:
    path = makers.plain_csv(tmp_path / "output.log", Training(norms(40, put={30: NAN})))
    assert gs.scan(path, progress=False).runs.select("format", "status").rows() == [("csv", "damaged")]


def test_a_stray_quote_does_not_swallow_the_file(tmp_path: Path) -> None:
    text = makers.plain_csv(tmp_path / "log.csv", Training(norms(80, put={70: NAN}))).read_text()
    (tmp_path / "log.csv").write_text(text.replace("\n5,", '\n5,"', 1))
    scan = gs.scan(tmp_path, progress=False)
    assert scan.findings["first_step"].to_list() == [71]
    assert scan.faults.select("kind", "place").rows() == [("unparsable", "line 6")]


def test_a_large_step_is_exact(tmp_path: Path) -> None:
    """Beyond 2^53, where floats have no odd numbers."""
    large = 10**18 - 2
    path = makers.table(tmp_path / "log.csv", ["step", "grad_norm"], [[large, 0.5], [large + 1, NAN]])
    (found,) = gs.scan(path, progress=False).findings.iter_rows(named=True)
    assert (found["first_step"], found["last_good_step"]) == (large + 1, large)


# --- Several runs ----------------------------------------------------------------------------------------------------


def runs(seed: int) -> dict[str, Training]:
    """Runs of different lengths with NaN, spikes and a resumption."""
    return {
        "clean": Training(norms(60, seed=seed)),
        "dead": Training(norms(40, seed=seed + 1, put={30: NAN, 31: -INF})),
        "spiky": Training(norms(80, seed=seed + 2, put={50: 40.0, 60: 50.0, 70: 60.0})),
        "resumed": Training(norms(60, seed=seed + 3, put={45: INF}), [*range(1, 41), *range(21, 41)]),
    }


def rows_of(trainings: dict[str, Training], order: str) -> list[tuple[str, int, float, float]]:
    rows = [(run, k, row) for run, training in trainings.items() for k, row in enumerate(training.rows())]
    if order == "in turns":
        rows.sort(key=lambda row: row[1])
    elif order == "shuffled":
        # Between the runs; the rows of each keep their order.
        names = [run for run, _, _ in rows]
        random.Random(7).shuffle(names)
        left = {run: iter(training.rows()) for run, training in trainings.items()}
        return [(run, *next(left[run])) for run in names]
    return [(run, *row) for run, _, row in rows]


FOUND = ["run", "check", "metric", "first_step", "onset_step", "last_good_step", "count", "median", "max", "attempt"]


def found_in(scan: gs.Scan) -> list[tuple[Any, ...]]:
    """Findings by run, whose name is what the file or the table calls it."""
    rows = scan.findings.select(FOUND).rows()
    return sorted((run.split("#")[-1].split("/")[-1].removesuffix(".csv"), *rest) for run, *rest in rows)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The findings of the same runs, a file each."""
    root = tmp_path_factory.mktemp("apart")
    for name, training in runs(900).items():
        makers.plain_csv(root / f"{name}.csv", training)
    found = found_in(gs.scan(root, progress=False))
    assert [row[:2] for row in found] == [("dead", "nonfinite"), ("resumed", "nonfinite"), ("spiky", "spikes")]
    return found


ORDERS = pytest.mark.parametrize("order", ["after each other", "in turns", "shuffled"])


@ORDERS
@pytest.mark.parametrize("last", [False, True], ids=["run first", "run last"])
def test_a_table_of_runs_is_its_runs(tmp_path: Path, apart: list[tuple[Any, ...]], order: str, last: bool) -> None:
    header = ["run_id", "step", "loss", "grad_norm"]
    rows: list[list[Any]] = [[run, step, loss, norm] for run, step, norm, loss in rows_of(runs(900), order)]
    turned = [[*row[1:], row[0]] if last else row for row in [header, *rows]]
    path = tmp_path / "runs.csv"
    path.write_bytes(written(turned, quoting=csv.QUOTE_ALL if last else csv.QUOTE_MINIMAL))
    scan = gs.scan(path, progress=False)
    assert sorted(scan.runs["run"].to_list()) == [f"runs.csv#{run}" for run in ("clean", "dead", "resumed", "spiky")]
    assert found_in(scan) == apart
    assert scan.faults.is_empty()
    # Places are lines of the table.
    (dead,) = scan.findings.filter(run="runs.csv#dead").iter_rows(named=True)
    line = next(k for k, (run, _, norm, _) in enumerate(rows_of(runs(900), order), 2) if run == "dead" and norm != norm)
    assert dead["first_place"].endswith(f"line {line}")


@ORDERS
@pytest.mark.parametrize("by", ["step", "metric"])
def test_a_long_table_is_its_runs(tmp_path: Path, apart: list[tuple[Any, ...]], order: str, by: str) -> None:
    rows = rows_of(runs(900), order)
    tall = [
        (run, step, name, x)
        for run, step, *values in rows
        for name, x in zip(("grad_norm", "loss"), values, strict=True)
    ]
    if by == "metric":
        tall.sort(key=lambda row: row[2])
    path = makers.table(tmp_path / "runs.csv", ["run", "step", "name", "value"], tall)
    assert found_in(gs.scan(path, progress=False)) == apart
    named = makers.table(tmp_path / "other" / "runs.csv", ["who", "when", "what", "much"], tall)
    scan = gs.scan(named, run="who", step="when", name="what", value="much", progress=False)
    assert found_in(scan) == apart


def test_one_run_named_in_every_row_is_the_file(tmp_path: Path) -> None:
    rows = [["a", step, norm] for step, norm, _ in Training(norms(40)).rows()]
    path = makers.table(tmp_path / "log.csv", ["run_id", "step", "grad_norm"], rows)
    assert gs.scan(path, progress=False).runs.select("run", "status").rows() == [("log.csv", "clean")]


def test_mlflow_hides_nan_and_inf(tmp_path: Path) -> None:
    """NaN is 0 with a mark in a column of its own, Inf the largest double."""
    header = ["key", "value", "timestamp", "step", "is_nan", "run_uuid"]
    stored = {40: ("0.0", "True"), 41: ("1.7976931348623157e+308", "False"), 42: ("-1.7976931348623157e+308", "False")}
    rows = []
    for step in range(60):
        value, is_nan = stored.get(step, ("0.5", "False"))
        rows.append(["grad_norm", value, 1_750_000_000_000 + step, step, is_nan, "a"])
        rows.append(["grad_norm", "0.5", 1_750_000_000_000 + step, step, "0", "b"])
    scan = gs.scan(makers.table(tmp_path / "metrics.csv", header, rows), progress=False)
    (found,) = scan.findings.iter_rows(named=True)
    assert (found["run"], found["first_step"], found["nan"], found["inf"]) == ("metrics.csv#a", 40, 1, 2)
    assert scan.runs["status"].to_list() == ["damaged", "clean"]


def test_a_chart_shows_damage_in_the_ends_of_its_bins(tmp_path: Path) -> None:
    """NaN only in `__MIN` and spikes only in `__MAX`, each found once."""
    names = [f'"{run} - train/grad_norm{end}"' for run in ("a - 1", "Group: b") for end in ("", "__MIN", "__MAX")]
    rows = []
    for k in range(60):
        low = "NaN" if k == 50 else 0.5
        high = 40.0 if k in (30, 40, 50) else 0.5
        rows.append([f'"{cell}"' for cell in (10 * k, 0.5, low, 0.5, 0.5, 0.5, high)])
    path = makers.table(tmp_path / "wandb_export.csv", ['"Step"', *names], rows)
    found = gs.scan(path, progress=False).findings.select("run", "check", "metric", "first_step", "count").rows()
    assert sorted(found) == [
        ("wandb_export.csv#Group: b", "spikes", "train/grad_norm__MAX", 300, 3),
        ("wandb_export.csv#a - 1", "nonfinite", "train/grad_norm__MIN", 500, 1),
    ]


@pytest.mark.parametrize("step", [1000, 7])
def test_a_leaderboard_is_no_recording(tmp_path: Path, step: int) -> None:
    rows = [[f"run-{k}", step, 0.5] for k in range(50)]
    makers.table(tmp_path / "runs.csv", ["run_id", "step", "grad_norm"], rows)
    assert len(gs.scan(tmp_path, progress=False)) == 0
    # The same runs with a second step each are one.
    rows += [[f"run-{k}", step + 1, 0.5] for k in range(50)]
    makers.table(tmp_path / "runs.csv", ["run_id", "step", "grad_norm"], rows)
    assert len(gs.scan(tmp_path, progress=False)) == 50
