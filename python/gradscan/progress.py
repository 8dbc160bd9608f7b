"""How far a scan is: a bar on a terminal (stderr) or a line in a notebook.

Knows nothing of scans but the five numbers of the progress callback.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Callback", "auto"]

Callback = Callable[[int, int, int, int, int], object]
"""`(done_bytes, total_bytes, done_sources, total_sources, damaged_so_far)`, called about ten times a second."""


_QUIET_SECONDS = 0.3
"""A scan that is done by then shows no bar: it would only flicker."""


@contextmanager
def auto() -> Iterator[Callback | None]:
    """A callback that draws where somebody watches, else None."""
    notebook = _notebook()
    if notebook is not None:
        update, clear = notebook
        try:
            yield update
        finally:
            clear()
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar() as drawn:
            yield drawn
    else:
        yield None


@contextmanager
def _bar() -> Iterator[Callback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.theme import Theme

    calm = Theme({"progress.download": "default", "progress.data.speed": "dim", "progress.remaining": "dim"})
    start = time.monotonic()
    with Progress(
        BarColumn(bar_width=24, style="dim", complete_style="cyan", finished_style="cyan"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[said]}", markup=False),
        console=Console(stderr=True, theme=calm),
        transient=True,
    ) as bar:
        task = bar.add_task("scan", total=None, said="", visible=False)

        def update(done: int, total: int, sources: int, all_sources: int, damaged: int) -> None:
            said = f"{sources:,}/{all_sources:,} sources" + (f", {damaged:,} damaged" if damaged else "")
            late = time.monotonic() - start > _QUIET_SECONDS
            bar.update(task, completed=done, total=total, said=said, visible=late)

        yield update


def _notebook() -> tuple[Callback, Callable[[], object]] | None:
    """A callback for a Jupyter kernel and what clears its line: plain text, which needs no widgets."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    if instance is None or type(instance).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    handle = display({"text/plain": "scanning"}, raw=True, display_id=True)

    def show(text: str) -> None:
        handle.update({"text/plain": text}, raw=True)

    def update(done: int, total: int, sources: int, all_sources: int, damaged: int) -> None:
        share = f"{100 * done / total:.0f} %" if total else "scanning"
        show(f"{share}  {sources:,}/{all_sources:,} sources, {damaged:,} damaged")

    return update, lambda: show("")
