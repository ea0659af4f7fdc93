"""Names in loops over repeated blocks: lists, variables, classes, and the values that blocks hand on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from ....model.graph.builder import free_name
from ...plan.plan import Plan
from ..common.block_loops import LoopModes
from ..common.names import GENERIC, identifier, value_name
from ..common.statements import reserved
from .recomputation import loop_modes
from .repeated_blocks import Block, BlockChain, site_step


@dataclass(frozen=True, slots=True)
class Loop:
    """A chain of blocks as a loop of the program: `for {variable} in self.{attribute}: {carried_names} = ...`."""

    chain: BlockChain
    attribute: str
    variable: str
    title: str  # name of the blocks' class
    carried_names: tuple[str, ...]
    modes_of_passes: tuple[LoopModes | None, ...]  # recomputation modes of the turns; None: nothing is recomputed

    @property
    def weights(self) -> frozenset[int]:
        return frozenset(i for place in range(len(self.chain.blocks)) for i in self.chain.weights(place))

    def always_recomputed(self, number: int, block: Block) -> bool:
        """True if backward recomputes all blocks of the class of `block` in pass `number`."""
        found = self.modes_of_passes[number]
        same_class = [other.signature == block.signature for other in self.chain.passes[number]]
        return found is not None and found.one_segment and ("none",) not in compress(found.modes, same_class)

    def method(self, number: int) -> str:
        """The method that computes pass `number`."""
        like = self.chain.computed_as[number]
        return "forward" if like == self.chain.main else f"pass{like + 1}"

    def passes_dropout_site(self, plan: Plan) -> bool:
        """True if blocks take the first dropout call site of the pass as an argument."""
        return len(self.chain.passes) > 1 and any(site_step(plan, blocks) for blocks in self.chain.passes)

    def first_dropout_site(self, plan: Plan, number: int) -> str:
        """The dropout call site with which pass `number` starts; "" if blocks do not take it."""
        return str((site_step(plan, self.chain.passes[number]) or (0, 0))[0]) if self.passes_dropout_site(plan) else ""

    def dropout_site(self, plan: Plan, number: int, first: int, index: int) -> str:
        """The call site of dropout `index` in the block at entry `first`, which is its `self.i`."""
        base, slope = site_step(plan, self.chain.passes[number]) or (0, 0)
        term = "self.i" if slope == 1 else f"{slope} * self.i"
        offset = plan.graph.nodes[index]["site"] - slope * first
        if self.passes_dropout_site(plan):
            term, offset = f"site + {term}", offset - base
        return f"{term} + {offset}" if offset > 0 else f"{term} - {-offset}" if offset else term

    def roles(self, plan: Plan) -> dict[int, str]:
        """Names of the values that are handed on; if there are several, also of the sums on their way."""
        found: dict[int, str] = {}
        for blocks in self.chain.passes:
            found |= dict(zip(blocks[0].carried, self.carried_names, strict=True))
            if len(self.carried_names) == 1:
                continue
            for block in blocks:
                named = dict(zip(block.carried, self.carried_names, strict=True))
                for i in block.nodes:
                    node = plan.graph.nodes[i]
                    sources = [k for k in node.inputs if k in named and plan.graph.nodes[k].shape == node.shape]
                    if node.op == "add" and sources:
                        named[i] = named[sources[0]]
                found |= {i: name for i, name in named.items() if i in block.nodes}
        return found


def loops(plan: Plan, chains: Sequence[BlockChain]) -> tuple[Loop, ...]:
    """Every chain with its names. A list is named by as much of its path in the user's model as is unique."""
    taken: set[str] = set()
    result = []
    prefixes = {chain.prefix for chain in chains}
    for chain in chains:
        preferred = _attribute(chain.prefix, prefixes)
        attribute = free_name(preferred, taken)
        taken.add(attribute)
        singular = _singular(preferred)
        last = chain.prefix.rpartition(".")[2]
        variable = singular if last.isdigit() else _singular(identifier(last) if last else "blocks")
        title = "".join(part.capitalize() for part in singular.split("_"))
        if variable in reserved() | {*plan.axes}:
            variable = "block"
        modes = tuple(loop_modes(plan, chain, blocks) for blocks in chain.passes)
        result.append(Loop(chain, attribute, variable, title, _carried_names(plan, chain), modes))
    return tuple(result)


def _singular(name: str) -> str:
    return re.sub(r"s(?=(_\d+)*$)", "", name) if len(name) > 3 else "block"


def results(loops: Sequence[Loop]) -> dict[int, str]:
    """Names of values that one list computes and all blocks of another read: the module that owns the first list."""
    read = {i for loop in loops for blocks in loop.chain.passes for i in blocks[0].others}
    found: dict[int, str] = {}
    for loop in loops:
        owner = loop.chain.prefix.rpartition(".")[0].rpartition(".")[2]
        made = [i for blocks in loop.chain.passes for i in blocks[-1].outs if i in read]
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


def _carried_names(plan: Plan, chain: BlockChain) -> tuple[str, ...]:
    """`x` for one value; several are named by the first words of their names before the loop, if these differ."""
    carried = chain.blocks[0].carried
    if len(carried) == 1:
        return ("x",)
    words = []
    for i in carried:
        node = plan.graph.nodes[i]
        words.append(re.split(r"[_\d]", value_name(node.op, node.name, node.path))[0])
    fits = len(set(words)) == len(words) and not set(words) & (reserved() | {*GENERIC.values(), *plan.axes, ""})
    return tuple(words) if fits else tuple("xyzuvw"[k] if k < 6 else f"x{k}" for k in range(len(carried)))
