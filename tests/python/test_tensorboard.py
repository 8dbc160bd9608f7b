"""TensorBoard event files: what is read equals what TensorBoard's own readers give where they are right, and what they
hide or lose is kept. Each test of the second kind shows first that they do.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboardX import SummaryWriter

import event_files as ef
import gradscan as gs
from conftest import ROOT, Count
from gradscan import api
from makers import INF, NAN, Training, git_lfs_pointer, norms
from tensorboard_readers import DataServer, Points, accumulated, served

Row = tuple[int, float]  # step, value
Encode = Callable[[str, float], bytes]

FIXTURES = ROOT / "tests" / "data" / "tensorboard"
NORM, LOSS = "train/grad_norm", "train/loss"


def scan(path: Path, **knobs: Any) -> gs.Scan:
    return gs.scan(path, progress=False, **knobs)


def run_of(found: gs.Scan) -> dict[str, Any]:
    """The only row of `runs`."""
    (row,) = found.runs.iter_rows(named=True)
    return row


def only(frame: pl.DataFrame) -> dict[str, Any]:
    (row,) = frame.iter_rows(named=True)
    return row


def same(got: Points, want: Points) -> None:
    """Equal steps and values, NaN equal to NaN."""
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def agrees(directory: Path) -> int:
    """Every series read equals EventAccumulator's; returns the number of points compared."""
    want = accumulated(directory)
    recording = gs.read(directory)
    assert sorted(recording.names) == sorted(want)
    for tag, series in want.items():
        same(recording.series(tag), series)
    return sum(len(steps) for steps, _ in want.values())


def exit_code(*arguments: str | Path) -> int:
    command = [sys.executable, "-m", "gradscan", "scan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def training(steps: Iterable[int], put: Mapping[int, float] | None = None, seed: int = 0) -> Training:
    """Gradient norms around 0.75 at `steps`; `put` replaces values by step."""
    own = list(steps)
    values = norms(len(own), seed)
    for step, value in (put or {}).items():
        values[own.index(step)] = value
    return Training(values, own)


def write(
    directory: Path, rows: Training, *, second: int = 0, before: Iterable[bytes] = (), begin: bool = True
) -> Path:
    """One event file of loss and gradient norm, begun at `second`; the payloads `before` come first."""
    name = ef.file_name(ef.WALL + second)
    return ef.event_file(directory, [*before, *ef.rows(rows, second)], name=name, begin=begin)


def steps_of(points: Points) -> list[int]:
    return [int(step) for step in points[0]]


def nan_steps(points: Points) -> list[int]:
    steps, values = points
    return [int(step) for step in steps[np.isnan(values)]]


# --- The writers of these tests --------------------------------------------------------------------------------------


def test_known_bytes() -> None:
    """Records and payloads that were taken from files of TensorBoard, TF2 and torch."""
    plain = ef.event(7, ef.summary(ef.simple("g", NAN)), wall=1.0)
    assert ef.record(plain).hex(" ") == (
        "17 00 00 00 00 00 00 00 e7 ce f8 1e 09 00 00 00 00 00 00 f0 3f 10 07 2a 0a 0a 08 0a 01 67 15 00 00 c0 7f "
        "c8 8c ec 7c"
    )
    assert ef.event(7, ef.summary(ef.tf2("g", 2.5)), wall=1.0).hex(" ") == (
        "09 00 00 00 00 00 00 f0 3f 10 07 2a 1e 0a 1c 0a 01 67 42 0a 08 01 12 00 22 04 00 00 20 40 4a 0b 0a 09 0a 07 "
        "73 63 61 6c 61 72 73"
    )
    assert ef.event(7, ef.summary(ef.torch_new_style("g", 2.5, double=True)), wall=1.0).hex(" ") == (
        "09 00 00 00 00 00 00 f0 3f 10 07 2a 20 0a 1e 0a 01 67 42 0c 08 02 32 08 00 00 00 00 00 00 04 40 4a 0b 0a 09 "
        "0a 07 73 63 61 6c 61 72 73"
    )
    assert ef.number(2, -1).hex(" ") == "10 ff ff ff ff ff ff ff ff ff 01"


@pytest.mark.parametrize("first", [0, 1, 16_000, 2**21 + 1])
def test_big_files_are_what_tensorboard_writes(tmp_path: Path, first: int) -> None:
    steps = np.arange(first, first + 1200, 4)
    walls = ef.WALL + steps * 0.25
    rng = np.random.default_rng(7)
    tags = {tag: rng.normal(size=len(steps)).astype(np.float32) for tag in (LOSS, NORM, "perf/step_time")}
    tags[NORM][7:9] = np.nan, np.inf
    start = Event(
        wall_time=ef.WALL,
        file_version="brain.Event:2",
        source_metadata=SourceMetadata(writer="tensorboard.summary.writer.event_file_writer"),
    )
    with mock.patch("time.time", return_value=ef.WALL):
        writer = EventFileWriter(str(tmp_path / "slow"))
        for k, step in enumerate(steps.tolist()):
            for tag, values in tags.items():
                value = Summary.Value(tag=tag, simple_value=float(values[k]))
                writer.add_event(Event(wall_time=walls[k], step=step, summary=Summary(value=[value])))
        writer.close()
    (slow,) = (tmp_path / "slow").iterdir()
    fast = ef.big_event_file(tmp_path / "fast", steps, walls, tags, start.SerializeToString())
    assert fast.read_bytes() == slow.read_bytes()


# --- The same as EventAccumulator, where that is right ----------------------------------------------------------------


def by_tensorboard(directory: Path, rows: list[Row]) -> None:
    writer = EventFileWriter(str(directory))
    for k, (step, value) in enumerate(rows):
        for tag, recorded in ((LOSS, value / 2), (NORM, value)):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=recorded)])
            writer.add_event(Event(wall_time=ef.WALL + k, step=step, summary=summary))
    writer.close()


def by_tensorboard_x(directory: Path, rows: list[Row]) -> None:
    with mock.patch("tensorboardX.summary.logger"):  # it warns of each NaN
        writer = SummaryWriter(str(directory))
        for k, (step, value) in enumerate(rows):
            writer.add_scalar(LOSS, value / 2, step, walltime=ef.WALL + k)
            writer.add_scalar(NORM, value, step, walltime=ef.WALL + k)
        writer.close()


def encoded(encode: Encode) -> Callable[[Path, list[Row]], None]:
    def by_bytes(directory: Path, rows: list[Row]) -> None:
        values = [
            (k, step, tag, v) for k, (step, value) in enumerate(rows) for tag, v in ((LOSS, value / 2), (NORM, value))
        ]
        ef.event_file(directory, [ef.event(s, ef.summary(encode(tag, v)), ef.WALL + k) for k, s, tag, v in values])

    return by_bytes


def merged(directory: Path, rows: list[Row]) -> None:
    events = (
        ef.event(step, ef.summary(ef.simple(LOSS, value / 2), ef.tf2("lr", 0.1), ef.simple(NORM, value)), ef.WALL + k)
        for k, (step, value) in enumerate(rows)
    )
    ef.event_file(directory, events)


def as_half(tag: str, value: float) -> bytes:
    (bits,) = struct.unpack("<H", np.float16(value).tobytes())
    return ef.tensor(tag, ef.HALF, ef.chunk(13, ef.varint(bits)))


def as_double(tag: str, value: float) -> bytes:
    return ef.tensor(tag, ef.DOUBLE, ef.chunk(4, struct.pack("<d", value)))


def as_vector(tag: str, value: float) -> bytes:
    return ef.tensor(tag, ef.FLOAT, ef.chunk(5, ef.single(value)), shape=ef.dimensions(1))


WRITERS: dict[str, Callable[[Path, list[Row]], None]] = {
    "tensorboard": by_tensorboard,
    "tensorboardX": by_tensorboard_x,
    "merged": merged,
    "tf2": encoded(ef.tf2),
    "torch": encoded(ef.torch_new_style),
    "torch-double": encoded(lambda tag, value: ef.torch_new_style(tag, value, double=True)),
    "double": encoded(as_double),
    "half": encoded(as_half),
    "vector": encoded(as_vector),
}

VALUES = st.floats(width=16, allow_nan=True, allow_infinity=True, allow_subnormal=True)
STEPS = st.one_of(st.integers(0, 300), st.integers(-3, 3), st.integers(-(2**62), 2**62))


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=20)
@given(rows=st.lists(st.tuples(STEPS, VALUES), min_size=1, max_size=40))
def test_same_as_event_accumulator(writer: str, rows: list[Row]) -> None:
    """Any steps in any order and any values, in every encoding."""
    with TemporaryDirectory() as folder:
        WRITERS[writer](Path(folder), rows)
        assert agrees(Path(folder)) >= 2 * len(rows)


@pytest.mark.parametrize("files", [2, 5])
def test_several_files_are_one_recording(tmp_path: Path, files: int) -> None:
    for k in range(files):
        write(tmp_path, training(range(1 + 15 * k, 21 + 15 * k), seed=k), second=60 * k)
    assert agrees(tmp_path) == files * 40
    assert run_of(scan(tmp_path))["attempts"] == files


# In these EventAccumulator loses points, or fails on a type; `empty-file` and the like have none.
NOT_THE_SAME = {"dtypes", "bad-payload-checksum", "bad-length-checksum", "metadata-first"}


def test_fixtures_are_the_same(count: Count) -> None:
    compared = 0
    for fixture in sorted(FIXTURES.iterdir()):
        homes = sorted({path.parent for path in fixture.rglob("*tfevents*")})
        if fixture.name not in NOT_THE_SAME and fixture.name != "lfs-pointer":
            for home in homes:
                # Read as files: a folder may have others below it.
                with TemporaryDirectory() as folder:
                    for path in home.glob("*tfevents*"):
                        (Path(folder) / path.name).write_bytes(path.read_bytes())
                    compared += agrees(Path(folder))
    count("points of fixtures compared with EventAccumulator", compared)


def test_values_keep_their_precision(tmp_path: Path) -> None:
    """The median of float32 values is that of the exact numbers, and doubles are not cut to single precision."""
    values = [0.1 + k / 7 for k in range(20)]
    for name, encode, dtype in (("single", ef.simple, np.float32), ("double", as_double, np.float64)):
        encoded(encode)(tmp_path / name, list(enumerate(values)))
        (got,) = scan(tmp_path / name).series.filter(pl.col("role") == "grad_norm")["median"]
        assert got == float(np.median(np.array(values, dtype).astype(np.float64)))


# --- Types that TensorBoard's readers do not show ---------------------------------------------------------------------


def test_doubles_and_halves_vanish_from_the_web_page(tmp_path: Path) -> None:
    rows = [(k, NAN if k == 17 else 0.5 + k / 64) for k in range(20)]
    for name, encode in (("double", as_double), ("half", as_half)):
        encoded(encode)(tmp_path / name, rows)
        assert served(tmp_path / name) == {}
        found = only(scan(tmp_path / name).findings)
        assert (found["first_step"], found["metric"], found["nan"]) == (17, NORM, 1)


@pytest.mark.parametrize(
    ("tag", "values"),
    [
        ("half/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("bfloat16/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("torch_half/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("double/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("unpacked/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("vector/grad_norm", [0.5, 1.5, NAN, 2.5]),
        ("int32/nan_count", [0, 0, 3, 0]),
        ("int64/nan_count", [0, 0, 3, 0]),
        ("uint8/nan_count", [0, 0, 3, 0]),
        ("bool/found_inf", [0, 0, 1, 0]),
        ("e5m2/grad_norm", [1, 1, NAN, 1]),
        ("e4m3/grad_norm", [1, 1, NAN, 1]),
    ],
)
def test_every_numeric_type(tag: str, values: list[float]) -> None:
    same(gs.read(FIXTURES / "dtypes").series(tag), (np.arange(4), np.array(values, np.float64)))


def test_a_matrix_is_no_scalar() -> None:
    assert "matrix/grad_norm" not in gs.read(FIXTURES / "dtypes").names


def test_event_accumulator_fails_on_small_types() -> None:
    """Why the types above are written down and not compared."""
    with pytest.raises((TypeError, OverflowError)):
        accumulated(FIXTURES / "dtypes")


def test_plugins_are_remembered_across_files() -> None:
    """Metadata stands on the first value of a tag only: what was no scalar there is none in the next file."""
    assert "curve" in accumulated(FIXTURES / "metadata-first")
    recording = gs.read(FIXTURES / "metadata-first")
    assert recording.names == ["grad_norm"]
    assert nan_steps(recording.series("grad_norm")) == [13]
    assert steps_of(recording.series("grad_norm")) == list(range(1, 15))


# --- Restarts --------------------------------------------------------------------------------------------------------


def test_a_nan_that_a_resumed_run_wrote_over(tmp_path: Path) -> None:
    """The web page shows the last value of a step only: the NaN is gone there."""
    write(tmp_path, training(range(1, 41), {30: NAN, 31: NAN}))
    write(tmp_path, training(range(21, 61), seed=1), second=3600)
    assert nan_steps(served(tmp_path)[NORM]) == []
    assert nan_steps(gs.read(tmp_path).series(NORM)) == [30, 31]

    found = scan(tmp_path)
    run, bad = run_of(found), only(found.findings)
    assert (run["status"], run["attempts"], "resumed" in run["notes"]) == ("damaged", 2, True)
    assert (bad["first_step"], bad["onset_step"], bad["last_good_step"], bad["nan"]) == (30, 30, 29, 2)
    assert (bad["attempt"], bad["superseded"], bad["recovered"]) == (1, True, True)
    (series,) = found.series.filter(pl.col("metric") == NORM).iter_rows(named=True)
    assert (series["n"], series["nan"]) == (80, 2)


def test_a_nan_after_the_resumption_is_not_superseded(tmp_path: Path) -> None:
    write(tmp_path, training(range(1, 41)))
    write(tmp_path, training(range(21, 61), {50: INF}, seed=1), second=3600)
    bad = only(scan(tmp_path).findings)
    assert (bad["first_step"], bad["attempt"], bad["superseded"], bad["inf"]) == (50, 2, False, 1)


def test_a_nan_before_a_start_event(tmp_path: Path) -> None:
    """torch's `purge_step` writes a START: EventAccumulator then forgets what came after that step before."""
    write(tmp_path, training(range(1, 41), {30: NAN, 31: NAN}))
    write(tmp_path, training(range(21, 61), seed=1), second=3600, before=[ef.session(21, ef.START)])
    assert nan_steps(accumulated(tmp_path, purge=True)[NORM]) == []
    agrees(tmp_path)  # which here does not purge
    bad = only(scan(tmp_path).findings)
    assert (bad["first_step"], bad["superseded"], bad["attempt"]) == (30, True, 1)


def test_a_nan_in_files_without_a_version(tmp_path: Path) -> None:
    """Without `brain.Event:2` EventAccumulator forgets whenever a step goes back."""
    write(tmp_path, training(range(1, 41), {30: NAN}), begin=False)
    write(tmp_path, training(range(21, 61), seed=1), second=3600, begin=False)
    assert nan_steps(accumulated(tmp_path, purge=True)[NORM]) == []
    assert only(scan(tmp_path).findings)["first_step"] == 30


def test_a_resumption_inside_one_file(tmp_path: Path) -> None:
    rows = [*ef.rows(training(range(1, 41), {30: NAN})), *ef.rows(training(range(21, 61), seed=1))]
    ef.event_file(tmp_path, rows)
    assert nan_steps(served(tmp_path)[NORM]) == []
    found = scan(tmp_path)
    bad = only(found.findings)
    assert (bad["first_step"], bad["superseded"], run_of(found)["attempts"]) == (30, True, 2)


def test_a_restart_is_judged_on_its_own(tmp_path: Path) -> None:
    """Pooled, the norms of the second training would be far below ten times the median of both."""
    write(tmp_path, training(range(1, 101), {70: NAN}))
    small = Training([0.01] * 100, list(range(1, 101)))
    for step in (80, 85, 90):
        small.norms[step - 1] = 0.5
    write(tmp_path, small, second=3600)
    assert nan_steps(served(tmp_path)[NORM]) == []

    found = scan(tmp_path)
    run = run_of(found)
    assert (run["status"], run["attempts"], "restarted" in run["notes"]) == ("damaged", 2, True)
    checks = {bad["check"]: bad for bad in found.findings.iter_rows(named=True)}
    assert len(found.findings) == len(checks) == 2
    nonfinite, spikes = checks["nonfinite"], checks["spikes"]
    assert (nonfinite["first_step"], nonfinite["attempt"], nonfinite["superseded"]) == (70, 1, True)
    assert (spikes["first_step"], spikes["count"], spikes["attempt"], spikes["phase"]) == (80, 3, 2, "run")
    assert spikes["median"] == float(np.float32(0.01))


def test_attempts_are_those_of_the_densest_signal(tmp_path: Path) -> None:
    """A reward by episode and a sparse loss have steps of their own: neither makes an attempt, both belong to one."""
    rows: list[bytes] = []
    for step in [*range(1, 101), *range(51, 151)]:
        rows.append(ef.event(step, ef.summary(ef.simple(NORM, 0.5 + step % 7 / 64)), ef.WALL + len(rows)))
        if step % 10 == 0:
            loss = NAN if len(rows) > 150 and step == 90 else 1.5
            rows.append(ef.event(step, ef.summary(ef.simple(LOSS, loss)), ef.WALL + len(rows)))
        if step % 25 == 0:
            rows.append(ef.event(1000 - step, ef.summary(ef.simple("episode/reward", 1.0)), ef.WALL + len(rows)))
    ef.event_file(tmp_path, rows)
    found = scan(tmp_path)
    run, bad = run_of(found), only(found.findings)
    assert (run["attempts"], "resumed" in run["notes"], "restarted" in run["notes"]) == (2, True, False)
    assert run["last_step"] == 150
    assert (bad["metric"], bad["first_step"], bad["attempt"], bad["superseded"]) == (LOSS, 90, 2, False)
    assert bad["confidence"] == 0.7


def test_every_point_at_step_zero(tmp_path: Path) -> None:
    """A script that never passes its step: the web page keeps one point."""
    rows = [
        ef.event(None, ef.summary(ef.simple(NORM, NAN if k == 9 else 0.5 + k / 64)), ef.WALL + k) for k in range(30)
    ]
    ef.event_file(tmp_path, rows)
    assert len(served(tmp_path)[NORM][0]) == 1
    steps, values = gs.read(tmp_path).series(NORM)
    assert (steps.tolist(), np.flatnonzero(np.isnan(values)).tolist()) == ([0] * 30, [9])
    bad = only(scan(tmp_path).findings)
    assert (bad["first_step"], bad["nan"]) == (0, 1)


def test_long_series_are_not_sampled(tmp_path: Path) -> None:
    """EventAccumulator keeps 10,000 points of a tag unless told otherwise: the NaN is one of those that it drops."""
    steps = np.arange(1, 12_001)
    values = np.full(len(steps), 0.5, np.float32)
    path = tmp_path / ef.file_name()
    ef.big_event_file(path, steps, ef.WALL + steps, {NORM: values})
    kept = accumulated(tmp_path, keep={"scalars": 10_000, "tensors": 10})[NORM][0]
    bad = int(np.setdiff1d(steps, kept)[40])
    values[bad - 1] = np.nan
    ef.big_event_file(path, steps, ef.WALL + steps, {NORM: values})
    assert nan_steps(accumulated(tmp_path, keep={"scalars": 10_000, "tensors": 10})[NORM]) == []
    assert agrees(tmp_path) == 12_000
    assert only(scan(tmp_path).findings)["first_step"] == bad


def test_a_point_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    """Two ranks in one file: same step, value and wall time."""
    once = [*ef.rows(training(range(1, 31), {20: NAN}))]
    ef.event_file(tmp_path, [payload for payload in once for _ in range(2)])
    steps, values = gs.read(tmp_path).series(NORM)
    assert (steps.tolist(), int(np.isnan(values).sum())) == (list(range(1, 31)), 1)
    assert only(scan(tmp_path).findings)["nan"] == 1


# --- Damage ----------------------------------------------------------------------------------------------------------


def damage(path: Path, change: Callable[[bytes, list[int]], bytes]) -> None:
    path.write_bytes(change(path.read_bytes(), list(ef.offsets(path))))


def flip(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]


def record_of(step: int, *, norm: bool = True) -> int:
    """Which record of a file of `write` holds the gradient norm (or loss) of a step, counted from 1."""
    return 2 * step - (not norm)


def test_a_wrong_payload_checksum_costs_one_record(tmp_path: Path) -> None:
    """EventAccumulator stops at the record; the data server shows the wrong value as data."""
    path = write(tmp_path, training(range(1, 41), {30: NAN}))
    value = record_of(12)
    begin = ef.offsets(path)[value]
    length = ef.offsets(path)[value + 1] - begin - 16
    damage(path, lambda whole, at: flip(whole, at[value] + 12 + length - 2))
    assert steps_of(accumulated(tmp_path)[NORM]) == list(range(1, 12))
    shown = dict(zip(*map(np.ndarray.tolist, served(tmp_path)[NORM]), strict=True))
    assert shown[12] != np.float32(norms(40)[11])

    assert steps_of(gs.read(tmp_path).series(NORM)) == [step for step in range(1, 41) if step != 12]
    assert steps_of(gs.read(tmp_path).series(LOSS)) == list(range(1, 41))
    found = scan(tmp_path)
    fault = only(found.faults)
    assert (fault["kind"], fault["severity"], fault["place"]) == ("bad-checksum", "warning", f"byte {begin}")
    assert fault["source"].endswith(path.name)
    assert only(found.findings)["first_step"] == 30


def test_a_wrong_length_checksum_is_passed_over(tmp_path: Path) -> None:
    """Both of TensorBoard's readers stop; the next record is found by its own checksum."""
    path = write(tmp_path, training(range(1, 41), {30: NAN}))
    begin = ef.offsets(path)[record_of(12)]
    damage(path, lambda whole, at: flip(whole, at[record_of(12)] + 1))
    assert steps_of(accumulated(tmp_path)[NORM]) == list(range(1, 12))
    assert steps_of(served(tmp_path)[NORM]) == list(range(1, 12))

    assert steps_of(gs.read(tmp_path).series(NORM)) == [step for step in range(1, 41) if step != 12]
    assert steps_of(gs.read(tmp_path).series(LOSS)) == list(range(1, 41))
    found = scan(tmp_path)
    fault = only(found.faults)
    assert (fault["kind"], fault["severity"], fault["place"]) == ("bad-checksum", "warning", f"byte {begin}")
    assert only(found.findings)["first_step"] == 30


def test_foreign_bytes_between_records_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, training(range(1, 41), {30: NAN}))
    junk = np.random.default_rng(3).bytes(5000)
    damage(path, lambda whole, at: whole[: at[record_of(20)]] + junk + whole[at[record_of(20)] :])
    assert steps_of(accumulated(tmp_path)[NORM]) == list(range(1, 20))
    assert steps_of(gs.read(tmp_path).series(NORM)) == list(range(1, 41))
    assert only(scan(tmp_path).findings)["first_step"] == 30


def test_a_cut_tail_is_normal(tmp_path: Path) -> None:
    path = write(tmp_path, training(range(1, 41)))
    begin = ef.offsets(path)[-1]
    damage(path, lambda whole, at: whole[: at[-1] + 20])
    assert agrees(tmp_path) == 79
    found = scan(tmp_path)
    fault = only(found.faults)
    assert (fault["kind"], fault["severity"], fault["place"]) == ("truncated", "info", f"byte {begin}")
    run = run_of(found)
    assert (run["status"], "truncated" in run["notes"]) == ("clean", True)


def test_a_cut_anywhere_keeps_the_records_before_it(tmp_path: Path) -> None:
    """At each byte, what EventAccumulator reads, and what it does not name: where the file ends."""
    path = write(tmp_path, training(range(1, 4), {2: NAN}))
    whole, at = path.read_bytes(), list(ef.offsets(path))
    for end in range(at[1], len(whole)):
        path.write_bytes(whole[:end])
        if end == at[1]:
            assert gs.read(tmp_path).names == []
            continue
        recording = gs.read(tmp_path)
        want = accumulated(tmp_path)
        assert sorted(recording.names) == sorted(want), end
        for tag, series in want.items():
            same(recording.series(tag), series)
        assert recording.faults["kind"].to_list() == ([] if end in at else ["truncated"]), end


def test_the_file_after_a_cut_one_is_read(tmp_path: Path) -> None:
    damage(write(tmp_path, training(range(1, 41))), lambda whole, at: whole[: at[-1] + 33])
    write(tmp_path, training(range(41, 81), {60: NAN}), second=3600)
    assert agrees(tmp_path) == 159
    found = scan(tmp_path)
    assert only(found.findings)["first_step"] == 60
    assert only(found.faults)["kind"] == "truncated"


def test_the_file_after_a_broken_one_is_read(tmp_path: Path) -> None:
    damage(write(tmp_path, training(range(1, 41))), lambda whole, at: flip(whole, at[30] + 40))
    write(tmp_path, training(range(41, 81), {60: NAN}), second=3600)
    assert only(scan(tmp_path).findings)["first_step"] == 60


def test_a_tail_of_zeros(tmp_path: Path) -> None:
    """What a crashed file system leaves."""
    path = write(tmp_path, training(range(1, 41)))
    damage(path, lambda whole, _: whole + bytes(100_000))
    assert agrees(tmp_path) == 80
    found = scan(tmp_path)
    assert run_of(found)["status"] == "clean"
    assert found.faults["severity"].to_list() == ["info"]
    assert exit_code(tmp_path) == 0


def test_zeros_between_records(tmp_path: Path) -> None:
    path = write(tmp_path, training(range(1, 41), {30: NAN}))
    damage(path, lambda whole, at: whole[: at[21]] + bytes(4096) + whole[at[21] :])
    assert steps_of(accumulated(tmp_path)[NORM])[-1] < 12
    assert steps_of(gs.read(tmp_path).series(NORM)) == list(range(1, 41))


def test_a_wall_time_of_nan(tmp_path: Path) -> None:
    """The data server drops the file from there on."""
    rows = [*ef.rows(training(range(1, 41), {30: NAN}))]
    rows[record_of(12) - 1] = ef.event(12, ef.summary(ef.simple(NORM, 0.5)), wall=NAN)
    ef.event_file(tmp_path, rows)
    assert steps_of(served(tmp_path)[NORM]) == list(range(1, 12))
    assert agrees(tmp_path) == 80
    found = scan(tmp_path)
    assert only(found.findings)["first_step"] == 30
    assert found.faults["severity"].to_list() in ([], ["info"])


def test_exit_codes(tmp_path: Path) -> None:
    """A cut tail is normal; damage that was skipped is not; a finding comes first."""
    cut, skipped, bad = tmp_path / "cut", tmp_path / "skipped", tmp_path / "bad"
    damage(write(cut, training(range(1, 41))), lambda whole, _: whole[:-7])
    damage(write(skipped, training(range(1, 41))), lambda whole, at: flip(whole, at[20] + 40))
    write(bad, training(range(1, 41), {30: NAN}))
    lfs = git_lfs_pointer(tmp_path / "lfs" / ef.file_name()).parent
    assert [exit_code(path) for path in (cut, skipped, bad, lfs, tmp_path)] == [0, 3, 1, 3, 1]
    assert [exit_code(path, "--fail-on", "never") for path in (skipped, bad, lfs)] == [0, 0, 0]


def test_files_without_points() -> None:
    for name in ("header-only", "empty-file"):
        run = run_of(scan(FIXTURES / name))
        assert (run["status"], "empty" in run["notes"]) == ("not_assessable", True), name
    run = run_of(scan(FIXTURES / "lfs-pointer"))
    assert run["status"] == "unreadable"
    assert "git" in run["reason"].lower()


# --- Restore points --------------------------------------------------------------------------------------------------


def saved(directory: Path, steps: Iterable[int], checkpoints: Iterable[int], bad: int) -> dict[str, Any]:
    """The finding of a training with gradient norms at `steps`, NaN from `bad` on, checkpoints in its session log."""
    own = {
        step: ef.event(step, ef.summary(ef.simple(NORM, NAN if step >= bad else 0.5 + step % 7 / 64))) for step in steps
    }
    log = {step: ef.session(step, ef.CHECKPOINT, f"/models/run/model.ckpt-{step}") for step in checkpoints}
    order = sorted([*((step, 0, row) for step, row in own.items()), *((step, 1, row) for step, row in log.items())])
    ef.event_file(directory, [row for _, _, row in order])
    return only(scan(directory).findings)


def test_the_session_log_names_a_restore_point(tmp_path: Path) -> None:
    found = saved(tmp_path, range(1, 61), (10, 20, 30, 40, 50), 36)
    assert (found["restore_step"], found["restore_status"], found["checkpoints_after"]) == (30, "clean", 2)
    assert found["restore_path"] == "/models/run/model.ckpt-30"
    assert gs.read(tmp_path).checkpoints["step"].to_list() == [10, 20, 30, 40, 50]


def test_a_checkpoint_between_sparse_rows_is_uncertain(tmp_path: Path) -> None:
    found = saved(tmp_path, range(10, 601, 10), (205, 405), 210)
    assert (found["last_good_step"], found["onset_step"]) == (200, 210)
    assert (found["restore_step"], found["restore_status"], found["checkpoints_after"]) == (205, "uncertain", 1)


def test_no_checkpoint_before_the_damage(tmp_path: Path) -> None:
    found = saved(tmp_path / "late", range(1, 61), (50,), 36)
    assert (found["restore_step"], found["restore_status"], found["checkpoints_after"]) == (None, "none", 1)
    found = saved(tmp_path / "never", range(1, 61), (), 36)
    assert (found["restore_step"], found["restore_status"]) == (None, "unknown")


def test_start_and_stop_are_no_checkpoints(tmp_path: Path) -> None:
    rows = [ef.session(None, ef.START), *ef.rows(training(range(1, 31), {20: NAN})), ef.session(30, ef.STOP)]
    ef.event_file(tmp_path, rows)
    assert len(gs.read(tmp_path).checkpoints) == 0
    assert only(scan(tmp_path).findings)["restore_status"] == "unknown"


# --- Names of runs, steps and places ---------------------------------------------------------------------------------


def test_sub_directories_are_runs(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    write(root, training(range(1, 21)))
    write(root / "a", training(range(1, 21), {15: NAN}))
    write(root / "a" / "deep" / "er", training(range(1, 21)))
    with DataServer(root) as server:
        assert sorted(server.runs()) == [".", "a", "a/deep/er"]
    found = scan(root)
    assert sorted(found.runs["run"]) == ["a", "a/deep/er", "logs"]
    assert dict(found.runs.select("run", "status").iter_rows())["a"] == "damaged"
    assert set(found.runs["format"]) == {"tensorboard"}


def test_add_scalars_writes_several_runs(tmp_path: Path) -> None:
    with mock.patch("tensorboardX.summary.logger"):
        writer = SummaryWriter(str(tmp_path / "logs"))
        for step, norm, loss in training(range(1, 21), {15: NAN}).rows():
            writer.add_scalars("losses", {"policy": loss, "value": norm}, step)
            writer.add_scalar("grad_norm", loss, step)
        writer.close()
    found = scan(tmp_path / "logs")
    status = dict(found.runs.select("run", "status").iter_rows())
    assert sorted(status) == ["logs", "losses/policy", "losses/value"]
    assert status["logs"] == "clean"


def test_the_place_is_the_record(tmp_path: Path) -> None:
    """`<file> byte <offset>` leads to the record with the NaN, in whichever file it is."""
    write(tmp_path, training(range(1, 41)))
    path = write(tmp_path, training(range(41, 81), {60: NAN}), second=3600)
    begin = ef.offsets(path)[record_of(60 - 40)]
    found = only(scan(tmp_path).findings)
    assert found["first_place"] == f"{path.name} byte {begin}"
    (length,) = struct.unpack_from("<Q", path.read_bytes(), begin)
    event = Event.FromString(path.read_bytes()[begin + 12 : begin + 12 + length])
    assert (event.step, event.summary.value[0].tag) == (60, NORM)
    assert np.isnan(event.summary.value[0].simple_value)
    assert found["first_time"].timestamp() == event.wall_time


@pytest.mark.parametrize(
    ("fixture", "step_name", "first_step"),
    [("plain", "step", 21), ("deepspeed", "samples", 13 * 256), ("keras/train", "epoch", 10)],
)
def test_what_the_step_counts(fixture: str, step_name: str, first_step: int) -> None:
    found = scan(FIXTURES / fixture)
    assert run_of(found)["step_name"] == step_name
    assert only(found.findings)["first_step"] == first_step


def test_deepspeed_says_minus_one(tmp_path: Path) -> None:
    found = only(scan(FIXTURES / "deepspeed").findings)
    assert (found["count"], found["nan"], found["inf"], found["confidence"]) == (1, 0, 0, 0.9)


def test_samples_twins_are_no_signals() -> None:
    series = scan(FIXTURES / "megatron").series
    assert sorted(series["metric"]) == ["grad-norm", "lm loss"]


def test_negative_and_absent_steps() -> None:
    assert steps_of(gs.read(FIXTURES / "odd-steps").series("grad_norm")) == list(range(-6, 8))
    found = only(scan(FIXTURES / "odd-steps").findings)
    assert (found["first_step"], found["last_good_step"]) == (0, -1)


def test_what_lies_between_scalars_is_passed_over() -> None:
    recording = gs.read(FIXTURES / "big-records")
    assert sorted(recording.names) == [NORM, LOSS]
    assert nan_steps(recording.series(NORM)) == [11]
    assert len(recording.faults) == 0


def test_a_profile_empty_file_is_no_event_file() -> None:
    found = scan(FIXTURES / "profile-empty")
    assert (len(found), len(found.faults)) == (1, 0)


def test_reading_names_the_recording(tmp_path: Path) -> None:
    """A file of a directory may be named alone."""
    first = write(tmp_path, training(range(1, 41)))
    write(tmp_path, training(range(41, 81)), second=3600)
    assert steps_of(gs.read(first).series(NORM)) == list(range(1, 41))
    assert steps_of(gs.read(tmp_path).series(NORM)) == list(range(1, 81))


# --- Hostile files ---------------------------------------------------------------------------------------------------

HOSTILE = [
    "forged-record-length",
    "forged-shapes",
    "groups",
    "long-tag",
    "long-varints",
    "nested-lengths",
    "odd-tags",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_cost_only_themselves(name: str) -> None:
    """The sound points before and after them are read, in a process of its own: a crash or a hang is seen."""
    probe = (
        "import json, sys, gradscan as gs\n"
        "recording = gs.read(sys.argv[1])\n"
        "series = {tag: [a.tolist() for a in recording.series(tag)] for tag in recording.names}\n"
        "scan = gs.scan(sys.argv[1], progress=False)\n"
        "print(json.dumps([series, scan.runs['status'].to_list(), len(scan.to_json()) > 0, len(scan.to_html()) > 0]))\n"
    )
    path = ROOT / "tests" / "data" / "hostile" / name
    done = subprocess.run([sys.executable, "-c", probe, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    series, status, *rendered = json.loads(done.stdout)
    assert (len(status), rendered) == (1, [True, True])
    steps, values = series[NORM]
    for part, seed, first in ((slice(4), 42, 1), (slice(-4, None), 43, 21)):
        sound = [float(np.float32(norm)) for norm in norms(4, seed)]
        assert (steps[part], values[part]) == (list(range(first, first + 4)), sound)


def test_show_points_at_the_bad_row_of_its_attempt(tmp_path: Path) -> None:
    """Three trainings in one directory, the second one bad: the row in the middle is its row, not that of the first."""
    for number in range(3):
        rows = [(k, NAN if (number, k) == (1, 50) else 1.0) for k in range(100)]
        payloads = [ef.event(k, ef.summary(ef.simple(NORM, norm)), 1.7e9 + 1000 * number + k) for k, norm in rows]
        ef.event_file(tmp_path, payloads, name=f"events.out.tfevents.{1_700_000_000 + number}.host.1.0")
    view = api.around(tmp_path)
    assert view.frame["step"][view.row] == 50
    assert view.marks == {(view.row, NORM): "nan"}
    explanation = only(scan(tmp_path).findings)["explanation"]
    assert "of 300 rows" not in explanation, "rows of other trainings are no part of it"


def test_an_evaluation_directory_is_one_wherever_the_scan_starts(tmp_path: Path) -> None:
    home = tmp_path / "validation"
    payloads = [ef.event(k, ef.summary(ef.simple("epoch_loss", NAN if k > 5 else 1.0)), 1.7e9 + k) for k in range(20)]
    ef.event_file(home, payloads)
    for path in (tmp_path, home, next(home.iterdir())):
        assert run_of(scan(path))["status"] == "not_assessable", path


def test_a_bad_loss_is_compared_with_the_loss_before_it(tmp_path: Path) -> None:
    """The gradient norm of the same step is fine too, but it is another number."""
    rows = [(k, 0.25, NAN if k == 50 else 3.0) for k in range(100)]
    payloads = [
        ef.event(k, ef.summary(ef.simple(LOSS, loss), ef.simple(NORM, norm)), 1.7e9 + k) for k, norm, loss in rows
    ]
    ef.event_file(tmp_path, payloads)
    bad = only(scan(tmp_path).findings)
    assert (bad["metric"], bad["first_step"], bad["last_good_step"], bad["last_good_value"]) == (LOSS, 50, 49, 3.0)
    assert bad["confidence"] == 0.70
