"""The package as others get it: its folders, its wheel, its public names, the direction of its imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import partita
from partita.moved import MOVED

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
DATA = (".yaml", ".json", ".rules", ".gz", ".jinja", ".html", "py.typed")
OUTSIDE = ("tests", "docs", "examples", ".ci")
STAGES = ("model", "formulation", "solvers", "codegen")
SOLVER_LIBRARIES = {"ortools", "z3"}
HEAVY = ("torch", "numpy", "scipy", "numba", "networkx", "ortools", "z3", "egglog", "pydantic", "yaml", "jinja2")
HEAVY += ("sympy",)


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def repository_files() -> list[str]:
    """What a clone would hold, relative to the root; files not yet committed too."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def packaged(files: list[str]) -> list[str]:
    """Those of `files` that belong into the wheel."""
    return [name for name in files if name.endswith((".py", *DATA)) and name.split("/")[0] not in OUTSIDE]


def module(path: Path | str) -> str:
    """The module that a path relative to the package is.

    `model/graph/pcg.py` -> `partita.model.graph.pcg`, `model/__init__.py`, `model` -> `partita.model`, `.` -> `partita`
    """
    parts = Path(str(path).removesuffix(".py")).parts
    return ".".join(("partita", *(part for part in parts if part != "__init__")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a clone whose name is no Python name."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in repository_files():
        target = folder / "a-b" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", folder, folder / "a-b")
    (built,) = folder.glob("*.whl")
    return built


def test_packages_are_the_folders_with_code_or_data() -> None:
    assert {module(Path(name).parent) for name in packaged(repository_files())} == set(PACKAGES)


def test_the_wheel_holds_exactly_the_repository_s_code_and_data(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("partita/")}
    assert inside == {f"partita/{name}" for name in packaged(repository_files())}


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the wheel is installed."""
    target = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel)
    return target


def test_the_main_job_runs_from_the_wheel(site: Path, tmp_path: Path) -> None:
    """Plan a real model and verify the emitted program, far from the checkout."""

    def answer(*arguments: str) -> dict[str, Any]:
        output = run(sys.executable, "-m", "partita", *arguments, "--json", cwd=tmp_path, PYTHONPATH=str(site))
        return cast("dict[str, Any]", json.loads(output))

    planned = answer("plan", "gpt2", "--small", "--machine", "cpu", "-o", "plan")
    assert planned["status"] == "optimal" and planned["gap"] == 0
    verdict = answer("verify", "plan", "--level", "threads")
    assert verdict["ok"] and verdict["checked"] > 50


def test_the_wheel_works_elsewhere(site: Path, tmp_path: Path) -> None:
    target = site
    where = run(sys.executable, "-c", "import partita; print(partita.__file__)", cwd=tmp_path, PYTHONPATH=str(target))
    assert Path(where.strip()) == target / "partita" / "__init__.py"
    for command in ([target / "bin" / "partita"], [sys.executable, "-m", "partita"]):
        assert "verify" in run(*command, "--help", cwd=tmp_path, PYTHONPATH=str(target))


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = f"""
import sys
from partita.cli import main
sys.argv = ["partita", "--help"]
try:
    main()
except SystemExit as end:
    print("exit", end.code, *[name for name in {HEAVY} if name in sys.modules])
"""
    # Processor time of the quickest of five, since wall time measures the machine's other work too.
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output = run(sys.executable, "-c", code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert output.splitlines()[-1] == "exit 0"
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.45  # 0.2 s alone; beside other tests half as much again


@pytest.mark.parametrize("name", sorted(partita.__all__))
def test_public_name_exists(name: str) -> None:
    assert getattr(partita, name) is not None
    assert name in dir(partita)


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = partita.nothing_like_it


def test_solvers_can_be_called_and_imported() -> None:
    names = [solver.name for solver in partita.solvers()]
    assert {"auto", "cpsat", "elimination"} <= set(names)
    protocol = importlib.import_module("partita.solvers.protocol")
    assert [solver.name for solver in partita.solvers()] == [solver.name for solver in protocol.solvers()]


def test_the_root_loads_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("a-b", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "a-b", other)
    spec.loader.exec_module(other)
    assert other.__version__ == partita.__version__
    assert other.PartitaError.__name__ == "PartitaError"


def test_one_version() -> None:
    assert partita.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("partita")


def test_constraints_pin_every_dependency_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = PROJECT["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


def test_ci_runs_the_readme_s_test_command() -> None:
    commands = re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(commands) == 2 and not any("\n" in command for command in commands)
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()
    assert os.access(ROOT / ".ci" / "run", os.X_OK) and os.access(ROOT / "check", os.X_OK)


@cache
def imports(path: str) -> set[str]:
    """The modules that a file of the package imports, with its own as `partita.…`."""
    package = ("partita", *Path(path).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            found |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_imports_run_one_way(stage: str) -> None:
    later = {*STAGES[STAGES.index(stage) + 1 :], "bench", "cli", "cli_options", "cli_plan"}
    for path in packaged(repository_files()):
        if path.startswith(f"{stage}/") and path.endswith(".py"):
            wrong = [name for name in imports(path) if name.startswith("partita.") and name.split(".")[1] in later]
            assert not wrong, f"{path} imports {wrong}"


def test_only_solvers_import_solver_libraries() -> None:
    for path in packaged(repository_files()):
        if path.endswith(".py") and not path.startswith("solvers/"):
            assert not {name.split(".")[0] for name in imports(path)} & SOLVER_LIBRARIES, path


def test_imports_are_read_as_python_reads_them() -> None:
    assert imports("model/options.py") >= {"partita.model.errors", "math"}
    assert imports("__init__.py") >= {"partita.model.errors"}


def modules() -> list[str]:
    """All installed modules, found without importing them."""
    folders = map(Path, partita.__path__)
    return sorted(module(path.relative_to(folder)) for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.parametrize("name", modules())
def test_module_imports_and_its_examples_hold(name: str) -> None:
    found = importlib.import_module(name)
    if ">>>" in Path(str(found.__file__)).read_text():  # else looking through all members for examples takes long
        assert doctest.testmod(found).failed == 0


def test_old_import_paths_answer() -> None:
    """In a process of its own: what was imported before stays."""
    names = {"model.pcg": "PCG, Builder", "codegen.price": "priced", "formulation.network": "Network"}
    names["formulation.reduction.schedule"] = "Schedule, schedule"
    names |= {"formulation.placement": "placements", "codegen.plan": "Plan", "codegen.explicit": "graph"}
    lines = [f"from partita.{name} import {names.get(name, '__doc__')}" for name in [*MOVED, *names]]
    run(sys.executable, "-W", "ignore", "-c", "\n".join(lines))


def test_an_old_import_path_says_where_the_module_lies_now() -> None:
    script = "import warnings; warnings.simplefilter('error'); import partita.model.layout"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "DeprecationWarning: partita.model.layout moved to partita.model.graph.layout" in done.stderr
