"""What the Python tests share: hypothesis profile, recordings beside the repository, counts of what was compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")

ROOT = Path(__file__).resolve().parents[2]
REPORT = pytest.StashKey[list[str]]()

Count = Callable[[str, int], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was compared and what was absent, also where every test passed."""
    if lines := config.stash[REPORT]:
        terminalreporter.section("compared")
        for line in lines:
            terminalreporter.write_line(line)


def shared(config: pytest.Config, name: str) -> Path:
    """A path beside the repository. Absent: skipped and said so; on CI a failure, or the test could not fail there."""
    path = ROOT.parent / "shared" / name
    if not path.exists():
        message = f"ABSENT: ../shared/{name}, nothing was compared with it"
        if os.environ.get("CI"):
            pytest.fail(message)
        config.stash[REPORT].append(message)
        pytest.skip(message)
    return path


@pytest.fixture
def corpus(pytestconfig: pytest.Config) -> Path:
    """Real recordings with known answers (EXPECTED.tsv, LABELS.tsv)."""
    return shared(pytestconfig, "corpus")


@pytest.fixture
def reference_rules(pytestconfig: pytest.Config) -> Path:
    """The definition of the two checks in plain numpy."""
    return shared(pytestconfig, "reference/rules.py")


@pytest.fixture
def count(pytestconfig: pytest.Config) -> Count:
    """`count(what, n)` puts into the summary how many things a test compared, and fails on zero."""

    def record(what: str, n: int) -> None:
        pytestconfig.stash[REPORT].append(f"{n} {what}")
        assert n > 0, f"compared no {what}: the test saw nothing"

    return record
