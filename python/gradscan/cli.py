"""The command line: arguments -> api -> report -> exit code.

polars and numpy are imported only by the commands that need them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradscan import paths as paths_of_user
from gradscan import wording
from gradscan.report.escape import terminal as escape

if TYPE_CHECKING:
    from types import FrameType

    from gradscan.result import Audit, Scan

__all__ = ["app", "exit_code", "main"]

OK, FOUND, USAGE, INCOMPLETE, NOTHING, INTERNAL = 0, 1, 2, 3, 4, 70

EXIT_CODES = (
    "Exit codes, the same for every format: 0 nothing that --fail-on names, every source read; 1 something that "
    "--fail-on names; 2 usage error or a path that does not exist; 3 nothing to fail on, but a source could not be "
    "read or damage inside one was skipped (a cut tail is normal and is not that); 4 nothing to scan; 70 internal "
    "error; 130 and 143 on SIGINT and SIGTERM, after printing what is done."
)

app = typer.Typer(
    name="gradscan",
    help="Find NaN/Inf gradients and gradient-norm spikes in archives of training runs, and where to roll back to.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: nothing in it, and nothing that a user typed, is taken for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"
    html = "html"


class Table(StrEnum):
    findings = "findings"
    runs = "runs"
    series = "series"
    faults = "faults"
    suspicions = "suspicions"
    directories = "directories"


class Opening(StrEnum):
    report = "report"
    strict = "strict"
    ignore = "ignore"


class AuditFormat(StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    markdown = "markdown"


class ShowFormat(StrEnum):
    table = "table"
    json = "json"


FAIL_ON = ("nonfinite", "spikes", "opening", "suspect", "not-assessable", "unreadable")


# ------------------------------------------------------------------------------------------ exit codes


def exit_code(scan: Scan, fail_on: Sequence[str]) -> int:
    """The exit code of a finished scan; an empty `fail_on` means never: then 1 and 3 are 0."""
    if len(scan) == 0:
        # A source that could not be read is a hole in the picture even where no recording is known to be in it.
        if _holes(scan):
            return INCOMPLETE if fail_on else OK
        return NOTHING
    if not fail_on:
        return OK
    summary = scan.summary()
    found = {
        "nonfinite": summary["findings"]["nonfinite"],
        "spikes": summary["findings"]["spikes_run"],
        "opening": summary["findings"]["spikes_opening"],
        "suspect": summary["suspect"],
        "not-assessable": summary["not_assessable"],
        "unreadable": summary["unreadable"],
    }
    if any(found[name] for name in fail_on):
        return FOUND
    # A file that two readers claim was read all the same: no part of the picture is missing.
    skipped = any(
        severity != "info" and kind != "ambiguous"
        for kind, severity in scan.faults.select("kind", "severity").iter_rows()
    )
    return INCOMPLETE if summary["unreadable"] or skipped else OK


def _holes(scan: Scan) -> list[tuple[str, str]]:
    """Source and detail of the faults that kept a whole source, or what may be one, from being read."""
    columns = scan.faults.select("severity", "kind", "source", "detail").iter_rows()
    return [
        (source or "", detail or "")
        for severity, kind, source, detail in columns
        if severity == "error" or kind == "limit"
    ]


def _fail_on(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().replace("_", "-") for name in text.split(",") if name.strip()))
    if names == ("never",):
        return ()
    for name in names:
        if name not in FAIL_ON:
            raise typer.BadParameter(
                f"got {name!r}, want some of {','.join(FAIL_ON)}, or never", param_hint="'--fail-on'"
            )
    if not names:
        want = f"want some of {','.join(FAIL_ON)}, or never"
        raise typer.BadParameter(f"got nothing, {want}", param_hint="'--fail-on'")
    return names


def _fail(message: str, code: int = USAGE) -> NoReturn:
    _say("gradscan: " + "\n".join(escape(line) for line in message.split("\n")))
    raise typer.Exit(code)


def _say(text: str, dim: bool = False) -> None:
    """A line to stderr, which may be closed or full: what is said there is never worth more than the exit code."""
    try:
        typer.secho(text, err=True, dim=True) if dim else typer.echo(text, err=True)
    except (OSError, ValueError):
        _silence(sys.stderr)


def _silence(stream: IO[str] | None) -> None:
    """Let what is left in the buffer of a broken stream go nowhere: Python would fail on it once more at exit."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass


class _Interrupt:
    """SIGINT and SIGTERM while a scan runs: both stop it as Ctrl-C does, and the exit code says which it was."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        raise KeyboardInterrupt

    @contextmanager
    def caught(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def code(self) -> int:
        return 128 + (self.signal or signal.SIGINT)


@contextmanager
def _errors() -> Iterator[None]:
    """Exceptions as messages and exit codes."""
    from gradscan.errors import GradscanError, InternalError

    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except FileNotFoundError as error:
        _fail(_message(error))
    except InternalError as error:
        _fail(f"internal error, please report it: {error}", INTERNAL)
    except GradscanError as error:
        _fail(str(error), INCOMPLETE)
    except (ValueError, KeyError, OSError, OverflowError) as error:
        _fail(_message(error))


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or 'input/output error').lower()}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error.args[0]) if error.args else type(error).__name__


# ---------------------------------------------------------------------------------------------- output


def _terminal(stream: IO[str] | None) -> bool:
    """Whether somebody watches; a stream that was closed before the start is None."""
    return stream is not None and stream.isatty()


def _color() -> bool:
    return _terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _width() -> int:
    """Columns of the terminal; 100 where output goes to a file or a pipe, unless COLUMNS says otherwise."""
    from shutil import get_terminal_size

    return get_terminal_size((80 if _terminal(sys.stdout) else 100, 24)).columns


def _print(text: str) -> None:
    """Results to stdout; exit code 2 where they cannot be written."""
    if not _written(text):
        raise typer.Exit(USAGE)


def _written(text: str) -> bool:
    """Results to stdout as UTF-8; False, and a line on stderr, where the operating system refuses.

    A reader that closes the pipe early (`| head`) and a closed stdout are no errors: nobody wants the rest.
    """
    if sys.stdout is None:
        return True
    try:
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:
            sys.stdout.write(text)
        else:
            sys.stdout.flush()
            buffer.write(text.encode())
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        _say(f"gradscan: stdout: {(error.strerror or 'output error').lower()}")
        return False
    return True


def _version(value: bool) -> None:
    if value:
        import gradscan

        typer.echo(f"gradscan {gradscan.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# ------------------------------------------------------------------------------------------------ scan


@app.command("scan", epilog=EXIT_CODES, short_help="Check recordings: what is damaged, since when.")
def scan_command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Files, directories or globs (** crosses directories).", show_default=False
        ),
    ] = None,
    format: Annotated[
        Format, typer.Option("--format", "-f", help="What goes to stdout. json holds all tables, the others one.")
    ] = Format.table,
    table: Annotated[
        Table | None,
        typer.Option(
            help="Which table: findings by default; with --format table, plain rows of it in place of the report.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a report file as well, its format by suffix: .json .jsonl .csv .parquet .md .html .txt. "
            "Repeatable. The file appears whole or not at all; stdout still gets --format (of the table --quiet leaves "
            "the last line).",
            show_default=False,
        ),
    ] = None,
    spike_ratio: Annotated[
        float, typer.Option(metavar="X", help="Multiple of a series' median that counts as a spike.")
    ] = 10.0,
    min_spikes: Annotated[int, typer.Option(metavar="N", help="Spikes needed for a finding.")] = 3,
    min_points: Annotated[int, typer.Option(metavar="N", help="Finite gradient norms needed for a median.")] = 10,
    min_norm: Annotated[float, typer.Option(metavar="X", help="Absolute norm that a spike must exceed as well.")] = 0.0,
    opening: Annotated[
        Opening, typer.Option(help="Spikes in a training's first steps: set apart, judged like any other, or left out.")
    ] = Opening.report,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=GLOB",
            help="Name a series that is not recognised: --metric 'grad_norm=my/norm'. Repeatable.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the step column.", show_default=False)
    ] = None,
    run_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Tables of many runs: name of the column of run ids.", show_default=False),
    ] = None,
    name_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Long tables: name of the column of metric names.", show_default=False),
    ] = None,
    value_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Long tables: name of the column of values.", show_default=False)
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only paths below the root that match. Repeatable.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="No paths below the root that match. Repeatable.", show_default=False),
    ] = None,
    files_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Read further paths from a file or stdin, one a line or separated by NUL.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Default: one a core.", show_default=False)
    ] = None,
    verify_checkpoints: Annotated[
        bool,
        typer.Option(
            "--verify-checkpoints",
            help="Read the safetensors files of each restore point, all shards of an index. One with NaN or Inf, or "
            "that cannot be read, gives way to an older one; where none is left the status is none. Pickles are never "
            "loaded, links not followed: such a checkpoint stays unverified.",
        ),
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Most runs of each status in the table.")] = 50,
    show_all: Annotated[bool, typer.Option("--all", help="List opening and clean runs one by one, too.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no warnings; of the table its last line.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help=f"What makes the exit code 1: some of {','.join(FAIL_ON)}; or never. "
            "spikes are those outside the opening.",
        ),
    ] = "nonfinite,spikes",
) -> None:
    """Read every recording and say which runs are damaged, since when, and where to restore from."""
    fails = _fail_on(fail_on)
    chosen = (table or Table.findings).value
    outputs = output or []
    with _errors():
        from gradscan import report

        for path in outputs:
            report.check_target(path)
        metrics = _metrics(metric or [])
        wanted = list(paths or [])
        if not wanted and files_from is None:
            raise typer.BadParameter("got none, want at least one file, directory or glob", param_hint="'PATH'")
        existing = paths_of_user.expand(wanted) if wanted else []
        if files_from is not None:
            existing = paths_of_user.unique([*existing, *_listed(files_from)])
        if not existing:
            _fail("nothing to scan", NOTHING)
        from gradscan import api

        interrupt = _Interrupt()
        try:
            with interrupt.caught():
                result = api.run_scan(
                    existing,
                    spike_ratio=spike_ratio,
                    min_spikes=min_spikes,
                    min_points=min_points,
                    min_norm=min_norm,
                    opening=opening.value,
                    metrics=metrics,
                    step=step,
                    run=run_column,
                    name=name_column,
                    value=value_column,
                    include=include or [],
                    exclude=exclude or [],
                    threads=threads,
                    verify_checkpoints=verify_checkpoints,
                    progress=False if quiet or no_progress else None,
                    partial=True,
                )
        except KeyboardInterrupt:
            _fail("interrupted before anything was done", interrupt.code)
    # From here on a ValueError is a defect and not a bad argument: only what the operating system refuses is told
    # in one line.
    most = min(limit, sys.maxsize)
    complete = _written(_rendered(result, format, table, limit=most, show_all=show_all, quiet=quiet))
    for path in outputs:
        try:
            report.write(result, path, chosen)
        except OSError as error:
            complete = False
            _say(f"gradscan: {escape(_message(error))}")
    if not quiet:
        _warn(result)
    if not complete:
        raise typer.Exit(USAGE)
    raise typer.Exit(interrupt.code if result.interrupted else exit_code(result, fails))


def _rendered(result: Scan, format: Format, table: Table | None, *, limit: int, show_all: bool, quiet: bool) -> str:
    if format is not Format.table:
        from gradscan import report

        return report.render(result, format.value, (table or Table.findings).value)
    from gradscan.report import terminal

    width, color = _width(), _color()
    if quiet:
        return terminal.summary_line(result, width=width, color=color)
    if table is not None:
        return terminal.table(result, table.value, width=width, color=color, limit=limit)
    return terminal.render(result, width=width, color=color, limit=limit, show_all=show_all)


def _warn(result: Scan) -> None:
    """What belongs to this call and not to its result: time and speed, and why there was nothing."""
    from gradscan.report.terminal import size

    holes = _holes(result) if len(result) == 0 else []
    if result.interrupted and len(result) == 0:
        _say("gradscan: interrupted before a recording was read")
    elif holes:
        for source, detail in holes[:5]:
            _say("gradscan: " + escape(f"{source}: could not be read" + (f" ({detail})" if detail else "")))
        if len(holes) > 5:
            _say(f"gradscan: and {len(holes) - 5:,} more that could not be read")
    elif len(result) == 0:
        _say("gradscan: nothing to scan: no recording was found")
    elif result.seconds > 0:
        speed = size(int(result.bytes / result.seconds))
        text = f"read {size(result.bytes)} in {result.seconds:.2f} s, {speed}/s"
        _say(text, dim=_terminal(sys.stderr) and _color())


def _metrics(pairs: Sequence[str]) -> Mapping[str, list[str]]:
    metrics: dict[str, list[str]] = {}
    for pair in pairs:
        role, equals, glob = pair.partition("=")
        if not equals or not role.strip() or not glob:
            raise typer.BadParameter(
                f"got {pair!r}, want ROLE=GLOB, such as grad_norm=my/norm", param_hint="'--metric'"
            )
        metrics.setdefault(role.strip(), []).append(glob)
    return metrics


def _listed(source: str) -> list[str]:
    """Paths of a list, taken as they stand: a name in it is no pattern."""
    if source == "-" and sys.stdin is None:
        raise ValueError("--files-from: stdin is closed")
    content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    content = content.removeprefix(b"\xef\xbb\xbf")  # what Windows editors put before UTF-8
    separator = b"\0" if b"\0" in content else b"\n"
    names = [os.fsdecode(name.removesuffix(b"\r") if separator == b"\n" else name) for name in content.split(separator)]
    names = [name for name in names if name]
    for name in names:
        if not os.path.lexists(name):
            raise FileNotFoundError(f"{name}: no such file or directory (from {source})")
    return names


# ------------------------------------------------------------------------------------------------ show


@app.command("show", short_help="Show one run around a step, bad cells marked.")
def show_command(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Path of one recording; FILE#ID in a file that holds many.")
    ],
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The step to look at. Default: the onset of the worst finding, else the end.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[int, typer.Option(metavar="K", min=0, help="Rows before and after it.")] = 5,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Show this series (a name or glob). Repeatable.", show_default=False),
    ] = None,
    run_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Tables of many runs: name of the column of run ids.", show_default=False),
    ] = None,
    name_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Long tables: name of the column of metric names.", show_default=False),
    ] = None,
    value_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Long tables: name of the column of values.", show_default=False)
    ] = None,
    format: Annotated[ShowFormat, typer.Option("--format", "-f")] = ShowFormat.table,
) -> None:
    """Show the recorded metrics of one run around a step, bad cells marked; rlprobe runs also their samples."""
    with _errors():
        from gradscan import api
        from gradscan.report import json, terminal

        view = api.around(run, step, window, metric or [], run=run_column, name=name_column, value=value_column)
    _print(json.view(view) if format is ShowFormat.json else terminal.view(view, width=_width(), color=_color()))


# ----------------------------------------------------------------------------------------------- audit

AUDIT_EXIT_CODES = (
    "Exit codes: 0 no NaN or Inf, every file read; 1 some value is NaN or Inf; 2 usage error or a path that does not "
    "exist; 3 nothing found, but a file could not be read to its end; 4 nothing to audit; 70 internal error; 130 and "
    "143 on SIGINT and SIGTERM."
)


@app.command("audit", epilog=AUDIT_EXIT_CODES, short_help="Find NaN/Inf in data and checkpoint weights.")
def audit_command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files, directories or globs: .safetensors, .npy, .npz, Parquet, Arrow and Feather; also .gz and .zst "
            "of what is read in order, and members of .tar, .tar.gz, .tar.zst and .zip. A .safetensors.index.json "
            "stands for all shards that it names; one that is missing is a fault. Pickles (.pt, .bin, .ckpt) are never "
            "loaded: one that you name is a fault. Links in a directory are not followed. CSV is not audited: scan "
            "reads it.",
            show_default=False,
        ),
    ],
    format: Annotated[
        AuditFormat, typer.Option("--format", "-f", help="What goes to stdout. json holds faults, too.")
    ] = AuditFormat.table,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a report file as well, its format by suffix: .json .jsonl .csv .parquet .md .txt. Repeatable.",
            show_default=False,
        ),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List clean tensors and columns, too.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Most tensors in the table.")] = 50,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Default: one a core.", show_default=False)
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no warnings; of the table its last line.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
) -> None:
    """Say which columns and tensors hold NaN or Inf, and in which rows: a cached table, a shard, a checkpoint."""
    outputs = output or []
    with _errors():
        from gradscan import report

        for path in outputs:
            if report.suffix_format(path) == "html":
                raise ValueError(f"{path}: got suffix '.html', want one of .json .jsonl .csv .parquet .md .txt")
            report.check_target(path)
        existing = paths_of_user.expand(paths)
        from gradscan import auditing

        interrupt = _Interrupt()
        try:
            with interrupt.caught():
                result = auditing.run_audit(
                    existing, threads=threads, progress=False if quiet or no_progress else None, partial=True
                )
        except KeyboardInterrupt:
            _fail("interrupted before anything was done", interrupt.code)
    import gradscan
    from gradscan.report import audit as rendered

    version = gradscan.__version__
    most = min(limit, sys.maxsize)
    if format is not AuditFormat.table:
        text = rendered.data(result, format.value, show_all=show_all, version=version)
    elif quiet:
        text = rendered.summary_line(result, width=_width(), color=_color())
    else:
        text = rendered.render(result, width=_width(), color=_color(), limit=most, show_all=show_all)
    complete = _written(text)
    for path in outputs:
        try:
            rendered.write(result, path, show_all=show_all, version=version)
        except OSError as error:
            complete = False
            _say(f"gradscan: {escape(_message(error))}")
    if not quiet:
        if result.files == 0 and result.interrupted:
            _say("gradscan: interrupted before a file was read")
        elif result.files == 0:
            _say("gradscan: nothing to audit: no file of data or weights was found")
        elif format is not AuditFormat.table and len(result.faults):
            _say(f"gradscan: {wording.plural(result.faults['source'].n_unique(), 'file')} could not be read to the end")
    if not complete:
        raise typer.Exit(USAGE)
    raise typer.Exit(interrupt.code if result.interrupted else _audit_code(result))


def _audit_code(result: Audit) -> int:
    if len(result.bad):
        return FOUND
    if len(result.faults):
        return INCOMPLETE
    return OK if result.files else NOTHING


# -------------------------------------------------------------------------------------------- the rest


@app.command("explain", short_help="Say what a check, suspicion or note means.")
def explain_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECK|SUSPICION|NOTE]", help="Without a name: all of them, a line each.", show_default=False
        ),
    ] = None,
) -> None:
    """Say what a check, suspicion, note or status means and what to do about it."""
    if name is None:
        width = max(map(len, wording.TOPICS))
        lines = []
        for kind, title in wording.KINDS.items():
            lines.append(title)
            lines += [
                f"  {key:{width}}  {topic.summary}" for key, topic in wording.TOPICS.items() if topic.kind == kind
            ]
            lines.append("")
        _print("\n".join(lines[:-1]) + "\n")
        return
    with _errors():
        import textwrap

        width = min(_width(), 100)
        paragraphs = wording.explain(name).split("\n\n")
        _print("\n\n".join(textwrap.fill(part, width, break_on_hyphens=False) for part in paragraphs) + "\n")


@app.command("formats")
def formats_command() -> None:
    """List the formats that gradscan reads, and the trackers whose files it was tried on."""
    with _errors():
        from gradscan import _core
        from gradscan.report import terminal

        columns = ("format", "files", "nan", "missing", "not read")
        _print(terminal.plain_table(columns, _core.format_rows(), width=_width(), color=_color()) + "\n")
        of_trackers = ("tracker", "version", "format", "files", "nan", "missing", "not read")
        _print(terminal.plain_table(of_trackers, _core.tracker_rows(), width=_width(), color=_color()))


@app.command("demo", short_help="Write a small damaged archive to try it on.")
def demo_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that is empty or does not exist yet.")],
) -> None:
    """Write a small mixed archive with known damage, to try the tool on."""
    with _errors():
        from gradscan import demo

        runs = demo.write(directory)
        width = max(len(run.path) for run in runs)
        lines = [f"  {run.path:{width}}  {run.status.replace('_', ' '):14}  {run.about}" for run in runs]
        _print(f"wrote {len(runs)} recordings to {escape(str(directory))}\n\n" + "\n".join(lines) + "\n\n")
        _print(f"now try:\n\n  gradscan scan {escape(str(directory))}\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; a defect of gradscan gives 70 and never looks like a finding."""
    run: Callable[..., Any] = app
    try:
        run(args=arguments, prog_name="gradscan")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:  # help or a usage message that could not be printed
        _silence(sys.stdout)
        _say(f"gradscan: {escape(_message(error))}")
        sys.exit(USAGE)
    except Exception:
        import traceback

        _say(traceback.format_exc() + "gradscan: internal error, please report it with the lines above")
        sys.exit(INTERNAL)
    sys.exit(OK)
