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
    (makers.wandb_chart_csv, "wandb_export.csv", "fresh-sea-19 - train/grad_norm"),
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
    assert (found["metric"], found["phase"], found["steps"]) == (metric, "run", [510, 610, 710])


@pytest.mark.parametrize(
    ("write", "name", "metric", "step"),
    [
        (makers.keras_csv, "training.csv", "loss", "epoch"),
        (makers.sb3_csv, "progress.csv", "train/loss", "time/total_timesteps"),
        (makers.deepspeed_csv, "Train_Samples_train_loss.csv", "train_loss", "step"),
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
