"""What loops over blocks are called: their lists, their variables, their classes, and the values that they hand on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from ...plan.plan import Plan
from ..common.names import GENERIC, identifier, wish
from ..common.statements import reserved
from .recomputation import LoopModes, turns
from .repeated_blocks import Block, BlockChain, site_step


@dataclass(frozen=True, slots=True)
class Loop:
    """A chain of blocks as the program says it: `for {variable} in self.{attribute}: {slots} = ...`."""

    chain: BlockChain
    attribute: str
    variable: str
    title: str  # of the blocks' class
    slots: tuple[str, ...]
    again: tuple[LoopModes | None, ...]  # by pass: how its turns are called, where backward runs some again

    @property
    def weights(self) -> frozenset[int]:
        return frozenset(i for place in range(len(self.chain.units)) for i in self.chain.weights(place))

    def always(self, number: int, unit: Block) -> bool:
        """Whether backward runs all blocks of a class again, in pass `number`: that of `unit`."""
        again, like = self.again[number], [u.signature == unit.signature for u in self.chain.passes[number]]
        return again is not None and again.whole and ("none",) not in compress(again.modes, like)

    def method(self, number: int) -> str:
        """What computes pass `number`."""
        way = self.chain.like[number]
        return "forward" if way == self.chain.main else f"pass{way + 1}"

    def counts(self, plan: Plan) -> bool:
        """Whether blocks must be told with which dropout call site a pass starts."""
        return len(self.chain.passes) > 1 and any(site_step(plan, units) for units in self.chain.passes)

    def start(self, plan: Plan, number: int) -> str:
        """The dropout call site with which pass `number` starts, where blocks must be told."""
        return str((site_step(plan, self.chain.passes[number]) or (0, 0))[0]) if self.counts(plan) else ""

    def site(self, plan: Plan, number: int, first: int, index: int) -> str:
        """The call site of dropout `index` in the block at entry `first`, which knows that as `self.i`."""
        base, slope = site_step(plan, self.chain.passes[number]) or (0, 0)
        term = "self.i" if slope == 1 else f"{slope} * self.i"
        offset = plan.graph.nodes[index]["site"] - slope * first
        if self.counts(plan):
            term, offset = f"site + {term}", offset - base
        return f"{term} + {offset}" if offset > 0 else f"{term} - {-offset}" if offset else term

    def roles(self, plan: Plan) -> dict[int, str]:
        """Names of the values that are handed on, and, where there are several, of the sums on their way."""
        found: dict[int, str] = {}
        for units in self.chain.passes:
            found |= dict(zip(units[0].carried, self.slots, strict=True))
            if len(self.slots) == 1:
                continue
            for unit in units:
                named = dict(zip(unit.carried, self.slots, strict=True))
                for i in unit.nodes:
                    node = plan.graph.nodes[i]
                    sources = [k for k in node.inputs if k in named and plan.graph.nodes[k].shape == node.shape]
                    if node.op == "add" and sources:
                        named[i] = named[sources[0]]
                found |= {i: name for i, name in named.items() if i in unit.nodes}
        return found


def loops(plan: Plan, chains: Sequence[BlockChain]) -> tuple[Loop, ...]:
    """Every chain with its names; a list has as much of its path in the user's model as tells it apart."""
    taken: set[str] = set()
    result = []
    prefixes = {chain.prefix for chain in chains}
    for chain in chains:
        attribute = wished = _attribute(chain.prefix, prefixes)
        count = 1
        while attribute in taken:
            count += 1
            attribute = f"{wished}_{count}"
        taken.add(attribute)
        singular = _singular(wished)
        last = chain.prefix.rpartition(".")[2]
        variable = singular if last.isdigit() else _singular(identifier(last) if last else "blocks")
        title = "".join(part.capitalize() for part in singular.split("_"))
        if variable in reserved() | {*plan.axes}:
            variable = "block"
        again = tuple(turns(plan, chain, units) for units in chain.passes)
        result.append(Loop(chain, attribute, variable, title, _slots(plan, chain), again))
    return tuple(result)


def _singular(name: str) -> str:
    return re.sub(r"s(?=(_\d+)*$)", "", name) if len(name) > 3 else "block"


def results(loops: Sequence[Loop]) -> dict[int, str]:
    """What is made by all of a list and read by all of another one is called as the module that has the former."""
    read = {i for loop in loops for units in loop.chain.passes for i in units[0].others}
    found: dict[int, str] = {}
    for loop in loops:
        owner = loop.chain.prefix.rpartition(".")[0].rpartition(".")[2]
        made = [i for units in loop.chain.passes for i in units[-1].outs if i in read]
        found |= {i: identifier(owner) for i in made if owner and not owner.isdigit()}
    return found


def _attribute(prefix: str, prefixes: set[str]) -> str:
    """`layers` of `encoder.layers`, but `encoder_layers` where there are `decoder.layers` too."""
    parts = prefix.split(".")
    for count in range(1, len(parts) + 1):
        tail = ".".join(parts[-count:])
        if not tail[:1].isdigit() and sum(f".{other}".endswith(f".{tail}") for other in prefixes) == 1:
            break
    return identifier(tail) if prefix else "blocks"


def _slots(plan: Plan, chain: BlockChain) -> tuple[str, ...]:
    """`x` for one value; several by the first words of what they were before the loop, if that tells them apart."""
    carried = chain.units[0].carried
    if len(carried) == 1:
        return ("x",)
    words = []
    for i in carried:
        node = plan.graph.nodes[i]
        words.append(re.split(r"[_\d]", wish(node.op, node.name, node.path))[0])
    fits = len(set(words)) == len(words) and not set(words) & (reserved() | {*GENERIC.values(), *plan.axes, ""})
    return tuple(words) if fits else tuple("xyzuvw"[k] if k < 6 else f"x{k}" for k in range(len(carried)))
