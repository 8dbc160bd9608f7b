"""The exceptions of gradscan.

Missing files and bad arguments raise Python's own `FileNotFoundError`, `ValueError` and `TypeError`. Every
exception here pickles with its attributes, so that it survives a trip through a process pool.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AmbiguousFormatError",
    "GradPathologyError",
    "GradscanError",
    "InternalError",
    "LimitError",
    "NonFiniteError",
    "UnknownFormatError",
    "UnreadableRecordingError",
]


class GradscanError(Exception):
    """Base class of all that gradscan raises itself."""


class UnknownFormatError(GradscanError):
    """No reader recognises the file."""


class AmbiguousFormatError(GradscanError):
    """Two readers claim the file with the same confidence; the message names both."""


class UnreadableRecordingError(GradscanError):
    """The format is known, but nothing could be read (a Git LFS pointer, a cut header)."""


class LimitError(GradscanError):
    """The file passes one of gradscan's limits; the message names the limit."""


class InternalError(GradscanError):
    """A defect of gradscan itself; please report it with the message."""


class _DamageError(GradscanError, RuntimeError):
    """What the two damage errors share: where the damage is.

    Attributes: `run` (name of the run or None), `step` (int or None), `metric` (name of the series or array),
    `value` (the bad value, float or None) and `findings`.
    """

    def __init__(
        self,
        message: str,
        *,
        run: str | None = None,
        step: int | None = None,
        metric: str | None = None,
        value: float | None = None,
        findings: Any = None,
    ) -> None:
        super().__init__(message)
        self.run = run
        self.step = step
        self.metric = metric
        self.value = value
        self.findings = findings

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception.__reduce__ would call the class with the message alone; the attributes travel as state.
        return (type(self), (str(self),), self.__dict__)


class GradPathologyError(_DamageError):
    """A scanned run is damaged: raised by `Scan.raise_if_damaged`.

    `findings` is the polars frame of the findings that were asked for.
    """


class NonFiniteError(_DamageError):
    """An array holds NaN or Inf: raised by `assert_finite`.

    `metric` is the array's name, `findings` maps each bad array's name to its `NonFinite`.
    """
