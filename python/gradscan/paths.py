"""The paths that a user names: globs expanded, missing ones refused. Names only; no file is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from gradscan import arguments

__all__ = ["PathLike", "expand", "unique"]

PathLike = str | os.PathLike[str]

_MAGIC = re.compile(r"[*?\[]")


def expand(paths: PathLike | Iterable[PathLike]) -> list[str]:
    """Existing paths: globs expanded and sorted, each path once.

    FileNotFoundError names what is missing; ValueError for an empty list.
    """
    if isinstance(paths, (bytes, bytearray, Mapping)) or not isinstance(paths, (str, os.PathLike, Iterable)):
        raise TypeError(f"paths: got {type(paths).__name__}, want str, Path or several of them")
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("paths: got none, want at least one file, directory or glob")
    found: dict[str, None] = {}
    for path in several:
        text = os.path.expanduser(arguments.path("paths", path))
        # A name that exists is that file, even if it looks like a pattern. A broken link exists, too: it is an
        # outcome of the scan.
        if os.path.lexists(text):
            found[text] = None
        elif _MAGIC.search(text):
            matches = _outermost(sorted(_glob(text)))
            if not matches:
                raise FileNotFoundError(f"{text}: no file or directory matches this pattern")
            found.update(dict.fromkeys(matches))
        else:
            raise FileNotFoundError(f"{text}: no such file or directory")
    return unique(found)


def unique(paths: Iterable[str]) -> list[str]:
    """The paths without those that lead to the same file or directory as an earlier one."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _glob(pattern: str) -> Iterator[str]:
    """Paths that match, gitignore-style: `*` and `?` stay within a name, `**` crosses directories but no links."""
    drive, rest = os.path.splitdrive(pattern)
    parts = [part for part in rest.replace(os.sep, "/").split("/") if part not in ("", ".")]
    # Everything below a directory is the directory itself.
    while parts and parts[-1] == "**":
        parts.pop()
    base = drive + os.sep if rest.startswith(("/", os.sep)) else drive
    yield from dict.fromkeys(_match(base, parts))


def _match(base: str, parts: list[str]) -> Iterator[str]:
    if not parts:
        yield base or "."
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _match(base, rest)
        for entry in _entries(base):
            if entry.is_dir(follow_symlinks=False):
                yield from _match(os.path.join(base, entry.name), parts)
    elif _MAGIC.search(part):
        for entry in _entries(base):
            if fnmatchcase(entry.name, part) and (not rest or entry.is_dir()):
                yield from _match(os.path.join(base, entry.name), rest)
    elif os.path.lexists(os.path.join(base, part)):
        yield from _match(os.path.join(base, part), rest)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory or ".") as entries:
            return list(entries)
    except OSError:  # not a directory, or not allowed: nothing in it matches
        return []


def _outermost(paths: list[str]) -> list[str]:
    """Without the paths that lie below another one, which a scan of that one reads."""
    kept: list[str] = []
    inside = set(paths)
    for path in paths:
        parent = os.path.dirname(path)
        while parent and parent not in inside and parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
        if not parent or parent not in inside or parent == path:
            kept.append(path)
    return kept
