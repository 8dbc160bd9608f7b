from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AuditTables",
    "RecordingData",
    "ScanTables",
    "Table",
    "audit",
    "audit_frame",
    "batch_stats",
    "count_nonfinite",
    "format_rows",
    "formats",
    "frame_columns",
    "read",
    "role_of",
    "roles",
    "scan",
    "scan_frame",
    "scan_series",
    "tracker_rows",
    "trackers",
]

class _ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any | None = None) -> Any: ...

class _ArrowSchema(Protocol):
    def __arrow_c_schema__(self) -> Any: ...

@final
class Table:
    def __arrow_c_stream__(self, requested_schema: Any | None = None) -> Any: ...
    def __len__(self) -> int: ...

@final
class ScanTables:
    @property
    def runs(self) -> Table: ...
    @property
    def series(self) -> Table: ...
    @property
    def findings(self) -> Table: ...
    @property
    def suspicions(self) -> Table: ...
    @property
    def faults(self) -> Table: ...
    @property
    def directories(self) -> Table: ...
    @property
    def skipped_files(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def roots(self) -> list[str]: ...
    @property
    def interrupted(self) -> bool: ...

@final
class AuditTables:
    @property
    def tensors(self) -> Table: ...
    @property
    def faults(self) -> Table: ...
    @property
    def files(self) -> int: ...
    @property
    def skipped_files(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def interrupted(self) -> bool: ...

@final
class RecordingData:
    @property
    def run(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def metadata(self) -> list[tuple[str, str]]: ...
    @property
    def step_name(self) -> str | None: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def roles(self) -> list[str | None]: ...
    @property
    def records(self) -> Table: ...
    @property
    def events(self) -> Table: ...
    @property
    def checkpoints(self) -> Table: ...
    @property
    def faults(self) -> Table: ...
    @property
    def notes(self) -> list[str]: ...
    def series(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]: ...
    def rows(self, name: str) -> NDArray[np.int64]: ...

def scan(
    paths: list[str],
    *,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: str = "report",
    metrics: list[tuple[str, str]] | None = None,
    run: str | None = None,
    step: str | None = None,
    name: str | None = None,
    value: str | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    threads: int | None = None,
    verify_checkpoints: bool = False,
    progress: Callable[[int, int, int, int, int], object] | None = None,
    partial: bool = False,
) -> ScanTables: ...
def scan_frame(
    batches: Iterable[_ArrowStream],
    *,
    run: str | None = None,
    step: str | None = None,
    name: str | None = None,
    value: str | None = None,
    nan: str = "value",
    ambiguous: list[str] | None = None,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: str = "report",
    metrics: list[tuple[str, str]] | None = None,
    threads: int | None = None,
) -> ScanTables: ...
def frame_columns(
    schema: _ArrowSchema,
    *,
    run: str | None = None,
    step: str | None = None,
    name: str | None = None,
    value: str | None = None,
    metrics: list[tuple[str, str]] | None = None,
) -> list[str]: ...
def scan_series(
    *,
    run: str,
    steps: NDArray[np.int64] | None = None,
    grad_norm: NDArray[np.float32] | NDArray[np.float64] | None = None,
    nan_count: NDArray[np.int64] | None = None,
    inf_count: NDArray[np.int64] | None = None,
    loss: NDArray[np.float32] | NDArray[np.float64] | None = None,
    spike_ratio: float = 10.0,
    min_spikes: int = 3,
    min_points: int = 10,
    min_norm: float = 0.0,
    opening: str = "report",
) -> ScanTables: ...
def audit(
    paths: list[str],
    *,
    threads: int | None = None,
    progress: Callable[[int, int, int, int, int], object] | None = None,
    partial: bool = False,
) -> AuditTables: ...
def audit_frame(frame: Any) -> Table: ...
def batch_stats(
    values: NDArray[np.float32] | NDArray[np.float64],
    *,
    row_length: int | None = None,
    offsets: NDArray[np.int64] | None = None,
    spike_ratio: float = 10.0,
    threads: int | None = None,
) -> Table: ...
def count_nonfinite(
    array: NDArray[np.uint16] | NDArray[np.float32] | NDArray[np.float64],
    kind: Literal["f16", "bf16", "f32", "f64"],
) -> tuple[int, int, int]: ...
def read(
    path: str,
    *,
    metrics: list[tuple[str, str]] | None = None,
    step: str | None = None,
    run: str | None = None,
    name: str | None = None,
    value: str | None = None,
) -> list[RecordingData]: ...
def formats() -> Table: ...
def format_rows() -> list[tuple[str, str, str, str, str]]: ...
def trackers() -> Table: ...
def tracker_rows() -> list[tuple[str, str, str, str, str, str, str]]: ...
def roles() -> Table: ...
def role_of(name: str) -> str | None: ...
