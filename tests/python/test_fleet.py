"""A real fleet: every series of 243 directories, event files and CSV of the same trainings, against LABELS.tsv.

The labels were made with TensorBoard's own loader, Python's csv and the definition of the checks in plain numpy. They
have a line a series and training (`lineage`): a restart from the beginning is one of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscan as gs
from conftest import Count, shared
from rules_twin import split

Finding = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of LABELS.tsv: the facts of one series in one training, null where a check does not fire.

    A series that is bad besides the one that carries the finding has neither onset nor last good step.
    """

    n: int
    nan: int
    inf: int
    median: float | None
    nf_first: int | None
    nf_onset: int | None
    nf_last_good: int | None
    nf_count: int
    spikes: int
    sp_first: int | None
    sp_onset: int | None
    sp_last_good: int | None
    phase: str | None


Key = tuple[str, str, int]  # path, metric, lineage


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Path:
    """Recordings of a real fleet with the facts of each series."""
    return shared(request.config, "fleet")


@pytest.fixture(scope="module")
def scanned(fleet: Path) -> gs.Scan:
    """The whole fleet in one call."""
    return gs.scan(fleet / "runs", progress=False)


def labels(fleet: Path) -> tuple[dict[Key, Line], set[str]]:
    """The labelled series, and the paths that hold none."""
    lines, without = {}, set()
    with (fleet / "LABELS.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            path, metric = row.pop("path"), row.pop("metric")
            if metric == "-":
                without.add(path)
                continue
            key = path, metric, int(row.pop("lineage"))
            assert key not in lines, key
            lines[key] = Line(**{field: parse(field, text) for field, text in row.items()})
    return lines, without


def parse(field: str, text: str) -> Any:
    if text == "":
        return None
    return float(text) if field == "median" else text if field == "phase" else int(text)


def lines_of(recording: gs.Recording, metric: str, findings: list[Finding]) -> Iterator[Line]:
    """What gradscan says of a series, a line a training."""
    steps, values = recording.series(metric)
    trainings, _ = split(steps.tolist(), values.tolist())
    begins = [training.attempt for training in trainings]
    for k, training in enumerate(trainings):
        own = np.array([value for _, value, _ in training.rows])
        finite = own[np.isfinite(own)]
        last = begins[k + 1] if k + 1 < len(begins) else np.inf
        here = [finding for finding in findings if training.attempt <= finding["attempt"] < last]
        yield Line(
            n=len(own),
            nan=int(np.isnan(own).sum()),
            inf=int(np.isinf(own).sum()),
            median=float(np.median(finite)) if finite.size else None,
            **nonfinite_of(metric, [finding for finding in here if finding["check"] == "nonfinite"]),
            **spikes_of([f for f in here if f["check"] == "spikes" and f["metric"] == metric]),
        )


def nonfinite_of(metric: str, findings: list[Finding]) -> dict[str, Any]:
    """The finding if the series carries it, else what the evidence says of the series."""
    assert len(findings) <= 1, findings
    for finding in findings:
        if finding["metric"] == metric:
            names = "first_step", "onset_step", "last_good_step", "count"
            return dict(
                zip(("nf_first", "nf_onset", "nf_last_good", "nf_count"), (finding[n] for n in names), strict=True)
            )
        for part in finding["evidence"]:
            if part["metric"] == metric:
                first, count = part["first_step"], part["count"]
                return {"nf_first": first, "nf_onset": None, "nf_last_good": None, "nf_count": count}
    return {"nf_first": None, "nf_onset": None, "nf_last_good": None, "nf_count": 0}


def spikes_of(findings: list[Finding]) -> dict[str, Any]:
    assert len(findings) <= 1, findings
    for finding in findings:
        return {
            "spikes": finding["count"],
            "sp_first": finding["first_step"],
            "sp_onset": finding["onset_step"],
            "sp_last_good": finding["last_good_step"],
            "phase": finding["phase"],
        }
    return {"spikes": 0, "sp_first": None, "sp_onset": None, "sp_last_good": None, "phase": None}


def found_in(fleet: Path, scan: gs.Scan, paths: set[str]) -> dict[Key, Line]:
    """The same table out of a scan, and `gs.read` for the values."""
    findings: dict[str, list[Finding]] = {}
    for finding in scan.findings.iter_rows(named=True):
        findings.setdefault(finding["source"], []).append(finding)
    out: dict[Key, Line] = {}
    for path in sorted(paths):
        recording = gs.read(fleet / "runs" / path)
        for metric in ("grad_norm", "loss"):
            if metric in recording.names:
                for lineage, line in enumerate(lines_of(recording, metric, findings.get(path, [])), start=1):
                    out[path, metric, lineage] = line
    return out


def differences(want: Mapping[Key, Line], got: Mapping[Key, Line]) -> list[str]:
    """Every field of every line that is not as labelled."""
    wrong = [f"{key}: not found" for key in want.keys() - got.keys()]
    wrong += [f"{key}: not labelled" for key in got.keys() - want.keys()]
    for key in sorted(want.keys() & got.keys()):
        mine, theirs = asdict(got[key]), asdict(want[key])
        wrong += [f"{key} {name}: got {mine[name]}, want {theirs[name]}" for name in mine if mine[name] != theirs[name]]
    return wrong


FORMATS = [("tensorboard", "event directories"), ("csv", "CSV files")]


@pytest.mark.parametrize(("format_", "what"), FORMATS)
def test_every_series(format_: str, what: str, fleet: Path, scanned: gs.Scan, count: Count) -> None:
    lines, without = labels(fleet)
    is_csv = format_ == "csv"
    want = {key: line for key, line in lines.items() if key[0].endswith(".csv") == is_csv}
    empty = {path for path in without if path.endswith(".csv") == is_csv}
    paths = {path for path, _, _ in want}
    runs = {row["source"]: row for row in scanned.runs.filter(scanned.runs["format"] == format_).iter_rows(named=True)}
    missing = sorted((paths | empty) - runs.keys())
    assert not missing, f"{len(missing)} of {len(paths | empty)} are no recording of format {format_}: {missing[:5]}"

    got = found_in(fleet, scanned, paths)
    wrong = differences(want, got)
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:40])

    # A path without such a series must not get one, nor a verdict on a gradient norm.
    checked = scanned.series.filter(scanned.series["metric"].is_in(["grad_norm", "loss"]))
    named = {runs[path]["run"] for path in empty}
    assert not named & set(checked["run"]), "series where none were recorded"

    fired = sum(line.spikes > 0 for line in want.values()) + sum(line.nf_onset is not None for line in want.values())
    labelled = {"grad_norm", "loss"}
    findings = scanned.findings.filter(scanned.findings["source"].is_in(sorted(paths | empty)))
    assert findings.filter(findings["metric"].is_in(sorted(labelled))).height == fired
    count(f"series and trainings of the real fleet, {what}", len(want))
    count(f"findings of the real fleet, {what}", fired)
    count(f"paths of the real fleet without a signal, {what}", len(empty))


def test_the_tables_of_the_scan(fleet: Path, scanned: gs.Scan, count: Count) -> None:
    """`scan.series` has one row a series: the sums over its trainings, the median where there is one training."""
    lines, without = labels(fleet)
    run_of = dict(scanned.runs.select("source", "run").iter_rows())
    rows = {(row["run"], row["metric"]): row for row in scanned.series.iter_rows(named=True)}
    wrong = []
    series: dict[tuple[str, str], list[Line]] = {}
    for (path, metric, _), line in lines.items():
        series.setdefault((path, metric), []).append(line)
    for (path, metric), trainings in series.items():
        row = rows.get((run_of.get(path, ""), metric))
        if row is None:
            wrong.append(f"{path} {metric}: no row of scan.series")
            continue
        for name in ("n", "nan", "inf"):
            total = sum(getattr(line, name) for line in trainings)
            if row[name] != total:
                wrong.append(f"{path} {metric} {name}: got {row[name]}, want {total}")
        if metric == "grad_norm" and len(trainings) == 1 and row["median"] != trainings[0].median:
            wrong.append(f"{path} {metric} median: got {row['median']}, want {trainings[0].median}")
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:40])
    assert len(series) + len(without) > 700, "the fleet is not all there"
    count("series of scan.series compared with the real fleet", len(series))


def test_statuses_follow_the_labels(fleet: Path, scanned: gs.Scan, count: Count) -> None:
    """Damaged where a training has a non-finite value or spikes of the run, opening where only the opening spikes."""
    lines, _ = labels(fleet)
    status = dict(scanned.runs.select("source", "status").iter_rows())
    verdicts: dict[str, set[str]] = {}
    for (path, _, _), line in lines.items():
        own = verdicts.setdefault(path, set())
        own |= {"nonfinite"} if line.nf_first is not None else set()
        own |= {line.phase} if line.phase else set()
    wrong = []
    for path, own in verdicts.items():
        want = "damaged" if own & {"nonfinite", "run"} else "opening" if own else None
        got = status.get(path)
        if want is None:
            # Without a finding: clean, or not assessable for want of points, or suspect by another rule.
            want = got if got in ("clean", "not_assessable", "suspect") else "none of the findings"
        if got != want:
            wrong.append(f"{path}: got {got}, want {want}")
    assert not wrong, "\n".join(wrong[:40])
    count("statuses of the real fleet", len(verdicts))


def test_the_comparison_can_fail(fleet: Path) -> None:
    """Each field of each line counts: a change of any is one difference."""
    lines, _ = labels(fleet)
    assert len(lines) > 580
    assert differences(lines, lines) == []
    key = next(key for key, line in lines.items() if line.phase and line.nf_onset is not None)
    for field in fields(Line):
        old = getattr(lines[key], field.name)
        change: dict[str, Any] = {field.name: (old or 0) + 1 if field.name != "phase" else "other"}
        assert len(differences(lines, lines | {key: replace(lines[key], **change)})) == 1
    assert len(differences(lines, {other: line for other, line in lines.items() if other != key})) == 1
