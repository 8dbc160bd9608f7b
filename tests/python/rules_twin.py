"""The two checks over one gradient-norm series, written a second time and as plainly as possible.

Rows are (step, value) in recording order, missing rows left out, repeated records dropped. Each rule is a loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median as middle

QUIET = 10  # rows without a spike that end an opening, and the chain that leads to a non-finite row


@dataclass(frozen=True)
class Knobs:
    spike_ratio: float = 10.0
    min_spikes: int = 3
    min_points: int = 10
    min_norm: float = 0.0
    opening: str = "report"


@dataclass
class Bad:
    """What one check found in one training."""

    first_step: int
    onset_step: int
    last_good_step: int | None
    last_bad_step: int
    recovered: bool
    count: int
    attempt: int
    count_opening: int = 0
    phase: str | None = None


@dataclass
class Training:
    """A training: an attempt and those that resume it."""

    attempt: int
    rows: list[tuple[int, float, int]] = field(default_factory=list)  # step, value, attempt
    nan: int = 0
    inf: int = 0
    median: float | None = None
    max: float | None = None
    spikes: int = 0
    nonfinite_finding: Bad | None = None
    spikes_finding: Bad | None = None


def is_fine(value: float) -> bool:
    """Finite, and not the -1 by which DeepSpeed says that it was not."""
    return math.isfinite(value) and value != -1.0


def only_falls(steps: Sequence[int]) -> bool:
    """Whether the rows of a recording, three or more, are newest first."""
    return len(steps) >= 3 and all(later < earlier for earlier, later in pairwise(steps))


def split(steps: Sequence[int], values: Sequence[float]) -> tuple[list[Training], bool]:
    """The trainings of a recording, each in its own order, and whether its rows are interleaved."""
    falls = sum(later < earlier for earlier, later in pairwise(steps))
    rows = list(zip(steps, values, strict=True))
    if only_falls(steps) or (falls >= 8 and falls > 0.05 * len(rows)):
        rows.sort(key=lambda row: row[0])
        return [Training(1, [(step, value, 1) for step, value in rows])], True
    trainings: list[Training] = []
    attempt, before = 0, math.inf
    for step, value in rows:
        if step < before:
            attempt += 1
            if not trainings or step <= trainings[-1].rows[0][0]:  # from the beginning: a training of its own
                trainings.append(Training(attempt))
        trainings[-1].rows.append((step, value, attempt))
        before = step
    return trainings, False


def median_of(values: Sequence[float]) -> float | None:
    """Median of fine values. Two middle ones are averaged without overflow."""
    if not values:
        return None
    found = middle(values)
    return found if math.isfinite(found) else middle([value / 2 for value in values]) * 2


def opening_of(training: Training, spike: Sequence[bool]) -> list[bool]:
    """Which rows lie in the opening."""
    rows = training.rows
    first, last = rows[0][0], max(step for step, _, _ in rows)
    quiet: list[int] = []  # the positions of the current run of fine rows without a spike
    settled = len(rows)
    for k, (_, value, _) in enumerate(rows):
        if not is_fine(value):
            continue
        quiet = [] if spike[k] else [*quiet, k]
        if len(quiet) == QUIET:
            settled = quiet[0]
            break
    inside = []
    for k, (step, _, _) in enumerate(rows):
        early = k < settled or step <= first + 0.01 * (last - first)
        allowed = step <= first + 0.1 * (last - first) if last - first > 1000 else k < max(20, 0.1 * len(rows))
        inside.append(early and allowed)
    return inside


def judge(steps: Sequence[int], values: Sequence[float], knobs: Knobs | None = None) -> list[Training]:
    """Judges one series; one `Training` each."""
    knobs = knobs or Knobs()
    trainings, _ = split(steps, values)
    for training in trainings:
        judge_training(training, knobs)
    return trainings


def judge_training(training: Training, knobs: Knobs) -> None:
    rows = training.rows
    fine = [value for _, value, _ in rows if is_fine(value)]
    training.nan = sum(math.isnan(value) for _, value, _ in rows)
    training.inf = sum(math.isinf(value) for _, value, _ in rows)
    training.max = max(fine, default=None)
    training.median = median = median_of(fine)
    threshold = max(knobs.spike_ratio * median, knobs.min_norm) if median is not None and median > 0 else math.inf
    spike = [is_fine(value) and value > threshold for _, value, _ in rows]
    inside = opening_of(training, spike) if knobs.opening != "strict" else [False] * len(rows)
    if knobs.opening == "ignore":
        spike = [hit and not early for hit, early in zip(spike, inside, strict=True)]
    training.spikes = sum(spike)

    def good_before(onset: int) -> int | None:
        for k in reversed(range(onset)):
            step, value, _ = rows[k]
            if is_fine(value) and not spike[k] and step < rows[onset][0]:
                return step
        return None

    def finding(bad: list[int], onset: int) -> Bad:
        return Bad(
            first_step=rows[bad[0]][0],
            onset_step=rows[onset][0],
            last_good_step=good_before(onset),
            last_bad_step=rows[bad[-1]][0],
            recovered=any(is_fine(value) for _, value, _ in rows[bad[-1] + 1 :]),
            count=len(bad),
            attempt=rows[bad[0]][2],
            count_opening=sum(inside[k] for k in bad),
        )

    if bad := [k for k, (_, value, _) in enumerate(rows) if not is_fine(value)]:
        onset, quiet = bad[0], 0
        for k in reversed(range(bad[0])):
            onset, quiet = (k, 0) if spike[k] else (onset, quiet + 1)
            if quiet == QUIET:
                break
        training.nonfinite_finding = finding(bad, onset)

    hits = [k for k, hit in enumerate(spike) if hit]
    if len(fine) >= knobs.min_points and len(hits) >= knobs.min_spikes:
        late = [k for k in hits if not inside[k]]
        runs = len(late) >= knobs.min_spikes
        training.spikes_finding = finding(hits, late[0] if runs else hits[0])
        training.spikes_finding.phase = "run" if runs else "opening"
