"""`df.gradscan.scan(...)` and `lf.gradscan.scan(...)`: `gradscan.scan_frame` as a namespace of polars frames.

Importing this module registers the namespace. `import gradscan` does so where polars was imported before it; else the
first use of a name of gradscan that needs polars does (`gradscan.scan`, `gradscan.Scan` ...), or `import
gradscan.namespace`. So either of these works:

    import polars as pl
    import gradscan

    pl.read_parquet("runs.parquet").gradscan.scan()

    import gradscan.namespace  # before or after polars
    import polars as pl

Type checkers do not see names that are registered at run time: `FrameNamespace(df).scan()` is the same and typed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import polars as pl

if TYPE_CHECKING:
    from gradscan.result import Scan

__all__ = ["FrameNamespace", "LazyFrameNamespace"]


class _Namespace:
    """What both kinds of frame offer."""

    def __init__(self, frame: pl.DataFrame | pl.LazyFrame) -> None:
        self._frame = frame

    def scan(
        self,
        run: str | None = None,
        step: str | None = None,
        name: str | None = None,
        value: str | None = None,
        nan: Literal["missing", "damage"] | None = None,
        spike_ratio: float = 10.0,
        min_spikes: int = 3,
        min_points: int = 10,
        min_norm: float = 0.0,
        opening: Literal["report", "strict", "ignore"] = "report",
        metrics: Mapping[str, str | Sequence[str]] | None = None,
        threads: int | None = None,
    ) -> Scan:
        """Check every run of this frame; `gradscan.scan_frame` has the arguments, shapes and errors."""
        from gradscan.frames import scan_frame

        return scan_frame(
            self._frame,
            run=run,
            step=step,
            name=name,
            value=value,
            nan=nan,
            spike_ratio=spike_ratio,
            min_spikes=min_spikes,
            min_points=min_points,
            min_norm=min_norm,
            opening=opening,
            metrics=metrics,
            threads=threads,
        )


@pl.api.register_dataframe_namespace("gradscan")
class FrameNamespace(_Namespace):
    """`df.gradscan` of a polars DataFrame."""


@pl.api.register_lazyframe_namespace("gradscan")
class LazyFrameNamespace(_Namespace):
    """`lf.gradscan` of a polars LazyFrame: collected in batches, with only the columns that the scan needs."""
