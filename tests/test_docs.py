"""The documents tell the truth: their examples run, their options exist, their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest
import typer.main

from partita.cli import app
from partita.formulation.pipeline import schedule
from partita.model.graph.layout import B, P, R, S, move

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after another; text that follows in a `text` block is what the last one printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schedule, "_REGISTRY", dict(schedule._REGISTRY))  # an example registers one
    monkeypatch.setattr(sys, "path", [*sys.path])  # another imports the program of a plan
    monkeypatch.delitem(sys.modules, "program", raising=False)
    names: dict[str, object] = {"__name__": page.stem}
    text = page.read_text()
    for match in BLOCK.finditer(text):
        printed = io.StringIO()
        source = "\n" * text[: match.start(1)].count("\n") + match[1]
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(page), "exec"), names)
        expected = re.match(r"\s*```text\n(.*?)^```", text[match.end() :], re.MULTILINE | re.DOTALL)
        if expected:
            assert printed.getvalue() == expected[1]


def options(command: str) -> set[str]:
    known = [(*parameter.opts, *parameter.secondary_opts) for parameter in COMMANDS[command].params]
    return {name for names in known for name in names if name.startswith("--")}


def test_the_page_of_the_command_line_names_every_command_and_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(re.findall(r"^## partita (\w+)(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(COMMANDS)
    for command, section in sections.items():
        written = set(re.findall(r"`(?:-o DIR`, `)?(--[a-z0-9-]+)", section))
        assert written - {"--save-network"} <= options(command) | {"--json"}
        assert options(command) - {"--json", "--help"} <= written, command


def test_the_pages_name_every_schedule() -> None:
    for page in ("cli.md", "pipelines.md"):
        text = (ROOT / "docs" / page).read_text()
        assert [name for name in schedule.schedule_names() if f"`{name}`" not in text] == [], page


def test_the_table_of_moves_is_the_library_s() -> None:
    letters = {"R": R, "B": B, "P": P, "S": S(0), "S(i)": S(0), "S(j)": S(1)}
    words = {"zero-pad": "pad"}
    rows = re.findall(
        r"^\| (\S+) to (\S+) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "layouts.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 13
    for source, target, value, gradient in rows:
        found = move(letters[source], letters[target])
        assert (found.value.value, found.gradient.value) == (words.get(value, value), words.get(gradient, gradient))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^):#]+)\)", prose):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:model|formulation|solvers|codegen|docs|examples|tests|bench)/[\w./-]*)`", text):
        assert (ROOT / target).exists(), target
