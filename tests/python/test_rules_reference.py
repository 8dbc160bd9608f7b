"""The checks of the product against a plain twin of their rules, and the twin against the reference if present."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import gradscan as gs
from conftest import Count
from rules_twin import Bad, Knobs, Training, judge, only_falls, split

Series = tuple[list[int], list[float]]

KNOBS = st.builds(
    Knobs,
    spike_ratio=st.sampled_from([10.0, 10.0, 3.0, 1.5]),
    min_spikes=st.sampled_from([3, 3, 1, 2, 5]),
    min_points=st.sampled_from([10, 10, 1, 30]),
    min_norm=st.sampled_from([0.0, 0.0, 5.0]),
    opening=st.sampled_from(["report", "report", "strict", "ignore"]),
)

# What may stand in place of an ordinary value, as a multiple of the scale of the series.
ODD = [20.0, 20.0, 20.0, 55.5, 55.5, 9.9, 10.0, 10.1, 0.0, -3.0]
NOT_FINE = [math.nan, math.nan, math.inf, -math.inf, -1.0]


@st.composite
def axes(draw: st.DrawFn) -> list[int]:
    """The steps of a recording: trainings that restart and resume, equal steps, gaps; or two writers in turns."""
    interval = draw(st.sampled_from([1, 1, 5, 100]))
    if draw(st.integers(0, 5)) == 0:
        length, lag = draw(st.integers(10, 60)), draw(st.integers(1, 4))
        return [interval * step for k in range(length) for step in (k + lag, k)]
    steps: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        top = steps[-1] // interval if steps else 0
        start = draw(st.one_of(st.just(0), st.integers(0, top + 3)))
        jumps = draw(st.lists(st.sampled_from([1] * 12 + [0, 2, 7]), min_size=1, max_size=90))
        steps += [interval * int(step) for step in start + np.cumsum(jumps)]
    return steps


@st.composite
def recordings(draw: st.DrawFn) -> Series:
    """Steps and gradient norms: log-normal or constant, with spikes, zeros, threshold values, NaN, Inf and -1."""
    steps = draw(axes())
    scale = draw(st.sampled_from([1.0, 1.0, 0.3, 1e-10, 1e300]))
    sigma = draw(st.sampled_from([0.3, 0.3, 0.0, 1.2]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values = (scale * np.exp(rng.normal(0, sigma, len(steps)))).tolist()
    place = st.integers(0, len(steps) - 1)
    for k, factor in draw(st.lists(st.tuples(place, st.sampled_from(ODD)), max_size=12)):
        values[k] = factor * scale
    for k, value in draw(st.lists(st.tuples(place, st.sampled_from(NOT_FINE)), max_size=5)):
        values[k] = value
    return without_repeats(steps, values)


def without_repeats(steps: list[int], values: list[float]) -> Series:
    """Drops rows that repeat another of the same attempt: a recording counts them once, the rules never see them."""
    _, interleaved = split(steps, values)
    seen: set[tuple[int, str]] = set()
    kept: Series = ([], [])
    before = -math.inf
    for step, value in zip(steps, values, strict=True):
        if step < before and not interleaved:
            seen.clear()
        before = step
        if (row := (step, repr(value))) not in seen:
            seen.add(row)
            kept[0].append(step)
            kept[1].append(value)
    return kept


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("reference_rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_reference(training: Training) -> dict[str, Any]:
    """A training of the twin in the words of the reference."""

    def finding(bad: Bad | None, *names: str) -> dict[str, Any] | None:
        return None if bad is None else {name: value for name, value in asdict(bad).items() if name in names}

    both = ("first_step", "onset_step", "last_good_step", "count", "attempt")
    return {
        "attempt": training.attempt,
        "n": len(training.rows),
        "nan": training.nan,
        "inf": training.inf,
        "median": math.nan if training.median is None else training.median,
        "max": math.nan if training.max is None else training.max,
        "nonfinite": finding(training.nonfinite_finding, *both, "last_bad_step", "recovered"),
        "spikes": finding(training.spikes_finding, *both, "count_opening", "phase"),
    }


def test_twin_equals_reference(reference_rules: Path, count: Count) -> None:
    rules = load(reference_rules)
    seen = {"nonfinite": 0, "spikes": 0, "restarts": 0, "interleaved": 0, "series": 0}

    @settings(max_examples=600)
    @given(recordings(), KNOBS)
    def compare(series: Series, knobs: Knobs) -> None:
        steps, values = series
        assume(not only_falls(steps))  # the reference knows reversed files by eight falls only
        options = asdict(knobs)
        options["opening_mode"] = options.pop("opening")
        want = rules.judge(np.array(steps), np.array(values), **options)
        got = [as_reference(training) for training in judge(steps, values, knobs)]
        for mine, theirs in zip(got, want, strict=True):
            for name, value in mine.items():
                assert value == theirs[name] or (value != value and theirs[name] != theirs[name]), name
        seen["series"] += 1
        seen["restarts"] += len(got) > 1
        seen["interleaved"] += want[0]["interleaved"]
        for check in ("nonfinite", "spikes"):
            seen[check] += any(training[check] is not None for training in got)

    compare()
    for what, number in seen.items():
        count(f"generated {what}: twin with the reference", number)


def rows_of_twin(trainings: list[Training]) -> list[tuple[Any, ...]]:
    """The findings of the twin as comparable rows."""
    rows: list[tuple[Any, ...]] = []
    for training in trainings:
        for check, bad in (("nonfinite", training.nonfinite_finding), ("spikes", training.spikes_finding)):
            if bad is not None:
                steps = bad.first_step, bad.onset_step, bad.last_good_step, bad.last_bad_step
                opening = bad.count_opening if check == "spikes" else None
                values = training.median, training.max, training.nan, training.inf
                rows.append((check, bad.attempt, *steps, bad.recovered, bad.count, opening, bad.phase, *values))
    return sorted(rows, key=lambda row: row[:3])


def rows_of_scan(scan: gs.Scan) -> list[tuple[Any, ...]]:
    """The findings of a scan of one gradient-norm series in the same form."""
    rows: list[tuple[Any, ...]] = []
    for f in scan.findings.iter_rows(named=True):
        steps = f["first_step"], f["onset_step"], f["last_good_step"], f["last_bad_step"]
        opening = f["count_opening"] if f["check"] == "spikes" else None
        values = f["median"], f["max"], f["nan"], f["inf"]
        rows.append((f["check"], f["attempt"], *steps, f["recovered"], f["count"], opening, f["phase"], *values))
    return sorted(rows, key=lambda row: row[:3])


def scan_series(series: Series, knobs: Knobs | None = None, dtype: type = np.float64, **more: Any) -> gs.Scan:
    steps, values = series
    options = asdict(knobs or Knobs())
    return gs.scan_series(grad_norm=np.array(values, dtype), steps=np.array(steps, np.int64), **options, **more)


def test_product_equals_twin(count: Count) -> None:
    seen = {"nonfinite": 0, "spikes": 0, "opening": 0, "restarts": 0, "interleaved": 0, "series": 0}

    @settings(max_examples=500)
    @given(recordings(), KNOBS)
    @example(([1], [math.nan]), Knobs())
    @example(([5, 4, 3, 2, 1, 0, -1, -2, -3, -4], [1.0] * 9 + [math.nan]), Knobs())
    @example((list(range(12)), [1e308, 1.7e308] * 6), Knobs())
    def compare(series: Series, knobs: Knobs) -> None:
        trainings = judge(*series, knobs)
        scan = scan_series(series, knobs)
        want = rows_of_twin(trainings)
        assert rows_of_scan(scan) == want
        status = scan.runs["status"][0]
        fired = {(row[0], row[9]) for row in want}
        if ("nonfinite", None) in fired or ("spikes", "run") in fired:
            assert status == "damaged"
        elif fired:
            assert status == "opening"
        elif all(len(t.rows) < knobs.min_points for t in trainings) and len(trainings) == 1:
            assert status == "not_assessable"
        table = scan.series.filter(scan.series["role"] == "grad_norm")
        assert table["n"].sum() == len(series[0])
        assert table["nan"].sum() == sum(t.nan for t in trainings)
        assert table["inf"].sum() == sum(t.inf for t in trainings)
        interleaved = split(*series)[1]
        assert ("interleaved" in scan.runs["notes"][0]) == interleaved
        seen["series"] += 1
        seen["restarts"] += len(trainings) > 1
        seen["interleaved"] += interleaved
        seen["opening"] += ("spikes", "opening") in fired
        for check in ("nonfinite", "spikes"):
            seen[check] += any(row[0] == check for row in want)

    compare()
    for what, number in seen.items():
        count(f"generated {what}: scan_series with the twin", number)


@settings(max_examples=60)
@given(recordings())
def test_single_precision_is_compared_in_double(series: Series) -> None:
    """f32 norms are kept as f32; the threshold is compared as if each were widened first."""
    with np.errstate(over="ignore"):
        narrow = np.array(series[1], np.float32)
    steps, values = without_repeats(series[0], narrow.astype(np.float64).tolist())
    assert rows_of_scan(scan_series((steps, values), dtype=np.float32)) == rows_of_twin(judge(steps, values))


# --- Rules that one series alone does not show -----------------------------------------------------------------------


def healthy(n: int = 100) -> Series:
    return list(range(1, n + 1)), [0.5 + 0.001 * (k % 37) for k in range(n)]


def only(scan: gs.Scan) -> dict[str, Any]:
    assert len(scan.findings) == 1, scan.findings
    return scan.findings.row(0, named=True)


def test_counters_come_before_norms_before_losses() -> None:
    """Of bad rows at one step the counter is named; all of them are evidence."""
    steps, values = healthy()
    values[59] = math.nan
    losses, counts = [1.0] * 100, [0] * 100
    losses[59], counts[59] = math.nan, 4
    scan = scan_series((steps, values), loss=np.array(losses), nan_count=np.array(counts))
    found = only(scan)
    assert (found["check"], found["metric"], found["first_step"], found["confidence"]) == (
        "nonfinite",
        "nan_count",
        60,
        0.99,
    )
    assert (found["nan"], found["count"], found["last_good_step"]) == (4, 1, 59)
    assert {e["role"]: e["first_step"] for e in found["evidence"]} == {"nan_count": 60, "grad_norm": 60, "loss": 60}


def test_an_earlier_loss_comes_before_a_later_norm() -> None:
    steps, values = healthy()
    values[59] = math.nan
    losses = [1.0] * 100
    losses[40] = math.inf
    found = only(scan_series((steps, values), loss=np.array(losses)))
    assert (found["metric"], found["first_step"], found["confidence"]) == ("loss", 41, 0.99)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_loss_beside_finite_norms_is_less_certain(bad: float) -> None:
    steps, values = healthy()
    losses = [1.0] * 100
    losses[40] = bad
    found = only(scan_series((steps, values), loss=np.array(losses)))
    assert (found["metric"], found["first_step"], found["confidence"], found["severity"]) == (
        "loss",
        41,
        0.70,
        "critical",
    )


def test_minus_one_is_bad_but_neither_nan_nor_inf() -> None:
    """DeepSpeed's alias of "not finite": counted, never in the median."""
    steps, values = healthy()
    values[70] = -1.0
    scan = scan_series((steps, values))
    found = only(scan)
    assert (found["first_step"], found["count"], found["nan"], found["inf"], found["confidence"]) == (71, 1, 0, 0, 0.90)
    assert scan.series["median"][0] == float(np.median([v for v in values if v != -1.0]))


def test_spikes_lead_to_the_onset() -> None:
    """NaN rarely comes out of a clear sky: the roll-back goes before the first spike of the chain."""
    steps, values = healthy()
    for k in (62, 66, 69):
        values[k] = 30.0
    values[70] = math.nan
    found = {f["check"]: f for f in scan_series((steps, values)).findings.iter_rows(named=True)}
    bad = found["nonfinite"]
    assert (bad["first_step"], bad["onset_step"], bad["last_good_step"], bad["recovered"]) == (71, 63, 62, True)
    assert (found["spikes"]["first_step"], found["spikes"]["phase"], found["spikes"]["count"]) == (63, "run", 3)


def test_three_spikes_must_exceed_the_threshold_strictly() -> None:
    steps, values = list(range(1, 101)), [0.5] * 100
    for k in (60, 70, 80):
        values[k] = 5.0
    assert scan_series((steps, values)).findings.is_empty()
    for k in (60, 70, 80):
        values[k] = math.nextafter(5.0, 6.0)
    assert only(scan_series((steps, values)))["steps"] == [61, 71, 81]


def test_a_resumed_training_supersedes_what_it_goes_over_again() -> None:
    """Died at 80, resumed from 60: the damage of the first attempt stays, and is said to be superseded."""
    steps, values = healthy(80)
    values[79] = math.nan
    again = list(range(61, 201))
    series = (steps + again, values + [0.6 + 0.001 * (k % 31) for k in range(len(again))])
    scan = scan_series(series)
    found = only(scan)
    assert (found["first_step"], found["attempt"], found["superseded"]) == (80, 1, True)
    assert scan.runs["attempts"][0] == 2
    assert "resumed" in scan.runs["notes"][0]


def test_a_restart_is_judged_on_its_own() -> None:
    """Norms of 100 before a restart and of 0.5 after it: together they would spike, apart they do not."""
    series = (
        list(range(60)) + list(range(300)),
        [100.0 + 0.01 * k for k in range(60)] + [0.5 + 0.001 * (k % 37) for k in range(300)],
    )
    scan = scan_series(series)
    assert scan.findings.is_empty()
    assert scan.runs["status"][0] == "clean"
    assert "restarted" in scan.runs["notes"][0]
