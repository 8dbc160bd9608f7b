"""Compressed recordings and archives: the same findings however packed, faults for damage, bounds for bombs."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import gradscan as gs
from conftest import ROOT, Count
from makers import NAN, Training, norms, plain_jsonl, rlprobe_run, trainer_state

Pack = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def tar(folder: Path, *, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def zipped(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


def member(name: str, size: int = 0, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    for key, value in fields.items():
        setattr(info, key, value)
    return info


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four trainings: a clean one, NaN in a state with checkpoints, spikes, a directory of rlprobe with NaN."""
    folder = tmp_path / "runs"
    plain_jsonl(folder / "a" / "metrics.jsonl", Training(norms(120)))
    trainer_state(folder / "b", Training(norms(200, 1, {150: NAN})), checkpoints=(50, 100))
    plain_jsonl(
        folder / "c" / "deep" / "er" / "metrics.jsonl", Training(norms(300, 2, {100: 90.0, 200: 95.0, 250: 99.0}))
    )
    rlprobe_run(folder / "d", Training(norms(150, 3, {77: NAN})), events=[("checkpoint", 60), ("nan_detected", 78)])
    (folder / "a" / "notes.txt").write_text("no recording")
    return folder


FINDING = (
    "check", "severity", "confidence", "metric", "first_step", "first_record", "onset_step", "last_good_step", "count",
    "nan", "median", "phase", "steps", "restore_step", "restore_status", "checkpoints_after",
)  # fmt: skip


def said(scan: gs.Scan, prefix: str = "", suffix: str = "") -> dict[str, object]:
    """What a scan says of each run, the names of the archive and of the compression left out."""

    def name(run: str) -> str:
        assert run.startswith(prefix)
        # A run of several in one file is named behind it.
        file, mark, run_id = run.removeprefix(prefix).partition("#")
        return file.removesuffix(suffix) + mark + run_id

    runs = scan.runs.select("run", "status", "records", "last_step", "checkpoints", "restore_step").iter_rows()
    findings = scan.findings.select("run", *FINDING).iter_rows()
    series = scan.series.drop("run").rows()
    return {
        "runs": [(name(run), *rest) for run, *rest in runs],
        "findings": [(name(run), *map(str, rest)) for run, *rest in findings],
        "series": [tuple(map(str, row)) for row in series],
        "skipped": scan.skipped_files,
    }


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("runs.tar", tar),
        ("runs.tar.gz", lambda folder: gzip.compress(tar(folder))),
        ("runs.tgz", lambda folder: gzip.compress(tar(folder, format=tarfile.GNU_FORMAT))),
        ("runs.tar.zst", lambda folder: zstd(tar(folder))),
        ("runs.tzst", lambda folder: zstd(tar(folder, format=tarfile.USTAR_FORMAT))),
        ("runs.zip", zipped),
        ("runs.zip", lambda folder: zipped(folder, zipfile.ZIP_STORED)),
    ],
)
def test_archive_says_what_its_folder_says(
    tmp_path: Path, runs: Path, name: str, pack: Callable[[Path], bytes]
) -> None:
    want = said(gs.scan(runs, progress=False))
    assert len(want["runs"]) == 4  # type: ignore[arg-type]
    assert len(want["findings"]) == 3  # type: ignore[arg-type]
    home = tmp_path / "packed"
    home.mkdir()
    (home / name).write_bytes(pack(runs))
    for path in (home, home / name):
        scan = gs.scan(path, progress=False)
        assert said(scan, f"{name}/") == want
        assert scan.faults.height == 0
        assert scan.runs["directory"].to_list() == [f"{name}/{folder}" for folder in ("a", "b", "c/deep/er", "d")]
    assert len(gs.read_all(home / name)) == 4


@pytest.mark.parametrize("name", ["runs.tar", "runs.tar.gz", "runs.zip", ".gz", ".zst"])
def test_every_fixture_says_the_same_when_packed(tmp_path: Path, name: str, count: Count) -> None:
    """All event files, tables and JSON Lines of tests/data, in an archive or each compressed by itself."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for kind in ("tensorboard", "csv", "jsonl"):
        shutil.copytree(ROOT / "tests" / "data" / kind, plain / kind)
    packed.mkdir()
    match name:
        case "runs.tar":
            (packed / name).write_bytes(tar(plain))
        case "runs.tar.gz":
            (packed / name).write_bytes(gzip.compress(tar(plain)))
        case "runs.zip":
            (packed / name).write_bytes(zipped(plain))
        case _:
            pack = gzip.compress if name == ".gz" else zstd
            for path in filter(Path.is_file, plain.rglob("*")):
                target = packed / f"{path.relative_to(plain)}{name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(pack(path.read_bytes()))
    want, scan = said(gs.scan(plain, progress=False)), gs.scan(packed, progress=False)
    prefix, suffix = ("", name) if name.startswith(".") else (f"{name}/", "")
    got = said(scan, prefix, suffix)
    # Another name, another order: runs are compared as sets.
    assert sorted(map(str, got["runs"])) == sorted(map(str, want["runs"]))  # type: ignore[call-overload]
    assert sorted(got["findings"]) == sorted(want["findings"])  # type: ignore[call-overload]
    assert len(scan) > 60
    count(f"fixtures packed as {name}", len(scan))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd)])
def test_compressed_files_say_what_they_hold(tmp_path: Path, runs: Path, suffix: str, pack: Pack) -> None:
    want = said(gs.scan(runs, include="*.json*", exclude="d", progress=False))
    folder = tmp_path / "packed"
    for path in runs.rglob("*.json*"):
        if "d" in path.relative_to(runs).parts:
            continue
        target = folder / f"{path.relative_to(runs)}{suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        # Members or frames in a row, an empty one among them.
        target.write_bytes(pack(data[:1000]) + pack(b"") + pack(data[1000:]))
    scan = gs.scan(folder, progress=False)
    assert said(scan, suffix=suffix) == want
    assert scan.faults.height == 0
    first = gs.read(folder / f"a/metrics.jsonl{suffix}")
    assert first.series("grad_norm")[1].tolist() == norms(120)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd)])
def test_cut_tail_is_normal(tmp_path: Path, suffix: str, pack: Pack) -> None:
    path = plain_jsonl(tmp_path / "run" / "metrics.jsonl", Training(norms(20_000, 1, {300: NAN})))
    whole = pack(path.read_bytes())
    path.unlink()
    path.with_name(f"metrics.jsonl{suffix}").write_bytes(whole[: len(whole) * 2 // 3])
    scan = gs.scan(tmp_path, progress=False)
    assert scan.findings["first_step"].to_list() == [301]
    assert 5_000 < scan.runs["records"][0] < 20_000
    assert set(scan.faults["severity"]) == {"info"}
    done = subprocess.run(
        [sys.executable, "-m", "gradscan", "scan", str(tmp_path), "--fail-on", "unreadable"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0


def test_damage_is_a_fault_and_costs_nothing_before_it(tmp_path: Path) -> None:
    path = plain_jsonl(tmp_path / "x" / "metrics.jsonl", Training(norms(20_000, 1, {300: NAN})))
    packed = bytearray(gzip.compress(path.read_bytes()))
    path.unlink()
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path.with_name("metrics.jsonl.gz").write_bytes(packed)
    scan = gs.scan(tmp_path, progress=False)
    assert scan.findings["first_step"].to_list() == [301]
    assert scan.runs["records"][0] > 5_000
    assert "warning" in scan.faults["severity"].to_list()
    wrong = bytearray(gzip.compress(b'{"step": 1, "grad_norm": 1.0}\n' * 3))
    wrong[-8] ^= 1
    (tmp_path / "sum").mkdir()
    (tmp_path / "sum" / "metrics.jsonl.gz").write_bytes(wrong)
    faults = gs.scan(tmp_path / "sum", progress=False).faults
    assert faults.select("kind", "severity").rows() == [("bad-checksum", "warning")]


def test_members_that_lie_far_apart(tmp_path: Path) -> None:
    """The states of an output directory come in the wrong order with megabytes of others between them."""
    folder = tmp_path / "runs"
    for k in range(12):
        trainer_state(folder / f"r{k:02}", Training(norms(3_000, k, {2_500: NAN})), checkpoints=(1_000, 2_000))
    want = said(gs.scan(folder, progress=False))
    paths = sorted(path for path in folder.rglob("*.*") if path.is_file())
    paths.sort(key=lambda path: (len(path.parts), path.name), reverse=True)
    home = tmp_path / "packed"
    home.mkdir()
    with tarfile.open(home / "a.tar.gz", "w:gz", compresslevel=1) as archive:
        for path in paths:
            archive.add(path, path.relative_to(folder))
    for threads in (1, 3):
        scan = gs.scan(home, threads=threads, progress=False)
        assert said(scan, "a.tar.gz/") == want
        assert scan.faults.height == 0


# --- Hostile archives ------------------------------------------------------------------------------------------------

ROWS = b"".join(b'{"step": %d, "grad_norm": 1.0, "loss": 2.0}\n' % k for k in range(30))


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["tar", "tar.gz", "tar.zst"])
def test_hostile_members(tmp_path: Path, pack: Pack) -> None:
    (tmp_path / "outside.jsonl").write_bytes(ROWS)
    nested = gzip.compress(tar_of((member("metrics.jsonl"), ROWS)))
    data = tar_of(
        (member("../../../etc/metrics.jsonl"), ROWS),
        (member("/abs/metrics.jsonl"), ROWS),
        (member("twice/metrics.jsonl"), ROWS * 2),
        (member("twice/metrics.jsonl"), ROWS),
        (member("out/metrics.jsonl", type=tarfile.SYMTYPE, linkname=str(tmp_path / "outside.jsonl")), b""),
        (member("pipe/metrics.jsonl", type=tarfile.FIFOTYPE), b""),
        (member("in/metrics.jsonl.gz"), gzip.compress(ROWS)),
        (member("in/runs.tar.gz"), nested),
        (member("x" * 1_000_000 + "/metrics.jsonl"), ROWS),
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.tar").write_bytes(pack(data))
    scan = gs.scan(home, progress=False)
    assert scan.runs.select("run", "status", "records").rows() == [
        ("a.tar/abs/metrics.jsonl", "clean", 30),
        ("a.tar/etc/metrics.jsonl", "clean", 30),
        ("a.tar/in/metrics.jsonl.gz", "unreadable", 0),
        ("a.tar/out/metrics.jsonl", "unreadable", 0),
        ("a.tar/pipe/metrics.jsonl", "unreadable", 0),
        ("a.tar/twice/metrics.jsonl", "clean", 30),
    ]
    assert scan.faults.select("source", "kind").rows() == [("a.tar", "limit")]
    assert scan.skipped_files == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "home", "outside.jsonl"]


@pytest.mark.parametrize("data", [b"", b"text", bytes(10_240), b"\x1f\x8b\x08\x00", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.zst", "a.zip"])
def test_no_archive_at_all(tmp_path: Path, name: str, data: bytes) -> None:
    plain_jsonl(tmp_path / "good" / "metrics.jsonl", Training(norms(50)))
    (tmp_path / name).write_bytes(data)
    assert gs.scan(tmp_path, progress=False).runs["status"].to_list() == ["clean"]
    named = gs.scan(tmp_path / name, progress=False)
    assert named.runs.select("run", "status").rows() == [(name, "unreadable")]
    assert named.runs["reason"][0]


def test_bombs(tmp_path: Path) -> None:
    """Ten gigabytes of zeros, as a file, in a tar and in a zip: bounded time, and the good neighbour is read."""
    plain_jsonl(tmp_path / "good" / "metrics.jsonl", Training(norms(50)))
    bomb = gzip.compress(ROWS) + gzip.compress(bytes(100 * 2**20), 9) * 100
    (tmp_path / "metrics.jsonl.gz").write_bytes(bomb)
    (tmp_path / "log.jsonl.zst").write_bytes(zstd(ROWS) + zstd(bytes(100 * 2**20)) * 100)
    head = member("x/metrics.jsonl", 10 * 2**30).tobuf()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of((member("a/metrics.jsonl"), ROWS))[:2048] + head) + bomb)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metrics.jsonl", ROWS + bytes(200 * 2**20))
    start = time.monotonic()
    scan = gs.scan(tmp_path, progress=False)
    assert time.monotonic() - start < 20
    records = dict(scan.runs.select("run", "records").iter_rows())
    assert records["good/metrics.jsonl"] == 50
    assert records["a.tar.gz/a/metrics.jsonl"] == 30
    assert records["metrics.jsonl.gz"] == 30
    assert records["log.jsonl.zst"] == 30
    assert records["a.zip/metrics.jsonl"] == 30
    limits = scan.faults.filter(scan.faults["kind"] == "limit")["source"].to_list()
    assert {"metrics.jsonl.gz", "log.jsonl.zst", "a.tar.gz", "a.zip/metrics.jsonl"} <= set(limits)


def test_forged_zip_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/metrics.jsonl", ROWS)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    for size in (0, 1, 2**31 - 1, 2**32 - 2):
        for at in (20, 24):
            forged = data.copy()
            forged[entry + at : entry + at + 4] = size.to_bytes(4, "little")
            path.write_bytes(forged)
            scan = gs.scan(path, progress=False)
            assert scan.runs.height == 1
            assert scan.runs["records"][0] in (0, 30)
            assert scan.bytes < 10**9
    encrypted = data.copy()
    encrypted[entry + 8] |= 1
    path.write_bytes(encrypted)
    assert "encrypted" in gs.scan(path, progress=False).runs["reason"][0]


def test_streamed_zip(tmp_path: Path) -> None:
    """Sizes behind the members, as a writer that cannot seek leaves them; also with the directory cut off."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.data += memoryview(data)  # type: ignore[arg-type]
            return len(memoryview(data))  # type: ignore[arg-type]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b"):
            archive.writestr(f"{name}/metrics.jsonl", ROWS)
    path = tmp_path / "a.zip"
    path.write_bytes(pipe.data)
    scan = gs.scan(tmp_path, progress=False)
    assert scan.runs["records"].to_list() == [30, 30]
    assert scan.faults.height == 0
    path.write_bytes(pipe.data[: pipe.data.index(b"PK\x01\x02")])
    scan = gs.scan(tmp_path, progress=False)
    assert scan.runs["records"].to_list() == [30, 30]
    assert scan.faults.select("kind", "severity").rows() == [("truncated", "info")]
