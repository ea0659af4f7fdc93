"""Classes of repeated blocks: equal ones are written once, whichever lists and stages they are in."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....model.graph.builder import free_name
from ..common.statements import reserved
from .repeated_blocks import Block, entry_name

TAKEN = (
    "At", "Axis", "Batch", "Blocks", "Bucket", "Enter", "Gathered", "Gathering", "Group", "Groups", "Initial",
    "Kept", "Leave", "Left", "Mesh", "Message", "Model", "Module", "Move", "Optimizer", "Order", "Part", "Pending",
    "Piece", "Place", "Received", "Recomputed", "Reductions", "Run", "Samples", "Saved", "Sent", "StageEnd", "Step",
    "Steps", "Table", "Tape", "Values", "Weight", "Weighted", "Wholes",
)  # fmt: skip
"""Classes of the templates."""


@dataclass
class BlockClasses:
    """Text of classes -> their names, and the list entries that they are: (prefix, entries per block) -> numbers."""

    base: str
    taken: set[str] = field(default_factory=lambda: set(TAKEN) | reserved())
    names: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[tuple[str, int], list[int]]] = field(default_factory=dict)

    def add(self, content: str, preferred: str, prefix: str, period: int, blocks: Sequence[Block]) -> str:
        """The name of the class with this text, which is now that of these blocks too."""
        if content not in self.names:
            self.names[content] = free_name(preferred, self.taken, "")
            self.taken.add(self.names[content])
        numbers = self.entries.setdefault(content, {}).setdefault((prefix, period), [])
        numbers += [block.first for block in blocks]
        return self.names[content]

    def texts(self) -> list[str]:
        """The classes in the order in which they were added."""
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
