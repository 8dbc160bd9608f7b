"""Find NaN/Inf gradients and gradient-norm spikes in archives of training runs.

import gradscan as gs

    scan = gs.scan("archive/")
    scan.damaged                      # polars: the runs with damage, their first bad step and their restore point
    scan.findings["explanation"]      # one plain sentence each

    gs.scan_frame(frame, run="run_id")          # many runs in one table: polars, pyarrow, duckdb, pandas
    frame.gradscan.scan()                       # the same, of polars frames

Names are loaded when they are first used, so that `import gradscan` costs nothing and the command line starts
without polars.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscan.api import (
        assert_finite,
        batch_stats,
        count_nonfinite,
        formats,
        read,
        read_all,
        roles,
        scan,
        scan_series,
        trackers,
    )
    from gradscan.auditing import audit
    from gradscan.errors import (
        AmbiguousFormatError,
        GradPathologyError,
        GradscanError,
        InternalError,
        LimitError,
        NonFiniteError,
        UnknownFormatError,
        UnreadableRecordingError,
    )
    from gradscan.frames import scan_frame
    from gradscan.result import NonFinite, Recording, Run, Scan
    from gradscan.wording import explain

    __version__: str

_HOME = {
    "api": (
        "assert_finite",
        "batch_stats",
        "count_nonfinite",
        "formats",
        "read",
        "read_all",
        "roles",
        "scan",
        "scan_series",
        "trackers",
    ),
    "auditing": ("audit",),
    "errors": (
        "AmbiguousFormatError",
        "GradPathologyError",
        "GradscanError",
        "InternalError",
        "LimitError",
        "NonFiniteError",
        "UnknownFormatError",
        "UnreadableRecordingError",
    ),
    "frames": ("scan_frame",),
    "result": ("NonFinite", "Recording", "Run", "Scan"),
    "wording": ("explain",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AmbiguousFormatError",
    "GradPathologyError",
    "GradscanError",
    "InternalError",
    "LimitError",
    "NonFinite",
    "NonFiniteError",
    "Recording",
    "Run",
    "Scan",
    "UnknownFormatError",
    "UnreadableRecordingError",
    "__version__",
    "assert_finite",
    "audit",
    "batch_stats",
    "count_nonfinite",
    "explain",
    "formats",
    "read",
    "read_all",
    "roles",
    "scan",
    "scan_frame",
    "scan_series",
    "trackers",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: Any = version("gradscan")
        except PackageNotFoundError:  # run from a source tree that was never installed
            value = "0+unknown"
    elif name in _MODULE_OF:
        value = getattr(import_module(f"gradscan.{_MODULE_OF[name]}"), name)
        _register()
    else:
        raise AttributeError(f"module 'gradscan' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register() -> None:
    """Give polars frames their namespace `gradscan` where polars is loaded."""
    if "polars" in sys.modules:
        import_module("gradscan.namespace")


_register()
