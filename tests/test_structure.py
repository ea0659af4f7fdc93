"""The shape of the code: import circles, fan-out, wide functions, long lines of templates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("model", "formulation", "solvers", "codegen", "bench")
MOST_IN_A_CIRCLE = 3
MOST_IMPORTED = 20
MOST_PARAMETERS = 8
MOST_POSITIONAL = 6
COLUMNS = 120
PUBLIC = {"optimize"}
"""Functions whose keywords are the public interface."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, relative to the package; a package stands for its `__init__`."""
    files = [p for floor in FLOORS for p in sorted((ROOT / floor).rglob("*.py"))]
    files += sorted(ROOT.glob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports anywhere: at the top, inside functions, for types only."""
    path = modules()[name]
    parts = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = parts[: len(parts) - (node.level - 1)]
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                longer = f"{base}.{alias.name}".strip(".")
                found.add(longer if longer in modules() else base)
    return {other for other in found if other in modules() and other != name}


@cache
def imports() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(modules())
    graph.add_edges_from((name, other) for name in modules() for other in imported(name))
    return graph


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, path in modules().items():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def test_no_import_circle_is_larger_than_three_files() -> None:
    """Lazy imports and those for types count too: hiding a circle does not open it."""
    circles = [sorted(c) for c in nx.strongly_connected_components(imports()) if len(c) > MOST_IN_A_CIRCLE]
    assert circles == []


def test_no_module_imports_more_than_twenty_others() -> None:
    wide = {name: count for name, count in imports().out_degree if count > MOST_IMPORTED}
    assert wide == {}


def test_no_function_has_more_than_eight_parameters() -> None:
    """`self` and `cls` aside; the keywords of the public interface may be more."""
    wide = {}
    for place, node in functions():
        given = node.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"]))
        if count > MOST_PARAMETERS and node.name not in PUBLIC:
            wide[place] = count
    assert wide == {}


def test_no_call_passes_more_than_six_arguments_by_position() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and sum(not isinstance(a, ast.Starred) for a in node.args) > MOST_POSITIONAL
    ]
    assert long == []


@pytest.mark.parametrize("ending", ["jinja", "html"])
def test_no_line_of_a_template_is_longer_than_120_columns(ending: str) -> None:
    files = sorted((ROOT / "codegen").rglob(f"*.{ending}"))
    assert files
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert long == []
