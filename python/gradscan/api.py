"""The functions behind `import gradscan as gs`.

Arguments are checked here, the work is done by the compiled module, its tables become polars frames.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from gradscan import _core, arguments, assemble, samples, wording
from gradscan import namespace as _namespace  # noqa: F401  (registers `df.gradscan` and `lf.gradscan`)
from gradscan import progress as progress_bar
from gradscan.errors import NonFiniteError, UnreadableRecordingError
from gradscan.paths import PathLike, expand
from gradscan.progress import Callback
from gradscan.result import NonFinite, Recording, Scan, View

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "around",
    "assert_finite",
    "batch_stats",
    "count_nonfinite",
    "formats",
    "read",
    "read_all",
    "roles",
    "run_scan",
    "scan",
    "scan_series",
    "trackers",
]

Opening = Literal["report", "strict", "ignore"]


# ------------------------------------------------------------------------------------------------ scan


def scan(
    paths: PathLike | Iterable[PathLike],
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: Opening = "report",
    metrics: Mapping[str, str | Sequence[str]] | None = None,
    step: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    threads: int | None = None,
    verify_checkpoints: bool = False,
    progress: Callback | Literal[False] | None = None,
    *,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
) -> Scan:
    """Read every recording below `paths` and check each for NaN/Inf gradients and gradient-norm spikes.

    - `paths`: a file, a directory or a glob (`**` crosses directories), or several of them.
    - `spike_ratio`: multiple of a series' median gradient norm that counts as a spike.
    - `min_spikes`: spikes needed for a finding. `min_points`: finite values needed for a median.
    - `min_norm`: absolute norm that a spike must exceed as well.
    - `opening`: "report" sets spikes of a training's first steps apart, "strict" judges them like any other,
      "ignore" leaves them out.
    - `metrics`: roles to series, for names that gradscan does not know: `{"grad_norm": "my/norm"}`; a value is a
      glob or several.
    - `step`: name of the step column.
    - `run`: name of the column of run ids in tables of many runs; `name` and `value`: names of the columns of metric
      names and of values in long tables. Without them, columns are found by their usual names. Rows of one run count
      in the order of the table; where they lie in several files, by step if the files do not overlap in steps, else in
      the order of the files' names.
    - `include`, `exclude`: globs over paths relative to the scanned root.
    - `threads`: None for one a core.
    - `verify_checkpoints`: read the safetensors files of each restore point; one that holds NaN or Inf gives way to an
      older one, and `restore_status` becomes "verified".
    - `progress`: None draws a bar on a terminal or in a notebook, False nothing; a callable gets
      `(done_bytes, total_bytes, done_sources, total_sources, damaged)`.

    A broken file is an outcome and never an exception. Raises FileNotFoundError for a path that does not exist,
    ValueError for a bad setting, KeyboardInterrupt on Ctrl-C.
    """
    return run_scan(
        expand(paths),
        spike_ratio=spike_ratio,
        min_spikes=min_spikes,
        min_points=min_points,
        min_norm=min_norm,
        opening=opening,
        metrics=metrics,
        step=step,
        run=run,
        name=name,
        value=value,
        include=include,
        exclude=exclude,
        threads=threads,
        verify_checkpoints=verify_checkpoints,
        progress=progress,
        partial=False,
    )


def run_scan(
    paths: Sequence[str],
    *,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: str = "report",
    metrics: Mapping[str, str | Sequence[str]] | None = None,
    step: str | None = None,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    threads: int | None = None,
    verify_checkpoints: bool = False,
    progress: Callback | Literal[False] | None = None,
    partial: bool = False,
) -> Scan:
    """`scan` over paths that exist.

    With `partial`, Ctrl-C does not raise: the scan holds what was done and says that it was `interrupted`.
    """
    knobs: dict[str, Any] = {
        **assemble.rule_knobs(spike_ratio, min_spikes, min_points, min_norm, opening),
        "metrics": arguments.metric_globs(metrics),
        **assemble.columns(run, step, name, value),
        "include": arguments.patterns("include", include),
        "exclude": arguments.patterns("exclude", exclude),
    }
    threads = None if threads is None else arguments.integer("threads", threads)
    if progress is not None and progress is not False and not callable(progress):
        raise TypeError(f"progress: got {type(progress).__name__}, want None, False or a callable")
    drawn = progress_bar.auto() if progress is None else nullcontext(progress or None)
    start = time.perf_counter()
    with drawn as callback:
        tables = _core.scan(
            list(paths),
            **knobs,
            threads=threads,
            verify_checkpoints=bool(verify_checkpoints),
            progress=callback,
            partial=partial,
        )
    return assemble.finish(tables, knobs, time.perf_counter() - start)


def scan_series(
    grad_norm: ArrayLike | None = None,
    steps: ArrayLike | None = None,
    nan_count: ArrayLike | None = None,
    inf_count: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    run: str = "run",
    *,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: Opening = "report",
) -> Scan:
    """Check the arrays of one run; all are one-dimensional and of one length.

    `grad_norm`, `loss`: floats, NaN and Inf as recorded. `nan_count`, `inf_count`: how many gradient values were
    NaN or Inf at each step. `steps`: integers in recording order, a fall is a resumed or restarted run; None
    numbers the rows from 0.
    """
    arrays = {
        "steps": None if steps is None else _integers("steps", steps),
        "grad_norm": None if grad_norm is None else _floats("grad_norm", grad_norm),
        "nan_count": None if nan_count is None else _integers("nan_count", nan_count),
        "inf_count": None if inf_count is None else _integers("inf_count", inf_count),
        "loss": None if loss is None else _floats("loss", loss),
    }
    given = {name: array for name, array in arrays.items() if array is not None}
    if not set(given) - {"steps"}:
        raise ValueError("grad_norm: got no series, want at least one of grad_norm, nan_count, inf_count and loss")
    for name, array in given.items():
        if array.ndim != 1:
            raise ValueError(f"{name}: got {array.ndim} dimensions of shape {array.shape}, want 1")
    first, length = next((name, len(array)) for name, array in given.items())
    for name, array in given.items():
        if len(array) != length:
            raise ValueError(f"{name}: got {len(array)} values, want {length} as in {first}")
    knobs = assemble.rule_knobs(spike_ratio, min_spikes, min_points, min_norm, opening)
    start = time.perf_counter()
    tables = _core.scan_series(run=arguments.text("run", run), **arrays, **knobs)  # type: ignore[arg-type]
    return assemble.finish(tables, knobs, time.perf_counter() - start)


# ---------------------------------------------------------------------------------------------- arrays


_KINDS: dict[str, tuple[Literal["f16", "bf16", "f32", "f64"], type[Any]]] = {
    "float16": ("f16", np.uint16),
    "bfloat16": ("bf16", np.uint16),
    "float32": ("f32", np.float32),
    "float64": ("f64", np.float64),
}


def _array(name: str, value: Any) -> NDArray[Any]:
    """Any array as numpy, without a copy where that can be; TypeError naming the argument for what is none."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        if value.dtype == torch.bfloat16:  # numpy has no bfloat16 and torch does not go through ml_dtypes
            return _Bits.of(value.view(torch.int16).numpy())
    nulls = getattr(value, "null_count", 0)
    nulls = nulls() if callable(nulls) else nulls
    if isinstance(nulls, int) and nulls:
        raise ValueError(
            f"{name}: got {nulls:,} nulls, which become NaN in numpy; want an array without nulls (drop them first)"
        )
    try:
        if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise TypeError(f"{name}: got {type(value).__name__}, want an array in main memory ({error})") from error


class _Bits(np.ndarray[Any, Any]):
    """The bit patterns of bfloat16 values, for arrays whose library has no numpy type for them."""

    @classmethod
    def of(cls, bits: NDArray[np.int16]) -> _Bits:
        return bits.view(np.uint16).view(cls)


def as_array(name: str, value: Any) -> NDArray[Any]:
    """`value` as numpy, without a copy where that can be; bfloat16 of torch as bits (`is_bits`)."""
    return _array(name, value)


def is_bits(array: NDArray[Any]) -> bool:
    """Whether the array holds the bit patterns of bfloat16 values."""
    return isinstance(array, _Bits)


def count_nonfinite(array: Any) -> NonFinite:
    """Count NaN and Inf of an array of any shape and strides, and find the first in C order.

    Takes float16, bfloat16 (ml_dtypes, torch), float32 and float64; integers and booleans have none. Anything with
    `__array__` or DLPack in main memory will do. Reads the array once at memory speed and does not copy it, except
    in blocks where it is not contiguous. TypeError for another dtype.
    """
    return _count("array", array)


def _count(name: str, value: Any) -> NonFinite:
    array = _array(name, value)
    if array.dtype.kind in "biu" and not isinstance(array, _Bits):
        return NonFinite(0, 0)
    dtype = "bfloat16" if isinstance(array, _Bits) else array.dtype.name
    if dtype not in _KINDS:
        raise TypeError(
            f"{name}: got dtype {array.dtype}, want float16, bfloat16, float32, float64, integers or booleans"
        )
    kind, bits = _KINDS[dtype]
    native = array.dtype.isnative
    shape = array.shape
    if array.flags.c_contiguous and array.flags.aligned and native:
        nan, inf, first = _core.count_nonfinite(_flat(array, bits), kind)
    else:
        nan, inf, first = _count_blocks(array if native else array.astype(array.dtype.newbyteorder("=")), kind, bits)
    if first < 0:
        return NonFinite(nan, inf)
    return NonFinite(nan, inf, first, tuple(int(i) for i in np.unravel_index(first, shape)))


def _flat(array: NDArray[Any], bits: type[Any]) -> NDArray[Any]:
    flat = np.asarray(array).reshape(-1)
    return flat if flat.dtype == bits else flat.view(bits)


def _count_blocks(
    array: NDArray[Any], kind: Literal["f16", "bf16", "f32", "f64"], bits: type[Any]
) -> tuple[int, int, int]:
    """Count an array that is not contiguous: blocks of it are copied in C order, never the whole."""
    nan, inf, first, done = 0, 0, -1, 0
    plain = np.asarray(array)
    same = plain if plain.dtype == bits else plain.view(bits)
    walk: Any = np.nditer  # its stub does not know the flag `contig`
    wants = ["readonly", "aligned", "contig", "nbo"]
    flags = ["external_loop", "buffered", "zerosize_ok"]
    for block in walk(same, flags=flags, op_flags=[wants], order="C", buffersize=1 << 18):
        if block.size == 0:  # an array of size zero gives one empty block
            break
        block_nan, block_inf, block_first = _core.count_nonfinite(np.ascontiguousarray(block), kind)
        if first < 0 <= block_first:
            first = done + block_first
        nan, inf, done = nan + block_nan, inf + block_inf, done + block.size
    return nan, inf, first


def assert_finite(batch: Any, step: int | None = None) -> None:
    """Raise `NonFiniteError` if an array, or one in a mapping of arrays, holds NaN or Inf.

    `batch`: an array, or a mapping of names to arrays or to further mappings (joined with `/`); entries that are
    None or text are passed over. `step` goes into the message. The error has the first bad array as `metric`, the
    bad value as `value`, and `findings` with a `NonFinite` for each bad array.
    """
    bad: dict[str, NonFinite] = {}
    first: Any = None
    for name, array in _named(batch):
        counted = _count(name, array)
        if counted:
            first = array if not bad else first
            bad[name] = counted
    if not bad:
        return
    said = [
        f"{name}: {wording.plural(counted.nan, 'NaN', 'NaN')} and {counted.inf:,} Inf, first at index {counted.index}"
        for name, counted in bad.items()
    ]
    # Whatever was passed as step, it must not stand between the caller and the NaN.
    at = "" if step is None else f"step {step:,}: " if isinstance(step, int) else f"step {step}: "
    name, counted = next(iter(bad.items()))
    raise NonFiniteError(at + "; ".join(said), step=step, metric=name, value=_value(first, counted), findings=bad)


def _value(array: Any, counted: NonFinite) -> float:
    plain = _array("array", array)
    value = np.asarray(plain)[counted.index]
    if isinstance(plain, _Bits):
        return float(np.uint32(int(value) << 16).view(np.float32))
    return float(value)


def _named(batch: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(batch, Mapping):
        yield prefix or "array", batch
        return
    for key, value in batch.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if value is None or isinstance(value, (str, bytes)) or _texts(value):
            continue
        yield from _named(value, name)


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, (str, bytes)) for item in value)


def batch_stats(
    values: ArrayLike,
    offsets: ArrayLike | None = None,
    spike_ratio: float = 10.0,
    threads: int | None = None,
) -> pl.DataFrame:
    """The bare rule over many runs at once, one row a run.

    Columns: `n, nan, inf, first_nonfinite, median, max, spikes, first_spike`.

    `values`: a 2-D array, one run a row; or a 1-D array together with `offsets`, where run `i` is
    `values[offsets[i]:offsets[i + 1]]`. float32 and float64 are read as they are, float16 and bfloat16 as float32,
    integers as float64. `first_nonfinite` and `first_spike` are positions within the run, null for none. `median`
    and `max` are of the finite values; a spike exceeds `spike_ratio` x the median, strictly. No opening is set
    apart. `threads`: None for one a core.
    """
    array = _floats("values", values)
    ratio = arguments.number("spike_ratio", spike_ratio)
    if not ratio > 0 or not np.isfinite(ratio):
        raise ValueError(f"spike_ratio: got {spike_ratio!r}, want a positive number")
    threads = None if threads is None else arguments.integer("threads", threads)
    if threads is not None and not 1 <= threads <= 4096:
        raise ValueError(f"threads: got {threads!r}, want None or at least 1 and at most 4096")
    if offsets is None:
        if array.ndim != 2:
            raise ValueError(
                f"values: got {array.ndim} dimensions of shape {array.shape}, want 2 (or 1 together with offsets)"
            )
        rows, length = array.shape
        if length == 0:  # rows without values have no length to divide by
            bounds = np.zeros(rows + 1, np.int64)
            table = _core.batch_stats(array.reshape(-1), offsets=bounds, spike_ratio=ratio, threads=threads)
        else:
            flat = np.ascontiguousarray(array).reshape(-1)
            table = _core.batch_stats(flat, row_length=length, spike_ratio=ratio, threads=threads)
        return pl.DataFrame(table)
    if array.ndim != 1:
        raise ValueError(f"values: got {array.ndim} dimensions of shape {array.shape}, want 1 together with offsets")
    bounds = _integers("offsets", offsets)
    if bounds.ndim != 1 or len(bounds) == 0:
        raise ValueError(f"offsets: got shape {bounds.shape}, want 1 dimension of at least 1 value (runs + 1)")
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        at = int(falls[0]) + 1
        raise ValueError(
            f"offsets: got {bounds[at]} after {bounds[at - 1]} at position {at}, want values that never fall"
        )
    if bounds[0] < 0 or bounds[-1] > len(array):
        raise ValueError(f"offsets: got values from {bounds[0]} to {bounds[-1]}, want them within 0 and {len(array)}")
    flat = np.ascontiguousarray(array)
    table = _core.batch_stats(flat, offsets=bounds, spike_ratio=ratio, threads=threads)
    return pl.DataFrame(table)


def _floats(name: str, value: Any) -> NDArray[Any]:
    """As native, aligned float32 or float64, contiguous; integers as float64, half precision as float32."""
    array = _array(name, value)
    if isinstance(array, _Bits):
        return (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
    if array.dtype.name in ("float16", "bfloat16"):
        return np.ascontiguousarray(array.astype(np.float32))
    if array.dtype.kind in "iu" or (array.dtype.kind == "f" and array.size == 0):
        return array.astype(np.float64)
    if array.dtype.name not in ("float32", "float64"):
        raise TypeError(f"{name}: got dtype {array.dtype}, want float64, float32, float16, bfloat16 or integers")
    if array.dtype.isnative and array.flags.aligned:
        return array if array.flags.c_contiguous else array.copy(order="C")
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _integers(name: str, value: Any) -> NDArray[np.int64]:
    """As contiguous int64; floats only where every value is whole."""
    array = _array(name, value)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        whole = array.astype(np.float64)
        inside = np.isfinite(whole) & (np.abs(whole) < 2.0**63)
        bad = np.flatnonzero(~inside.reshape(-1) | (whole.reshape(-1) != np.floor(whole.reshape(-1))))
        if len(bad):
            got = whole.reshape(-1)[bad[0]]
            raise ValueError(f"{name}: got {got} at position {bad[0]}, want whole numbers")
        array = whole
    elif array.dtype.kind not in "iu":
        raise TypeError(f"{name}: got dtype {array.dtype}, want integers")
    elif array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: got {array.max()}, want at most {np.iinfo(np.int64).max}")
    return np.ascontiguousarray(array, dtype=np.int64)


# ------------------------------------------------------------------------------------------------ read


def read_all(
    path: PathLike,
    *,
    metrics: Mapping[str, str | Sequence[str]] | None = None,
    step: str | None = None,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
) -> list[Recording]:
    """Every recording of a file or directory, with all its numeric series; the arguments are those of `scan`.

    Raises FileNotFoundError, `UnknownFormatError`, `AmbiguousFormatError`, `UnreadableRecordingError` or `LimitError`.
    """
    text = arguments.path("path", path)
    if not os.path.lexists(text):
        raise FileNotFoundError(f"{text}: no such file or directory")
    pairs = arguments.metric_globs(metrics)
    columns = assemble.columns(run, step, name, value)
    return [_recording(data) for data in _core.read(text, metrics=pairs, **columns)]


def read(
    path: PathLike,
    *,
    metrics: Mapping[str, str | Sequence[str]] | None = None,
    step: str | None = None,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
) -> Recording:
    """The one recording of a file or directory; ValueError if there are several (`read_all` gives them).

    `path#run id` picks one of a file that holds many.
    """
    text = arguments.path("path", path)
    wanted: str | None = None
    if not os.path.lexists(text) and "#" in text:
        text, wanted = text.rsplit("#", 1)
    recordings = several = read_all(text, metrics=metrics, step=step, run=run, name=name, value=value)
    if wanted is not None:
        recordings = [item for item in recordings if item.run.endswith("#" + wanted)]
        if not recordings:
            raise ValueError(f"{text}: holds no run {wanted!r}, want one of {_names(several)}")
    return _one(text, recordings)


def _one(path: str, recordings: list[Recording]) -> Recording:
    if len(recordings) > 1:
        # The recording of a directory itself comes before those that are nested in it, such as the other ranks.
        name = Path(os.path.abspath(path)).name
        own = [item for item in recordings if item.run == name]
        if len(own) == 1:
            return own[0]
        # Runs of a table have no path of their own.
        way = "the path of one, or FILE#ID" if any("#" in item.run for item in recordings) else "the path of one"
        raise ValueError(f"{path}: got {len(recordings):,} recordings ({_names(recordings)}), want {way}")
    if not recordings:
        raise UnreadableRecordingError(f"{path}: no recording was found")
    return recordings[0]


def _names(recordings: Sequence[Recording], most: int = 8) -> str:
    """The runs in a line: names come from files and may hold anything."""
    shown = [item.run if item.run.isprintable() else repr(item.run) for item in recordings[:most]]
    return ", ".join(shown) + (f" and {len(recordings) - most:,} more" if len(recordings) > most else "")


def _recording(data: _core.RecordingData) -> Recording:
    names = data.names
    return Recording(
        run=data.run,
        format=data.format,
        source=data.source,
        step_name=data.step_name,
        roles=dict(zip(names, data.roles, strict=True)),
        arrays={name: data.series(name) for name in names},
        rows={name: data.rows(name) for name in names},
        records=pl.DataFrame(data.records),
        events=pl.DataFrame(data.events),
        checkpoints=pl.DataFrame(data.checkpoints),
        faults=pl.DataFrame(data.faults),
        notes=tuple(data.notes),
        metadata=dict(data.metadata),
    )


_SHOWN_ROLES = (
    "grad_norm",
    "grad_norm_post_clip",
    "nan_count",
    "inf_count",
    "loss",
    "loss_scale",
    "skipped",
    "eval_loss",
    "loss_part",
    "kl",
    "reward",
    "completion_length",
    "entropy",
    "lr",
)
"""Roles in the order in which `around` shows their series."""


def around(
    path: PathLike,
    step: int | None = None,
    window: int = 5,
    metrics: Sequence[str] = (),
    *,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
) -> View:
    """The recorded metrics of one run around a step, bad cells marked: what `gradscan show` shows.

    `step`: None for the onset of the worst finding, else the end. `window`: rows before and after. `metrics`: names
    or globs; without any, the series of the findings and of their evidence, then every other with a role. `run`, `name`
    and `value` name columns of a table as they do in `scan`.
    """
    step = None if step is None else arguments.integer("step", step)
    window = arguments.integer("window", window)
    metrics = arguments.strings("metrics", metrics)
    columns = assemble.columns(run, None, name, value)
    recording = read(path, **columns)
    text = os.fspath(path)
    found = scan(text if os.path.lexists(text) else text.rsplit("#", 1)[0], progress=False, **columns)
    judged = (
        found[recording.run]
        if recording.run in found
        else next((found[name] for name in found if len(found) == 1), None)
    )
    findings = [] if judged is None else list(judged.findings.iter_rows(named=True))
    attempt, metric = None, None
    if step is None and findings:
        worst = findings[0]
        step = worst["onset_step"] if worst["onset_step"] is not None else worst["first_step"]
        attempt = worst["attempt"]
        # The onset of bad losses may lie in a gradient norm.
        metric = worst["metric"] if step == worst["first_step"] or worst["check"] == "spikes" else None
    evidence = [item["metric"] for row in findings for item in row["evidence"] or ()]
    bad = dict.fromkeys([*(row["metric"] for row in findings), *evidence])
    pinned = [name for name in bad if name in recording.arrays]
    names, others = _shown_names(recording, metrics, pinned)
    pinned = names if metrics else pinned
    frame, middle = recording.window_around(step, window, names, attempt=attempt, metric=metric)
    empty = [name for name in names if name not in pinned and frame[name].null_count() == len(frame)]
    frame = frame.drop(empty)
    thresholds = _thresholds(found, judged.series if judged is not None else None, findings)
    marks = {
        (row, name): mark
        for name in frame.columns
        if name not in ("step", "time")
        for row, value in enumerate(frame[name])
        if (mark := _mark(value, recording.roles.get(name), thresholds.get(name))) is not None
    }
    at = step if step is not None else (frame["step"][-1] if len(frame) else None)
    said = tuple(row["explanation"] for row in findings[:2])
    if not findings and judged is not None and judged.explanation:
        said = (judged.explanation,)
    captured, problem = None, None
    if recording.format == "rlprobe" and at is not None:
        shown = [*frame["step"].to_list(), at]
        captured, problem = samples.read(Path(text), at, min(shown), max(shown))
    return View(
        run=recording.run,
        format=recording.format,
        status=judged.status if judged is not None else "not_assessable",
        step=at,
        frame=frame,
        row=middle,
        marks=marks,
        roles=recording.roles,
        sentences=said + ((problem,) if problem else ()),
        samples=captured,
        hidden=(*empty, *others),
        pinned=tuple(pinned),
    )


def _shown_names(recording: Recording, metrics: Sequence[str], pinned: Sequence[str]) -> tuple[list[str], list[str]]:
    if metrics:
        names = [name for name in recording.names if any(name == want or fnmatchcase(name, want) for want in metrics)]
        missing = [
            want for want in metrics if not any(name == want or fnmatchcase(name, want) for name in recording.names)
        ]
        if missing:
            recording.series(missing[0])  # raises the KeyError that suggests a name
        return names, []
    order = {role: place for place, role in enumerate(_SHOWN_ROLES)}
    names = [name for name in recording.names if recording.roles.get(name) in order]
    names.sort(key=lambda name: order[str(recording.roles[name])])
    names = list(dict.fromkeys([*pinned, *names])) or recording.names[:6]
    shown = set(names)
    return names, [name for name in recording.names if name not in shown]


def _thresholds(found: Scan, series: pl.DataFrame | None, findings: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The norm above which a value is a spike, by metric."""
    thresholds: dict[str, float] = {}
    if series is not None:
        for role, metric, n, median in series.select("role", "metric", "n", "median").iter_rows():
            if role == "grad_norm" and median is not None and median > 0 and n >= found.knobs["min_points"]:
                thresholds[metric] = max(found.knobs["spike_ratio"] * median, found.knobs["min_norm"])
    for row in findings:
        if row["check"] == "spikes" and row["threshold"] is not None:
            thresholds[row["metric"]] = row["threshold"]
    return thresholds


def _mark(value: float | None, role: str | None, threshold: float | None) -> str | None:
    if value is None:
        return None
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf"
    if role in ("nan_count", "inf_count") and value > 0:
        return "count"
    if role in ("grad_norm", "grad_norm_post_clip", "layer_grad_norm") and value == -1.0:
        return "alias"
    return "spike" if threshold is not None and value > threshold else None


# --------------------------------------------------------------------------------------- what it knows


def formats() -> pl.DataFrame:
    """The formats that gradscan reads, one a row.

    Columns: `format`, the `files` that it is recognised by, how it writes `nan` and `missing` values, and what is
    `not_read`.
    """
    return pl.DataFrame(_core.formats())


def trackers() -> pl.DataFrame:
    """The trackers and loggers whose files gradscan was tried on, one a row.

    Columns: `tracker`, the `version` of the package that wrote the files of the tests ("built" where the tests build
    the bytes themselves), the `format` that reads its `files`, how `nan` and `missing` values arrive, and what is
    `not_read`.
    """
    return pl.DataFrame(_core.trackers())


def roles() -> pl.DataFrame:
    """The names by which series are recognised, one a row.

    Columns: `role`, `kind` (exact, pattern or excluded), `pattern`, and a `note` on where the name comes from.
    """
    return pl.DataFrame(_core.roles())
