"""The sentences: right numbers, right provisos, no gaps in what can be explained."""

from __future__ import annotations

import math

import pytest

import frames
from gradscan import wording

NAN, INF = math.nan, math.inf


def test_nan_to_the_end() -> None:
    assert wording.explanation(frames.finding(), 8000) == (
        "grad_norm is NaN from step 5,200 on (312 of 8,000 rows); the last good value was 0.83 at step 5,140, "
        "and spikes lead up to it from step 5,150. Restore checkpoint-5000; 3 later checkpoints are suspect."
    )


def test_recovered_says_that_the_optimizer_may_carry_it() -> None:
    text = wording.explanation(frames.finding(recovered=True, count=3, nan=3, last_bad_step=5260), 8000)
    assert text.startswith(
        "grad_norm is NaN at 3 of 8,000 rows, the first at step 5,200, the last at step 5,260; the last"
    )
    assert "the optimizer's moments may still carry the damage" in text
    mixed = frames.finding(recovered=True, count=3, nan=2, inf=1, last_bad_step=None, first_step=None)
    text = wording.explanation(mixed)
    assert "is not finite (2 NaN and 1 Inf) at 3 rows, the first at record 519, the last at an unknown step" in text


def test_one_row() -> None:
    text = wording.explanation(frames.finding(count=1, nan=0, inf=1, first_value=INF, onset_step=5200), 900)
    assert text.startswith("grad_norm is Inf at step 5,200 (1 of 900 rows); the last good value")
    assert "lead up" not in text


def test_mixed_values_are_counted_apart() -> None:
    text = wording.explanation(frames.finding(first_value=-INF, nan=26, inf=1, count=27), 100)
    assert "grad_norm is -Inf at step 5,200 and not finite from there on (26 NaN and 1 Inf in 27 of 100 rows)" in text


def test_loss_only_has_its_confidence() -> None:
    loss = frames.evidence(metric="train/loss", role="loss")
    text = wording.explanation(frames.finding(metric="train/loss", confidence=0.7, evidence=[loss]))
    assert "train/loss is NaN from step 5,200 on (312 rows)" in text
    assert "Only the loss is bad, the gradients may still be fine (confidence 0.70)." in text
    part = frames.evidence(metric="ctc_loss", role="loss_part")
    assert "Only a part of the loss is bad" in wording.explanation(
        frames.finding(metric="ctc_loss", confidence=0.7, evidence=[part])
    )


def test_minus_one_alias() -> None:
    text = wording.explanation(frames.finding(first_value=-1.0, nan=0, count=4, confidence=0.9), 50)
    assert "grad_norm is -1 from step 5,200 on (4 of 50 rows), which DeepSpeed writes for a norm that is not" in text
    assert "(confidence 0.90)" in text


def test_counter_and_event() -> None:
    counter = frames.evidence(metric="nan_count", role="nan_count", value=12.0, nan=340)
    text = wording.explanation(
        frames.finding(metric="nan_count", first_value=12.0, nan=340, count=30, evidence=[counter]), 1000
    )
    assert text.startswith("nan_count reports 12 NaN gradient values at step 5,200 (340 in 30 of 1,000 rows)")
    event = frames.evidence(metric="nan_detected", role="nan_detected", value=None)
    text = wording.explanation(
        frames.finding(metric="nan_detected", first_value=None, nan=0, count=1, evidence=[event])
    )
    assert text.startswith("the trainer recorded a nan_detected event at step 5,200")


def test_other_signals_are_named() -> None:
    others = [frames.evidence(metric=name, first_step=5210) for name in ("a", "b", "c", "d")]
    text = wording.explanation(frames.finding(evidence=[frames.evidence(), *others]))
    assert "Also bad: a from step 5,210, b from step 5,210, c from step 5,210 and 1 more." in text


def test_no_step_and_no_good_row() -> None:
    text = wording.explanation(
        frames.finding(first_step=None, onset_step=None, last_good_step=None, last_good_value=None, first_record=12345)
    )
    assert "from record 12,345 on" in text
    assert "no good row was recorded before it" in text


def test_spikes() -> None:
    assert wording.explanation(frames.spikes(), 8000) == (
        "grad_norm exceeds 10 x its median of 0.83 at 42 of 8,000 rows between steps 1,240 and 3,900, up to 153 "
        "(184 x); the last good value was 0.83 at step 1,230. Restore checkpoint-5000; 3 later checkpoints are suspect."
    )


def test_spikes_of_the_opening_advise_no_restore() -> None:
    text = wording.explanation(frames.spikes(phase="opening", severity="warning", count=5, count_opening=4))
    assert "all but 1 lie in the opening of the training" in text
    assert "estore" not in text
    assert any("warm-up" in action for action in wording.actions(frames.spikes(phase="opening")))


def test_superseded_says_so_and_suspects_no_later_checkpoint() -> None:
    text = wording.explanation(frames.finding(superseded=True))
    assert "A later attempt went over these steps again." in text
    assert text.endswith("Restore checkpoint-5000.")


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        ("uncertain", "several-attempts", "Restore checkpoint-5000 only after a look at it: several attempts cover"),
        ("uncertain", "inside-interval", "it lies between the last good row and the onset"),
        ("verified", None, "Restore checkpoint-5000, whose weights are finite; "),
        (
            "clean",
            "unverified",
            "Restore checkpoint-5000 (it holds no safetensors files, so its weights could not be verified)",
        ),
        (
            "none",
            "poisoned",
            "No checkpoint is known to be clean: the weights of every one from before the damage hold NaN",
        ),
        ("none", "none-before", "No checkpoint from before the damage is left."),
        ("none", "no-good-row", "No checkpoint is known to be clean: no good row was recorded before the damage."),
        ("unknown", "no-checkpoint", "No checkpoint is known."),
        ("unknown", "other-unit", "The restore point is unknown: the checkpoints count something else"),
        ("unknown", None, "No checkpoint is known."),
    ],
)
def test_restore(status: str, reason: str | None, says: str) -> None:
    row = frames.finding(restore_status=status, restore_reason=reason)
    if status in ("none", "unknown"):
        row |= {"restore_path": None, "restore_step": None}
    assert says in wording.explanation(row)
    assert 4 <= len(wording.actions(row)) <= 6


def test_a_checkpoint_without_a_path_is_named_by_its_step() -> None:
    row = frames.finding(restore_path=None)
    assert "Restore the checkpoint of step 5,000" in wording.explanation(row)
    assert "restore the checkpoint of step 5,000" in wording.actions(row)[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.83, "0.83"),
        (153.2, "153"),
        (204222.0, "204,222"),
        (2.4e16, "2.4e+16"),
        (1.5e-7, "1.5e-07"),
        (0.0, "0"),
        (-1.0, "-1"),
        (NAN, "NaN"),
        (-INF, "-Inf"),
        (1e300, "1e+300"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert wording.number(value) == text


REASONS = [
    "no-signal",
    "too-few-points",
    "empty",
    "layer-only",
    "git-lfs-pointer",
    "cut-header",
    "io-error",
    "limit",
    "not-a-file",
    "not-a-recording",
    "version",
    "ambiguous",
    "panic",
    "checks-off",
]


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_is_a_sentence(code: str) -> None:
    for detail in (None, "", "7 bytes"):
        text = wording.reason(code, detail)
        assert text is not None
        assert " " in text
        assert text != code.replace("-", " ")


def test_reasons_hold_their_detail() -> None:
    assert wording.reason(None) is None
    assert wording.reason("too-few-points", "7", min_points=20) == "too few points: 7 finite, want 20"
    assert "it records a, b, c, d and 1 more" in str(wording.reason("no-signal", metrics=list("abcde")))
    assert "it records x and y" in str(wording.reason("no-signal", "x, y"))
    assert wording.reason("new-code", "why") == "new code: why"


# What SPEC lists; a name that can stand in a table can be explained.
NAMES = {
    "check": {"nonfinite", "spikes"},
    "suspicion": {
        "vanished",
        "eval-nonfinite",
        "zeroed",
        "frozen",
        "dead-gradient",
        "skipping",
        "erased",
        "ambiguous-nan",
    },
    "note": {
        "sparse-log",
        "clipped-norm",
        "zero-median",
        "gap",
        "loss-only",
        "partial-coverage",
        "too-few-points",
        "resumed",
        "restarted",
        "interleaved",
        "truncated",
        "unterminated",
        "negative-norm",
        "no-step",
        "fractional-step",
        "empty",
    },
    "status": {"damaged", "suspect", "opening", "unreadable", "not_assessable", "clean"},
    "restore": {"restore", "verified", "unverified", "poisoned"},
    "audit": {"audit"},
}


def test_every_name_is_explained() -> None:
    topics: dict[str, set[str]] = {}
    for name, topic in wording.TOPICS.items():
        topics.setdefault(topic.kind, set()).add(name)
        text = wording.explain(name)
        assert text.startswith(f"{name} ({topic.kind}): {topic.summary}")
        assert len(text) > len(topic.summary) + 40
    assert topics == NAMES
    assert set(wording.KINDS) == set(NAMES)


def test_explain_forgives_case_and_separators_and_suggests() -> None:
    assert wording.explain("Sparse_Log") == wording.explain("sparse-log")
    assert wording.explain("restore_status") == wording.explain("restore-status") == wording.explain("restore")
    assert wording.explain("not-assessable").startswith("not_assessable")
    with pytest.raises(ValueError, match="did you mean spikes"):
        wording.explain("spike")
    with pytest.raises(ValueError, match="want one of nonfinite, spikes"):
        wording.explain("qqq")


def test_ambiguous_nan_says_what_to_do_with_frames_and_files() -> None:
    text = wording.explain("ambiguous-nan")
    for word in ("categories", "Decimal", "Parquet", "Feather", "Arrow table", 'nan="missing"', "pandas.read_parquet"):
        assert word in text


@pytest.mark.parametrize("rule", sorted(NAMES["suspicion"]))
def test_every_suspicion_has_a_sentence(rule: str) -> None:
    row = {"rule": rule, "metric": "grad_norm", "first_step": 4100, "last_good_step": 4090}
    text = wording.suspicion_sentence(row)
    assert text.endswith("; from step 4,100, last good step 4,090.")
    assert "{" not in text
    assert len(text) > 60
