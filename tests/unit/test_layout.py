"""The shape of the code: imports point one way, nothing of the serving path knows Torch, docs/where.md is true."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

SOURCE = Path(octavo.__file__).parent
ROOT = Path(__file__).parents[2]
ALLOWED: dict[str, set[str]] = {
    "sampling_types": set(),
    "types": {"sampling_types"},
    "http_config": set(),
    "kv_config": set(),
    "speculative_config": set(),
    "config": {"types", "http_config", "kv_config", "speculative_config"},
    "observability": {"types", "config"},
    "kvcache": {"types", "config"},
    "scheduler": {"types", "config", "kvcache", "speculative"},
    "ops": {"types", "config", "_native"},
    "models": {"types", "config", "ops"},
    "speculative": {"types", "config", "ops", "models", "_native"},
    "structure": {"types", "config", "models"},
    "execution": {"types", "config", "ops", "models", "speculative", "structure", "_native"},
    "engine": {"types", "config", "kvcache", "scheduler", "models", "structure", "speculative", "observability"},
    "server": {"types", "config", "models", "engine", "structure", "observability"},
}
"""What each room may import of the others; cli and llm stand above all."""
EXCEPTIONS = {("engine/__main__.py", "execution")}
"""The executor's factory is called in the child's main alone."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Rooms of octavo that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "octavo" and len(parts) > 1:
                found.add(parts[1])
    return found - {"__version__"}


def test_imports_point_one_way() -> None:
    wrong = []
    for path in modules():
        relative = path.relative_to(SOURCE).as_posix()
        room = relative.split("/")[0].removesuffix(".py")
        if room not in ALLOWED:
            continue
        for other in imported(path) - {room} - ALLOWED[room]:
            if (relative, other) not in EXCEPTIONS:
                wrong.append(f"{relative} imports {other}")
    assert not wrong


def test_only_the_configuration_reads_the_environment() -> None:
    readers = [
        path.relative_to(SOURCE).as_posix()
        for path in modules()
        if re.search(r"os\.(environ|getenv)", path.read_text()) and path.name != "config.py"
    ]
    assert not readers


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        (
            "octavo.server.app",
            ["torch", "octavo._native", "octavo.ops", "octavo.execution", "transformers", "huggingface_hub"],
        ),
        ("octavo.engine.core", ["torch", "octavo._native", "octavo.ops", "octavo.execution", "numpy"]),
        ("octavo.execution", ["torch", "transformers", "huggingface_hub"]),
        ("octavo.llm", ["torch", "transformers", "huggingface_hub"]),
    ],
)
def test_a_room_loads_without_what_it_must_not_know(module: str, forbidden: list[str]) -> None:
    code = f"import sys, {module}; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in modules():
        text = path.read_text()
        if len(text.splitlines()) > 500:
            long.append(f"{path.name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                args = len(node.args.args) + len(node.args.kwonlyargs)
                if lines > 70 or args > 10:
                    long.append(f"{path.name} {node.name}: {lines} lines, {args} parameters")
    assert not long


def test_every_module_says_what_it_owns() -> None:
    silent = [path.name for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def where_rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "where.md").read_text()
    return re.findall(r"`(src/octavo/[\w/]+\.py|native/src/[\w/.]+)` `([\w.]+)`", text)


def test_the_names_in_where_md_exist() -> None:
    rows = where_rows()
    assert len(rows) > 20
    missing = []
    for file, symbol in rows:
        path = ROOT / file
        if not path.exists():
            missing.append(file)
        elif file.endswith(".py"):
            name = file.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            owner = importlib.import_module(name)
            for part in symbol.split("."):
                owner = getattr(owner, part, None)
                if owner is None:
                    missing.append(f"{file} {symbol}")
                    break
        elif symbol not in path.read_text():
            missing.append(f"{file} {symbol}")
    assert not missing
