"""One archive in every container: event files, JSON Lines, CSV, Parquet and Arrow tables and frames say the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import event_files as ef
import gradscan as gs
from makers import Training, jsonl, norms, table

NAN, INF = math.nan, math.inf
NORM, LOSS = "train/grad_norm", "train/loss"

# --- The archive -----------------------------------------------------------------------------------------------------


def single(values: Sequence[float]) -> list[float]:
    """The nearest numbers of single precision: event files hold no others."""
    rounded: list[float] = np.array(values, np.float32).astype(np.float64).tolist()
    return rounded


def archive() -> dict[str, Training]:
    """Runs that are clean, dead of NaN after a spike, resumed among spikes, and too short to judge."""
    first, again = list(range(1, 121)), list(range(101, 241))
    spikes = {80: 40.0, 111: 55.5, 150: INF, 200: 61.0, 230: 48.0}
    loss = [2.0 - k / 500 for k in range(260)]
    dead = dict.fromkeys(range(151, 200), NAN)
    return {
        "clean": Training(single(norms(200, 1)), losses=single(loss[:200])),
        "dead": Training(
            single(norms(200, 2, {148: 77.0} | dead)), [5 * k for k in range(200)], single(loss[:150] + [NAN] * 50)
        ),
        "resumed": Training(single(norms(260, 3, spikes)), first + again, single(loss)),
        "short": Training(single(norms(5, 4)), losses=single(loss[:5])),
    }


STATUS = {"clean": "clean", "dead": "damaged", "resumed": "damaged", "short": "not_assessable"}


def wide(runs: dict[str, Training]) -> pl.DataFrame:
    """A row a step, run after run."""
    frames = [
        pl.DataFrame(
            {
                "run": [name] * len(run.norms),
                "step": run.steps,
                "timestamp": [ef.WALL + step for step in run.steps],
                LOSS: run.losses,
                NORM: run.norms,
                "lr": [1e-5] * len(run.norms),
                "tags": [["a"]] * len(run.norms),
            }
        )
        for name, run in runs.items()
    ]
    return pl.concat(frames)


def in_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of all runs in turns, as several writers leave them."""
    return frame.with_columns(turn=pl.int_range(pl.len()).over("run")).sort("turn", maintain_order=True).drop("turn")


def long(frame: pl.DataFrame, *, by_step: bool) -> pl.DataFrame:
    """A row a value: metric after metric, as `unpivot` leaves them, or the metrics of each step together."""
    numbered = frame.drop("tags").with_row_index("row")
    tall = numbered.unpivot(index=["row", "run", "step", "timestamp"], variable_name="metric", value_name="value")
    return (tall.sort("row", maintain_order=True) if by_step else tall).drop("row")


# --- Its containers --------------------------------------------------------------------------------------------------


def event_file_directories(root: Path) -> Any:
    for name, run in archive().items():
        ef.event_file(root / name, ef.rows(run))
    return root


def json_lines(root: Path) -> Any:
    for name, run in archive().items():
        rows = run.rows()
        jsonl(root / f"{name}.jsonl", ({"step": s, "timestamp": ef.WALL + s, LOSS: x, NORM: n} for s, n, x in rows))
    return root


def csv_files(root: Path) -> Any:
    for name, run in archive().items():
        rows = ([step, ef.WALL + step, loss, norm] for step, norm, loss in run.rows())
        table(root / f"{name}.csv", ["step", "timestamp", LOSS, NORM], rows)
    return root


def csv_table(root: Path, *, turns: bool = False) -> Any:
    frame = (in_turns(wide(archive())) if turns else wide(archive())).drop("tags", "lr")
    return table(root / "runs.csv", frame.columns, frame.iter_rows())


def parquet(frame: pl.DataFrame, path: Path, rows: int = 10_000, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(frame.to_arrow(), path, row_group_size=rows, **options)
    return path


def split_over_files(frame: pl.DataFrame, root: Path, rows: int) -> Path:
    """part-0, part-1 ... part-10: their order is that of numbers, not of letters."""
    for k, start in enumerate(range(0, len(frame), rows)):
        parquet(frame[start : start + rows], root / "data" / f"part-{k}.parquet", 20)
    return root / "data"


def hive(root: Path) -> Path:
    for (name,), frame in wide(archive()).group_by("run", maintain_order=True):
        parquet(frame.drop("run"), root / "data" / f"run={name}" / "part-0.parquet")
    return root / "data"


def hive_in_parts(root: Path) -> Path:
    for (name,), frame in wide(archive()).group_by("run", maintain_order=True):
        for k, start in enumerate(range(0, len(frame), 70)):
            parquet(frame[start : start + 70].drop("run"), root / "data" / f"run={name}" / f"part-{k}.parquet")
    return root / "data"


def arrow_file(frame: pl.DataFrame, path: Path, rows: int, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    content = frame.to_arrow()
    with pa.ipc.new_file(path, content.schema, options=options) as writer:
        writer.write_table(content, max_chunksize=rows)
    return path


def arrow_stream(frame: pl.DataFrame, path: Path, rows: int) -> Path:
    content = frame.to_arrow()
    with pa.ipc.new_stream(path, content.schema) as writer:
        writer.write_table(content, max_chunksize=rows)
    return path


def rows_of(*, turns: bool) -> pl.DataFrame:
    return in_turns(wide(archive())) if turns else wide(archive())


def wide_parquet(root: Path, *, rows: int, turns: bool = False, **options: Any) -> Path:
    return parquet(rows_of(turns=turns), root / "runs.parquet", rows, **options)


def categories(root: Path) -> Path:
    frame = wide(archive()).with_columns(pl.col("run").cast(pl.Categorical))
    return parquet(frame, root / "runs.parquet", 50)


def of_polars(root: Path) -> Path:
    wide(archive()).write_parquet(root / "runs.parquet")
    return root


def long_parquet(root: Path, *, rows: int, by_step: bool) -> Path:
    return parquet(long(rows_of(turns=by_step), by_step=by_step), root / "runs.parquet", rows)


def wide_arrow_file(root: Path, *, rows: int, compression: str | None = None) -> Path:
    return arrow_file(wide(archive()), root / "runs.arrow", rows, compression)


def wide_arrow_stream(root: Path, *, rows: int) -> Path:
    return arrow_stream(wide(archive()), root / "runs.arrows", rows)


def wide_files(root: Path, *, rows: int, turns: bool = False) -> Path:
    return split_over_files(rows_of(turns=turns), root, rows)


CONTAINERS: dict[str, Callable[[Path], Any]] = {
    "event files": event_file_directories,
    "JSON Lines": json_lines,
    "CSV files": csv_files,
    "CSV table": csv_table,
    "CSV table, in turns": partial(csv_table, turns=True),
    "Parquet of polars": of_polars,
    "Parquet with dictionaries": categories,
    "Parquet without dictionaries": partial(
        wide_parquet, rows=50, use_dictionary=False, compression="zstd", data_page_version="2.0"
    ),
    "hive": hive,
    "hive, in parts": hive_in_parts,
    "wide Parquet, 50 a file": partial(wide_files, rows=50),
    "wide Parquet, 199 a file": partial(wide_files, rows=199),
    "wide Parquet in turns, 50 a file": partial(wide_files, rows=50, turns=True),
    "Arrow file, zstd": partial(wide_arrow_file, rows=50, compression="zstd"),
    "Arrow file, lz4": partial(wide_arrow_file, rows=50, compression="lz4"),
    "frame": lambda _: wide(archive()),
    "frame, in turns": lambda _: in_turns(wide(archive())),
    "lazy frame of files": lambda root: pl.scan_parquet(wide_parquet(root, rows=50)),
    "long frame": lambda _: long(wide(archive()), by_step=False),
    "long frame by step": lambda _: long(wide(archive()), by_step=True),
}
for cut in [7, 50, 199, 10_000]:
    CONTAINERS |= {
        f"wide Parquet, {cut} a row group": partial(wide_parquet, rows=cut),
        f"wide Parquet in turns, {cut} a row group": partial(wide_parquet, rows=cut, turns=True),
        f"long Parquet, {cut} a row group": partial(long_parquet, rows=cut, by_step=False),
        f"long Parquet by step, {cut} a row group": partial(long_parquet, rows=cut, by_step=True),
        f"Arrow file, {cut} a batch": partial(wide_arrow_file, rows=cut),
        f"Arrow stream, {cut} a batch": partial(wide_arrow_stream, rows=cut),
    }


def scanned(made: Any) -> gs.Scan:
    """A path or a frame, as gradscan takes it."""
    return gs.scan(made, progress=False) if isinstance(made, Path) else gs.scan_frame(made)


def short(run: pl.Expr) -> pl.Expr:
    """The name that a run has in the archive, whatever file or table it lies in."""
    return run.str.split("#").list.last().str.split("/").list.last().str.replace(r"\.(jsonl|csv)$", "")


# What depends on the container and not on the training.
OF_THE_CONTAINER = ["id", "run", "directory", "source", "format", "first_place"]
OF_THE_RUN = [
    *("status", "reason", "checks", "phase", "first_step", "onset_step", "restore_step", "restore_status"),
    *("first_step_recorded", "last_step", "step_interval", "coverage", "grad_norm_metrics", "loss_metrics"),
    *("attempts", "notes", "started", "ended", "records"),
]


def told(scan: gs.Scan) -> dict[str, pl.DataFrame]:
    """What a scan says of each training, in the order of their names."""
    name = short(pl.col("run"))
    return {
        "runs": scan.runs.select(name, *OF_THE_RUN).sort("run"),
        "series": scan.series.with_columns(name).sort("run", "role", "metric"),
        "findings": scan.findings.select(pl.exclude(OF_THE_CONTAINER), name.alias("in")).sort("in", "check"),
        "suspicions": scan.suspicions.with_columns(name).sort("run"),
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """The archive as JSON Lines, a file a run: no table at all."""
    return told(scanned(json_lines(tmp_path_factory.mktemp("reference"))))


def test_the_archive_is_what_it_says(reference: dict[str, pl.DataFrame]) -> None:
    assert dict(reference["runs"].select("run", "status").iter_rows()) == STATUS
    findings = reference["findings"].select("in", "check", "first_step", "onset_step", "last_good_step", "attempt")
    assert findings.rows() == [
        ("dead", "nonfinite", 750, 740, 735, 1),
        ("resumed", "nonfinite", 131, 131, 130, 2),
        ("resumed", "spikes", 81, 81, 80, 1),
    ]


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_say_the_same(tmp_path: Path, reference: dict[str, pl.DataFrame], container: str) -> None:
    scan = scanned(CONTAINERS[container](tmp_path))
    assert len(scan) == 4, scan.runs["run"].to_list()
    assert scan.faults.is_empty()
    got = told(scan)
    for name, frame in reference.items():
        # Metric after metric, the values of one step lie apart: there a record is a value and not a step.
        apart = ["records", "first_record"] if container.startswith("long") and "by step" not in container else []
        assert_frame_equal(got[name].drop(apart, strict=False), frame.drop(apart, strict=False), check_exact=True)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("make", ["wide Parquet, 50 a row group", "wide Parquet in turns, 50 a file", "hive"])
def test_threads_make_no_difference(tmp_path: Path, make: str, threads: int) -> None:
    path = CONTAINERS[make](tmp_path)
    assert gs.scan(path, threads=threads, progress=False).to_json() == gs.scan(path, progress=False).to_json()


# --- Reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["wide Parquet in turns, 50 a row group", "wide Parquet, 50 a file", "hive"])
def test_reading_gives_every_run(tmp_path: Path, make: str) -> None:
    path = CONTAINERS[make](tmp_path)
    recordings = {item.run.rsplit("#", 1)[-1].rsplit("/", 1)[-1]: item for item in gs.read_all(path)}
    assert recordings.keys() == STATUS.keys()
    for name, training in archive().items():
        found = recordings[name]
        assert found.roles[NORM] == "grad_norm"
        steps, values = found.series(NORM)
        np.testing.assert_array_equal(steps, training.steps)
        np.testing.assert_array_equal(values, training.norms)
        np.testing.assert_array_equal(found.series("lr")[1], [1e-5] * len(training.norms))


def test_reading_one_run_by_its_id(tmp_path: Path) -> None:
    path = parquet(wide(archive()), tmp_path / "runs.parquet")
    found = gs.read(f"{path}#dead")
    np.testing.assert_array_equal(found.series(NORM)[1], archive()["dead"].norms)
    assert found.frame([NORM])["step"].to_list() == archive()["dead"].steps
    with pytest.raises(ValueError, match="holds no run 'nobody'"):
        gs.read(f"{path}#nobody")
    with pytest.raises(ValueError, match="got 4 recordings"):
        gs.read(path)


# --- Columns by name -------------------------------------------------------------------------------------------------

ODD = {"run": "who", "step": "when", NORM: "size", LOSS: "penalty"}
METRICS = {"grad_norm": "size", "loss": "penalty"}


def renamed() -> Iterator[tuple[str, pl.DataFrame, dict[str, str]]]:
    frame = wide(archive()).drop("tags", "timestamp").rename(ODD)
    yield "wide", frame, {"run": "who", "step": "when"}
    tall = frame.unpivot(index=["who", "when"], variable_name="what", value_name="much")
    yield "long", tall, {"run": "who", "step": "when", "name": "what", "value": "much"}


@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_columns_by_other_names(tmp_path: Path, layout: str, suffix: str) -> None:
    frame, columns = next((frame, columns) for name, frame, columns in renamed() if name == layout)
    path = tmp_path / f"runs.{suffix}"
    if suffix == "csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path) if suffix == "parquet" else frame.write_ipc(path)
    scan = gs.scan(path, metrics=METRICS, progress=False, **columns)  # type: ignore[arg-type]
    assert dict(scan.runs.select(short(pl.col("run")), "status").iter_rows()) == STATUS
    assert set(scan.runs["step_name"]) == {"when"}


def test_the_command_line_takes_the_columns(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gradscan import cli

    _, frame, _ = list(renamed())[1]
    frame.write_parquet(tmp_path / "runs.parquet")
    options = ["--run-column", "who", "--step", "when", "--name-column", "what", "--value-column", "much"]
    options += ["--metric", "grad_norm=size", "--metric", "loss=penalty", "--format", "csv", "--table", "runs"]
    result = CliRunner().invoke(cli.app, ["scan", str(tmp_path / "runs.parquet"), *options])
    assert result.exit_code == 1, result.output
    rows = pl.read_csv(result.stdout.encode())
    assert dict(rows.select(short(pl.col("run")), "status").iter_rows()) == STATUS


def test_rows_spread_over_files_by_a_hash_are_one_curve(tmp_path: Path) -> None:
    """No step stands in two files: they share out one curve. A step in two files is a run that was resumed."""
    training = Training(norms(300, seed=7, put={200: NAN, 201: INF, 120: 33.0, 150: 34.0, 180: 35.0}))
    whole = wide({"run-a": training, "run-b": Training(norms(100, seed=8))})
    (tmp_path / "whole").mkdir()
    whole.write_parquet(tmp_path / "whole" / "runs.parquet")
    expected = gs.scan(tmp_path / "whole", progress=False)
    spread, resumed = tmp_path / "spread", tmp_path / "resumed"
    spread.mkdir()
    resumed.mkdir()
    shares = np.random.default_rng(3).integers(0, 3, len(whole))
    for share in range(3):
        part = whole.filter(pl.Series(shares == share))
        assert part["step"].n_unique() > 60
        part.write_parquet(spread / f"part-{share}.parquet", row_group_size=25)
    found = gs.scan(spread, progress=False)
    keys = [
        "check",
        "metric",
        "first_step",
        "onset_step",
        "last_good_step",
        "count",
        "median",
        "threshold",
        "attempt",
        "steps",
    ]
    assert_frame_equal(found.findings.select(keys), expected.findings.select(keys))
    assert set(expected.findings["check"]) == {"nonfinite", "spikes"}
    assert found.runs["attempts"].to_list() == [1, 1]
    assert found.runs["records"].to_list() == expected.runs["records"].to_list() == [300, 100]

    whole.filter(pl.col("step") < 180).write_parquet(resumed / "part-0.parquet")
    again = whole.filter(pl.col("step") > 170).with_columns(pl.col(NORM) * 1.25)
    again.write_parquet(resumed / "part-1.parquet")
    assert gs.scan(resumed, progress=False).runs["attempts"].to_list() == [2, 1]
