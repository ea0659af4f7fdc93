"""Layouts: one letter per mesh axis says how a tensor's value and gradient live on that axis.

| letter | forward value              | gradient                      | PyTorch   |
|--------|----------------------------|-------------------------------|-----------|
| `R`    | equal on all ranks         | equal on all ranks            | Replicate |
| `B`    | equal on all ranks         | addends, their sum is it      |           |
| `P`    | addends, their sum is it   | equal on all ranks            | Partial   |
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
    """The atom that a split letter names."""
    assert letter >= _S, letter
    return letter - _S


def dual(letter: int) -> int:
    """The letter of the gradient, read as a value: P and B change places."""
    return {B: P, P: B}.get(letter, letter)


class Action(Enum):
    """What one move does to a value; the backward of a move is an action too."""

    NOTHING = "nothing"
    SLICE = "slice"  # keep this rank's part
    PAD = "pad"  # this rank's part in a whole of zeros
    KEEP_FIRST = "keep first"  # the value at coordinate 0, zero elsewhere
    GATHER = "all-gather"
    SCATTER_SUM = "reduce-scatter"
    SUM = "all-reduce"
    EXCHANGE = "all-to-all"
    SEND = "send"  # to the next rank; only special strategies do


@dataclass(frozen=True, slots=True)
class Move:
    """What brings one axis from letter `source` to `target`: the value's action, and the gradient's on its way back."""

    value: Action
    gradient: Action


COLLECTIVES = frozenset({Action.GATHER, Action.SCATTER_SUM, Action.SUM, Action.EXCHANGE, Action.SEND})

_A = Action
_MOVES: dict[tuple[str, str], Move] = {
    ("R", "B"): Move(_A.NOTHING, _A.SUM),
    ("R", "P"): Move(_A.KEEP_FIRST, _A.NOTHING),
    ("R", "S"): Move(_A.SLICE, _A.GATHER),
    ("B", "R"): Move(_A.NOTHING, _A.KEEP_FIRST),
    ("B", "P"): Move(_A.KEEP_FIRST, _A.KEEP_FIRST),
    ("B", "S"): Move(_A.SLICE, _A.PAD),
    ("P", "R"): Move(_A.SUM, _A.NOTHING),
    ("P", "B"): Move(_A.SUM, _A.SUM),
    ("P", "S"): Move(_A.SCATTER_SUM, _A.GATHER),
    ("S", "R"): Move(_A.GATHER, _A.SLICE),
    ("S", "B"): Move(_A.GATHER, _A.SCATTER_SUM),
    ("S", "P"): Move(_A.PAD, _A.SLICE),
    ("S", "S"): Move(_A.EXCHANGE, _A.EXCHANGE),
}
STAY = Move(_A.NOTHING, _A.NOTHING)


def kind(letter: int) -> str:
    """`R`, `B`, `P` or `S`."""
    return "RBPS"[min(letter, _S)]


def move(source: int, target: int) -> Move:
    """The move of one axis between two letters (design: every pair of R, S, P, B is a move)."""
    return STAY if source == target else _MOVES[kind(source), kind(target)]


@dataclass(frozen=True, slots=True)
class Step:
    """One axis changes its letter while the others keep theirs."""

    axis: int
    source: int
    target: int

    @property
    def move(self) -> Move:
        return move(self.source, self.target)


def steps(source: Layout, target: Layout) -> tuple[Step, ...]:
    """The conversion program between two layouts: moves of single axes in an order that keeps messages small.

    Slices and reduce-scatters come first (they shrink), then all-to-alls, all-reduces and moves without communication,
    gathers last. Splits of one atom form a stack in mesh order: only its innermost axis can be removed, only an inner
    axis added. An axis that is split alike in both layouts but lies inside one that changes is gathered and split
    again. `formulation.transition` prices the same program for all pairs of layouts at once; a test holds the two
    together.
    """
    n = len(source)
    current = list(source)
    done: list[Step] = []

    def go(axis: int, letter: int) -> None:
        done.append(Step(axis, current[axis], letter))
        current[axis] = letter

    def kept(axis: int) -> bool:
        """The axis is split alike, and so is everything outside it on the same atom."""
        a = source[axis]
        return a == target[axis] and (not is_split(a) or all((source[o] == a) == (target[o] == a) for o in range(axis)))

    def free_to_push(axis: int, letter: int) -> bool:
        """No inner axis lies on the atom, and every outer axis that ends there is there."""
        inner = any(current[i] == letter for i in range(axis + 1, n))
        outer = all(current[o] == letter for o in range(axis) if target[o] == letter)
        extra = any(current[o] == letter and target[o] != letter for o in range(axis))
        return not inner and outer and not extra

    def free_to_pop(axis: int) -> bool:
        return all(current[i] != current[axis] for i in range(axis + 1, n))

    stay = [kept(axis) for axis in range(n)]
    for axis in range(n):  # slices
        if current[axis] in (R, B) and is_split(target[axis]) and free_to_push(axis, target[axis]):
            go(axis, target[axis])
    for axis in range(n):  # reduce-scatters
        if current[axis] == P and is_split(target[axis]) and free_to_push(axis, target[axis]):
            go(axis, target[axis])
    for axis in range(n):  # all-to-alls
        a, b = current[axis], target[axis]
        if is_split(a) and is_split(b) and a != b and free_to_pop(axis) and free_to_push(axis, b):
            go(axis, b)
    for axis in range(n):  # all-reduces, and moves that send nothing forward
        a, b = current[axis], target[axis]
        if is_split(a) or a == b:
            continue
        if not is_split(b):
            go(axis, b)
        elif a == P:
            go(axis, R)
    for axis in reversed(range(n)):  # gathers
        a, b = current[axis], target[axis]
        if is_split(a) and not stay[axis] and not (a == b and current[axis] != source[axis]):
            go(axis, R if is_split(b) else b)
    for axis in range(n):  # splits that had to wait
        if current[axis] != target[axis]:
            go(axis, target[axis])
    assert tuple(current) == target, (source, target, done)
    return tuple(done)


def layouts(axes: int, atoms: int) -> Iterator[Layout]:
    """All layouts of a tensor with `atoms` atoms on a mesh of `axes` axes, in order (the first axis slowest)."""
    return product(range(_S + atoms), repeat=axes)


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and stop of part `index` of `size` items in `parts`: ceil(size / parts) each, the last ones shorter."""
    step = -(-size // parts)
    return min(size, step * index), min(size, step * (index + 1))


def splittable(size: int, parts: tuple[int, ...]) -> bool:
    """Whether splitting `size` items successively by `parts`, outermost first, leaves no rank empty.

    Parts have one of two sizes, and the larger may be the one that does not split: 9 by 2 is 5 and 4, but 5 by 4 is
    2, 2, 1 and nothing.
    """
    return smallest_part(size, parts) > 0


def smallest_part(size: int, parts: tuple[int, ...]) -> int:
    """The smallest local size after splitting successively by `parts`; 0 where a rank is left empty."""
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
