"""Memory is flat in the size of streamed files, and no file makes a scan hold more than its limits."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import event_files as ef
from makers import Training, norms, trainer_state_text

MIB = 2**20
ROW_BYTES = 16  # what a row of gradient norm may cost while it is in flight
RECORDING_BYTES = 2048  # what a recording may cost beside its rows
RECORD_LIMIT = 64 * MIB

# VmHWM belongs to the address space that exec made; ru_maxrss also remembers that of the parent at the fork.
PROBE = """
import json, resource, sys
import gradscan as gs

def peak():
    try:
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

gs.scan(sys.argv[1], progress=False)  # a small scan: every import and pool that a scan needs
base = peak()
scan = gs.scan(sys.argv[2], progress=False)
norm = scan.series.filter(scan.series["role"] == "grad_norm")
answer = {"base": base, "peak": peak(), "rows": norm["n"].sum(), "status": scan.runs["status"].to_list()}
json.dump(answer, sys.stdout)
"""


class Measured(NamedTuple):
    """Bytes that a scan needed beyond imports and a small scan, the rows that it read, the statuses."""

    bytes: int
    rows: int
    status: list[str]


def measure(small: Path, path: Path) -> Measured:
    command = [sys.executable, "-c", PROBE, str(small), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["base"] > 10 * MIB, "the probe measured nothing"
    return Measured(answer["peak"] - answer["base"], answer["rows"], answer["status"])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small" / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(trainer_state_text(Training(norms(50))))
    return path


def big_jsonl(path: Path, size: int) -> int:
    """Rows of about 1 KB, as a reinforcement-learning trainer logs; returns how many."""
    tail = "".join(f', "rewards/part_{k}/mean": {0.1234567890123 + k}' for k in range(20))
    pool = [f'"grad_norm": {norm}, "loss": {1 + norm}{tail}}}\n' for norm in norms(500)]
    rows = size // (len(pool[0]) + 16)
    with path.open("w") as file:
        file.writelines(f'{{"step": {k}, {pool[k % 500]}' for k in range(rows))
    return rows


def big_trainer_state(path: Path, size: int) -> int:
    """Entries of five keys, as the Hugging Face trainer logs; returns how many."""
    head, tail = trainer_state_text(Training([])).split('"log_history": []')
    pool = []
    for norm in norms(500):
        lines = [
            "",
            "    {",
            '      "epoch": 0.25,',
            f'      "grad_norm": {norm},',
            '      "learning_rate": 1e-05,',
            f'      "loss": {1 + norm},',
        ]
        pool.append("\n".join(lines))
    rows = size // (len(pool[0]) + 30)
    with path.open("w") as file:
        file.write(head + '"log_history": [')
        file.writelines(f'{"," if k else ""}{pool[k % 500]}\n      "step": {k + 1}\n    }}' for k in range(rows))
        file.write("\n  ]" + tail)
    return rows


def big_event_file(path: Path, size: int) -> int:
    """Five scalars a step, as torch's SummaryWriter logs them; returns how many steps."""
    others = "train/loss", "train/learning_rate", "train/entropy", "perf/step_time"
    rows = size // 278
    steps = np.arange(1, rows + 1)
    values = np.resize(np.array(norms(500), np.float32), rows)
    tags = {"train/grad_norm": values} | dict.fromkeys(others, values)
    ef.big_event_file(path, steps, ef.WALL + steps, tags)
    return rows


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("metrics.jsonl", big_jsonl),
        ("trainer_state.json", big_trainer_state),
        (ef.file_name(), big_event_file),
    ],
)
def test_flat_in_file_size(tmp_path: Path, small: Path, name: str, write: Callable[[Path, int], int]) -> None:
    """Four times the file, hardly more memory: only the norms themselves may grow."""
    needed = []
    for megabytes in (16, 64):
        path = tmp_path / str(megabytes) / name
        path.parent.mkdir()
        rows = write(path, megabytes * MIB)
        assert path.stat().st_size > 0.9 * megabytes * MIB
        measured = measure(small, path)
        assert (measured.rows, measured.status) == (rows, ["clean"])
        assert measured.bytes <= 40 * MIB + ROW_BYTES * rows, f"{megabytes} MiB needed {measured.bytes / MIB:.1f} MiB"
        needed.append(measured.bytes - ROW_BYTES * rows)
    assert needed[1] - needed[0] <= 8 * MIB, f"needed {[round(n / MIB, 1) for n in needed]} MiB beyond the norms"


def test_big_trainer_state_is_what_the_trainer_writes(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    big_trainer_state(path, 20_000)
    text = path.read_text()
    assert json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n" == text


def test_one_huge_line(tmp_path: Path, small: Path) -> None:
    """A line of 80 MB between good rows: those stay, and it is never held more than twice."""
    path = tmp_path / "metrics.jsonl"
    rows = [f'{{"step": {k}, "grad_norm": {norm}}}\n' for k, norm in enumerate(norms(200))]
    with path.open("w") as file:
        file.writelines(rows[:100])
        file.write('{"step": 100, "text": "' + "x" * 80_000_000 + '"}\n')
        file.writelines(rows[101:])
    measured = measure(small, path)
    assert (measured.rows, measured.status) == (199, ["clean"])
    assert measured.bytes <= 2 * RECORD_LIMIT + 16 * MIB, f"needed {measured.bytes / MIB:.1f} MiB"


def test_a_file_of_one_line_without_end(tmp_path: Path, small: Path) -> None:
    """80 MB of an array that never closes."""
    path = tmp_path / "trainer_state.json"
    text = trainer_state_text(Training(norms(50)))
    head, _ = text.split('"is_hyper_param_search"')
    with path.open("w") as file:
        file.write(head + '"forged": [')
        file.write("1.25," * 16_000_000)
    measured = measure(small, path)
    assert len(measured.status) == 1
    assert measured.status != ["clean"]
    assert measured.bytes <= 2 * RECORD_LIMIT + 16 * MIB, f"needed {measured.bytes / MIB:.1f} MiB"


def test_deep_nesting_costs_no_memory(tmp_path: Path, small: Path) -> None:
    """Twenty million open brackets in one value."""
    path = tmp_path / "metrics.jsonl"
    rows = [f'{{"step": {k}, "grad_norm": {norm}}}\n' for k, norm in enumerate(norms(100))]
    depth = 10_000_000
    path.write_text("".join(rows[:50]) + '{"step": 50, "x": ' + "[" * depth + "]" * depth + "}\n" + "".join(rows[51:]))
    measured = measure(small, path)
    assert (measured.rows, measured.status) == (99, ["clean"])
    assert measured.bytes <= 2 * RECORD_LIMIT, f"needed {measured.bytes / MIB:.1f} MiB"


def test_many_small_recordings(tmp_path: Path, small: Path) -> None:
    """20,000 recordings in deep directories: at most 2 KB each. `benches/compare.py` scans 100,000."""
    count = 20_000
    text = "".join(f'{{"step": {k}, "grad_norm": {norm}, "loss": 1.5}}\n' for k, norm in enumerate(norms(12)))
    for k in range(count):
        path = tmp_path / "runs" / f"team-{k // 5000}" / f"sweep-{k // 100:03}" / f"run-{k:05}" / "metrics.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    measured = measure(small, tmp_path / "runs")
    assert (measured.rows, measured.status) == (12 * count, ["clean"] * count)
    assert measured.bytes <= 16 * MIB + RECORDING_BYTES * count, f"needed {measured.bytes / count:.0f} bytes each"


def test_archives_hold_a_window(tmp_path: Path, small: Path) -> None:
    """64 MiB of rows inside a compressed tar and a zip: as flat as the file itself."""
    folder = tmp_path / "plain"
    folder.mkdir()
    rows = big_jsonl(folder / "metrics.jsonl", 64 * MIB)
    for name, write in (("a.tar.gz", tarred), ("a.zip", zipped)):
        home = tmp_path / name.replace(".", "-")
        home.mkdir()
        write(home / name, folder / "metrics.jsonl")
        measured = measure(small, home)
        assert (measured.rows, measured.status) == (rows, ["clean"])
        assert measured.bytes <= 40 * MIB + ROW_BYTES * rows, f"{name} needed {measured.bytes / MIB:.1f} MiB"


def big_table(path: Path, runs: int, rows: int, *, turns: bool) -> None:
    """Runs of equally many rows, one after the other or in turns. Steps with gaps and random norms: all must be kept
    as they are, a step and a norm have 8 bytes each."""
    rng = np.random.default_rng(5)
    writer: pq.ParquetWriter | None = None
    for start in range(0, runs * rows, 500_000):
        at = np.arange(start, start + 500_000)
        run, row = (at % runs, at // runs) if turns else (at // rows, at % rows)
        columns = {
            "run": pa.DictionaryArray.from_arrays(run.astype(np.int32), [f"sweep/run-{k:04}" for k in range(runs)]),
            "step": 10 * row + rng.integers(0, 10, len(at)),
            "grad_norm": rng.uniform(0.5, 1.5, len(at)),
            "loss": rng.uniform(1.0, 2.0, len(at)),
            "reward": rng.uniform(0.0, 1.0, len(at)),
        }
        content = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, content.schema)
        writer.write_table(content)
    assert writer is not None
    writer.close()


def test_contiguous_tables_hold_the_runs_in_flight(tmp_path: Path, small: Path) -> None:
    """4 million rows of 1,000 runs: the norms and steps of all rows alone would take more than is granted."""
    path = tmp_path / "runs.parquet"
    runs, rows = 1000, 4000
    big_table(path, runs, rows, turns=False)
    granted = 40 * MIB + RECORDING_BYTES * runs
    assert ROW_BYTES * runs * rows > 1.3 * granted
    measured = measure(small, path)
    assert (measured.rows, measured.status) == (runs * rows, ["clean"] * runs)
    assert measured.bytes <= granted, f"needed {measured.bytes / MIB:.1f} MiB of {granted / MIB:.1f}"


def test_interleaved_tables_hold_their_signals(tmp_path: Path, small: Path) -> None:
    """Rows of all runs in turns: 16 bytes a value of the two signals and no more."""
    path = tmp_path / "runs.parquet"
    runs, rows = 500, 4000
    big_table(path, runs, rows, turns=True)
    measured = measure(small, path)
    assert (measured.rows, measured.status) == (runs * rows, ["clean"] * runs)
    granted = 40 * MIB + 2 * ROW_BYTES * runs * rows + RECORDING_BYTES * runs
    assert measured.bytes <= granted, f"needed {measured.bytes / MIB:.1f} MiB of {granted / MIB:.1f}"


def tarred(path: Path, file: Path) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(file, "run/metrics.jsonl")


def zipped(path: Path, file: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(file, "run/metrics.jsonl")
