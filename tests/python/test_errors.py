"""The exceptions: their family, their attributes, and that they survive pickling."""

from __future__ import annotations

import pickle

import pytest

import frames
from gradscan import errors
from gradscan.result import NonFinite


@pytest.mark.parametrize("name", errors.__all__)
def test_all_are_gradscan_errors_and_pickle(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("a/b.json: what went wrong")
    assert isinstance(error, errors.GradscanError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "a/b.json: what went wrong"


def test_damage_errors_are_runtime_errors_and_keep_their_attributes() -> None:
    findings = {"grads": NonFinite(2, 0, 5, (1, 2))}
    error = errors.NonFiniteError("bad", step=7, metric="grads", value=float("inf"), findings=findings)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RuntimeError)
    assert isinstance(again, errors.NonFiniteError)
    assert (again.run, again.step, again.metric, again.value) == (None, 7, "grads", float("inf"))
    assert again.findings == findings


def test_raise_if_damaged_names_run_step_metric_and_value() -> None:
    row = frames.finding()
    scan = frames.scan([frames.damaged(row)], [row])
    with pytest.raises(errors.GradPathologyError) as caught:
        scan.raise_if_damaged()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.run, error.step, error.metric) == ("llama/run-1", 5200, "grad_norm")
    assert error.value != error.value  # NaN
    assert error.findings["id"].to_list() == [row["id"]]
    for part in ("llama/run-1", "5200", "grad_norm", "nan"):
        assert part in str(error)


def test_raise_if_damaged_can_be_narrowed() -> None:
    weak = frames.finding(confidence=0.7)
    opening = frames.spikes(phase="opening", severity="warning")
    scan = frames.scan([frames.damaged(weak)], [weak, opening])
    with pytest.raises(errors.GradPathologyError):
        scan.raise_if_damaged(checks="nonfinite", min_confidence=0.7)
    scan.raise_if_damaged(min_confidence=0.71)
    scan.raise_if_damaged(checks=["spikes"])  # spikes of the opening are no damage
    with pytest.raises(ValueError, match="checks: got 'nan'"):
        scan.raise_if_damaged(checks="nan")
    with pytest.raises(TypeError, match="checks: got 5, want a string or several"):
        scan.raise_if_damaged(checks=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="min_confidence: got 'x', want a number"):
        scan.raise_if_damaged(min_confidence="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_confidence: got 2"):
        scan.raise_if_damaged(min_confidence=2)
