"""Who may import whom under python/gradscan: report -> result <- api, nothing imports cli; and what a start costs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "gradscan"

# Module -> the modules of the package that it may import. `report` is one layer: its files may import each other.
MAY: dict[str, set[str]] = {
    "__init__": {"api", "auditing", "errors", "frames", "namespace", "result", "wording"},
    "__main__": {"cli"},
    "arguments": set(),
    "errors": set(),
    "wording": set(),
    "progress": set(),
    "paths": {"arguments"},
    "demo": set(),
    "samples": set(),
    "namespace": {"frames", "result"},
    "result": {"arguments", "errors"},
    "report": {"result", "report"},
    "assemble": {"_core", "arguments", "result", "wording", "__init__"},
    "frames": {"_core", "arguments", "assemble", "result"},
    "api": {
        *("_core", "arguments", "assemble", "errors", "namespace", "paths", "progress", "result", "samples", "wording"),
        "__init__",
    },
    "auditing": {"_core", "api", "arguments", "errors", "frames", "paths", "progress", "result"},
    "cli": {"_core", "api", "auditing", "demo", "errors", "paths", "report", "result", "wording", "__init__"},
}

# Loaded only when a report is asked for (`Scan.to_json` and its like): a convenience of the object, no part of it.
DEFERRED = {("result", "report")}

# Modules that a start of the command line loads: they must not import what takes long.
LIGHT = {"__init__", "__main__", "arguments", "errors", "wording", "progress", "paths", "demo", "cli"}
HEAVY = {"numpy", "polars"}


def layer(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """`(module, deferred, typing only)` of every import of a file; names of this package as `gradscan.<layer>`."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        deferred = typing = False
        above: ast.AST | None = node
        while above is not None:
            deferred |= isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing |= isinstance(above, ast.If) and "TYPE_CHECKING" in ast.unparse(above.test)
            above = parents.get(above)
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, deferred, typing
        else:
            assert node.level == 0, f"{path.name}: relative import"
            for name in node.names:
                whole = f"{node.module}.{name.name}" if node.module == "gradscan" else str(node.module)
                yield whole, deferred, typing


def test_layers() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    seen: dict[str, int] = dict.fromkeys(MAY, 0)
    edges = 0
    for path in files:
        own = layer(path)
        assert own in MAY, f"{path.name}: not in the table of layers"
        seen[own] += 1
        for module, deferred, _ in imports(path):
            parts = module.split(".")
            if parts[0] != "gradscan":
                continue
            target = parts[1] if len(parts) > 1 else "__init__"
            edges += 1
            allowed = target in MAY[own] or (deferred and (own, target) in DEFERRED)
            assert allowed, f"{path.relative_to(PACKAGE)} imports {module}"
    assert all(seen.values()), f"rows that saw no file: {[name for name, count in seen.items() if not count]}"
    assert edges > 20


def test_reports_import_the_result_only_for_its_types() -> None:
    files = sorted((PACKAGE / "report").glob("*.py"))
    assert len(files) >= 8
    for path in files:
        for module, _, typing in imports(path):
            assert not module.startswith("gradscan.result") or typing, f"{path.name} needs {module} at run time"


def test_light_modules_import_nothing_heavy_at_the_top() -> None:
    looked = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if layer(path) in LIGHT:
            looked += 1
            for module, deferred, typing in imports(path):
                assert deferred or typing or module.split(".")[0] not in HEAVY, f"{path.name} imports {module}"
    assert looked == len(LIGHT)


def test_public_names_exist_and_are_listed_once() -> None:
    import gradscan

    listed = [name for names in gradscan._HOME.values() for name in names] + ["__version__"]
    assert sorted(listed) == sorted(gradscan.__all__)
    assert len(set(listed)) == len(listed)
    assert set(gradscan.__all__) <= set(dir(gradscan))
    for name in ("GradPathologyError", "Scan", "explain", "__version__"):
        assert getattr(gradscan, name)
    with pytest.raises(AttributeError, match="no attribute 'audits'"):
        _ = gradscan.audits


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["scan", "--help"], ["explain"], ["explain", "gap"]])
def test_a_start_loads_no_polars(arguments: list[str]) -> None:
    assert_light(arguments)


def test_formats_loads_no_polars() -> None:
    pytest.importorskip("gradscan._core")
    assert_light(["formats"])


def assert_light(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom gradscan.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('loaded:', sorted({'numpy', 'polars'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("loaded: []")
