"""Truncated, forged and hostile files: a fault or an outcome, never a crash or a hang; their neighbours are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gradscan as gs
from makers import INF, NAN, Training, git_lfs_pointer, norms, plain_jsonl, trainer_state, trainer_state_text

RUNS_AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def command_line(*arguments: str | Path, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, so that a hang is a failure here and not a hang."""
    command = [sys.executable, "-m", "gradscan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def scan_json(path: Path) -> dict[str, list[dict[str, object]]]:
    done = command_line("scan", path, "--format", "json")
    assert done.returncode in (0, 1, 3), done.stderr
    report: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return report


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with one healthy run, that every bad neighbour must leave clean."""
    trainer_state(tmp_path / "archive" / "good", Training(norms(100)))
    return tmp_path / "archive"


def status_of(report: dict[str, list[dict[str, object]]], name: str) -> object:
    (run,) = [run for run in report["runs"] if str(run["source"]).startswith(name)]
    return run["status"]


def check_neighbour(archive: Path, bad: str) -> None:
    """The good run is clean, and the bad one is an outcome: a row of `runs` that is not clean, or a fault."""
    report = scan_json(archive)
    assert status_of(report, "good") == "clean"
    outcomes = [run["status"] for run in report["runs"] if bad in str(run["source"])]
    faults = [fault["kind"] for fault in report["faults"] if bad in str(fault["source"])]
    assert outcomes or faults, f"{bad} is no outcome"
    assert "clean" not in outcomes


# --- The file system -------------------------------------------------------------------------------------------------


def test_symlink_loop(archive: Path) -> None:
    (archive / "good" / "again").symlink_to(archive)
    (archive / "self").symlink_to(archive / "self")
    check_neighbour(archive, "again")
    assert gs.scan(archive, progress=False).summary()["clean"] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_fifo_does_not_block(archive: Path) -> None:
    (archive / "pipe").mkdir()
    os.mkfifo(archive / "pipe" / "metrics.jsonl")
    check_neighbour(archive, "pipe")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_fifo_named_by_the_user(tmp_path: Path) -> None:
    pipe = tmp_path / "metrics.jsonl"
    os.mkfifo(pipe)
    assert command_line("scan", pipe).returncode == 3


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices on this system")
def test_endless_device(archive: Path) -> None:
    (archive / "device").mkdir()
    (archive / "device" / "metrics.jsonl").symlink_to("/dev/zero")
    check_neighbour(archive, "device")


def test_vanished_file(archive: Path) -> None:
    """A name whose file is gone: a dangling link, or deleted between listing and opening."""
    (archive / "gone").mkdir()
    (archive / "gone" / "trainer_state.json").symlink_to(archive / "nowhere")
    check_neighbour(archive, "gone")


@pytest.mark.skipif(RUNS_AS_ROOT, reason="root may read everything")
def test_unreadable_file(archive: Path) -> None:
    path = trainer_state(archive / "locked", Training(norms(100)))
    path.chmod(0)
    try:
        check_neighbour(archive, "locked")
        assert status_of(scan_json(archive), "locked") == "unreadable"
    finally:
        path.chmod(0o600)


@pytest.mark.skipif(RUNS_AS_ROOT, reason="root may read everything")
def test_unreadable_directory(archive: Path) -> None:
    trainer_state(archive / "locked", Training(norms(100)))
    (archive / "locked").chmod(0)
    try:
        check_neighbour(archive, "locked")
    finally:
        (archive / "locked").chmod(0o700)


def test_odd_file_names(archive: Path) -> None:
    """Names that are no UTF-8, or hold line breaks and terminal escapes."""
    for name in (b"caf\xe9", b"two\nlines", b"\x1b[31mred"):
        folder = os.fsencode(archive) + b"/" + name
        os.mkdir(folder)
        with open(folder + b"/trainer_state.json", "w") as file:
            file.write(trainer_state_text(Training(norms(100))))
    done = command_line("scan", archive, "--all")
    assert done.returncode == 0, done.stderr
    assert "\x1b[31mred" not in done.stdout
    scan = gs.scan(archive, progress=False)
    assert scan.runs["status"].to_list() == ["clean"] * 4
    assert scan.runs["run"].n_unique() == 4


def test_empty_directory(tmp_path: Path) -> None:
    assert command_line("scan", tmp_path).returncode == 4
    assert len(gs.scan(tmp_path, progress=False)) == 0


def test_nothing_recognised(tmp_path: Path) -> None:
    """Files that are no recordings are counted, not reported."""
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "notes.md").write_text("# notes\n")
    assert command_line("scan", tmp_path).returncode == 4
    assert gs.scan(tmp_path, progress=False).summary()["skipped_files"] == 2


def test_missing_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = command_line("scan", missing)
    assert done.returncode == 2
    assert "missing" in done.stderr
    with pytest.raises(FileNotFoundError, match="missing"):
        gs.scan(missing)


# --- Contents --------------------------------------------------------------------------------------------------------


def one(path: Path) -> gs.Scan:
    scan = gs.scan(path, progress=False)
    assert len(scan.runs) == 1
    return scan


def rows_read(scan: gs.Scan) -> int:
    return int(scan.series.filter(scan.series["role"] == "grad_norm")["n"].sum())


@pytest.mark.parametrize("name", ["metrics.jsonl", "trainer_state.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"\0" * 4096, b"\xff\xfe\xfd\xfc" * 100, b"hello\n" * 50, b"[" * 100_000, b'{"a":' * 100_000],
)
def test_nothing_in_it(tmp_path: Path, name: str, content: bytes) -> None:
    """A file that the user names is always an outcome, and never a clean one where it holds no norm."""
    path = tmp_path / name
    path.write_bytes(content)
    scan = one(path)
    assert scan.runs["status"][0] in ("unreadable", "not_assessable")
    assert scan.runs["reason"][0]


def test_git_lfs_pointer(tmp_path: Path) -> None:
    for name in ("trainer_state.json", "metrics.jsonl"):
        scan = one(git_lfs_pointer(tmp_path / name))
        assert scan.runs["status"][0] == "unreadable"
        assert "lfs" in scan.runs["reason"][0].lower()


@pytest.mark.parametrize("name", ["metrics.jsonl", "trainer_state.json"])
def test_every_cut_keeps_the_rows_before_it(tmp_path: Path, name: str) -> None:
    """Cut anywhere, a recording gives the rows before the cut: never one more, the one that was cut at most."""
    training = Training(norms(40, put={30: NAN}))
    whole = tmp_path / "whole" / name
    if name == "metrics.jsonl":
        plain_jsonl(whole, training)
    else:
        trainer_state(whole.parent, training)
    data = whole.read_bytes()
    ends = [at for at in range(len(data)) if data[at : at + 1] == b"}"]
    for cut in range(0, len(data), 61):
        path = tmp_path / name
        path.write_bytes(data[:cut])
        scan = one(path)
        complete = min(40, sum(end < cut for end in ends))
        assert complete <= rows_read(scan) <= complete + 1, f"cut at {cut} of {len(data)}"
        if rows_read(scan) > 31:
            assert scan.findings["first_step"].to_list() == [31]


def test_garbage_between_rows(tmp_path: Path) -> None:
    """Half a line, foreign text, NUL runs and bad bytes cost themselves, not their neighbours, and each is a fault."""
    good = [
        json.dumps({"step": k, "grad_norm": norm, "loss": 1.0 + 1 / (k + 1)}).encode() + b"\n"
        for k, norm in enumerate(norms(100))
    ]
    bad = [
        b'{"step": 20, "grad_no\n',
        b"Traceback (most recent call last):\n",
        b"\0" * 512 + b"\n",
        b'{"step": "\xff\xfe"}\n',
        b"}{\n",
        b"]]\n",
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line + bad[k // 15] if k % 15 == 14 else line for k, line in enumerate(good)))
    scan = one(path)
    assert rows_read(scan) == 100
    assert scan.runs["status"][0] == "clean"
    assert len(scan.faults) > 0
    assert scan.faults["place"].is_not_null().all()


@pytest.mark.parametrize(
    "encode",
    [
        pytest.param(lambda text: b"\xef\xbb\xbf" + text.encode(), id="utf-8 with a byte order mark"),
        pytest.param(lambda text: text.encode("utf-16"), id="utf-16 with a byte order mark"),
        pytest.param(lambda text: text.encode("utf-16-le"), id="utf-16 little-endian without one"),
        pytest.param(lambda text: text.encode("utf-16-be"), id="utf-16 big-endian without one"),
        pytest.param(lambda text: text.replace("\n", "\r\n").encode(), id="carriage returns"),
        pytest.param(lambda text: b"\0" * 1000 + text.encode(), id="after a run of NUL"),
        pytest.param(lambda text: text.rstrip("\n").encode(), id="without a final line break"),
    ],
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "trainer_state.json"])
def test_encodings(tmp_path: Path, name: str, encode: Callable[[str], bytes]) -> None:
    training = Training(norms(60, put={50: INF}))
    path = tmp_path / name
    if name == "metrics.jsonl":
        plain_jsonl(path, training)
    else:
        path.write_text(trainer_state_text(training))
    path.write_bytes(encode(path.read_text()))
    scan = one(path)
    assert rows_read(scan) == 60
    assert scan.findings.select("first_step", "inf", "count").rows() == [(51, 1, 1)]


def test_deep_json(tmp_path: Path) -> None:
    """A million brackets in one cell overflow no stack; the norm beside them counts."""
    rows = [{"step": k, "grad_norm": norm} for k, norm in enumerate(norms(60))]
    lines = [json.dumps(row) for row in rows]
    for depth, k in ((1_000_000, 20), (200_000, 40)):
        lines[k] = lines[k][:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"
    lines[50] = lines[50][:-1] + ', "x": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert rows_read(one(path)) == 60


def test_deep_json_in_trainer_state(tmp_path: Path) -> None:
    text = trainer_state_text(Training(norms(60)))
    path = tmp_path / "trainer_state.json"
    path.write_text(text.replace('"stateful_callbacks": {}', '"stateful_callbacks": ' + "[" * 500_000 + "]" * 500_000))
    assert rows_read(one(path)) == 60


def test_one_long_line(tmp_path: Path) -> None:
    """A line far longer than any window of the reader; the norm after the long cell counts."""
    lines = [json.dumps({"step": k, "grad_norm": norm}) for k, norm in enumerate(norms(60))]
    lines[30] = '{"step": 30, "text": "' + 'a\\"]}' * 2_000_000 + '", "grad_norm": NaN}'
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    scan = one(path)
    assert rows_read(scan) == 60
    assert scan.findings["first_step"].to_list() == [30]


def test_many_columns(tmp_path: Path) -> None:
    """A new name in every row: names are limited, the norms are not."""
    rows = [
        {"step": k, f"unique/{k}": 1.0, f"other/{k}/x": 2.0, "grad_norm": norm} for k, norm in enumerate(norms(20_000))
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rows_read(one(path)) == 20_000


@pytest.mark.parametrize(
    "spelling",
    ["NaN", "nan", "-NaN", '"NaN"', '"nan"', "Infinity", "-Infinity", '"Infinity"', '"-inf"', "inf", "1e400"],
)
def test_spellings_of_not_finite(tmp_path: Path, spelling: str) -> None:
    """None of the spellings of NaN and Inf that loggers use is lost."""
    lines = [json.dumps({"step": k, "grad_norm": norm}) for k, norm in enumerate(norms(60))]
    lines[45] = '{"step": 45, "grad_norm": ' + spelling + "}"
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    found = one(path).findings.select("check", "first_step", "last_good_step").rows()
    assert found == [("nonfinite", 45, 44)]


@pytest.mark.parametrize("cell", ['"grad_norm": ""', '"grad_norm": "None"', '"grad_norm": "N/A"', '"note": "nan"'])
def test_missing_is_not_nan(tmp_path: Path, cell: str) -> None:
    lines = [json.dumps({"step": k, "grad_norm": norm}) for k, norm in enumerate(norms(60))]
    lines[45] = '{"step": 45, ' + cell + "}"
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    scan = one(path)
    assert scan.findings.is_empty()
    assert rows_read(scan) == 59


@pytest.mark.parametrize("step", ["1e300", "-5", "99999999999999999999999", '"45"', "45.7", "true", "null", "[]"])
def test_odd_steps(tmp_path: Path, step: str) -> None:
    """A step that is no step costs no value."""
    lines = [json.dumps({"step": k, "grad_norm": norm}) for k, norm in enumerate(norms(60))]
    lines[59] = '{"step": ' + step + ', "grad_norm": NaN}'
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    scan = one(path)
    assert scan.runs["status"][0] == "damaged"
    assert scan.findings["nan"].to_list() == [1]


def test_paths_inside_a_recording_are_text(tmp_path: Path) -> None:
    """No path found in a recording is opened: a named pipe there would block for ever."""
    pipe = tmp_path / "pipe"
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
    path = trainer_state(tmp_path / "run", Training(norms(60)))
    path.write_text(path.read_text().replace('"best_model_checkpoint": null', f'"best_model_checkpoint": "{pipe}"'))
    done = command_line("scan", path)
    assert done.returncode == 0, done.stderr
