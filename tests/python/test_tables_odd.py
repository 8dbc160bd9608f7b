"""Tables as other tools leave them: odd ids, flags of NaN, damaged pages, files that differ, NaN that became null."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import gradscan as gs

NAN = math.nan
ROWS = 40


def rows(values: list[float] | None = None, **columns: Any) -> dict[str, Any]:
    """One wide run."""
    norms = values or [1.0 + k % 7 / 10 for k in range(ROWS)]
    return {**columns, "step": list(range(len(norms))), "grad_norm": norms}


def dead(at: int = 20) -> list[float]:
    """Norms that are NaN from a row on."""
    return [1.0 + k % 7 / 10 if k < at else NAN for k in range(ROWS)]


def two_runs(a: Any, b: Any, kind: pa.DataType | None = None) -> pa.Table:
    """A clean run and a dead one, told apart by ids of a type."""
    ids = pa.array([a] * ROWS + [b] * ROWS, kind)
    clean, broken = rows(), rows(dead())
    return pa.table(
        {
            "run_id": ids,
            "step": pa.array(clean["step"] + broken["step"]),
            "grad_norm": pa.array(clean["grad_norm"] + broken["grad_norm"], from_pandas=False),
        }
    )


def statuses(scan: gs.Scan) -> dict[str, str]:
    """Each run's status, by its id behind the last slash."""
    return {row["run"].rsplit("/", 1)[-1]: row["status"] for row in scan.runs.iter_rows(named=True)}


def found(scan: gs.Scan) -> list[str]:
    """The statuses of all runs."""
    return sorted(scan.runs["status"].to_list())


# --- Ids -------------------------------------------------------------------------------------------------------------

IDS: dict[str, tuple[Any, Any, pa.DataType, str, str]] = {
    "uuid": (uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, pa.binary(16), f"{1:032x}", f"{2:032x}"),
    "binary": (b"a", b"\xff\xfe", pa.binary(), "a", "0xfffe"),
    "large binary": (b"a", b"b", pa.large_binary(), "a", "b"),
    "boolean": (False, True, pa.bool_(), "false", "true"),
    "integers": (7, 8, pa.int16(), "7", "8"),
    "dictionary of integers": (7, 8, pa.dictionary(pa.int32(), pa.int64()), "7", "8"),
    "dates": (1, 2, pa.date32(), "1970-01-02", "1970-01-03"),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_every_type_tell_runs_apart(tmp_path: Path, kind: str) -> None:
    a, b, data_type, first, second = IDS[kind]
    if pa.types.is_dictionary(data_type):
        table = two_runs(a, b, data_type.value_type)
        table = table.set_column(0, "run_id", table["run_id"].dictionary_encode())
    else:
        table = two_runs(a, b, data_type)
    want = {first: "clean", second: "damaged"}
    assert statuses(gs.scan_frame(table)) == want
    pq.write_table(table, tmp_path / "m.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "m.feather", compression="uncompressed")
    for name in ("m.parquet", "m.feather"):
        assert found(gs.scan([tmp_path / name])) == ["clean", "damaged"], name


def test_run_end_encoded_ids() -> None:
    table = two_runs("a", "b")
    ids = pa.RunEndEncodedArray.from_arrays(pa.array([ROWS, 2 * ROWS], pa.int32()), pa.array(["a", "b"]))
    assert statuses(gs.scan_frame(table.set_column(0, "run_id", ids))) == {"a": "clean", "b": "damaged"}


def test_rows_without_an_id_are_not_those_of_the_run_called_null(tmp_path: Path) -> None:
    table = two_runs("null", None, pa.string())
    assert found(gs.scan_frame(table)) == ["clean", "damaged"]
    pq.write_table(table, tmp_path / "m.parquet")
    assert found(gs.scan([tmp_path / "m.parquet"])) == ["clean", "damaged"]


def test_ids_with_a_null_byte(tmp_path: Path) -> None:
    table = two_runs("a\0x", "b\0x")
    pq.write_table(table, tmp_path / "m.parquet")
    scan = gs.scan([tmp_path / "m.parquet"])
    assert found(scan) == ["clean", "damaged"]
    names = scan.runs["run"].to_list()
    assert "a" in names[0]
    assert "b" in names[1]


def test_a_run_column_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    table = two_runs(["a"], ["b"], pa.list_(pa.string()))
    with pytest.raises(ValueError, match=r"run: got column .run_id. of type .*List.*, want text or whole numbers"):
        gs.scan_frame(table)
    pq.write_table(table, tmp_path / "m.parquet")
    scan = gs.scan([tmp_path])
    assert found(scan) == ["unreadable"]
    assert "run_id" in scan.runs["reason"][0]


# --- Flags of NaN ----------------------------------------------------------------------------------------------------

FLAGS: dict[str, Callable[[bool], Any]] = {
    "bool": bool,
    "int": int,
    "text": lambda flag: "True" if flag else "False",
    "digit": lambda flag: "1" if flag else "0",
}


@pytest.mark.parametrize("values", [pa.float32(), pa.float64(), pa.int64()], ids=str)
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("name", ["is_nan", "IS_NAN"])
def test_a_flag_of_nan_counts_for_values_of_every_type(name: str, flag: str, values: pa.DataType) -> None:
    table = pa.table(
        {
            "key": ["grad_norm"] * ROWS,
            "value": pa.array([0 if k >= 20 else 1 + k % 3 for k in range(ROWS)], values),
            "step": list(range(ROWS)),
            name: [FLAGS[flag](k >= 20) for k in range(ROWS)],
        }
    )
    scan = gs.scan_frame(table)
    assert found(scan) == ["damaged"]
    assert scan.findings["first_step"].to_list() == [20]


def test_a_missing_step_of_a_long_table_is_not_made_up() -> None:
    steps = [None if k == 20 else k for k in range(ROWS)]
    values = [NAN if k == 20 else 1.0 + k % 7 / 10 for k in range(ROWS)]
    scan = gs.scan_frame(pl.DataFrame({"metric": ["grad_norm"] * ROWS, "value": values, "step": steps}))
    assert found(scan) == ["damaged"]
    assert scan.findings["first_step"].to_list() == [None]


# --- Files of one data set -------------------------------------------------------------------------------------------


def test_one_more_step_column_is_no_other_data_set(tmp_path: Path) -> None:
    first = pl.DataFrame(rows(run_id=["a"] * ROWS))
    values = rows(dead(), run_id=["a"] * ROWS)
    values["step"] = [step + ROWS for step in values["step"]]
    pl.DataFrame(first).write_parquet(tmp_path / "part-0.parquet")
    pl.DataFrame({**values, "epoch": [1] * ROWS, "timestamp": values["step"]}).write_parquet(
        tmp_path / "part-1.parquet"
    )
    scan = gs.scan([tmp_path])
    assert found(scan) == ["damaged"]
    assert scan.runs["records"].to_list() == [2 * ROWS]


def test_parts_are_ordered_by_a_step_that_has_values(tmp_path: Path) -> None:
    for name, first in {"part-0": ROWS, "part-1": 0}.items():
        steps = [first + k for k in range(ROWS)]
        frame = pl.DataFrame({**rows(), "step": None, "iteration": steps, "run_id": "a"})
        frame.with_columns(pl.col("step").cast(pl.Int64)).write_parquet(tmp_path / f"{name}.parquet")
    scan = gs.scan([tmp_path])
    assert scan.runs["attempts"].to_list() == [1]
    assert scan.runs["records"].to_list() == [2 * ROWS]


def test_data_sets_of_samples_are_skipped(tmp_path: Path) -> None:
    samples = pl.DataFrame({"prompt": ["a"] * ROWS, "loss": [0.5] * ROWS})
    samples.write_parquet(tmp_path / "samples.parquet")
    scan = gs.scan([tmp_path])
    assert scan.runs.height == 0
    assert scan.skipped_files == 1
    samples.with_columns(step=pl.int_range(pl.len())).write_parquet(tmp_path / "samples.parquet")
    assert found(gs.scan([tmp_path])) == ["clean"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_table_without_rows_has_a_row_that_says_so(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(rows(run_id=["a"] * ROWS)).clear()
    path = tmp_path / f"m.{suffix}"
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_ipc(path)
    scan = gs.scan([path])
    assert found(scan) == ["not_assessable"]
    assert scan.runs["reason"].to_list() == ["it holds no points"]


# --- Damage ----------------------------------------------------------------------------------------------------------


def smashed(tmp_path: Path, column: int, group: int, **options: Any) -> gs.Scan:
    """Two clean runs, a row group each, of which one byte in the middle of a chunk was turned."""
    table = pa.table(
        {
            "run_id": ["a"] * ROWS + ["b"] * ROWS,
            "step": list(range(ROWS)) * 2,
            "grad_norm": [1.0 + k % 7 / 10 for k in range(ROWS)] * 2,
        }
    )
    path = tmp_path / "m.parquet"
    pq.write_table(
        table, path, row_group_size=ROWS, use_dictionary=False, compression="none", write_page_checksum=True, **options
    )
    assert found(gs.scan([path])) == ["clean", "clean"]
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(column)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 0x01
    path.write_bytes(data)
    return gs.scan([path])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_that_is_not_its_checksum_is_damage(tmp_path: Path, version: str) -> None:
    scan = smashed(tmp_path, 2, 1, data_page_version=version)
    assert found(scan) == ["clean", "not_assessable"]
    assert "bad-checksum" in scan.faults["kind"].to_list()


def test_rows_of_no_known_run_leave_no_run_clean(tmp_path: Path) -> None:
    scan = smashed(tmp_path, 0, 1)
    assert set(found(scan)) == {"not_assessable"}
    assert "bad-checksum" in scan.faults["kind"].to_list()


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_a_file_that_polars_did_not_finish(tmp_path: Path, compression: Any) -> None:
    path = tmp_path / "m.arrow"
    frame = pl.DataFrame(rows(dead(), run_id=["a"] * ROWS))
    frame.write_ipc(path, compression=compression)
    whole = path.read_bytes()
    assert found(gs.scan([path])) == ["damaged"]
    # Nothing but the end of the footer is missing.
    path.write_bytes(whole[:-12])
    scan = gs.scan([path])
    assert found(scan) == ["damaged"]
    assert scan.faults["kind"].to_list() == ["truncated"]
    path.write_bytes(whole[: len(whole) // 2])
    assert found(gs.scan([path])) != ["clean"]


# --- NaN that became null --------------------------------------------------------------------------------------------


def pandas_file(frame: pd.DataFrame, path: Path) -> None:
    """Writes it as pandas does."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_feather(path)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_nan_that_pandas_wrote_as_null_is_not_clean(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    frame = pd.DataFrame({"epoch": [0.0] * ROWS, **rows(dead())})
    pandas_file(frame, path)
    scan = gs.scan([path])
    assert found(scan) == ["suspect"]
    assert scan.suspicions.select("rule", "metric", "first_step", "last_good_step").rows() == [
        ("ambiguous-nan", "grad_norm", 20, 19)
    ]
    # Nothing missing, nothing to suspect; nullable columns tell both apart.
    pandas_file(pd.DataFrame(rows()), path)
    assert found(gs.scan([path])) == ["clean"]
    nullable = pd.DataFrame(rows())
    nullable["grad_norm"] = nullable["grad_norm"].astype("Float64")
    nullable.loc[30:, "grad_norm"] = pd.NA
    pandas_file(nullable, path)
    assert found(gs.scan([path])) == ["clean"]


def test_nan_that_pandas_made_null_in_a_frame() -> None:
    table = pa.Table.from_pandas(pd.DataFrame(rows(dead())))
    assert found(gs.scan_frame(table)) == ["suspect"]
    assert found(gs.scan_frame(table, nan="damage")) == ["suspect"]
    assert found(gs.scan_frame(table, nan="missing")) == ["clean"]
    assert found(gs.scan_frame(table.replace_schema_metadata(None))) == ["clean"]
