"""Layouts: one letter per mesh axis says how a tensor's value and gradient are distributed over that axis.

| letter | forward value              | gradient                      | PyTorch   |
|--------|----------------------------|-------------------------------|-----------|
| `R`    | equal on all ranks         | equal on all ranks            | Replicate |
| `B`    | equal on all ranks         | addends, to be summed         |           |
| `P`    | addends, to be summed      | equal on all ranks            | Partial   |
| `S(a)` | atom `a` split             | atom `a` split                | Shard     |

A letter is a small integer, so that tables over layouts are numpy arrays: `R`, `B`, `P` are 0, 1, 2 and `S(a)` is `3 +
a`, where `a` counts the atoms of the tensor (see `atoms`) from the first dim's outermost to the last dim's innermost.
Several axes on one atom split it in mesh order, the first axis outermost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import TypeAlias

R, B, P, _S = 0, 1, 2, 3

Layout: TypeAlias = tuple[int, ...]
"""One letter per mesh axis."""


def S(atom: int) -> int:
    """The letter that splits atom `atom`."""
    return _S + atom


def is_split(letter: int) -> bool:
    return letter >= _S


def atom_of(letter: int) -> int:
    """The atom that a split letter splits."""
    assert letter >= _S, letter
    return letter - _S


def dual(letter: int) -> int:
    """The letter of the gradient, seen as a value: P and B are swapped."""
    return {B: P, P: B}.get(letter, letter)


class Action(Enum):
    """What a move does to a value, or to a gradient on its way back."""

    NOTHING = "nothing"
    SLICE = "slice"  # keep this rank's part
    PAD = "pad"  # zeros around this rank's part
    KEEP_FIRST = "keep first"  # the value at coordinate 0, zero elsewhere
    GATHER = "all-gather"
    SCATTER_SUM = "reduce-scatter"
    SUM = "all-reduce"
    EXCHANGE = "all-to-all"
    SEND = "send"  # to the next rank; only special strategies do


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one axis' letter: the action on the value, and on the gradient in backward."""

    value: Action
    gradient: Action


COLLECTIVES = frozenset({Action.GATHER, Action.SCATTER_SUM, Action.SUM, Action.EXCHANGE, Action.SEND})

_ACTIONS = {
    "R": {"B": Action.NOTHING, "P": Action.KEEP_FIRST, "S": Action.SLICE},
    "B": {"R": Action.NOTHING, "P": Action.KEEP_FIRST, "S": Action.SLICE},
    "P": {"R": Action.SUM, "B": Action.SUM, "S": Action.SCATTER_SUM},
    "S": {"R": Action.GATHER, "B": Action.GATHER, "P": Action.PAD, "S": Action.EXCHANGE},
}
"""What a value needs, by the kinds of its letters before and after."""

_DUAL = {"R": "R", "B": "P", "P": "B", "S": "S"}
_MOVES = {  # a gradient goes the other way, from the dual of the target to that of the source
    (source, target): Move(action, _ACTIONS[_DUAL[target]][_DUAL[source]])
    for source, actions in _ACTIONS.items()
    for target, action in actions.items()
}
STAY = Move(Action.NOTHING, Action.NOTHING)


def kind(letter: int) -> str:
    """`R`, `B`, `P` or `S`."""
    return "RBPS"[min(letter, _S)]


def move(source: int, target: int) -> Move:
    """The move of one axis between two letters; every pair of letters has one."""
    return STAY if source == target else _MOVES[kind(source), kind(target)]


@dataclass(frozen=True, slots=True)
class Step:
    """A move of one axis while the others keep their letters."""

    axis: int
    source: int
    target: int

    @property
    def move(self) -> Move:
        return move(self.source, self.target)


def steps(source: Layout, target: Layout) -> tuple[Step, ...]:
    """The conversion between two layouts: moves of single axes in an order that keeps messages small.

    Slices and reduce-scatters come first (they shrink), then all-to-alls, all-reduces and moves without communication,
    gathers last. Splits of one atom form a stack in mesh order: only its innermost axis can be removed, only an inner
    axis added. An axis that is split alike in both layouts but lies inside one that changes is gathered and split
    again. `formulation.strategies.transitions` prices the same conversion for all pairs of layouts at once; a test
    compares the two.
    """
    conversion = _Conversion(source, target)
    conversion.split_from(R, B)  # slices
    conversion.split_from(P)  # reduce-scatters
    conversion.exchange()
    conversion.reduce()
    conversion.gather()
    conversion.finish()
    assert tuple(conversion.current) == target, (source, target, conversion.done)
    return tuple(conversion.done)


class _Conversion:
    """A conversion under way: the layout reached so far, and the steps that led there."""

    def __init__(self, source: Layout, target: Layout) -> None:
        self.source, self.target = source, target
        self.current = list(source)
        self.done: list[Step] = []

    def go(self, axis: int, letter: int) -> None:
        self.done.append(Step(axis, self.current[axis], letter))
        self.current[axis] = letter

    def split_from(self, *letters: int) -> None:
        """Split the axes at `letters` whose target is a split that can be added."""
        for axis, b in enumerate(self.target):
            if self.current[axis] in letters and is_split(b) and self._can_push(axis, b):
                self.go(axis, b)

    def exchange(self) -> None:
        """All-to-alls from one atom to another."""
        for axis, b in enumerate(self.target):
            a = self.current[axis]
            if is_split(a) and is_split(b) and a != b and self._can_pop(axis) and self._can_push(axis, b):
                self.go(axis, b)

    def reduce(self) -> None:
        """All-reduces, and moves that send nothing forward."""
        for axis, b in enumerate(self.target):
            a = self.current[axis]
            if is_split(a) or a == b:
                continue
            if not is_split(b):
                self.go(axis, b)
            elif a == P:
                self.go(axis, R)

    def gather(self) -> None:
        """Gathers, from the innermost axis outwards."""
        kept = [self._kept(axis) for axis in range(len(self.source))]
        for axis in reversed(range(len(self.source))):
            a, b = self.current[axis], self.target[axis]
            if is_split(a) and not kept[axis] and not (a == b and a != self.source[axis]):
                self.go(axis, R if is_split(b) else b)

    def finish(self) -> None:
        """Splits that were impossible before the gathers."""
        for axis, b in enumerate(self.target):
            if self.current[axis] != b:
                self.go(axis, b)

    def _kept(self, axis: int) -> bool:
        """True if the axis is split alike in source and target, as is everything outside it on the same atom."""
        a = self.source[axis]
        outside = zip(self.source[:axis], self.target[:axis], strict=True)
        return a == self.target[axis] and (not is_split(a) or all((s == a) == (t == a) for s, t in outside))

    def _can_push(self, axis: int, letter: int) -> bool:
        """True if no inner axis lies on the atom, and exactly those outer axes do that end there."""
        if any(inner == letter for inner in self.current[axis + 1 :]):
            return False
        outside = zip(self.current[:axis], self.target[:axis], strict=True)
        return all((current == letter) == (target == letter) for current, target in outside)

    def _can_pop(self, axis: int) -> bool:
        return all(inner != self.current[axis] for inner in self.current[axis + 1 :])


def layouts(axes: int, atoms: int) -> Iterator[Layout]:
    """All layouts of a tensor with `atoms` atoms on a mesh of `axes` axes, the first axis slowest."""
    return product(range(_S + atoms), repeat=axes)


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and stop of part `index` of `size` items in `parts`: ceil(size / parts) items each, the last ones fewer."""
    step = -(-size // parts)
    return min(size, step * index), min(size, step * (index + 1))


def splittable(size: int, parts: tuple[int, ...]) -> bool:
    """True if splitting `size` items successively by `parts`, outermost first, leaves no rank empty.

    Parts have two sizes, and the larger one may be the one that fails: 9 by 2 is 5 and 4, but 5 by 4 is 2, 2, 1, 0.
    """
    return smallest_part(size, parts) > 0


def smallest_part(size: int, parts: tuple[int, ...]) -> int:
    """The smallest local size after splitting successively by `parts`; 0 if a rank is left empty."""
    sizes = {size}
    for p in parts:
        sizes = {part for n in sizes for part in (-(-n // p), n - -(-n // p) * (p - 1))}
        if min(sizes) < 1:
            return 0
    return min(sizes)


def largest_part(size: int, parts: tuple[int, ...]) -> int:
    """The largest local size after splitting successively by `parts`."""
    for p in parts:
        size = -(-size // p)
    return size
