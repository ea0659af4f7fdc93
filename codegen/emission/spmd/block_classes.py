"""The classes of repeated blocks: what says the same is written once, whichever lists and stages have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.statements import reserved
from .repeated_blocks import Block, entry_name

_TAKEN = ("Model", "Axis", "Mesh", "Move", "Module", "Bucket", "Optimizer")


@dataclass
class BlockClasses:
    """What classes say -> their names, and the entries of lists that they are: (prefix, entries a unit) -> numbers."""

    base: str
    taken: set[str] = field(default_factory=lambda: set(_TAKEN) | reserved())
    names: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[tuple[str, int], list[int]]] = field(default_factory=dict)

    def add(self, content: str, wish: str, prefix: str, period: int, units: Sequence[Block]) -> str:
        """The name of the class that says this, which is now these units too."""
        if content not in self.names:
            self.names[content] = self.name(wish)
        numbers = self.entries.setdefault(content, {}).setdefault((prefix, period), [])
        numbers += [unit.first for unit in units]
        return self.names[content]

    def name(self, wish: str) -> str:
        """A name for a class, no other's."""
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}{count}"
        self.taken.add(name)
        return name

    def texts(self) -> list[str]:
        """The classes, in the order in which they were first said."""
        result = []
        for content, name in self.names.items():
            where = " and ".join(
                entry_name(prefix, ", ".join(_ranges(numbers, period)))[:-1]
                for (prefix, period), numbers in self.entries[content].items()
            )
            result.append(f'class {name}({self.base}):\n    """{where} of the model."""\n\n{content}')
        return result


def _ranges(firsts: Sequence[int], period: int) -> list[str]:
    """Entries of a list in words: `0`, `2 to 7`."""
    runs: list[list[int]] = []
    for first in firsts:
        if runs and runs[-1][1] + 1 == first:
            runs[-1][1] = first + period - 1
        else:
            runs.append([first, first + period - 1])
    return [str(a) if a == b else f"{a} to {b}" for a, b in runs]
