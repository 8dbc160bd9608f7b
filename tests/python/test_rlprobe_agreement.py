"""Agreement with rlprobe 0.1.0, the reference detector: same spikes, median, first step on its own recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rlprobe.doctor.detectors import GradPathology
from rlprobe.doctor.runview import RunView
from rlprobe.testing.synth import PATHOLOGIES, generate_run

import gradscan as gs
from conftest import Count
from makers import Training, rlprobe_run

LENGTHS = (30, 47, 120, 301)
SEEDS = range(4)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From rlprobe's generator every pathology in several lengths, from its writer norms around the threshold."""
    root = tmp_path_factory.mktemp("rlprobe")
    for pathology in [None, *PATHOLOGIES]:
        for length in LENGTHS:
            for seed in SEEDS:
                name = f"{pathology or 'healthy'}-{length}-{seed}"
                onset = (0.0, 0.3, 0.5, 0.8)[seed]
                generate_run(
                    root / name,
                    pathology,
                    n_steps=length,
                    seed=seed,
                    onset_frac=onset,
                    samples_per_step=4,
                    sample_every=10_000,
                )
    for seed in range(40):
        rlprobe_run(root / f"threshold-{seed}", around_the_threshold(seed), close=seed % 4 != 0)
    return root


def around_the_threshold(seed: int) -> Training:
    """Two to five values within an ulp or a percent of ten times the median, which they leave alone."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 200))
    values = rng.lognormal(0, 0.4, n)
    threshold = 10.0 * float(np.median(values))
    top = np.argsort(values)[-5:]  # raising values that are above the median anyway does not move it
    near = [threshold, np.nextafter(threshold, np.inf), np.nextafter(threshold, 0), threshold * 1.01, threshold * 3]
    for k in top[: int(rng.integers(2, 6))]:
        values[k] = rng.choice(near)
    steps = (int(rng.integers(0, 5000)) + np.arange(n) * int(rng.integers(1, 20))).tolist()
    return Training(values.tolist(), steps)


def rlprobe_says(view: RunView) -> dict[str, Any]:
    """rlprobe's findings, with the steps of the spikes by its own expression."""
    said: dict[str, Any] = {}
    for finding in GradPathology().check(view):
        evidence = finding.evidence[0]
        if evidence["metric"] != "grad_norm":
            said["nonfinite"] = finding.first_step
            continue
        norms = view.series("grad_norm")
        spikes = view.step_ids[norms > 10.0 * evidence["median"]].tolist()
        assert (len(spikes), spikes[0]) == (evidence["n_spikes"], finding.first_step)
        said["spikes"] = (evidence["median"], len(spikes), spikes[:100], evidence["max"])
    return said


def gradscan_says(findings: pl.DataFrame) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for f in findings.filter(pl.col("attempt") == 1).iter_rows(named=True):
        assert f["check"] not in said, f"two {f['check']} findings of one training"
        said[f["check"]] = (
            f["first_step"] if f["check"] == "nonfinite" else (f["median"], f["count"], f["steps"], f["max"])
        )
    return said


def test_agreement(archive: Path, count: Count) -> None:
    scan = gs.scan(archive, progress=False)
    directories = sorted(path for path in archive.iterdir() if path.is_dir())
    assert sorted(scan.runs["run"]) == [path.name for path in directories]
    by_run = dict(scan.findings.partition_by("run", as_dict=True))
    wrong, spiking, nonfinite = [], 0, 0
    for path in directories:
        theirs = rlprobe_says(RunView.load(path))
        ours = gradscan_says(by_run.get((path.name,), scan.findings.clear()))
        spiking += "spikes" in theirs
        nonfinite += "nonfinite" in theirs
        if ours != theirs:
            wrong.append(f"{path.name}: got {ours}, rlprobe {theirs}")
    count("rlprobe recordings", len(directories))
    count("rlprobe recordings with spikes", spiking)
    count("rlprobe recordings with NaN counts", nonfinite)
    assert len(directories) >= 200
    assert not wrong, f"{len(wrong)} of {len(directories)} differ\n" + "\n".join(wrong[:20])


def test_every_gradient_pathology_is_found(archive: Path, count: Count) -> None:
    """Each injected one is damage, and no other pathology is."""
    scan = gs.scan(archive, progress=False)
    missed, false, injected = [], [], 0
    for run, status in scan.runs.select("run", "status").iter_rows():
        if run.startswith("grad_pathology"):
            injected += 1
            if status != "damaged":
                missed.append((run, status))
        elif not run.startswith("threshold") and status != "clean":
            false.append((run, status))
    count("injected gradient pathologies", injected)
    assert injected == len(LENGTHS) * len(SEEDS)
    assert not missed
    assert not false
