"""The table of a program's segment functions: segments that compute the same share one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..common.conversions import Used
from ..common.text import wrap
from .rolled_lines import Number, mapped, written
from .segment_functions import Code


@dataclass
class Functions:
    """The functions of all segments of a program, by name. `bases`: the numbers with which each is called.

    `fetches`: whether devices take weights from others.
    """

    used: Used
    fetches: bool = False
    names: dict[object, str] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    bases: dict[str, dict[str, set[int]]] = field(default_factory=dict)

    def add(self, code: Code, title: str) -> None:
        """Name the function of a segment like an equal one, else by its title."""
        key = (code.body, code.arguments)
        if key not in self.names:
            count = sum(re.sub(r"_\d+$", "", name) == title for name in self.codes)
            self.names[key] = f"{title}_{count + 1}" if count else title
            self.codes[self.names[key]] = code
        code.name = self.names[key]
        numbers = self.bases.setdefault(code.name, {})
        for base, number in code.bases:
            numbers.setdefault(base, set()).add(number)

    def moving(self, name: str) -> tuple[str, ...]:
        """The numbers in which calls of a function differ."""
        return tuple(base for base, numbers in self.bases[name].items() if len(numbers) > 1)

    def text(self, name: str) -> str:
        """The definition of a function."""
        code, moving = self.codes[name], self.moving(name)
        fixed = {base: min(found) for base, found in self.bases[name].items() if base not in moving}

        def settled(number: Number) -> Number:
            constant = number.constant + sum(by * fixed.get(base, 0) for base, by in number.terms)
            return Number(number.role, constant, tuple(term for term in number.terms if term[0] not in fixed))

        body = [mapped(piece, settled) for piece in code.body]
        head = f"def {name}({', '.join(['at', *moving, *code.arguments])}):"
        return "\n".join([*wrap(head, 0), *written(body)])
