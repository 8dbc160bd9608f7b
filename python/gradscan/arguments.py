"""Checks of what a caller passes: every error names the argument, what it got and what it wants."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

__all__ = ["integer", "metric_globs", "number", "path", "patterns", "strings", "text"]

_MOST = 2**63 - 1
"""The compiled module counts in 64 bits."""


def number(name: str, value: Any) -> float:
    """A real number as float; TypeError for text, None, booleans and arrays."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {_short(value)}, want a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: got a number of more than 308 digits, want a finite number") from None


def integer(name: str, value: Any) -> int:
    """A whole number as int (numpy's too); TypeError for another type, ValueError for one beyond 64 bits."""
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {_short(value)}, want a whole number") from None
    if not -_MOST <= whole <= _MOST:
        raise ValueError(f"{name}: got {_short(whole)}, want a whole number within 64 bits")
    return whole


def text(name: str, value: Any) -> str:
    """A string; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {_short(value)}, want a string")
    return value


def strings(name: str, value: Any) -> list[str]:
    """A string or several as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: got {_short(value)}, want a string or several")
    items = list(value)
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{name}: got {_short(item)}, want a string or several")
    return items


def patterns(name: str, value: Any) -> list[str]:
    """Globs over paths; an empty one or one that begins with `!` has no meaning here."""
    globs = strings(name, value)
    for glob in globs:
        if not glob:
            raise ValueError(f"{name}: got an empty pattern, want a glob")
        if glob.startswith("!"):
            raise ValueError(f"{name}: got {_short(glob)}, want a glob that does not begin with '!'")
    return globs


def metric_globs(value: Any) -> list[tuple[str, str]]:
    """`metrics` as pairs of role and glob."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"metrics: got {_short(value)}, want a mapping of roles to series")
    pairs = []
    for role, globs in value.items():
        if not isinstance(role, str):
            raise TypeError(f"metrics: got the role {_short(role)}, want a string")
        for glob in strings(f"metrics[{role!r}]", globs):
            if not glob:
                raise ValueError(f"metrics[{role!r}]: got an empty name, want a series or a glob")
            pairs.append((role, glob))
    return pairs


def path(name: str, value: Any) -> str:
    """A path as text; TypeError for bytes, numbers and None."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: got {type(value).__name__}, want str or Path")
    return text(name, os.fspath(value))


def _short(value: Any) -> str:
    """The value as Python writes it where that is short, else its type."""
    try:
        shown = repr(value)
    except Exception:
        shown = ""
    return shown if 0 < len(shown) <= 60 and "\n" not in shown else type(value).__name__
