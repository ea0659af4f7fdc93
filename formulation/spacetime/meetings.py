"""Operators that exchange data while they run: those that a special strategy splits (`formulation.special`).

A halo exchange, a ring or a split cross entropy sends within the operator, on its way forward and back. So all parts of
such an operator meet: they run at once, each on a device of its own, like the members of a collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from math import prod

import numpy as np

from ...model.graph.layout import P, atom_of, is_split
from ..special import special_rows_fit
from .op import Cut, Op
from .site import told


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The parts of an operator that run at once, in the order of their numbers: the last cut fastest."""

    ops: tuple[Op, ...]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Along which they exchange data."""
        return self.ops[0].exchanges

    def groups(self, cut: int) -> list[tuple[int, ...]]:
        """The devices that exchange data along one of `cuts`, group by group, in the order of their parts."""
        devices = np.array([op.device for op in self.ops]).reshape([each.parts for each in self.cuts])
        rows = np.moveaxis(devices, cut, -1).reshape(-1, self.cuts[cut].parts)
        return [tuple(row) for row in rows.tolist()]

    def group(self, op: Op, cut: int) -> tuple[int, ...]:
        """The one of these groups in which an operator is."""
        return next(group for group in self.groups(cut) if op.device in group)

    def __str__(self) -> str:
        first, (cut, *_) = self.ops[0], self.cuts
        others = f" and {len(self.ops) - 2} more" if len(self.ops) > 2 else ""
        return f"{first.name} exchanges data ({cut.row.special}) with {self.ops[1].name}{others}: they run at once"


def meetings(ops: Iterable[Op]) -> tuple[dict[Op, Meeting], list[str]]:
    """By task its meeting, if it has one; and problems of operators that cannot meet."""
    together: dict[object, list[Op]] = defaultdict(list)
    for op in ops:
        if op.exchanges:
            together[_key(op)].append(op)
    found: dict[Op, Meeting] = {}
    problems: dict[int, str] = {}  # one for a node: that of its forward operators, if these cannot meet
    for members in together.values():
        made = Meeting(tuple(sorted(members, key=lambda op: [cut.number for cut in op.exchanges])))
        wrong = next(_wrong(made), None)
        if wrong is None:
            found |= dict.fromkeys(made.ops, made)
        else:
            problems.setdefault(made.ops[0].node, told(made.ops[0].where, wrong))
    return found, [*problems.values()]


def _key(op: Op) -> object:
    """What parts of an operator have in common that meet."""
    cuts = (op.forward or op).cuts
    numbers = tuple(-1 if cut.row.special and cut.parts > 1 else cut.number for cut in cuts)
    return op.node, op.phase, tuple((cut.row, cut.parts, cut.label) for cut in cuts), numbers


def _wrong(made: Meeting) -> Iterator[str]:
    first, cuts = made.ops[0], made.cuts
    strategy, wanted = cuts[0].row.special, prod(cut.parts for cut in cuts)
    if len(made.ops) < wanted:
        words = f"{first.name} exchanges data ({strategy}) with {wanted - 1} other parts, of which"
        yield f"{words} {wanted - len(made.ops)} are missing: transform, recompute and split all of them alike"
    sources = zip(first.of.inputs, *(cut.row.inputs for cut in cuts), strict=True)
    if any(P in letters and first.graph.pcg.nodes[source].op == "parameter" for source, *letters in sources):
        yield f"{first.name} is split by {strategy}: devices keep columns of joined tables, which plans do not divide"
    if not _fits(first):
        yield (
            f"{first.name} is split by {strategy}, and what that splits is split once more, or by another special "
            "strategy: leave that to one transformation"
        )
    for group in (group for cut in range(len(cuts)) for group in made.groups(cut)):
        if any(a >= b for a, b in pairwise(group)):
            name = first.named(cut for cut in (first.forward or first).cuts if cut not in cuts)
            yield (
                f"the parts of {name} exchange data ({strategy}) on devices {', '.join(map(str, group))}: each needs a "
                "device of its own, in rising order"
            )


def _fits(op: Op) -> bool:
    """True if the other cuts leave whole what a special strategy splits.

    Parts of the samples, such as micro-batches, are wholes of their own to the cuts after them.
    """
    cuts = [*dropwhile(lambda cut: _splits_samples_alone(op, cut), (op.forward or op).cuts)]
    inputs = [tuple(cut.row.inputs[place] for cut in cuts) for place in range(len(op.of.inputs))]
    output = tuple(cut.row.output for cut in cuts)
    return special_rows_fit([cut.row for cut in cuts], inputs, output, [cut.parts for cut in cuts])


def _splits_samples_alone(op: Op, cut: Cut) -> bool:
    letters = zip((*cut.row.inputs, cut.row.output), (*op.of.inputs, op.node), strict=True)
    known = op.graph.atoms
    return not cut.row.special and all(atom_of(x) in known[i].batch for x, i in letters if is_split(x))
