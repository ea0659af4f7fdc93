"""Loops over repeated blocks as program text, with the recomputation (checkpointing) of their blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from .text import tuple_text

Place: TypeAlias = tuple[int, str]
"""A segment's place in a turn of a loop: the entry, and the rest of its name."""


@dataclass(frozen=True, slots=True)
class LoopModes:
    """Recomputation modes of a loop: in every turn those of its segments at `places`.

    `one_segment`: every turn is one segment. `whole`: the positions of its operands that have no samples; every part of
    the samples reads all of them.
    """

    places: tuple[Place, ...]
    modes: tuple[tuple[str, ...], ...]
    one_segment: bool
    whole: tuple[int, ...] = ()

    @property
    def same_in_all_turns(self) -> bool:
        """True if the class of the blocks can fix the modes."""
        return not self.one_segment and len({*self.modes}) == 1

    @property
    def texts(self) -> tuple[str, ...]:
        """The modes of every turn as the loop passes them."""
        quoted = (tuple(f'"{mode}"' for mode in modes) for modes in self.modes)
        return tuple(modes[0] if self.one_segment else tuple_text(modes) for modes in quoted)


@dataclass(frozen=True)
class BlockLoop:
    """A loop whose turns call the blocks of a list, or a method of them, and carry values.

    `carried_names` are the preferred names of the carried values, which are the first operands.
    """

    blocks: str
    method: str  # with its dot; "": forward
    carried_names: tuple[str, ...]
    extra_argument: str = ""
    modes: LoopModes | None = None  # None: nothing is recomputed

    def lines(
        self, variable: str, carried: Sequence[str], others: Sequence[str], passes_mesh: bool
    ) -> list[tuple[int, str]]:
        """The loop over `variable`, given the names of all operands: lines with their indentation."""
        arguments = [*carried, *others, *([self.extra_argument] if self.extra_argument else [])]
        block, turns, modes = f"{variable}{self.method}", f"{variable} in {self.blocks}", self.modes
        mode = ""
        if modes is not None and not modes.same_in_all_turns:
            texts, mode = modes.texts, "mode" if modes.one_segment else "modes"
            if len({*texts}) == 1:
                mode = texts[0]
            else:
                turns = f"{variable}, {mode} in zip({self.blocks}, {modes_text(texts)}, strict=True)"
            arguments += [] if modes.one_segment else [mode]
        turn = f"{block}({', '.join(arguments)})"
        if modes is not None and modes.one_segment:
            turn = call_text(passes_mesh, mode, block, arguments, modes.whole)
        return [(0, f"for {turns}:"), (4, f"{', '.join(carried)} = {turn}")]


def call_text(passes_mesh: bool, mode: str, block: str, arguments: Iterable[str], whole: tuple[int, ...] = ()) -> str:
    """Call a block in a recomputation mode, an expression; `passes_mesh`: it needs the mesh.

    `whole`: the positions of the arguments that are passed whole to every part of the samples.
    """
    mesh, last = ["mesh"] if passes_mesh else [], [f"whole={tuple_text(tuple(map(str, whole)))}"] if whole else []
    return f"recomputed({', '.join([mode, *mesh, block, *arguments, *last])})"


def modes_text(texts: Sequence[str]) -> str:
    """A list that groups equal neighbours: `["full"] * 6 + ["none"] * 2`."""
    runs = [(text, len(list(group))) for text, group in groupby(texts)]
    if len(runs) > len(texts) / 2:
        return f"[{', '.join(texts)}]"
    return " + ".join(f"[{text}]{f' * {count}' if count > 1 else ''}" for text, count in runs)
