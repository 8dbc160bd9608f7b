"""The command line's own work: exit codes, arguments, paths, output files, signals. Scans are made by hand."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import frames
from gradscan import cli, demo, paths, progress
from gradscan.result import Scan

HAS_CORE = importlib.util.find_spec("gradscan._core") is not None
needs_core = pytest.mark.skipif(not HAS_CORE and not os.environ.get("CI"), reason="needs the compiled module")


def one(status: str = "clean", **given: Any) -> Scan:
    return frames.scan([frames.run(status=status)], **given)


NAN = frames.scan([frames.damaged(frames.finding())], [frames.finding()])
SPIKES = frames.scan([frames.damaged(frames.spikes())], [frames.spikes()])
OPENING = frames.scan([frames.run(status="opening")], [frames.spikes(phase="opening", severity="warning")])
FAULT = {"run": "r", "source": "r", "kind": "bad-checksum", "place": "byte 7", "detail": "", "severity": "warning"}
CUT = FAULT | {"kind": "truncated", "severity": "info"}
NO_ROOT = FAULT | {"run": None, "source": "archive", "kind": "io", "severity": "error", "detail": "permission denied"}
BOTH_CLAIM = FAULT | {"kind": "ambiguous"}
DEFAULT = ("nonfinite", "spikes")


@pytest.mark.parametrize(
    ("scan", "fail_on", "code"),
    [
        (one(), DEFAULT, 0),
        (NAN, DEFAULT, 1),
        (NAN, ("spikes",), 0),
        (SPIKES, DEFAULT, 1),
        (SPIKES, ("nonfinite",), 0),
        (OPENING, DEFAULT, 0),
        (OPENING, ("opening",), 1),
        (one("suspect"), DEFAULT, 0),
        (one("suspect"), ("suspect",), 1),
        (one("not_assessable"), DEFAULT, 0),
        (one("not_assessable"), ("not-assessable",), 1),
        (one("unreadable"), DEFAULT, 3),
        (one("unreadable"), ("unreadable",), 1),
        (one(faults=[FAULT]), DEFAULT, 3),
        (one(faults=[CUT]), DEFAULT, 0),
        (one(faults=[BOTH_CLAIM]), DEFAULT, 0),
        (one("unreadable"), (), 0),
        (one(faults=[FAULT]), (), 0),
        (NAN, (), 0),
        (frames.scan([]), DEFAULT, 4),
        (frames.scan([]), (), 4),
        # A root that cannot be read is not the same as one without recordings.
        (frames.scan([], faults=[NO_ROOT]), DEFAULT, 3),
        (frames.scan([], faults=[NO_ROOT]), (), 0),
        (frames.scan([], faults=[CUT]), DEFAULT, 4),
        # What lies too deep to be looked at may be a recording.
        (frames.scan([], faults=[FAULT | {"kind": "limit"}]), DEFAULT, 3),
        # Damage comes before an incomplete picture.
        (frames.scan([frames.damaged(frames.finding())], [frames.finding()], faults=[FAULT]), DEFAULT, 1),
    ],
)
def test_exit_code(scan: Scan, fail_on: tuple[str, ...], code: int) -> None:
    assert cli.exit_code(scan, fail_on) == code


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """`run(arguments, scan)` calls the command line with a scan in place of the compiled module's."""
    if not HAS_CORE:
        monkeypatch.setitem(sys.modules, "gradscan._core", types.ModuleType("gradscan._core"))
    api = importlib.import_module("gradscan.api")
    calls: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "archive").mkdir()
    (tmp_path / "folder.json").mkdir()

    def call(arguments: list[str], scan: Scan = NAN, stdin: str | None = None) -> Any:
        def scanned(paths: list[str], **knobs: Any) -> Scan:
            calls.append({"paths": paths, **knobs})
            return scan

        monkeypatch.setattr(api, "run_scan", scanned)
        result: Any = CliRunner().invoke(cli.app, arguments, input=stdin)
        result.calls = calls
        return result

    yield call
    if not HAS_CORE:
        sys.modules.pop("gradscan.api", None)


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv", "markdown", "html"])
def test_every_format_has_the_same_exit_code(run: Any, format: str) -> None:
    for scan, code in ((NAN, 1), (one(), 0), (one("unreadable"), 3), (frames.scan([]), 4)):
        result = run(["scan", "archive", "--format", format], scan)
        assert result.exit_code == code, result.output


def test_results_and_warnings_are_apart(run: Any) -> None:
    result = run(["scan", "archive", "--format", "json"], frames.scan([frames.run()], seconds=0.5))
    assert json.loads(result.stdout)["schema"] == 1
    assert "in 0.50 s, 16.4 MB/s" in result.stderr
    quiet = run(["scan", "archive", "--quiet"], NAN)
    assert quiet.stdout == "1 run: 1 damaged; 8.2 MB\n"
    assert quiet.stderr == ""


def test_output_is_plain_without_a_terminal(run: Any) -> None:
    result = run(["scan", "archive"])
    assert "\x1b" not in result.output
    assert "llama/run-1" in result.stdout


def test_output_files(run: Any) -> None:
    result = run(["scan", "archive", "-o", "a.json", "-o", "b.csv", "-o", "c.md", "-q", "--table", "runs"])
    assert result.exit_code == 1
    assert json.loads(Path("a.json").read_text())["findings"]
    assert Path("b.csv").read_text().startswith("run,directory,source")
    assert Path("c.md").read_text().startswith("# gradscan")
    assert len(list(Path().iterdir())) == 5


def test_an_unreadable_root_is_named(run: Any) -> None:
    result = run(["scan", "archive"], frames.scan([], faults=[NO_ROOT]))
    assert "archive: could not be read (permission denied)" in result.stderr
    assert "no recording was found" not in result.stderr


def test_an_output_file_that_fails_afterwards_costs_no_result(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object, destination: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr("os.replace", fail)
    result = run(["scan", "archive", "-o", "./a.json", "-o", "b.csv"])
    assert result.exit_code == 2
    assert "llama/run-1" in result.stdout
    assert "gradscan: ./a.json: no space left on device\ngradscan: b.csv: no space" in result.stderr
    assert ".tmp" not in result.stderr


def test_a_scan_that_was_stopped_early_does_not_say_that_there_is_nothing(run: Any) -> None:
    result = run(["scan", "archive"], frames.scan([], interrupted=True))
    assert "interrupted" in result.stderr
    assert "nothing to scan" not in result.stderr


@pytest.mark.skipif(not HAS_CORE, reason="needs the compiled module")
def test_show_names_the_runs_of_a_table(tmp_path: Path) -> None:
    rows = [f"{run},{step},0.5" for run in ("a\tb", "c") for step in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["who,step,grad_norm", *rows]) + "\n")
    runner = CliRunner()
    several = runner.invoke(cli.app, ["show", str(tmp_path / "t.csv"), "--run-column", "who"])
    assert several.exit_code == 2
    assert "got 2 recordings ('t.csv#a\\tb', t.csv#c), want the path of one, or FILE#ID" in several.stderr
    one = runner.invoke(cli.app, ["show", f"{tmp_path / 't.csv'}#c", "--run-column", "who"])
    assert one.exit_code == 0, one.output
    assert one.stdout.startswith("t.csv#c  csv  clean")
    none = runner.invoke(cli.app, ["show", f"{tmp_path / 't.csv'}#x", "--run-column", "who"])
    assert "holds no run 'x', want one of 't.csv#a\\tb', t.csv#c" in none.stderr


def test_tables(run: Any) -> None:
    assert run(["scan", "archive", "--table", "runs"]).stdout.startswith("run ")
    assert run(["scan", "archive", "-f", "csv", "--table", "runs"]).stdout.startswith("run,directory")
    assert run(["scan", "archive", "-f", "csv"]).stdout.startswith("id,run,directory")


def test_knobs_reach_the_scan(run: Any) -> None:
    options = ["--spike-ratio", "5", "--min-spikes", "2", "--min-points", "20", "--min-norm", "0.1"]
    options += ["--opening", "strict", "--metric", "grad_norm=my/*", "--metric", "grad_norm=b=c", "--metric", "loss=l"]
    options += ["--step", "tick", "--include", "*.jsonl", "--exclude", "old/**", "--threads", "3"]
    options += ["--run-column", "id", "--name-column", "key", "--value-column", "number", "--verify-checkpoints"]
    call = run(["scan", "archive", *options]).calls[-1]
    assert call == {
        "paths": ["archive"],
        "spike_ratio": 5.0,
        "min_spikes": 2,
        "min_points": 20,
        "min_norm": 0.1,
        "opening": "strict",
        "metrics": {"grad_norm": ["my/*", "b=c"], "loss": ["l"]},
        "step": "tick",
        "run": "id",
        "name": "key",
        "value": "number",
        "include": ["*.jsonl"],
        "exclude": ["old/**"],
        "threads": 3,
        "verify_checkpoints": True,
        "progress": None,
        "partial": True,
    }
    assert run(["scan", "archive", "--no-progress"]).calls[-1]["progress"] is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scan"], "want at least one file, directory or glob"),
        (["scan", "nowhere"], "nowhere: no such file or directory"),
        (["scan", "no*where"], "no*where: no file or directory matches"),
        (["scan", "archive", "--fail-on", "nan"], "got 'nan', want some of nonfinite,spikes,opening"),
        (["scan", "archive", "--fail-on", "never,spikes"], "got 'never'"),
        (["scan", "archive", "--fail-on", ""], "got nothing"),
        (["scan", "archive", "--metric", "grad_norm"], "got 'grad_norm', want ROLE=GLOB"),
        (["scan", "archive", "-o", "report.xlsx"], "got suffix '.xlsx', want one of .json"),
        (["scan", "archive", "-o", "no/where.json"], "no/where.json: no such directory"),
        (["scan", "archive", "-o", "folder.json"], "folder.json: is a directory"),
        (["scan", "archive", "--format", "xml"], "xml"),
        (["scan", "archive", "--opening", "maybe"], "maybe"),
        (["scan", "archive", "--threads", "0"], "--threads"),
        (["scan", "archive", "--files-from", "nolist"], "nolist: no such file or directory"),
        (["show", "nowhere"], "nowhere: no such file or directory"),
        (["explain", "spike"], "did you mean spikes?"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_usage_errors(run: Any, arguments: list[str], says: str) -> None:
    result = run(arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""
    assert result.calls == []


def test_fail_on_takes_either_separator(run: Any) -> None:
    assert run(["scan", "archive", "--fail-on", "not_assessable, unreadable"], one("not_assessable")).exit_code == 1
    assert run(["scan", "archive", "--fail-on", "never"], NAN).exit_code == 0


def test_files_from(run: Any) -> None:
    Path("a b.json").touch()
    Path("[x].json").touch()
    Path("list").write_bytes(b"a b.json\r\n\n[x].json\n")
    assert run(["scan", "--files-from", "list"]).calls[-1]["paths"] == ["a b.json", "[x].json"]
    assert run(["scan", "archive", "--files-from", "-"], stdin="archive\n").calls[-1]["paths"] == ["archive"]
    assert run(["scan", "--files-from", "-"], stdin="a b.json\0[x].json\0").calls[-1]["paths"][1] == "[x].json"
    assert run(["scan", "--files-from", "-"], stdin="a b.json\nmissing\n").exit_code == 2
    Path("list").write_bytes(b"\xef\xbb\xbfa b.json\n./a b.json\n")
    assert run(["scan", "a b.json", "--files-from", "list"]).calls[-1]["paths"] == ["a b.json"]
    empty = run(["scan", "--files-from", "-"], stdin="")
    assert (empty.exit_code, "nothing to scan" in empty.stderr) == (4, True)


def test_hostile_arguments_are_escaped(run: Any) -> None:
    result = run(["scan", "\x1b[31mred"])
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert "\\x1b[31mred" in result.stderr


def test_a_defect_is_neither_a_finding_nor_a_usage_error(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["scan", "archive"])
    from gradscan.report import terminal

    def broken(*_: object, **__: object) -> str:
        raise ValueError("a defect")

    monkeypatch.setattr(terminal, "render", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main(["scan", "archive"])
    assert caught.value.code == 70
    assert "internal error" in capsys.readouterr().err


def test_help_is_short_and_lists_the_exit_codes() -> None:
    result = CliRunner().invoke(cli.app, ["scan", "--help"])
    assert result.exit_code == 0
    for word in ("--fail-on", "--files-from", "Exit codes", "130"):
        assert word in result.stdout
    bare = CliRunner().invoke(cli.app, [])
    assert "scan" in bare.output
    for command in ("audit", "show", "explain", "formats", "demo"):
        assert f"  {command} " in bare.output


def test_version_and_explain() -> None:
    assert CliRunner().invoke(cli.app, ["--version"]).stdout.startswith("gradscan ")
    everything = CliRunner().invoke(cli.app, ["explain"]).stdout
    for name in ("nonfinite", "vanished", "sparse-log", "not_assessable"):
        assert name in everything
    assert "loss scaling" in CliRunner().invoke(cli.app, ["explain", "nonfinite"]).stdout


# ------------------------------------------------------------------------------------------- paths


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a/x.json", "a/b/x.json", "a/b/c/y.json", "d/x.json", "d/[1].json", ".hidden/x.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "d" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "broken").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a/x.json", ["a/x.json"]),
        ("*/x.json", [".hidden/x.json", "a/x.json", "d/x.json"]),
        ("**/x.json", [".hidden/x.json", "a/b/x.json", "a/x.json", "d/x.json"]),
        ("a/**/*.json", ["a/b/c/y.json", "a/b/x.json", "a/x.json"]),
        ("a/**/y.json", ["a/b/c/y.json"]),
        ("a/**", ["a"]),
        ("?/x.json", ["a/x.json", "d/x.json"]),
        ("[!a]/x.json", ["d/x.json"]),
        ("./a/b/*.json", ["a/b/x.json"]),
        ("d/[1].json", ["d/[1].json"]),  # a name that exists is no pattern
        ("a/**/*", ["a/b", "a/x.json"]),  # what lies below a match is scanned with it
        ("broken", ["broken"]),
    ],
)
def test_expand(tree: Path, pattern: str, found: list[str]) -> None:
    assert paths.expand(pattern) == found
    if pattern != "./a/b/*.json":
        assert paths.expand(tree / pattern) == [str(tree / name) for name in found]


def test_expand_several_once_each(tree: Path) -> None:
    assert paths.expand(["a", "./a", "a/", tree / "a", "d/../a"]) == ["a"]
    assert paths.expand(["a/x.json", Path("a"), "a/x.json", "a/*.json"]) == ["a/x.json", "a"]
    with pytest.raises(ValueError, match="paths: got none"):
        paths.expand([])
    with pytest.raises(FileNotFoundError, match="q/x: no such file"):
        paths.expand(["a", "q/x"])
    for wrong, says in (([b"a"], "bytes"), (b"a", "bytes"), (5, "int"), (None, "NoneType"), ([5], "int")):
        with pytest.raises(TypeError, match=f"paths: got {says}"):
            paths.expand(wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- signals

STOPPED = """
import sys, time, types
sys.path.insert(0, {tests!r})
core = types.ModuleType("gradscan._core")
sys.modules["gradscan._core"] = core
import frames
from gradscan import result

class Tables:
    def __init__(self, interrupted):
        scan = frames.scan([frames.run()])
        import polars as pl
        none = pl.lit(None, pl.String)
        self.runs = scan.runs.with_columns(none.alias("reason_detail"))
        self.series, self.faults, self.directories = scan.series, scan.faults, scan.directories
        self.findings = scan.findings.with_columns(none.alias("restore_reason"))
        self.suspicions = scan.suspicions
        self.skipped_files, self.bytes, self.roots, self.interrupted = 0, 7, ["archive"], interrupted

def scan(paths, *, partial, **knobs):
    assert partial
    print("started", file=sys.stderr, flush=True)
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        return Tables(True)
    return Tables(False)

core.scan = scan
from gradscan.cli import main
main(["scan", "."])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_scan_prints_what_is_done(number: signal.Signals, code: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = STOPPED.format(tests=str(Path(__file__).parent))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert "1 run: 1 clean; 7 B; interrupted, the rest was not scanned" in " ".join(out.split())


def test_a_closed_pipe_keeps_the_exit_code() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = STOPPED.format(tests=str(Path(__file__).parent)).replace("time.sleep(30)", "pass")
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"Traceback" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("arguments", "redirect", "code", "says"),
    [
        ("scan .", ">/dev/full", 2, b"gradscan: stdout: no space left on device\n"),
        ("explain", ">/dev/full", 2, b"gradscan: stdout: no space left on device\n"),
        ("--help", ">/dev/full", 2, b"no space left on device\n"),
        ("scan .", ">&-", 0, b"read 7 B"),
        ("scan .", "2>&-", 0, b""),
        ("scan .", "2>/dev/full", 0, b""),
        ("scan nowhere", "2>&-", 2, b""),
        ("scan nowhere", "2>/dev/full", 2, b""),
        ("frobnicate", "2>/dev/full", 2, b""),
        ("scan .", ">&- 2>&-", 0, b""),
    ],
)
def test_full_and_closed_streams(arguments: str, redirect: str, code: int, says: bytes, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    script = STOPPED.format(tests=str(Path(__file__).parent)).replace("time.sleep(30)", "pass")
    script = script.replace('print("started", file=sys.stderr, flush=True)', "")
    script = script.replace('main(["scan", "."])', f"main({arguments.split()!r})")
    (tmp_path / "script.py").write_text(script)
    command = f'"{sys.executable}" script.py {redirect}'
    done = subprocess.run(
        ["sh", "-c", command], check=False, capture_output=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.returncode == code, done
    assert says in done.stderr
    assert b"Traceback" not in done.stderr + done.stdout


# ------------------------------------------------------------------------------------------- progress


def test_progress_draws_only_where_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    with progress.auto() as callback:
        assert callback is None


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class ZMQInteractiveShell: ...

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    package, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    display.display = lambda *_, **__: Handle()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress.auto() as callback:
        assert callback is not None
        callback(250, 1000, 3, 12, 1)
        callback(0, 0, 0, 0, 0)
    assert shown == ["25 %  3/12 sources, 1 damaged", "scanning  0/0 sources, 0 damaged", ""]


def test_progress_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with progress.auto() as callback:
        assert callback is not None
        callback(500_000_000, 1_000_000_000, 3, 12, 1)
        time.sleep(0.3)
    assert "3/12 sources, 1 damaged" in screen.getvalue()
    assert "0.5/1.0 GB" in screen.getvalue()


# ------------------------------------------------------------------------------------------- demo


def test_demo_is_the_same_every_time_and_refuses_what_is_there(tmp_path: Path) -> None:
    demo.write(tmp_path / "one")
    demo.write(tmp_path / "two")
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) > 40
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    result = CliRunner().invoke(cli.app, ["demo", str(tmp_path / "one")])
    assert result.exit_code == 2
    assert "exists and is not empty" in result.stderr


@needs_core
def test_demo_is_found_as_it_is_said(tmp_path: Path) -> None:
    import gradscan as gs

    runs = demo.write(tmp_path / "demo")
    scan = gs.scan(tmp_path / "demo", progress=False)
    assert len(scan) == len(runs)
    by_directory = {name: scan[name] for name in scan}
    for expected in runs:
        run = next(run for name, run in by_directory.items() if expected.path in (name, run.directory))
        assert run.status == expected.status, expected.path
        assert sorted(run.checks) == sorted(expected.checks), expected.path
        assert (run.first_step, run.restore_step) == (expected.first_step, expected.restore_step) or not expected.checks
    result = CliRunner().invoke(cli.app, ["scan", str(tmp_path / "demo")])
    assert result.exit_code == 1
    assert CliRunner().invoke(cli.app, ["scan", str(tmp_path / "demo"), "--fail-on", "never"]).exit_code == 0


@needs_core
def test_show_marks_the_onset_of_a_demo_run(tmp_path: Path) -> None:
    demo.write(tmp_path / "demo")
    run = str(tmp_path / "demo" / "sft" / "fp16-overflow")
    result = CliRunner().invoke(cli.app, ["show", run, "--window", "10"])
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.split("\n")
    here = next(line for line in lines if line.startswith(">"))
    assert here.split()[1] == "1,560"
    assert here.split()[2].endswith("^")
    assert "NaN!" in result.stdout
    assert "damaged" in lines[0]
    document = json.loads(CliRunner().invoke(cli.app, ["show", run, "--step", "1700", "--format", "json"]).stdout)
    assert document["step"] == 1700
    assert document["rows"][5]["grad_norm"] == "NaN"
    assert {"row": 5, "step": 1700, "metric": "grad_norm", "kind": "nan"} in document["bad"]
    several = CliRunner().invoke(cli.app, ["show", str(tmp_path / "demo" / "rl")])
    assert several.exit_code == 2
    assert "want the path of one" in several.stderr


@needs_core
@pytest.mark.parametrize("option", ["--min-spikes", "--min-points", "--threads"])
def test_a_number_too_large_is_a_usage_error(tmp_path: Path, option: str) -> None:
    result = CliRunner().invoke(cli.app, ["scan", str(tmp_path), option, "9" * 20])
    assert result.exit_code == 2
    assert f"{option[2:].replace('-', '_')}: got {'9' * 20}" in result.stderr


@needs_core
def test_show_always_has_the_columns_of_the_finding(tmp_path: Path) -> None:
    bad = "train/actor/the_gradient_norm_of/some_very_long_module_name/grad_norm"
    lines = [
        {"step": step, **{f"loss/part_{n}": 1.0 for n in range(20)}, "loss": 1.0, bad: math.nan if step == 40 else 0.5}
        for step in range(50)
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(cli.app, ["show", str(path)], env={"COLUMNS": "60"})
    assert result.exit_code == 0, result.stderr
    here = next(line for line in result.stdout.split("\n") if line.startswith(">"))
    assert here.split()[1:3] == ["40", "NaN!"]
    assert "…" in result.stdout
    wide = CliRunner().invoke(cli.app, ["show", str(path), "--window", str(2**63 - 1), "--step", "7"])
    assert (wide.exit_code, wide.stdout.count("NaN!")) == (0, 1)
    huge = CliRunner().invoke(cli.app, ["show", str(path), "--step", "9" * 20])
    assert (huge.exit_code, "step: got 99999999999999999999" in huge.stderr) == (2, True)
    view = json.loads(CliRunner().invoke(cli.app, ["show", str(path), "-f", "json"]).stdout)
    assert view["bad"] == [{"row": 5, "step": 40, "metric": bad, "kind": "nan"}]
