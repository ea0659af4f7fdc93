"""A program as a list of features: each is a template with its own context, which is all that it sees."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ..templates import environment

T = TypeVar("T")
Context: TypeAlias = Mapping[str, Any]


_IMPORTS = (
    "import math",
    "import os",
    "import sys",
    "import torch",
    "import torch.distributed as dist",
    "import torch.nn.functional as F",
    "from torch import nn",
)


def _nothing(_: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Feature(Generic[T]):
    """One part of the programs that are emitted from a T: a template, and the context in which it is rendered.

    `context` is None if the program does not have this part. `imports` and `constants` are lines that it needs at the
    top of the program.
    """

    template: str
    context: Callable[[T], Context | None]
    imports: Callable[[T], Sequence[str]] = _nothing
    constants: Callable[[T], Sequence[str]] = _nothing


def section(title: str) -> Feature[Any]:
    """A comment above the features that follow."""
    return Feature("section.jinja", lambda _: {"title": title})


def program_text(source: T, docstring: str, constants: Iterable[str], features: Iterable[Feature[T]]) -> str:
    """The program: its docstring, imports and constants, then its features in this order."""
    present = [(feature, context) for feature in features if (context := feature.context(source)) is not None]
    imports = [*_IMPORTS, *(line for feature, _ in present for line in feature.imports(source))]
    text = (
        environment()
        .get_template("program.jinja")
        .render(
            docstring=docstring,
            imports=import_lines(imports),
            constants=[*constants, *(line for feature, _ in present for line in feature.constants(source))],
            parts=[environment().get_template(feature.template).render(**context) for feature, context in present],
        )
    )
    return _spaced(text)


def import_lines(lines: Iterable[str]) -> list[str]:
    """Sorted imports: the standard library first, names from one module in one line."""
    modules: dict[str, set[str]] = {}
    plain: set[str] = set()
    for line in lines:
        if line.startswith("from "):
            module, _, names = line.removeprefix("from ").partition(" import ")
            modules.setdefault(module, set()).update(names.split(", "))
        else:
            plain.add(line)
    named = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    groups: dict[bool, list[str]] = {False: [], True: []}
    for line in (*sorted(plain), *named):
        groups[line.split()[1].partition(".")[0] == "torch"].append(line)
    return [*groups[False], "", *groups[True]]


def _spaced(program: str) -> str:
    """Put two blank lines around top-level definitions."""
    lines: list[str] = []
    for line in program.splitlines():
        if line.startswith(("class ", "def ", "# ")) and not (lines and lines[-1].startswith("@")):
            while lines and not lines[-1]:
                lines.pop()
            lines += ["", ""]
        lines.append(line.rstrip())
    text = "\n".join(lines).strip() + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)
