"""The only place with prose: sentences about findings, reasons, and what each check, trace, note and status means.

Functions here take plain values and rows (mappings of a table's column names to values) and return plain text. Text
from recordings goes in unescaped; the renderers escape it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "TOPICS",
    "Topic",
    "actions",
    "explain",
    "explanation",
    "number",
    "plural",
    "reason",
    "step",
    "suspicion_sentence",
    "value_text",
]

Row = Mapping[str, Any]

GRADIENT_ROLES = ("grad_norm", "grad_norm_post_clip", "layer_grad_norm")
COUNTER_ROLES = ("nan_count", "inf_count")


# ----------------------------------------------------------------------------------------- small words


def number(value: float) -> str:
    """A value as people read it: 0.83, 153, 204,222, 2.4e+16; NaN, Inf and -Inf by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent):+03d}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def step(value: int | None) -> str:
    """A step with thousands separated: 179,665."""
    return "-" if value is None else f"{value:,}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 row`, `2 rows`, `1,200 rows`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def value_text(finding: Row) -> str:
    """The first bad value in a word or two: `NaN`, `Inf`, `-1`, `153`, `12 NaN`, `event`."""
    value, role = finding["first_value"], _role(finding)
    if value is None:
        return "event"
    if role in COUNTER_ROLES:
        return f"{value:,.0f} {'NaN' if role == 'nan_count' else 'Inf'}"
    return number(value)


def _role(finding: Row) -> str | None:
    """The role of the finding's own metric, as its evidence says it."""
    for item in finding.get("evidence") or ():
        if item["metric"] == finding["metric"]:
            role = item["role"]
            return None if role is None else str(role)
    return None


def _where(finding: Row) -> str:
    if finding["first_step"] is not None:
        return f"step {step(finding['first_step'])}"
    return f"record {finding['first_record']:,}"


def _last(finding: Row) -> str:
    return "an unknown step" if finding["last_bad_step"] is None else f"step {step(finding['last_bad_step'])}"


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _list(items: Sequence[str], most: int = 3) -> str:
    shown, rest = list(items[:most]), len(items) - most
    if rest > 0:
        shown.append(f"{rest} more")
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _sentence(text: str) -> str:
    """First letter up unless it is a metric's name; a full stop at the end."""
    return text if text.endswith((".", "?", "!")) else text + "."


# -------------------------------------------------------------------------------------------- findings


def explanation(finding: Row, rows: int | None = None) -> str:
    """What happened, in plain words with the numbers.

    `finding` is a row of the findings table; `rows` is how many values its series has (`series.n`), where known.
    """
    main = _nonfinite(finding, rows) if finding["check"] == "nonfinite" else _spikes(finding, rows)
    parts = [main, *_provisos(finding), _restore(finding)]
    return " ".join(_sentence(part) for part in parts if part)


def _of_rows(count: int, rows: int | None) -> str:
    return f"{count:,} of {plural(rows, 'row')}" if rows is not None and rows >= count else plural(count, "row")


def _nonfinite(finding: Row, rows: int | None) -> str:
    metric, role, where = finding["metric"], _role(finding), _where(finding)
    count, nan, inf, value = finding["count"], finding["nan"], finding["inf"], finding["first_value"]
    of_rows = _of_rows(count, rows)
    if value is None:
        text = f"the trainer recorded a {metric or 'nan_detected'} event at {where}"
    elif role in COUNTER_ROLES or (math.isfinite(value) and value > 0):
        kind = "Inf" if role == "inf_count" else "NaN"
        text = f"{metric} reports {value:,.0f} {kind} gradient {'value' if value == 1 else 'values'} at {where}"
        if count > 1:
            text += f" ({nan + inf:,} in {of_rows})"
    elif math.isfinite(value):
        over = f"at {where}" if count == 1 or finding["recovered"] else f"from {where} on"
        text = f"{metric} is {number(value)} {over} ({of_rows}), which DeepSpeed writes for a norm that is not finite"
    else:
        mixed = nan > 0 and inf > 0
        tail = f"{nan:,} NaN and {inf:,} Inf in {of_rows}" if mixed else of_rows
        if count == 1:
            text = f"{metric} is {number(value)} at {where} ({tail})"
        elif finding["recovered"]:
            kind = f"not finite ({nan:,} NaN and {inf:,} Inf)" if mixed else number(value)
            text = f"{metric} is {kind} at {of_rows}, the first at {where}, the last at {_last(finding)}"
        elif mixed:
            text = f"{metric} is {number(value)} at {where} and not finite from there on ({tail})"
        else:
            text = f"{metric} is {number(value)} from {where} on ({tail})"
    return text + _lead(finding)


def _lead(finding: Row) -> str:
    """The last good row, and the spikes that lead up to a non-finite row."""
    good, onset = finding["last_good_step"], finding["onset_step"]
    value = finding["last_good_value"]
    if good is not None and value is not None and math.isfinite(value):
        text = f"; the last good value was {number(value)} at step {step(good)}"
    elif good is not None:
        text = f"; the last good step was {step(good)}"
    elif value is not None:
        text = f"; the last good value before it was {number(value)}"
    else:
        text = "; no good row was recorded before it"
    if (
        finding["check"] == "nonfinite"
        and onset is not None
        and finding["first_step"] is not None
        and onset < finding["first_step"]
    ):
        text += f", and spikes lead up to it from step {step(onset)}"
    return text


def _spikes(finding: Row, rows: int | None) -> str:
    metric, count, opening = finding["metric"], finding["count"], finding["count_opening"] or 0
    median, threshold, largest = finding["median"], finding["threshold"], finding["max"]
    over = f"{number(threshold / median)} x its median of {number(median)}" if threshold and median else "its threshold"
    text = f"{metric} exceeds {over} at {_of_rows(count, rows)}"
    first, last = finding["first_step"], finding["last_bad_step"]
    if first is not None and last is not None and last != first:
        text += f" between steps {step(first)} and {step(last)}"
    else:
        text += f" at {_where(finding)}"
    if largest is not None and math.isfinite(largest):
        text += f", up to {number(largest)}"
        if median:
            text += f" ({number(largest / median)} x)"
    if finding["phase"] == "opening":
        outside = count - opening
        text += "; all of them lie" if outside <= 0 else f"; all but {outside:,} lie"
        return text + " in the opening of the training, where large norms are common"
    if opening:
        text += f"; {opening:,} of them lie in the opening"
    return text + _lead(finding)


def _provisos(finding: Row) -> list[str]:
    """What softens or sharpens the finding: other bad signals, one broken metric, a recovery, a later attempt."""
    parts = []
    confidence = finding["confidence"]
    if finding["check"] == "nonfinite":
        others = [item for item in finding.get("evidence") or () if item["metric"] != finding["metric"]]
        if others:
            said = [
                item["metric"] + (f" from step {step(item['first_step'])}" if item["first_step"] is not None else "")
                for item in others
            ]
            parts.append("Also bad: " + _list(said))
        if confidence < 0.8:
            role = _role(finding)
            what = "a part of the loss" if role == "loss_part" else "the loss"
            parts.append(f"Only {what} is bad, the gradients may still be fine (confidence {confidence:.2f})")
        elif confidence < 0.95:
            parts.append(f"This alias is the only evidence (confidence {confidence:.2f})")
    if finding["recovered"] and finding["check"] == "nonfinite":
        parts.append("Finite values follow, but the optimizer's moments may still carry the damage")
    if finding["superseded"]:
        parts.append("A later attempt went over these steps again")
    return parts


_RESTORE_REASONS = {
    "no-checkpoint": "no checkpoint is known",
    "no-step": "the recording has no steps to compare checkpoints with",
    "other-unit": "the checkpoints count something else than the recorded steps",
    "call-counter": "the recorded _step counts calls of log, which need not be steps of the training",
    "no-good-row": "no good row was recorded before the damage",
    "none-before": "every checkpoint is from after the damage began",
    "inside-interval": "it lies between the last good row and the onset",
    "several-attempts": "several attempts cover that step",
    "unverified": "it holds no safetensors files, so its weights could not be verified",
    "no-floats": "its safetensors files hold no floats, so its weights could not be verified",
    "unsupported": "its weights could not be verified: a tensor is of a type that is not known",
    "link": "its weights could not be verified: they are symbolic links, which are not followed",
    "archive": "its weights could not be verified: it lies in an archive",
    "not-met": "its weights could not be verified: only the recording names it",
    "poisoned": "the weights of every one from before the damage hold NaN or Inf, or cannot be read",
}


_UNVERIFIED = ("unverified", "no-floats", "unsupported", "link", "archive", "not-met")


def _restore(finding: Row) -> str:
    # Behind the code: which checkpoints were passed over, and why.
    code, _, passed = (finding.get("restore_reason") or "").partition(": ")
    text = _restored(finding, code)
    return f"{text} ({passed})" if text and passed else text


def _restored(finding: Row, code: str) -> str:
    status, path, at = finding["restore_status"], finding["restore_path"], finding["restore_step"]
    after = finding["checkpoints_after"] or 0
    why = _RESTORE_REASONS.get(code, code.replace("-", " ")) if code else None
    name = _base(path) if path else f"the checkpoint of step {step(at)}"
    if finding["check"] == "spikes" and finding["phase"] == "opening":
        return ""
    if status in ("clean", "verified"):
        text = f"Restore {name}"
        if status == "verified":
            text += ", whose weights are finite"
        elif code in _UNVERIFIED:
            text += f" ({why})"
        # What a later attempt saved after the damage was superseded may well be clean.
        after = 0 if finding["superseded"] else after
        return f"{text}; {plural(after, 'later checkpoint is', 'later checkpoints are')} suspect" if after else text
    if status == "uncertain":
        return f"Restore {name} only after a look at it: {why or 'it may already hold the damage'}"
    if status == "none":
        if why and code != "none-before":
            return f"No checkpoint is known to be clean: {why}"
        return "No checkpoint from before the damage is left"
    if why and code != "no-checkpoint":
        return f"The restore point is unknown: {why}"
    return "No checkpoint is known"


def actions(finding: Row) -> list[str]:
    """What to try, the most useful first."""
    path, at, status = finding["restore_path"], finding["restore_step"], finding["restore_status"]
    point = _base(path) if path else f"the checkpoint of step {step(at)}" if at is not None else None
    if finding["check"] == "nonfinite":
        if status in ("clean", "verified") and point:
            first = f"restore {point}, from before the first bad step; do not train on from a later state"
        elif point:
            first = f"look at {point} for NaN/Inf before you restore it; do not train on from a later state"
        else:
            first = "restore a state from before the first bad step; do not train on from a later one"
        return [
            first,
            "train in bf16 rather than fp16, or check that loss scaling is on and works",
            "lower the learning rate or lengthen the warm-up, and tighten gradient clipping",
            "check the batch at that step and any cached data for NaN/Inf (gradscan.count_nonfinite)",
            "look for a division by zero in loss weights, masks or normalisation",
        ]
    tries = [
        "tighten gradient clipping",
        "lower the learning rate" + (" or lengthen the warm-up" if finding["phase"] == "opening" else ""),
        "inspect the samples of the spiking steps",
        "look at what came before the first spike (KL, completion length, loss)",
    ]
    if finding["phase"] == "run" and status in ("clean", "verified") and point:
        tries.append(f"if the loss did not come back, restore {point}")
    return tries


# ------------------------------------------------------------------------------------------------ runs


def reason(
    code: str | None, detail: str | None = None, *, min_points: int = 10, metrics: Sequence[str] = ()
) -> str | None:
    """Why a run has no verdict, from the code and detail of the scan; None where it needs no reason."""
    if code is None:
        return None
    names = list(metrics) or [name for name in (detail or "").split(", ") if name]
    shown = f"; it records {_list(names, 4)}" if names else ""
    sentences = {
        "no-signal": f"no gradient norm and no training loss was recognised{shown}",
        "too-few-points": f"too few points: {detail or 'only a few'} finite, want {min_points}",
        "empty": "it holds no points",
        "layer-only": "only gradient norms of single layers were recorded, no total",
        "git-lfs-pointer": "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
        "cut-header": detail or "the file ends inside its header",
        "damaged-signal": f"values of {detail or 'its signal'} were recorded, but could not be read",
        "io-error": f"it could not be read: {detail or 'input/output error'}",
        "limit": f"it passes a limit: {detail or 'see the faults'}",
        "link": detail or "it is a symbolic link, not followed",
        "not-a-file": "it is no regular file",
        "not-a-recording": detail or "no reader recognises it",
        "version": f"its format has a version that is not known: {detail or 'see the faults'}",
        "ambiguous": f"several readers claim it: {detail or 'see the faults'}",
        "panic": f"a defect of gradscan, please report it: {detail or 'no message'}",
        "checks-off": "every check is switched off for it",
    }
    if code in sentences:
        return sentences[code]
    return code.replace("-", " ") + (f": {detail}" if detail else "")


_TRACES = {
    "vanished": "the gradient norm and loss stop being recorded while the other columns go on, as they do where a "
    "logger writes NaN as an empty cell",
    "eval-nonfinite": "{metric} is NaN or Inf, though no training signal is: a dead model is often recorded only there",
    "zeroed": "{metric} is exactly 0 to the end, as it is where a NaN filter hides every value",
    "frozen": "{metric} repeats one value to the end, as it does where updates no longer happen",
    "dead-gradient": "every recorded {metric} is 0",
    "skipping": "every update is skipped to the end, or the loss scale fell to its minimum",
    "erased": "{metric} is missing in rows that have a loss, as it is where the logger drops NaN",
    "ambiguous-nan": "{metric} has cells that are NaN or were not recorded, which look the same in a column of pandas "
    "(scan_frame with nan='damage' or nan='missing' says which it is) and as null in a log of wandb before 0.28.1",
}


def suspicion_sentence(row: Row) -> str:
    """One sentence for a row of the suspicions table."""
    rule = row["rule"]
    text = _TRACES.get(rule, rule.replace("-", " ")).format(metric=row["metric"])
    first, good = row["first_step"], row["last_good_step"]
    if first is not None:
        text += f"; from step {step(first)}"
    if good is not None:
        text += f"{',' if first is not None else ';'} last good step {step(good)}"
    return _sentence(text)


# --------------------------------------------------------------------------------------------- explain


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that `explain` knows: its kind, one line, and the whole text."""

    kind: Literal["check", "suspicion", "note", "status", "restore", "audit"]
    summary: str
    text: str


TOPICS: dict[str, Topic] = {
    "nonfinite": Topic(
        "check",
        "a gradient or training loss is NaN or Inf",
        """Fires at the first row where a gradient norm or a training loss is NaN, +Inf or -Inf, where nan_count or
inf_count is positive, or where the trainer recorded a nan_detected event. One row is enough: there is no
innocent explanation.

Why it matters: one NaN in a gradient becomes NaN in the weights that it touches after the optimizer step, then
in the activations, then everywhere. The optimizer's moments carry it on, even past a step or two that look
lucky.

Severity critical, confidence 0.99. Confidence 0.70 if only a loss is bad while the gradient norm of the same
steps is finite: a metric can be broken while the gradients are not. Confidence 0.90 if the only evidence is a
gradient norm of exactly -1, which DeepSpeed writes for one that is not finite.

What to do: restore the last checkpoint from before the onset (restore_path) and do not train on from a later
one; bf16 instead of fp16, or check the loss scaling; lower the learning rate or add warm-up, tighten clipping;
check the batch for NaN/Inf; look for a division by zero in loss weights.""",
    ),
    "spikes": Topic(
        "check",
        "the gradient norm jumps far above its own median, again and again",
        """Fires if at least --min-spikes (3) rows of one gradient-norm series exceed --spike-ratio (10) x the
series' own median and --min-norm (0). Needs --min-points (10) finite values.

Why it matters: spikes are the early, recoverable stage of the disease that ends in NaN: an fp16 overflow, one
malformed sample, a learning rate that is too high. Clipping hides single ones; recurring ones mean that the source
is systematic.

Phase: trainings start with large norms. A finding whose spikes lie in the opening of the training, all but two, has
phase `opening` and is a warning; else phase `run`, critical, confidence 0.85. --opening strict judges every spike
alike, --opening ignore leaves those of the opening out.

What to do: tighten clipping, lower the learning rate, inspect the samples of the spiking steps, look at what came
before the first spike (KL, completion length).""",
    ),
    "vanished": Topic(
        "suspicion",
        "the signal stops being recorded while the rest of the log goes on",
        """After the last row with a gradient norm or loss come at least 3 rows of its own kind without it, and
before that fewer than 10 % of that kind lacked it. pandas writes NaN as an empty cell, Megatron and
fairseq drop the field, JSON loggers write null: what vanished was most likely NaN. Only for formats that
write rows (CSV, JSONL, tables, text).""",
    ),
    "eval-nonfinite": Topic(
        "suspicion",
        "an evaluation loss is NaN or Inf",
        """An evaluation or validation loss is NaN or Inf while no training signal is. A dead model is often
recorded only there: the training loss may be filtered or averaged.""",
    ),
    "zeroed": Topic(
        "suspicion",
        "the training loss is exactly 0.0 to the end",
        """At least 3 rows to the end have a loss of exactly 0.0, and the last other one was above 0.01. The Hugging
Face Trainer's NaN filter does that: if every step of a log window was NaN, the loss that it logs is 0.
Not used where a series shows group-relative reinforcement learning, whose loss is 0 for good reasons.""",
    ),
    "frozen": Topic(
        "suspicion",
        "the gradient norm repeats one value to the end",
        """At least 10 rows to the end have the same gradient norm, other than 0, and before them fewer than 20 % of the
rows had it (so it is not the plateau of clipping). A stale value is logged over and over where updates are
skipped.""",
    ),
    "dead-gradient": Topic(
        "suspicion",
        "every recorded gradient norm is 0",
        """Nothing is learned: the loss is cut off from the parameters, everything is frozen or masked, or the
logger maps a missing norm to 0.""",
    ),
    "skipping": Topic(
        "suspicion",
        "every update is skipped from some step to the end",
        """The trainer counts skipped updates, and from some step on every one was skipped, or the loss scale fell
to its minimum. fp16 training does that when every gradient overflows.""",
    ),
    "erased": Topic(
        "suspicion",
        "rlprobe: rows with a loss but without their gradient norm",
        """In an rlprobe recording a row has a loss but a null gradient norm, where at least 90 % of such rows have one.
Its TRL adapter drops values that are NaN.""",
    ),
    "ambiguous-nan": Topic(
        "suspicion",
        "a column of pandas, a null of an old wandb: NaN, or not recorded",
        """pandas keeps a value that was not recorded as NaN: in float columns of numpy, its default, in categories of
numbers (a row without one) and in columns of Python objects. Where it writes such a column to Parquet or Feather, or
turns it into an Arrow table, every NaN becomes null; the metadata `pandas` of the file tells who wrote it. So a NaN, or
a null in such a file, in a gradient norm or a training loss may be either, and the run is neither damaged nor clean.

What to do in memory: gradscan.scan_frame(frame, nan="damage") if every NaN was recorded, nan="missing" if NaN stands
for empty cells.

What to do with a file: scan has no such setting, since a file that pandas wrote holds both as null. Read it with pandas
and say which it is: gradscan.scan_frame(pandas.read_parquet(path), nan="damage") or nan="missing". Better: scan
the files that the table was made from.

wandb before 0.28.1 writes NaN that is a numpy float16 or float32 as null, as it does a None; a log that does not tell
its version may be such a one. There the losses, the later rows or the console text tell which it was.

Certain, and never suspected: "NaN" as text, Decimal("NaN"), nullable columns (dtype Float64), Arrow-backed ones, and
tables that polars, DuckDB or pyarrow wrote from values of their own.""",
    ),
    "sparse-log": Topic(
        "note",
        "at most one row in 100 steps was logged",
        """The median distance between two rows is 100 steps or more. The damage began somewhere between
last_good_step and onset_step; spikes between two rows were never recorded.""",
    ),
    "clipped-norm": Topic(
        "note",
        "the recorded norm is the clipped one: spikes are invisible",
        """More than half of the values lie within 0.1 % of one value and none above it. The norm was recorded after
clipping, so a spike cannot be seen in it. Record the norm from before.""",
    ),
    "zero-median": Topic(
        "note",
        "the median gradient norm is 0: no spike test",
        """At least half of the gradient norms are 0, so a multiple of the median means nothing. Only the check
nonfinite was made.""",
    ),
    "gap": Topic(
        "note",
        "rows of the signal's own kind lack it",
        """Some rows that should hold the gradient norm or the loss do not. A logger that drops NaN leaves such
gaps, and so do crashes of the logger.""",
    ),
    "loss-only": Topic(
        "note",
        "no gradient norm was recorded, only the loss was checked",
        """Clean here means that the training loss stayed finite. Spikes of the gradient norm cannot be seen. Most
trainers can log it: see `gradscan.roles()` for the names.""",
    ),
    "partial-coverage": Topic(
        "note",
        "the signal ends before the middle of the recording",
        """The last step with a gradient norm or loss is below half of the last step of the recording
(runs.coverage). The verdict holds up to that step and says nothing about the rest.""",
    ),
    "too-few-points": Topic(
        "note",
        "fewer finite gradient norms than --min-points",
        """The median of so few values means little: the check spikes was not made on that series. The check nonfinite
needs one row.""",
    ),
    "resumed": Topic(
        "note",
        "the step went back: the training was resumed",
        """A step that goes backwards starts a new attempt. All attempts are kept and checked; a finding says its
attempt, and `superseded` if a later one went over the same steps again.""",
    ),
    "restarted": Topic(
        "note",
        "the recording holds several trainings from the start",
        """An attempt that starts at or before the first step of the one before it is a training of its own and is
judged on its own: its own median, counts and opening.""",
    ),
    "interleaved": Topic(
        "note",
        "the steps are not in order: judged in step order",
        """More than 5 % of the rows, and at least 8, go backwards. That is no resumed run but several writers in
one file, or a file that was sorted otherwise. All rows are one attempt.""",
    ),
    "truncated": Topic(
        "note",
        "the file ends in the middle of a record",
        """The run died while writing, or the file was cut in copying. All points before the cut were read.""",
    ),
    "unterminated": Topic(
        "note",
        "the last record has no end mark",
        """The last line or cell is complete but not closed. It was read.""",
    ),
    "negative-norm": Topic(
        "note",
        "a gradient norm is negative",
        """A norm cannot be. -1 is DeepSpeed's sign for "not finite" and is checked as such; other negative values
suggest that the series is something else.""",
    ),
    "no-step": Topic(
        "note",
        "no step was recorded: rows are numbered in order",
        """No column of the recording is a known step. Name one with --step; until then rows are counted from 0.""",
    ),
    "fractional-step": Topic(
        "note",
        "steps that are no integers were rounded down",
        """The step column holds fractions (epochs, say). Findings name the step rounded down.""",
    ),
    "empty": Topic(
        "note",
        "the recording holds no points",
        """The file is valid but was never written to: the run died before its first log.""",
    ),
    "damaged": Topic(
        "status",
        "NaN/Inf was found, or spikes in the run",
        """The run has a finding of the check nonfinite, or one of the check spikes with phase `run`. See the
findings for the first bad step and the restore point.""",
    ),
    "suspect": Topic(
        "status",
        "no NaN was recorded, but the traces of one are",
        """See the suspicions table for the rule and the step.""",
    ),
    "opening": Topic(
        "status",
        "spikes only in the opening of the training",
        """Large gradient norms at the start are common and mostly harmless; they are counted and set apart. --opening
strict judges them like any other.""",
    ),
    "unreadable": Topic(
        "status",
        "nothing could be read; the reason says why",
        """Never counted as clean. Exit code 3 tells a batch job that its picture has holes.""",
    ),
    "not_assessable": Topic(
        "status",
        "it was read, but holds too little for a verdict",
        """No signal was recognised, or fewer than --min-points values of it. Never counted as clean. If the series
has an unusual name: --metric grad_norm=NAME.""",
    ),
    "clean": Topic(
        "status",
        "checked, and nothing was found",
        """At least --min-points finite gradient norms, or training losses where no norm was recorded (note
loss-only), and no check fired. How far it reaches: runs.coverage.""",
    ),
    "restore": Topic(
        "restore",
        "the last checkpoint from before the damage",
        """restore_status `clean`: the newest checkpoint at or before the last good step. `uncertain`: the only ones lie
between the last good step and the onset, or several attempts cover that step. `none`: no checkpoint from before
the damage is left. `unknown`: no checkpoint is known, or its number counts something else than the recorded
steps (epochs, samples, tokens). Only names, sizes and completeness markers are looked at; no checkpoint is
opened.

With --verify-checkpoints the safetensors files of the restore point are read: see `verified`, `unverified` and
`poisoned`.""",
    ),
    "verified": Topic(
        "restore",
        "the weights of the restore point were read: all are finite",
        """restore_status with --verify-checkpoints: every value in the safetensors files of the checkpoint, all shards
of an index, is a number. Optimizer states in pickles (optimizer.pt) are not read: pickles are never loaded.""",
    ),
    "unverified": Topic(
        "restore",
        "the weights of the restore point could not be read",
        """A reason beside the restore point, with --verify-checkpoints: nothing that may hold floats could be looked
at (pickles are never loaded, links not followed, a path that only the recording names is never opened). By its place it
is from before the damage; whether its weights are finite is not known.

What to do: load it yourself and call gradscan.assert_finite(model.state_dict()), or save safetensors.""",
    ),
    "poisoned": Topic(
        "restore",
        "the weights of every checkpoint from before the damage hold NaN",
        """A reason beside restore_status `none`, with --verify-checkpoints: each checkpoint from before the first bad
step holds NaN or Inf in its weights, or cannot be read. The damage is older than what was recorded of it.

What to do: `gradscan audit CHECKPOINT` lists the tensors; go back to an older copy of the training, or its start.""",
    ),
    "audit": Topic(
        "audit",
        "counts NaN and Inf in data and weights, by column and tensor",
        """`gradscan audit PATH` and gradscan.audit(path_or_frame) read safetensors, npy, npz, Parquet, Arrow and
Feather files, and frames: for each tensor or column how many values are NaN or Inf, the first row that holds one, and
how many rows do. nulls are left out. Integers and text have no row.

What could not be read to its end is a fault and never clean: exit code 3 (1 if some value is NaN or Inf). Pickles are
never loaded. CSV is not audited: gradscan scan reads it.

A pandas frame is counted by its values: NaN counts as NaN, though pandas may mean a missing value by it. A table that
was made of a pandas frame (Arrow, Parquet, Feather) has null in place of NaN: there an audit finds nothing.""",
    ),
}

KINDS = {
    "check": "checks",
    "suspicion": "suspicions",
    "note": "notes",
    "status": "status of a run",
    "restore": "restore point",
    "audit": "audits",
}

_COLUMNS = {"restore_status": "restore", "restore_step": "restore", "restore_path": "restore"}
"""Columns of the tables that a topic explains."""


def explain(name: str) -> str:
    """What a name of the tables means (a check, a note, a status ...), why it matters and what to do: plain text.

    Raises `ValueError` for a name that does not exist; the message lists those that do.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: got {name!r}, want a check, suspicion, note or status as a string")
    key = name.strip().lower()
    key = _COLUMNS.get(key.replace("-", "_"), key)
    topic = TOPICS.get(key) or TOPICS.get(key.replace("_", "-")) or TOPICS.get(key.replace("-", "_"))
    if topic is None:
        import difflib

        near = difflib.get_close_matches(key, TOPICS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"want one of {', '.join(TOPICS)}"
        raise ValueError(f"name: got {name!r}, which is no check, suspicion, note or status; {hint}")
    paragraphs = [" ".join(part.split("\n")) for part in topic.text.split("\n\n")]
    canonical = next(known for known, candidate in TOPICS.items() if candidate is topic)
    return "\n\n".join([f"{canonical} ({topic.kind}): {topic.summary}", *paragraphs])
