"""Draws docs/scan.svg: what `gradscan scan` prints of the demo archive. Run it after changing the report."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

import gradscan as gs
from gradscan import demo
from gradscan.report import terminal

WIDTH = 100

with tempfile.TemporaryDirectory() as directory:
    archive = Path(directory) / "archive"
    demo.write(archive)
    report = terminal.render(gs.scan(archive, progress=False), width=WIDTH, color=True)

console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO())
console.print("[bold]$[/bold] gradscan scan archive/\n")
console.print(Text.from_ansi(report))
console.save_svg(str(Path(__file__).with_name("scan.svg")), title="gradscan")
