"""`gs.audit` and `gradscan audit` against numpy: types and shapes, containers, damage, and verified checkpoints."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather
from safetensors.numpy import save_file

import gradscan as gs
from makers import NAN, Training, norms, trainer_state
from test_archives import zstd

INF = float("inf")
COLUMNS = ["name", "dtype", "shape", "values", "nan", "inf", "first_row", "bad_rows"]
Row = tuple[int, int, int, int | None, int]


def gradscan(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradscan", "audit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def expected(array: Any) -> Row:
    """Values, NaN, Inf, first bad row and number of bad rows by numpy."""
    if array.dtype.kind in "biuSUMm":
        return (array.size, 0, 0, None, 0)
    with np.errstate(invalid="ignore"):
        wide = array if array.dtype.kind == "c" else array.astype(np.float64)
    nan = np.isnan(wide)
    bad = nan | np.isinf(wide)
    rows = bad.reshape(1, -1) if bad.ndim == 0 else bad.reshape(len(bad), -1) if bad.size else np.zeros((0, 1), bool)
    where = np.flatnonzero(rows.any(axis=1))
    return (array.size, int(nan.sum()), int((bad & ~nan).sum()), int(where[0]) if where.size else None, where.size)


def found(frame: pl.DataFrame) -> dict[str, Row]:
    assert frame.columns[-8:] == COLUMNS or frame.columns == ["source", *COLUMNS, "fault"], frame.columns
    rows = frame.select("name", "values", "nan", "inf", "first_row", "bad_rows").iter_rows()
    return {name: (values, nan, inf, first, bad) for name, values, nan, inf, first, bad in rows}


def tensor_file(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> Path:
    """A file by hand: what the package cannot write, and what it would not."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for *_, data in tensors.values()))
    return path


# ------------------------------------------------------------------------------------------------------------- arrays

DTYPES = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16", "<i4", "|u1", "?", "<M8[s]"]


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str] = tuple(DTYPES)) -> Any:
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    array = rng.integers(0, 100, shape).astype(dtype)
    if dtype.kind in "fc" and array.size:
        flat = array.reshape(-1)
        choices = [NAN, INF, -INF] + (
            [complex(NAN, INF), complex(1, NAN), complex(-INF, 0)] if dtype.kind == "c" else []
        )
        for _ in range(draw(st.integers(0, 6))):
            flat[draw(st.integers(0, flat.size - 1))] = draw(st.sampled_from(choices))
        array = flat.reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) else array


@given(array=arrays(), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]))
@settings(max_examples=300, deadline=None)
def test_npy_is_what_numpy_says(tmp_path_factory: pytest.TempPathFactory, array: Any, version: tuple[int, int]) -> None:
    path = tmp_path_factory.mktemp("npy") / "emb.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    frame = gs.audit(path)
    assert frame.columns == COLUMNS
    assert found(frame) == {"emb": expected(array)}
    assert frame["shape"].to_list() == [list(array.shape)]


@given(several=st.lists(arrays(), min_size=1, max_size=4), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_npz_stored_and_deflated(tmp_path_factory: pytest.TempPathFactory, several: list[Any], packed: bool) -> None:
    path = tmp_path_factory.mktemp("npz") / "cache.npz"
    named = {f"group/a{k}": array for k, array in enumerate(several)}
    (np.savez_compressed if packed else np.savez)(path, **named)
    assert found(gs.audit(path)) == {name: expected(array) for name, array in named.items()}


def test_a_large_array_in_fortran_order(tmp_path: Path) -> None:
    array = np.zeros((3000, 700), np.float32, order="F")
    array[[17, 17, 2999], [0, 699, 350]] = [NAN, INF, NAN]
    np.save(tmp_path / "a.npy", array)
    assert found(gs.audit(tmp_path / "a.npy")) == {"a": (array.size, 2, 1, 17, 2)}


def test_structures_count_by_field(tmp_path: Path) -> None:
    dtype = np.dtype([("id", "<i8"), ("emb", ">f4", (3,)), ("inner", [("w", "<f2"), ("z", "<c8")])], align=True)
    array = np.zeros((5, 2), dtype)
    array["emb"][1, 1, 2] = NAN
    array["emb"][4, 0] = INF
    array["inner"]["w"][3, 0] = NAN
    array["inner"]["z"][2, 1] = complex(0, NAN)
    for order in "CF":
        np.save(tmp_path / "s.npy", np.asarray(array, order=order))  # type: ignore[call-overload]
        assert found(gs.audit(tmp_path / "s.npy")) == {
            "s.id": (10, 0, 0, None, 0),
            "s.emb": (30, 1, 3, 1, 2),
            "s.inner.w": (10, 1, 0, 3, 1),
            "s.inner.z": (10, 1, 0, 2, 1),
        }


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "o.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "o.npz", good=np.array([NAN]), bad=trap)
    with pytest.raises(gs.UnreadableRecordingError, match=r"unsupported.*never loaded"):
        gs.audit(tmp_path / "o.npy")
    both = gs.audit([tmp_path / "o.npz", tmp_path / "o.npy"])
    assert both.filter(pl.col("name") == "good")["nan"].to_list() == [1]
    assert both["fault"].drop_nulls().len() == 2
    assert not (tmp_path / "sprung").exists()


def test_bfloat16_of_numpy_cannot_be_told(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.ones(3, ml_dtypes.bfloat16))
    with pytest.raises(gs.UnreadableRecordingError, match="their type is not in the file"):
        gs.audit(tmp_path / "b.npy")


# -------------------------------------------------------------------------------------------------------- safetensors


@given(several=st.lists(arrays(("<f2", "<f4", "<f8", "<c8", "<i4", "|u1", "?")), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_files_of_the_safetensors_package(tmp_path_factory: pytest.TempPathFactory, several: list[Any]) -> None:
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    named = {f"layer.{k}.weight": np.ascontiguousarray(a).reshape(a.shape) for k, a in enumerate(several)}
    named["half"] = np.array([[1, NAN], [2, -INF]], ml_dtypes.bfloat16)
    save_file(named, path)
    frame = gs.audit(path)
    assert found(frame) == {name: expected(array) for name, array in named.items()}
    assert dict(frame.select("name", "shape").iter_rows()) == {n: list(a.shape) for n, a in named.items()}


@pytest.mark.parametrize(
    ("dtype", "oracle"),
    [
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
        ("BF16", ml_dtypes.bfloat16),
        ("F16", np.float16),
    ],
)
def test_every_bit_pattern_of_the_narrow_types(tmp_path: Path, dtype: str, oracle: Any) -> None:
    width = np.dtype(oracle).itemsize
    bits = np.arange(256**width, dtype=np.uint8 if width == 1 else np.uint16)
    rng = np.random.default_rng(0)
    bits = np.concatenate([bits, rng.permutation(bits)]).reshape(-1, 32)
    path = tensor_file(
        tmp_path / "m.safetensors",
        {"odd": ("U8", (1,), b"\xff"), "w": (dtype, bits.shape, bits.tobytes()), "tail": ("BOOL", (1,), b"\xff")},
    )
    frame = gs.audit(path)
    assert found(frame)["w"] == expected(bits.view(oracle))
    assert found(frame)["odd"] == (1, 0, 0, None, 0)
    assert frame["dtype"].to_list() == ["U8", dtype, "BOOL"]


def test_types_without_nan(tmp_path: Path) -> None:
    path = tensor_file(
        tmp_path / "q.safetensors",
        {"a": ("F4", (4,), b"\xff" * 2), "b": ("F6_E2M3", (4,), b"\xff" * 3), "c": ("I64", (1,), b"\xff" * 8)},
    )
    assert found(gs.audit(path)) == {"a": (4, 0, 0, None, 0), "b": (4, 0, 0, None, 0), "c": (1, 0, 0, None, 0)}


def test_one_value_in_a_gigabyte(tmp_path: Path) -> None:
    """A file with holes: what is not written reads as zeros."""
    path = tmp_path / "big.safetensors"
    columns, rows = 4096, (1 << 30) // 4 // 4096
    text = json.dumps({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]}})
    at = 8 + len(text) + 4 * ((rows - 3) * columns + 1234)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text.encode())
        file.truncate(8 + len(text) + rows * columns * 4)
        file.seek(at)
        file.write(np.float32(NAN).tobytes())
    start = time.process_time()
    frame = gs.audit(path)
    assert time.process_time() - start < 5
    assert found(frame) == {"w": (rows * columns, 1, 0, rows - 3, 1)}


def sharded(folder: Path, **damage: Any) -> Path:
    """A model in two files with its index."""
    shards = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}
    for file, names in shards.items():
        values = {n: ("F32", (2,), np.array([1.0, damage.get(n, 1.0)], np.float32).tobytes()) for n in names}
        tensor_file(folder / file, values)
    index = {"metadata": {"total_size": 24}, "weight_map": {n: f for f, names in shards.items() for n in names}}
    index["weight_map"].update(damage.get("map", {}))  # type: ignore[attr-defined]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model.safetensors.index.json"


def faults(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """Last part of the source, and kind."""
    rows = frame.filter(pl.col("fault").is_not_null()).select("source", "fault").iter_rows()
    return [(source.rsplit("/")[-1], fault.split(":")[0]) for source, fault in rows]


def test_an_index_stands_for_its_files(tmp_path: Path) -> None:
    index = sharded(tmp_path / "m", c=NAN)
    by_index, by_folder = gs.audit(index), gs.audit(tmp_path / "m")
    assert by_index.equals(by_folder)
    assert found(by_index)["c"] == (2, 1, 0, 1, 1)
    assert faults(by_index) == []
    assert len(by_index) == 3


def test_what_an_index_misses(tmp_path: Path) -> None:
    elsewhere = {"x": "../other.safetensors", "y": "gone.safetensors", "z": "model-00002-of-00002.safetensors"}
    index = sharded(tmp_path / "m", map=elsewhere)
    tensor_file(tmp_path / "other.safetensors", {"x": ("F32", (1,), np.float32(NAN).tobytes())})
    frame = gs.audit(index)
    name = "model.safetensors.index.json"
    assert faults(frame) == [(name, "missing-shard"), (name, "missing-shard"), (name, "missing-tensor")]
    assert "x" not in found(frame)
    index.write_text("{")
    assert faults(gs.audit([index, tmp_path / "other.safetensors"])) == [(name, "unparsable")]


# ----------------------------------------------------------------------------------------------- tables and frames


def table() -> pa.Table:
    """Plain, nested and null columns, ten rows; NaN below nulls does not count."""
    emb = np.arange(40, dtype=np.float32)
    emb[[5, 6, 33]] = [NAN, INF, NAN]
    half = np.ones(10, np.float16)
    half[9] = NAN
    lists = [[1.0], [], None, [NAN, 1.0], [INF], [1.0], [2.0], [None, 1.0], [3.0], [NAN, NAN]]
    return pa.table(
        {
            "x": pa.array([1.0, None, NAN, INF, -INF, 1.0, NAN, None, 2.0, 3.0], pa.float64(), from_pandas=False),
            "clean": pa.array(np.ones(10), pa.float64()),
            "h": pa.array(half, pa.float16()),
            "id": pa.array(range(10)),
            "text": pa.array(["NaN"] * 10),
            "emb": pa.FixedSizeListArray.from_arrays(pa.array(emb), 4),
            "l": pa.array(lists, pa.list_(pa.float32())),
            "s": pa.array([{"a": NAN, "b": 1}] * 10, pa.struct({"a": pa.float32(), "b": pa.int8()})),
            "none": pa.nulls(10),
        }
    )


TABLE: dict[str, Row] = {
    "x": (8, 2, 2, 2, 4),
    "clean": (10, 0, 0, None, 0),
    "h": (10, 1, 0, 9, 1),
    "emb": (40, 2, 1, 1, 2),
    "l": (10, 3, 1, 3, 3),
    "s.a": (10, 10, 0, 0, 10),
}


@pytest.mark.parametrize("format", ["parquet", "groups", "feather", "stream", "pyarrow", "batches", "polars", "lazy"])
def test_tables_are_counted_by_row(tmp_path: Path, format: str) -> None:
    whole = table()
    path = tmp_path / "t.parquet"
    if format == "parquet":
        pq.write_table(whole, path)
        frame = gs.audit(path)
    elif format == "groups":
        pq.write_table(whole, path, row_group_size=3, compression="zstd", data_page_version="2.0")
        frame = gs.audit(path)
    elif format == "feather":
        feather.write_feather(whole, str(tmp_path / "t.feather"), compression="lz4", chunksize=4)
        frame = gs.audit(tmp_path / "t.feather")
    elif format == "stream":
        with pa.ipc.new_stream(str(tmp_path / "t.arrows"), whole.schema) as writer:
            writer.write_table(whole, max_chunksize=3)
        frame = gs.audit(tmp_path / "t.arrows")
    elif format == "pyarrow":
        frame = gs.audit(whole)
    elif format == "batches":
        frame = gs.audit(pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches(max_chunksize=3)))
    else:
        eager = pl.DataFrame(whole)
        frame = gs.audit(eager.lazy() if format == "lazy" else eager)
    assert frame.columns == COLUMNS
    assert found(frame) == TABLE
    assert frame.filter(pl.col("name") == "emb")["shape"].to_list() == [[10, 4]]


def test_pandas_frames(tmp_path: Path) -> None:
    cells = [np.array([1.0, NAN], np.float32), None, [INF, NAN, 1.0], "text", 2.0]
    frame = pd.DataFrame(
        {
            "numpy": np.array([1.0, NAN, 2.0, INF, 1.0], np.float32),
            "masked": pd.array([1.0, None, 2.0, 3.0, 4.0], "Float64"),
            "arrow": pd.Series(
                pa.array([1.0, None, NAN, 3.0, 4.0], from_pandas=False), dtype=pd.ArrowDtype(pa.float64())
            ),
            "ids": range(5),
            "cells": cells,
            "complex": np.array([1, complex(NAN, INF), complex(INF, 0), 1, 1]),
            "category": pd.Categorical([1.0, 2.0, NAN, 1.0, 1.0]),
            "text": list("abcde"),
        }
    )
    result = found(gs.audit(frame))
    assert result["numpy"] == (5, 1, 1, 1, 2)
    assert result["masked"] == (4, 0, 0, None, 0)
    assert result["cells"] == (6, 2, 1, 0, 2)
    assert result["complex"] == (5, 1, 1, 1, 2)
    assert not {"ids", "text"} & set(result)
    assert result["arrow"][1:] in [(1, 0, 2, 1), (0, 0, None, 0)], "pandas may take NaN for NA on the way in"
    assert gs.audit(frame[["ids"]]).columns == COLUMNS


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.ones(3), "count_nonfinite"),
        ({"a": 1}, "count_nonfinite"),
        (pl.Series([1.0]), "want a frame"),
        (pd.Series([1.0]), "want a frame"),
        (7, "got int, want a path"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_frame(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        gs.audit(value)


# ------------------------------------------------------------------------------------------------ files and damage


def test_compressed_files_and_members_of_archives(tmp_path: Path) -> None:
    array = np.array([[1.0, NAN], [1.0, 1.0], [INF, 1.0]], np.float32)
    np.save(tmp_path / "a.npy", array)
    save_file({"a": array}, tmp_path / "a.safetensors")
    pq.write_table(pa.table({"a": array[:, 0]}), tmp_path / "a.parquet")
    want = {"a": expected(array)}
    plain = [tmp_path / name for name in ("a.npy", "a.safetensors", "a.parquet")]
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in plain[:2]:
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        (packed / f"{path.name}.zst").write_bytes(zstd(path.read_bytes()))
    for path in sorted(packed.iterdir()):
        assert found(gs.audit(path)) == want, path
    for name, mode in (("runs.tar", "w"), ("runs.tar.gz", "w:gz")):
        with tarfile.open(packed / name, mode) as archive:  # type: ignore[call-overload]
            for path in plain:
                archive.add(path, arcname=f"deep/{path.name}")
            archive.addfile(tarfile.TarInfo("readme.txt"))
    with zipfile.ZipFile(packed / "runs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in plain:
            archive.write(path, f"deep/{path.name}")
    for name in ("runs.tar", "runs.tar.gz", "runs.zip"):
        frame = gs.audit(packed / name)
        assert faults(frame) == []
        assert sorted(frame["source"]) == sorted(f"{packed / name}/deep/{path.name}" for path in plain)
        assert frame["nan"].to_list().count(1) == 2
        assert frame["inf"].to_list() == [1, 1, 1]


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "weights", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", np.full(4, NAN, np.float32).tobytes())
    (tmp_path / "optimizer.pt").write_bytes((tmp_path / "weights").read_bytes())
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "old").write_bytes(b"\x80\x02}q\x00.")
    for name in ("weights", "optimizer.pt", "old"):
        with pytest.raises(gs.UnreadableRecordingError, match=r"unsupported.*pickle.*never loaded"):
            gs.audit(tmp_path / name)
    assert faults(gs.audit(tmp_path)) == [("optimizer.pt", "unsupported")]


def test_one_damaged_file_never_stops_the_others(tmp_path: Path) -> None:
    good = {"w": np.array([1.0, NAN], np.float32)}
    save_file(good, tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[:-3])
    (tmp_path / "c.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "d.npy").write_bytes(b"")
    (tmp_path / "e.parquet").write_bytes(b"PAR1 no table PAR1")
    (tmp_path / "f.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "g.arrow").write_bytes(b"ARROW1\0\0")
    os.symlink(tmp_path / "a.safetensors", tmp_path / "h.safetensors")
    (tmp_path / "notes.txt").write_text("nothing")
    frame = gs.audit(tmp_path)
    said = dict(faults(frame))
    assert set(said) == {
        f"{n}.{s}"
        for n, s in zip("bcdefgh", ["safetensors"] * 2 + ["npy", "parquet", "npz", "arrow", "safetensors"], strict=True)
    }
    assert said["b.safetensors"] == "truncated"
    assert said["c.safetensors"] == "git-lfs-pointer"
    assert said["h.safetensors"] == "link"
    assert frame.filter(pl.col("name").is_not_null())["source"].to_list() == [
        str(tmp_path / "a.safetensors"),
        str(tmp_path / "b.safetensors"),
    ]
    with pytest.raises(gs.UnreadableRecordingError, match="truncated"):
        gs.audit(tmp_path / "b.safetensors")
    with pytest.raises(gs.UnreadableRecordingError, match="Git LFS"):
        gs.audit(tmp_path / "c.safetensors")
    with pytest.raises(gs.UnknownFormatError):
        gs.audit(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        gs.audit(tmp_path / "gone.npy")


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(30):
        array = rng.standard_normal((50, 20)).astype(np.float32)
        array[k, k % 20] = NAN
        np.save(tmp_path / f"part-{k}.npy", array)
    one = gs.audit(tmp_path, threads=1)
    assert len(one) == 30
    assert one["first_row"].to_list() == [int(Path(source).stem.split("-")[1]) for source in one["source"]]
    for threads in (2, 7):
        assert gs.audit(tmp_path, threads=threads).equals(one)
    with pytest.raises(ValueError, match="threads: got 0"):
        gs.audit(tmp_path, threads=0)


# -------------------------------------------------------------------------------------------------------- command line


def test_the_command_line(tmp_path: Path) -> None:
    clean, bad, broken = tmp_path / "clean", tmp_path / "bad", tmp_path / "broken"
    sharded(clean)
    sharded(bad, b=INF)
    broken.mkdir()
    (broken / "a.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "empty").mkdir()

    done = gradscan(bad)
    assert done.returncode == 1, done.stderr
    assert "  b " in done.stdout
    assert "3 tensors of 3 files, 6 values checked: 1 with NaN or Inf" in done.stdout
    done = gradscan(clean)
    assert (done.returncode, done.stdout) == (0, "3 tensors of 3 files, 6 values checked: no NaN or Inf\n")
    done = gradscan(broken, clean)
    assert done.returncode == 3
    assert "truncated" in done.stdout
    assert "1 file could not be read" in done.stdout
    assert gradscan(broken, bad).returncode == 1
    done = gradscan(tmp_path / "empty")
    assert done.returncode == 4
    assert "nothing to audit" in done.stderr
    assert gradscan(tmp_path / "gone").returncode == 2
    assert gradscan().returncode == 2
    assert gradscan(bad, "-o", tmp_path / "x.html").returncode == 2

    report = json.loads(gradscan(bad, broken, "--format", "json").stdout)
    assert report["summary"] == {
        "files": 4, "tensors": 3, "values": 6, "bad": 1, "nan": 0, "inf": 1, "damaged": 1, "skipped_files": 0,
    }  # fmt: skip
    assert [t["name"] for t in report["tensors"]] == ["b"]
    assert report["faults"][0]["kind"] == "truncated"
    lines = gradscan(bad, "--format", "jsonl", "--all").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["a", "b", "c"]
    csv = gradscan(bad, "--format", "csv").stdout
    assert pl.read_csv(io.StringIO(csv)).select("name", "inf").rows() == [("b", 1)]
    assert "| b | 0 | 1 | 1 | 1 | F32 |" in gradscan(bad, "--format", "markdown").stdout
    assert gradscan(bad, "--quiet").stdout.count("\n") == 1
    for name in ("r.json", "r.csv", "r.md", "r.txt", "r.parquet", "r.jsonl"):
        assert gradscan(bad, "-q", "-o", tmp_path / name).returncode == 1
        assert (tmp_path / name).stat().st_size > 0


def test_names_are_escaped(tmp_path: Path) -> None:
    tensor_file(tmp_path / "m.safetensors", {"=1+\x1b[31m|x": ("F32", (1,), np.float32(NAN).tobytes())})
    assert "\x1b[31m" not in gradscan(tmp_path).stdout
    assert "\\x1b[31m" in gradscan(tmp_path).stdout
    assert "'=1+" in gradscan(tmp_path, "--format", "csv").stdout
    assert "\\|x" in gradscan(tmp_path, "--format", "markdown").stdout


# --------------------------------------------------------------------------------------------------- restore points


def checkpoints(root: Path, values: Mapping[int, float | None]) -> Path:
    """A training with NaN from step 251 on; checkpoints by step with a value in their weights, None for pickles."""
    trainer_state(root, Training(norms(300, put=dict.fromkeys(range(250, 300), NAN))), checkpoints=sorted(values))
    for step, value in values.items():
        folder = root / f"checkpoint-{step}"
        if value is None:
            (folder / "model.safetensors").unlink()
            (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 no safetensors")
        else:
            save_file({"w": np.array([1.0, value], np.float32)}, folder / "model.safetensors")
    return root


def restored(root: Path, verify: bool = True) -> tuple[Any, ...]:
    finding = gs.scan(root, verify_checkpoints=verify).findings.row(0, named=True)
    path = finding["restore_path"]
    return (path and Path(path).name, finding["restore_status"], finding["explanation"])


def test_a_poisoned_restore_point_gives_way_to_an_older_one(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: 1.0, 200: NAN, 280: NAN})
    assert restored(root, verify=False)[:2] == ("checkpoint-200", "clean")
    path, status, text = restored(root)
    assert (path, status) == ("checkpoint-100", "verified")
    assert "Restore checkpoint-100, whose weights are finite" in text
    assert "checkpoint-200 holds NaN in w" in text
    done = subprocess.run(
        [sys.executable, "-m", "gradscan", "scan", str(root), "--verify-checkpoints"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "checkpoint-100" in done.stdout


def test_a_sound_restore_point_is_verified(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: NAN, 200: 1.0})
    assert restored(root)[:2] == ("checkpoint-200", "verified")


def test_all_poisoned(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: INF, 150: 1.0, 200: NAN})
    (root / "checkpoint-150" / "optimizer.safetensors").write_bytes(b"cut")
    path, status, text = restored(root)
    assert (path, status) == (None, "none")
    assert "hold NaN or Inf, or cannot be read" in text
    assert "checkpoint-200 holds NaN in w" in text
    assert "checkpoint-150 cannot be read: truncated" in text


def test_links_are_told_as_such(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: 1.0, 200: 1.0})
    weights = root / "checkpoint-200" / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    path, status, text = restored(root)
    assert (path, status) == ("checkpoint-200", "clean")
    assert "symbolic links" in text


def test_pickles_stay_clean_with_the_reason(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: None, 200: NAN})
    path, status, text = restored(root)
    assert (path, status) == ("checkpoint-100", "clean")
    assert "could not be verified" in text


def test_a_missing_shard_is_no_sound_checkpoint(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {100: 1.0, 200: 1.0})
    index = {"weight_map": {"w": "model.safetensors", "x": "model-00002-of-00002.safetensors"}}
    (root / "checkpoint-200" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert restored(root)[:2] == ("checkpoint-100", "verified")


def test_a_file_as_checkpoint(tmp_path: Path) -> None:
    root = checkpoints(tmp_path / "run", {})
    save_file({"w": np.array([NAN], np.float32)}, root / "step_200.safetensors")
    save_file({"w": np.array([1.0], np.float32)}, root / "step_100.safetensors")
    assert restored(root, verify=False)[:2] == ("step_200.safetensors", "clean")
    assert restored(root)[:2] == ("step_100.safetensors", "verified")


def test_a_file_without_tensors_verifies_nothing(tmp_path: Path) -> None:
    root = trainer_state(tmp_path / "run", Training(norms(300, put={250: NAN})), checkpoints=(100, 200)).parent
    path, status, text = restored(root)
    assert (path, status) == ("checkpoint-200", "clean")
    assert "could not be verified" in text
