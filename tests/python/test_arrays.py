"""`count_nonfinite`, `assert_finite`, `batch_stats` and `scan_series` against numpy."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradscan as gs

FLOATS = [np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)]
BF16 = np.dtype(ml_dtypes.bfloat16)


def expected(array: np.ndarray) -> gs.NonFinite:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN says so
        wide = array.astype(np.float64)
    bad = ~np.isfinite(wide)
    nan, inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    if not bad.any():
        return gs.NonFinite(nan, inf)
    first = int(np.flatnonzero(bad.reshape(-1))[0])
    return gs.NonFinite(nan, inf, first, tuple(int(i) for i in np.unravel_index(first, array.shape)))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of up to 4 dimensions with strides of every kind: transposed, stepped, reversed, broadcast."""
    dtype = draw(st.sampled_from([*FLOATS, BF16, np.dtype(">f4"), np.dtype(">f8"), np.dtype(">f2")]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    array = rng.normal(size=shape).astype(np.float64)
    share = draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    array = np.where(rng.random(shape) < share, rng.choice([np.nan, np.inf, -np.inf], shape), array)
    array = np.asarray(array).astype(dtype)
    if array.ndim:
        array = array.transpose(draw(st.permutations(range(array.ndim))))
        step = draw(st.sampled_from([1, 2, -1, -3]))
        array = array[..., ::step]
    if draw(st.booleans()) and array.size:
        array = np.broadcast_to(array, (2, *array.shape))
    return array


@given(arrays())
def test_count_equals_numpy(array: np.ndarray) -> None:
    assert gs.count_nonfinite(array) == expected(array)


@pytest.mark.parametrize("dtype", [*FLOATS, BF16], ids=str)
def test_every_bit_pattern_of_the_small_types(dtype: np.dtype) -> None:
    if dtype.itemsize == 2:
        array = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        array = np.concatenate([array[:0x7000], array])  # the first bad value is not at a power of two
    else:
        top = np.arange(1 << 16, dtype=np.uint64) << np.uint64(8 * dtype.itemsize - 16)
        array = top.astype(f"u{dtype.itemsize}").view(dtype)
    assert gs.count_nonfinite(array) == expected(array)
    assert gs.count_nonfinite(array[::-1]) == expected(array[::-1])


def test_first_is_in_c_order_whatever_the_layout() -> None:
    array = np.zeros((300, 1000), np.float32)
    array[2, 999] = np.nan
    array[299, 0] = np.inf
    for same in (array, np.asfortranarray(array), np.flip(np.flip(array).copy()), array.astype(">f4")):
        assert gs.count_nonfinite(same) == gs.NonFinite(1, 1, 2999, (2, 999))


def test_unaligned_and_read_only() -> None:
    raw = np.zeros(8 * 100 + 1, np.uint8)
    array = raw[1:].view(np.float64)
    array[7] = np.nan
    assert not array.flags.aligned
    assert gs.count_nonfinite(array) == gs.NonFinite(1, 0, 7, (7,))
    fixed = np.array([1.0, np.inf])
    fixed.flags.writeable = False
    assert gs.count_nonfinite(fixed) == gs.NonFinite(0, 1, 1, (1,))


def test_scalars_and_empty_arrays() -> None:
    assert gs.count_nonfinite(np.float32("nan")) == gs.NonFinite(1, 0, 0, ())
    assert gs.count_nonfinite(np.zeros((3, 0, 2))) == gs.NonFinite(0, 0)
    assert gs.count_nonfinite(np.zeros((3, 0, 2))[:, :, ::2]) == gs.NonFinite(0, 0)
    assert gs.count_nonfinite([1.0, math.inf]) == gs.NonFinite(0, 1, 1, (1,))


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.int32, bool])
def test_integers_and_booleans_have_none(dtype: Any) -> None:
    assert gs.count_nonfinite(np.ones(10, dtype)) == gs.NonFinite(0, 0)


@pytest.mark.parametrize("array", [np.zeros(2, complex), np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]")])
def test_other_dtypes_are_refused_by_name(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"array: got dtype .*, want float16"):
        gs.count_nonfinite(array)


class OnlyDlpack:
    """What a library without numpy's protocol gives: DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **given: Any) -> Any:
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_other_libraries() -> None:
    array = np.array([[1.0, np.nan]], np.float32)
    assert gs.count_nonfinite(OnlyDlpack(array)) == gs.NonFinite(1, 0, 1, (0, 1))
    assert gs.count_nonfinite(pl.Series([1.0, math.nan, math.inf])) == gs.NonFinite(1, 1, 1, (1,))
    with pytest.raises(ValueError, match="array: got 1 nulls"):
        gs.count_nonfinite(pl.Series([1.0, None]))

    class Elsewhere:
        def __array__(self, *_: object, **__: object) -> None:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(TypeError, match=r"array: got Elsewhere, want an array in main memory \(can't convert cuda"):
        gs.count_nonfinite(Elsewhere())


def test_bfloat16_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's bfloat16 does not go through numpy; a stand-in has the four names that are used."""

    class Tensor:
        def __init__(self, bits: np.ndarray, dtype: str) -> None:
            self.bits, self.dtype = bits, dtype

        def detach(self) -> Tensor:
            return self

        def view(self, dtype: str) -> Tensor:
            assert dtype == "int16"
            return Tensor(self.bits.view(np.int16), dtype)

        def numpy(self) -> np.ndarray:
            return self.bits

    torch = type(sys)("torch")
    torch.Tensor, torch.bfloat16, torch.int16 = Tensor, "bfloat16", "int16"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    values = np.array([[1.0, -np.inf], [np.nan, 2.0]]).astype(BF16)
    tensor = Tensor(values.view(np.uint16), "bfloat16")
    assert gs.count_nonfinite(tensor) == gs.NonFinite(1, 1, 1, (0, 1))
    with pytest.raises(gs.NonFiniteError) as caught:
        gs.assert_finite({"weights": tensor})
    assert caught.value.value == -math.inf


def test_assert_finite_names_array_counts_index_and_step() -> None:
    batch = {
        "input_ids": np.arange(6),
        "prompt": "text",
        "names": ["a", "b"],
        "nothing": None,
        "labels": np.array([[0.5, 1.0], [np.inf, np.nan]], np.float16),
        "aux": {"mask": np.ones(3, bool), "advantage": np.array([np.nan])},
    }
    with pytest.raises(gs.NonFiniteError) as caught:
        gs.assert_finite(batch, step=1200)
    error = caught.value
    assert (error.run, error.step, error.metric, error.value) == (None, 1200, "labels", math.inf)
    assert error.findings == {
        "labels": gs.NonFinite(1, 1, 2, (1, 0)),
        "aux/advantage": gs.NonFinite(1, 0, 0, (0,)),
    }
    for part in ("step 1,200", "labels: 1 NaN and 1 Inf, first at index (1, 0)", "aux/advantage"):
        assert part in str(error)
    assert isinstance(error, RuntimeError)
    gs.assert_finite({name: value for name, value in batch.items() if name not in ("labels", "aux")})
    gs.assert_finite(np.zeros(3))
    with pytest.raises(gs.NonFiniteError, match=r"^array: 1 NaN and 0 Inf"):
        gs.assert_finite(np.array([np.nan]))
    with pytest.raises(TypeError, match="odd: got dtype complex128"):
        gs.assert_finite({"odd": np.zeros(2, complex)})


# ------------------------------------------------------------------------------------------- batch_stats


def median(finite: np.ndarray) -> float | None:
    """The mean of the two middle values; halved first only where their sum overflows."""
    if len(finite) == 0:
        return None
    ordered = np.sort(finite.astype(np.float64))
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    if low == high:
        return low
    return low / 2 + high / 2 if math.isinf(low + high) else (low + high) / 2


def row_of(run: np.ndarray, ratio: float) -> dict[str, Any]:
    finite = np.isfinite(run)
    middle = median(run[finite])
    with np.errstate(over="ignore"):
        above = (
            finite & (run.astype(np.float64) > ratio * middle) if middle is not None and middle > 0 else finite & False
        )
    bad, spikes = np.flatnonzero(~finite), np.flatnonzero(above)
    return {
        "n": len(run),
        "nan": int(np.isnan(run).sum()),
        "inf": int(np.isinf(run).sum()),
        "first_nonfinite": int(bad[0]) if len(bad) else None,
        "median": middle,
        "max": float(run[finite].max()) if finite.any() else None,
        "spikes": len(spikes),
        "first_spike": int(spikes[0]) if len(spikes) else None,
    }


def rows_equal(frame: pl.DataFrame, rows: list[dict[str, Any]]) -> None:
    assert frame.columns == ["n", "nan", "inf", "first_nonfinite", "median", "max", "spikes", "first_spike"]
    assert frame.to_dicts() == rows


ODD = [0.0, -0.0, -1.0, 1.0, 5e-324, 1.7e308, -1.7e308, np.nan, np.inf, -np.inf, 10.0, 10.000001, 3.4e38]


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, 3, 10, 64, 65, 257, 700]), max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.lognormal(0, draw(st.sampled_from([0.0, 0.3, 2.0])), sum(lengths))
    share = draw(st.sampled_from([0.0, 0.05, 0.6]))
    values = np.where(rng.random(len(values)) < share, rng.choice(ODD, len(values)), values)
    with np.errstate(over="ignore"):
        values = values.astype(draw(st.sampled_from([np.float32, np.float64])))
    return values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@given(batches(), st.sampled_from([10.0, 1.0, 2.5]), st.sampled_from([None, 1, 2]))
def test_batch_stats_equals_numpy(batch: tuple[np.ndarray, np.ndarray], ratio: float, threads: int | None) -> None:
    values, offsets = batch
    rows = [row_of(values[a:b], ratio) for a, b in pairwise(offsets)]
    rows_equal(gs.batch_stats(values, offsets, spike_ratio=ratio, threads=threads), rows)


@pytest.mark.parametrize("layout", ["C", "F", "stepped", "reversed", "read-only", "swapped"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_batch_stats_of_two_dimensions(layout: str, dtype: Any) -> None:
    values = (np.random.default_rng(5).lognormal(2, 1, (7, 120)) * 3).astype(dtype)
    if layout == "F":
        values = np.asfortranarray(values)
    elif layout == "stepped":
        values = np.repeat(values, 2, axis=1)[:, ::2]
    elif layout == "reversed":
        values = values[::-1, ::-1]
    elif layout == "read-only":
        values.flags.writeable = False
    elif layout == "swapped":
        values = values.astype(values.dtype.newbyteorder(">"))
    rows_equal(gs.batch_stats(values), [row_of(row.astype(np.float64), 10.0) for row in values])


def test_batch_stats_of_nothing() -> None:
    assert gs.batch_stats(np.zeros((0, 5))).shape == (0, 8)
    assert gs.batch_stats(np.zeros((3, 0)))["n"].to_list() == [0, 0, 0]
    assert gs.batch_stats(np.zeros(0), [0]).shape == (0, 8)
    assert gs.batch_stats([], [0, 0])["median"].to_list() == [None]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"values": np.zeros(3)}, ValueError, r"values: got 1 dimensions of shape \(3,\), want 2"),
        ({"values": np.zeros((2, 2, 2))}, ValueError, r"values: got 3 dimensions"),
        ({"values": np.zeros((2, 2)), "offsets": [0, 2]}, ValueError, r"values: got 2 dimensions .* want 1 together"),
        ({"values": np.zeros(4), "offsets": [0, 3, 2]}, ValueError, "offsets: got 2 after 3 at position 2"),
        ({"values": np.zeros(4), "offsets": [0, 5]}, ValueError, "offsets: got values from 0 to 5, want them within 0"),
        ({"values": np.zeros(4), "offsets": [-1, 4]}, ValueError, "offsets: got values from -1 to 4"),
        ({"values": np.zeros(4), "offsets": []}, ValueError, r"offsets: got shape \(0,\)"),
        ({"values": np.zeros(4), "offsets": [[0, 4]]}, ValueError, r"offsets: got shape \(1, 2\)"),
        (
            {"values": np.zeros(4), "offsets": [0.5, 4]},
            ValueError,
            "offsets: got 0.5 at position 0, want whole numbers",
        ),
        ({"values": np.zeros(4), "offsets": ["a"]}, TypeError, "offsets: got dtype <U1, want integers"),
        ({"values": np.array(["a"])}, TypeError, "values: got dtype <U1, want float64"),
        ({"values": np.zeros((2, 2), complex)}, TypeError, "values: got dtype complex128"),
        ({"values": np.zeros((2, 2), bool)}, TypeError, "values: got dtype bool"),
        ({"values": np.zeros((2, 2)), "spike_ratio": 0}, ValueError, "spike_ratio: got 0, want a positive number"),
        ({"values": np.zeros((2, 2)), "spike_ratio": math.nan}, ValueError, "spike_ratio: got nan"),
        ({"values": np.zeros((2, 2)), "threads": 0}, ValueError, "threads: got 0"),
        ({"values": np.zeros((2, 2)), "threads": 2**70}, ValueError, "threads: got 1180591620717411303424"),
        ({"values": np.zeros((2, 2)), "threads": 1.5}, TypeError, "threads: got 1.5, want a whole number"),
        ({"values": np.zeros((2, 2)), "spike_ratio": "x"}, TypeError, "spike_ratio: got 'x', want a number"),
    ],
)
def test_batch_stats_refuses(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gs.batch_stats(**arguments)


# ------------------------------------------------------------------------------------------- scan_series


def test_scan_series() -> None:
    norms = np.random.default_rng(3).lognormal(0, 0.2, 400).astype(np.float32)
    norms[300:] = np.nan
    scan = gs.scan_series(norms, steps=np.arange(400) * 10, loss=[1.0] * 400, run="mine")
    assert list(scan) == ["mine"]
    found = scan.findings.row(0, named=True)
    assert (found["check"], found["metric"], found["first_step"], found["count"]) == (
        "nonfinite",
        "grad_norm",
        3000,
        100,
    )
    assert found["last_good_step"] == 2990
    assert "grad_norm is NaN from step 3,000 on (100 of 400 rows)" in found["explanation"]
    assert scan["mine"].status == "damaged"
    counts = np.zeros(400)
    counts[250] = 12
    assert gs.scan_series(norms[:300], nan_count=counts[:300])["run"].first_step == 250
    assert gs.scan_series(loss=np.ones(50, np.float16))["run"].status == "clean"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({}, ValueError, "grad_norm: got no series"),
        ({"steps": [1, 2]}, ValueError, "grad_norm: got no series"),
        ({"grad_norm": [1.0, 2.0], "loss": [1.0]}, ValueError, "loss: got 1 values, want 2 as in grad_norm"),
        ({"grad_norm": [[1.0]]}, ValueError, r"grad_norm: got 2 dimensions of shape \(1, 1\), want 1"),
        ({"grad_norm": 1.0}, ValueError, "grad_norm: got 0 dimensions"),
        ({"grad_norm": ["a"]}, TypeError, "grad_norm: got dtype <U1"),
        ({"grad_norm": [1.0], "nan_count": [math.nan]}, ValueError, "nan_count: got nan at position 0"),
        ({"grad_norm": [1.0], "steps": [2**64 - 1]}, ValueError, "steps: got 18446744073709551615"),
        ({"grad_norm": [1.0], "run": 5}, TypeError, "run: got 5, want a string"),
        ({"grad_norm": [1.0], "min_norm": None}, TypeError, "min_norm: got None, want a number"),
        ({"grad_norm": [1.0], "min_points": 2.5}, TypeError, "min_points: got 2.5, want a whole number"),
    ],
)
def test_scan_series_refuses(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gs.scan_series(**arguments)


@pytest.mark.parametrize(
    ("knobs", "kind", "message"),
    [
        ({"spike_ratio": "x"}, TypeError, "spike_ratio: got 'x', want a number"),
        ({"spike_ratio": 10**400}, ValueError, "spike_ratio: got a number of more than 308 digits"),
        ({"min_norm": [1.0]}, TypeError, r"min_norm: got \[1.0\], want a number"),
        ({"min_spikes": True}, TypeError, "min_spikes: got True, want a whole number"),
        ({"min_spikes": 2**63}, ValueError, "min_spikes: got 9223372036854775808"),
        ({"min_points": "3"}, TypeError, "min_points: got '3', want a whole number"),
        ({"threads": 1.0}, TypeError, "threads: got 1.0, want a whole number"),
        ({"metrics": ["loss"]}, TypeError, r"metrics: got \['loss'\], want a mapping"),
        ({"metrics": {"loss": 5}}, TypeError, r"metrics\['loss'\]: got 5, want a string or several"),
        ({"metrics": {5: "loss"}}, TypeError, "metrics: got the role 5, want a string"),
        ({"metrics": {"loss": ""}}, ValueError, r"metrics\['loss'\]: got an empty name"),
        ({"step": 5}, TypeError, "step: got 5, want a string"),
        ({"opening": None}, TypeError, "opening: got None, want a string"),
        ({"include": 5}, TypeError, "include: got 5, want a string or several"),
        ({"exclude": b"x"}, TypeError, "exclude: got b'x', want a string or several"),
        ({"exclude": [b"x"]}, TypeError, "exclude: got b'x', want a string or several"),
        ({"include": ["*", ""]}, ValueError, "include: got an empty pattern"),
        ({"exclude": "!x"}, ValueError, "exclude: got '!x', want a glob that does not begin"),
    ],
)
def test_scan_refuses(tmp_path: Path, knobs: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gs.scan(tmp_path, **knobs)


def test_arguments_by_position(tmp_path: Path) -> None:
    scan = gs.scan(
        *(tmp_path, 5.0, 2, 20, 0.5, "strict", {"loss": "l"}, "tick", ["a"], ["b"], 1, False),
        run="id",
        name="key",
        value="number",
    )
    assert scan.knobs == {
        "spike_ratio": 5.0,
        "min_spikes": 2,
        "min_points": 20,
        "min_norm": 0.5,
        "opening": "strict",
        "metrics": [("loss", "l")],
        "run": "id",
        "step": "tick",
        "name": "key",
        "value": "number",
        "include": ["a"],
        "exclude": ["b"],
    }
    found = gs.scan_series(np.ones(3), [5, 6, 7], [0, 1, 0], [0, 0, 0], np.ones(3), "mine")
    assert found["mine"].first_step == 6
    assert gs.batch_stats([1.0, 1.0, 1.0, 8.0], [0, 4], 5.0, 1)["spikes"].to_list() == [1]


def test_a_bad_argument_never_hides_the_damage() -> None:
    with pytest.raises(gs.NonFiniteError, match="step a: array: 1 NaN"):
        gs.assert_finite(np.array([np.nan]), step="a")  # type: ignore[arg-type]
    for wrong in (5, None, b"x"):
        with pytest.raises(TypeError, match="path: got"):
            gs.read(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name: got None"):
        gs.explain(None)  # type: ignore[arg-type]
