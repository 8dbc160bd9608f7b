"""Writers of TensorBoard event files: the framing of records, the encodings of scalars by each tracker, big files fast.

Records are framed by TensorBoard's own RecordWriter. Messages are put together field by field, since what torch and
TensorFlow write differs in bytes that a common encoder would not show.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorboard.summary.writer.record_writer import RecordWriter

WALL = 1.7e9  # seconds since 1970 of step 0 in whatever is written here
FLOAT, DOUBLE, INT32, UINT8, STRING, INT64, BOOL, BFLOAT16, HALF, FLOAT8_E5M2, FLOAT8_E4M3FN = (
    *(1, 2, 3, 4, 7, 9, 10, 14, 19, 24, 25),
)  # DataType of TensorFlow
START, STOP, CHECKPOINT = 1, 2, 3  # SessionLog.SessionStatus

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


# --- Protocol buffers ------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Groups of seven bits; a negative number has ten bytes."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def fixed32(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + single(value)


def chunk(field: int, value: bytes | str) -> bytes:
    """A string, bytes or a nested message."""
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def single(value: float) -> bytes:
    """float32, little-endian."""
    return bytes(np.float32(value).astype("<f4").tobytes())


# --- Messages --------------------------------------------------------------------------------------------------------


def event(step: int | None, body: bytes = b"", wall: float | None = None) -> bytes:
    """An Event; `step=None` leaves it out, as every writer does for 0."""
    time = WALL + (step or 0) if wall is None else wall
    return fixed64(1, time) + (b"" if step is None else number(2, step)) + body


def version(wall: float = WALL, text: str = "brain.Event:2") -> bytes:
    """The first event of a file."""
    return fixed64(1, wall) + chunk(3, text)


def session(step: int | None, status: int, path: str = "", wall: float | None = None) -> bytes:
    """A SessionLog: START purges, CHECKPOINT names a file."""
    return event(step, chunk(7, number(1, status) + (chunk(2, path) if path else b"")), wall)


def summary(*values: bytes) -> bytes:
    """Field 5 of an Event, of Summary.Value messages."""
    return chunk(5, b"".join(chunk(1, value) for value in values))


def simple(tag: str, value: float) -> bytes:
    """Summary.Value as torch, tensorboardX and TF1 write it."""
    return chunk(1, tag) + fixed32(2, value)


def metadata(plugin: str, content: bytes = b"") -> bytes:
    """Field 9 of a Summary.Value."""
    return chunk(9, chunk(1, chunk(1, plugin) + (chunk(2, content) if content else b"")))


def tensor(tag: str, dtype: int, fields: bytes, *, shape: bytes | None = b"", plugin: str | None = "scalars") -> bytes:
    """Summary.Value with a tensor: `fields` hold its elements, `shape` its dimensions (None: no shape field at all)."""
    about = number(1, dtype) + (b"" if shape is None else chunk(2, shape)) + fields
    return chunk(1, tag) + chunk(8, about) + (b"" if plugin is None else metadata(plugin))


def tf2(tag: str, value: float, *, plugin: str | None = "scalars") -> bytes:
    """Summary.Value as TF2's `tf.summary.scalar` writes it: the bytes of a float32, an empty shape."""
    return tensor(tag, FLOAT, chunk(4, single(value)), plugin=plugin)


def torch_new_style(tag: str, value: float, *, double: bool = False) -> bytes:
    """Summary.Value as torch's `add_scalar(new_style=True, double_precision=...)` writes it: no shape field."""
    fields = chunk(6, struct.pack("<d", value)) if double else chunk(5, single(value))
    return tensor(tag, DOUBLE if double else FLOAT, fields, shape=None)


def dimensions(*sizes: int) -> bytes:
    """A TensorShapeProto."""
    return b"".join(chunk(2, number(1, size)) for size in sizes)


# --- Files -----------------------------------------------------------------------------------------------------------


def record(payload: bytes) -> bytes:
    """One framed record: length, checksum of the length, payload, checksum of the payload."""
    buffer = io.BytesIO()
    RecordWriter(buffer).write(payload)
    return buffer.getvalue()


def file_name(second: float = WALL, host: str = "host", suffix: str = "") -> str:
    """The name that TensorBoard's writer gives: names of one writer sort by their second."""
    return f"events.out.tfevents.{int(second):010}.{host}.1.0{suffix}"


def event_file(directory: Path, payloads: Iterable[bytes], *, name: str | None = None, begin: bool = True) -> Path:
    """A file of records, the version first unless `begin=False`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / (name or file_name())
    path.write_bytes(b"".join(map(record, [version(), *payloads] if begin else payloads)))
    return path


def rows(training: Any, second: int = 0) -> Iterator[bytes]:
    """Two events a row, as a torch script logs loss and gradient norm; a row a second, from `second` on."""
    for step, norm, loss in training.rows():
        wall = WALL + second + step
        yield event(step or None, summary(simple("train/loss", loss)), wall)
        yield event(step or None, summary(simple("train/grad_norm", norm)), wall)


# --- Big files -------------------------------------------------------------------------------------------------------


def _crc_table() -> npt.NDArray[np.uint32]:
    """CRC-32C (Castagnoli, reflected) of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


CRC_TABLE = _crc_table()


def masked_crcs(messages: Bytes) -> npt.NDArray[np.uint32]:
    """The masked CRC-32C of each row of `messages`, shape (n, length)."""
    crc = np.full(len(messages), 0xFFFFFFFF, np.uint32)
    for column in messages.T:
        crc = CRC_TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    crc = ~crc
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)


def _varint_columns(values: Ints, width: int) -> Bytes:
    """`values` as varints of `width` bytes each."""
    shifts = np.arange(width, dtype=np.int64) * 7
    groups = (values[:, None] >> shifts & 0x7F).astype(np.uint8)
    groups[:, :-1] |= 0x80
    return groups


def _width(values: Ints) -> Ints:
    """The bytes that the step field takes as a varint; 0 is not written at all."""
    return np.searchsorted(np.array([0, *(2 ** (7 * k) - 1 for k in range(1, 9))]), values).astype(np.int64)


def scalar_records(tag: str, walls: Floats, steps: Ints, values: Floats) -> Bytes:
    """Framed records of one tag, a row each: steps must take equally many bytes as varints (`_width`)."""
    (width,) = set(_width(steps).tolist()) or {0}
    body = summary(simple(tag, 0.0))
    head, tail = 12 + 9 + (width and 1 + width), len(body) - 4
    length = head - 12 + len(body)
    out = np.empty((len(steps), 12 + length + 4), np.uint8)
    out[:, :12] = np.frombuffer(record(bytes(length))[:12], np.uint8)
    out[:, 12] = 0x09
    out[:, 13:21] = walls.astype("<f8").view(np.uint8).reshape(-1, 8)
    if width:
        out[:, 21] = 0x10
        out[:, 22 : 22 + width] = _varint_columns(steps, width)
    out[:, head : head + tail] = np.frombuffer(body[:-4], np.uint8)
    out[:, head + tail : -4] = values.astype("<f4").view(np.uint8).reshape(-1, 4)
    out[:, -4:] = masked_crcs(out[:, 12:-4]).astype("<u4").view(np.uint8).reshape(-1, 4)
    return out


def big_event_file(path: Path, steps: Ints, walls: Floats, tags: Mapping[str, Floats], start: bytes = b"") -> Path:
    """One event a step and tag, the tags in turns, as torch's SummaryWriter logs them; steps rise from 0 or above.

    The bytes are those of TensorBoard's EventFileWriter, some hundred times as fast. `start`: the payload of the first
    record (default: `version()`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    width = _width(steps)
    bounds = [0, *(np.flatnonzero(np.diff(width)) + 1).tolist(), len(steps)]
    some = 1 << 14  # rows that the caches hold
    with path.open("wb") as file:
        file.write(record(start or version()))
        for low, high in pairwise(bounds):
            for at in range(low, high, some):
                part = slice(at, min(at + some, high))
                turn = [scalar_records(tag, walls[part], steps[part], values[part]) for tag, values in tags.items()]
                file.write(np.concatenate(turn, axis=1).tobytes())
    return path


def offsets(path: Path) -> Sequence[int]:
    """Where each record of a sound file begins."""
    whole, at, found = path.read_bytes(), 0, []
    while at < len(whole):
        found.append(at)
        at += 16 + int(struct.unpack_from("<Q", whole, at)[0])
    return found
