"""Real recordings with known answers: the statuses and findings of EXPECTED.tsv, the facts of LABELS.tsv."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import Count

# Formats that have a reader, as EXPECTED.tsv calls them, and the folders that LABELS.tsv keeps them under.
FORMATS = {"hf_trainer", "jsonl", "tensorboard", "csv", "wandb", "mlflow", "swanlab"}
LABEL_FORMATS = {
    "hf-trainer-state",
    "jsonl",
    "rllib-result-json",
    "llamafactory-trainer-log",
    "tensorboard",
    "csv",
    "tensorboard-ui-export",
    "wandb-history-csv",
    "wandb",
    "mlflow-filestore",
    "swanlab",
}
# Labelled series that are no signal of the two checks: timers, twins over another axis, loss scales.
NO_SIGNAL = {
    "grad-norm vs samples",
    "loss-scale",
    "ray/tune/info/grad_time_ms",
    "edge/nan_inf",
    "wire/metric",
    "x",
    "eval_loss",
}
# Where SPEC and EXPECTED.tsv disagree: `损失/loss` is a training loss behind a prefix (SPEC 5), and its ten finite
# values are `min_points`: clean by the loss alone, while EXPECTED.tsv says not_assessable.
DISPUTED = {"wandb/fixtures/run-uni00001.wandb": "clean"}
# LABELS.tsv counts the record whose checksum is wrong (value 11 at step 1 of 10 to 13); it is a fault, and no point.
DAMAGED = {"wandb/fixtures/bad-crc.wandb": {"n": 3, "median": 12.0}}
# Open in EXPECTED.tsv ("clean if read"), and read.
ANSWERED = {"swanlab/qwen3-qlora": "clean"}

OPEN = "?"
STEP_FIELDS = ("first_step", "onset_step", "last_good_step")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def expected(corpus: Path) -> list[dict[str, str]]:
    """The lines of EXPECTED.tsv of formats that have a reader, but for those that are open."""
    rows = [row for row in table(corpus / "EXPECTED.tsv") if row["format"] in FORMATS]
    for row in rows:
        row["status"] = (DISPUTED | ANSWERED).get(row["path"], row["status"])
    return [row for row in rows if row["status"] != OPEN]


def parse_expected(text: str) -> list[dict[str, str]]:
    """The findings column: `check|metric|first_step|count|phase|onset_step|last_good_step`, separated by semicolons."""
    names = ("check", "metric", "first_step", "count", "phase", "onset_step", "last_good_step")
    return [dict(zip(names, part.split("|"), strict=True)) for part in text.split(";") if part]


def differs(want: dict[str, str], got: dict[str, Any]) -> list[str]:
    """The fields of a finding that are not as expected; `-` is null, `?` is open."""
    wrong = []
    for name, value in want.items():
        found = "-" if got[name] is None else str(got[name])
        if value not in (OPEN, found) and not (name == "metric" and found.replace("/", ".") == value):
            wrong.append(f"{want['check']}.{name}: got {found}, want {value}")
    return wrong


def mismatches(row: dict[str, str], scan: gs.Scan) -> list[str]:
    """How a scan of one recording differs from its line of EXPECTED.tsv."""
    runs = scan.runs
    if len(runs) != 1:
        return [f"got {len(runs)} recordings, want 1: {runs['run'].to_list()}"]
    wrong = []
    if runs["status"][0] != row["status"]:
        wrong.append(f"got status {runs['status'][0]} ({runs['reason'][0]}), want {row['status']}")
    wanted = parse_expected(row["findings"] or "")
    found = list(scan.findings.iter_rows(named=True))
    if len(found) != len(wanted):
        got = [f"{f['check']}|{f['metric']}|{f['first_step']}|{f['count']}|{f['phase']}" for f in found]
        return [*wrong, f"got findings {got}, want {row['findings']!r}"]
    key = "check", "metric", "first_step"
    wanted.sort(key=lambda want: (want["check"], want["metric"], want["first_step"]))
    found.sort(key=lambda got: tuple(str(got[name]) for name in key))
    for expected, finding in zip(wanted, found, strict=True):
        wrong += differs(expected, finding)
    return wrong


def test_expected(corpus: Path, count: Count) -> None:
    wrong, compared = {}, 0
    for row in expected(corpus):
        compared += 1
        if problems := mismatches(row, gs.scan(corpus / row["path"], progress=False)):
            wrong[row["path"]] = problems
    count(f"recordings with EXPECTED.tsv, formats {', '.join(sorted(FORMATS))}", compared)
    assert not wrong, "\n".join(f"{path}: {problem}" for path, problems in wrong.items() for problem in problems)


def test_expected_as_one_archive(corpus: Path, count: Count) -> None:
    """The same answers when the whole corpus is one archive: a neighbour changes nothing."""
    scan = gs.scan(corpus, progress=False)
    status = dict(scan.runs.select("source", "status").iter_rows())
    wrong, compared = [], 0
    for row in expected(corpus):
        compared += 1
        got = {s for source, s in status.items() if source == row["path"] or source.startswith(row["path"] + "/")}
        if got != {row["status"]}:
            wrong.append(f"{row['path']}: got {sorted(got)}, want {row['status']}")
    count("recordings of the corpus scanned as one archive", compared)
    assert not wrong, "\n".join(wrong)


def test_labels(corpus: Path, count: Count) -> None:
    """Facts of single series, found with other tools: points, NaN, Inf, median, first step, spikes."""
    rows = [row for row in table(corpus / "LABELS.tsv") if row["format"] in LABEL_FORMATS and row["n_points"]]
    # Console text is another reader's.
    rows = [row for row in rows if "/console/" not in row["path"]]
    wrong = [f"{row['path']} {row['metric']}: {problem}" for row in rows for problem in label_mismatches(row, corpus)]
    count("series with LABELS.tsv", len(rows))
    assert not wrong, "\n".join(wrong)


def label_mismatches(row: dict[str, str], corpus: Path) -> list[str]:
    """How a series, read and scanned, differs from its line of LABELS.tsv."""
    path, name = corpus / row["path"], row["metric"].replace("/", ".")
    if name == "Value":  # TensorBoard's export of one chart: the metric is named by the file
        name = path.stem
    elif row["format"] == "mlflow-filestore":  # one file a metric, and the run is the recording
        path, name = path.parents[1], path.name
    elif row["format"] == "swanlab":  # a column's folder below the run; its name is in the database beside the runs
        path, name = path.parents[3], name.partition(" ")[0]
    recording = gs.read(path)
    metric = next((found for found in recording.names if found.replace("/", ".") == name), None)
    if metric is None:
        return [f"no such series, only {recording.names[:20]}"]
    steps, values = recording.series(metric)
    got, want = facts(steps, values), label(row) | DAMAGED.get(row["path"], {})
    wrong = []
    if repeated := int(row["duplicate_steps"]):
        # Labels count what several ranks wrote twice; a record that repeats step and all values is read once.
        if not want["n"] - repeated <= got["n"] <= want["n"]:
            wrong.append(f"got {got['n']} points, want {want['n'] - repeated} to {want['n']}")
        want["n"] = got["n"]
        if None not in (got["median"], want["median"]) and math.isclose(got["median"], want["median"], rel_tol=0.02):
            want["median"] = got["median"]
    wrong += [f"{key}: got {got[key]}, want {want[key]}" for key in want if got[key] != want[key]]

    scan = gs.scan(path, progress=False)
    series = scan.series.filter(scan.series["metric"] == metric)
    if metric in NO_SIGNAL:
        return wrong if series.is_empty() else [*wrong, "a checked series, though it is no signal"]
    if series.is_empty():
        return [*wrong, "no checked series of scan.series"]
    total = {column: int(series[column].sum()) for column in ("n", "nan", "inf")}
    wrong += [f"scan.series.{key}: got {total[key]}, gs.read {got[key]}" for key in total if total[key] != got[key]]
    # A training that starts anew has a median of its own, losses have no spikes, and a median of 0 makes none.
    if series["role"][0] == "grad_norm" and row["backward_steps"] == "0":
        found, spikes = series.select("median", "spikes").rows(), got["n_gt_10x"] if got["median"] else 0
        if found != [(got["median"], spikes)]:
            wrong.append(f"scan.series median and spikes: got {found}, want {got['median'], spikes}")
    return wrong


def facts(steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    median = float(np.median(finite)) if finite.size else None
    return {
        "n": len(values),
        "first_step": int(steps[0]),
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "median": median,
        "n_gt_10x": int((finite > 10 * median).sum()) if median is not None else 0,
    }


def label(row: dict[str, str]) -> dict[str, Any]:
    return {
        "n": int(row["n_points"]),
        # Steps that nobody recorded are numbered in record order.
        "first_step": int(row["first_step"] or 0),
        "nan": int(row["n_nan"]),
        "inf": int(row["n_inf"]),
        "median": float(row["median_finite"]) if row["median_finite"] else None,
        "n_gt_10x": int(row["n_gt_10x_median"]),
    }


@pytest.mark.parametrize("text", ["nonfinite|grad_norm|73|27|-|64|63;spikes|grad_norm|0|15|run|53|52"])
def test_the_comparison_can_fail(text: str) -> None:
    """The comparison above sees a wrong step, count and phase."""
    want = parse_expected(text)
    good = {
        "check": "nonfinite",
        "metric": "grad_norm",
        "first_step": 73,
        "count": 27,
        "phase": None,
        "onset_step": 64,
        "last_good_step": 63,
    }
    assert differs(want[0], good) == []
    assert len(differs(want[0], good | {"first_step": 74, "count": 26, "phase": "run"})) == 3
