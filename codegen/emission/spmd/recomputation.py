"""Recomputed segments (activation checkpointing): the program calls them through its function `recomputed`.

A segment that is a whole turn of a loop is that turn's block, and the loop has the mode of each entry. Any other
segment becomes a method of the class that computes it. So does one of a compiled program that no loop computes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....model.graph.atoms import atoms
from ....model.graph.layout import Layout
from ....model.graph.pcg import SOURCES
from ....model.graph.segments import IN_PARTS, segments
from ...plan.in_parts import parts_of_nodes, plans_of_parts
from ...plan.memo import once_per_plan
from ...plan.plan import Plan
from ..common.block_loops import LoopModes, Place
from ..common.names import identifier, is_literal, is_outside
from .repeated_blocks import Block, BlockChain, entry_name, relative_name


@dataclass(frozen=True, slots=True)
class SegmentMode:
    """A segment with its recomputation mode; `nodes` are those for which the program has statements."""

    name: str
    mode: str
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class SegmentCall:
    """A segment as a method: its mode (an expression), the values that it reads, and those that others read of it.

    Mode "": it is not recomputed. `always`: it is recomputed in every turn of the loop. `whole`: the
    positions of the values without samples, which every part reads, if it is in parts in any turn.
    """

    method: str
    mode: str
    nodes: frozenset[int]
    reads: tuple[int, ...]
    outs: tuple[int, ...]
    layouts: tuple[Layout, ...]
    always: bool = True
    whole: tuple[int, ...] = ()

    @property
    def carried(self) -> tuple[int, ...]:
        """Its results in the places of its inputs, as for a turn of a loop."""
        return self.outs


@once_per_plan
def segment_modes(plan: Plan) -> tuple[SegmentMode, ...]:
    """All segments with their modes; none if nothing is recomputed or compiled."""
    nodes = plan.graph.nodes
    return tuple(
        SegmentMode(
            segment.name,
            plan.recompute.get(segment.name, "none"),
            frozenset(i for i in segment.nodes if nodes[i].op not in SOURCES and not is_outside(plan, i)),
        )
        for segment in (segments(plan.graph) if plan.recompute or plan.compile else ())
    )


def recomputed(plan: Plan) -> Iterator[SegmentMode]:
    """The segments whose forward runs again in backward."""
    return (segment for segment in segment_modes(plan) if segment.mode != "none")


def _apart(plan: Plan) -> Iterator[SegmentMode]:
    """The segments that are functions of their own: recomputed ones, and those that are compiled."""
    for segment in segment_modes(plan):
        parallel = any(plan.choices[i].beside or i in plan.joined for i in segment.nodes)
        if segment.mode != "none" or (plan.compile and not parallel):
            yield segment


def plan_of_part(plan: Plan, nodes: frozenset[int]) -> Plan | None:
    """The plan of a part, where the nodes of a function are in parts."""
    parts = max((parts_of_nodes(plan).get(i, 1) for i in nodes), default=1)
    return plans_of_parts(plan)[parts] if parts > 1 else None


# In loops


def segments_inside(plan: Plan, prefix: str, block: Block) -> tuple[tuple[Place, tuple[int, ...]], ...]:
    """The segments within a turn of a loop: their places, and which nodes of the turn they have."""
    numbers = {i: number for number, i in enumerate(block.nodes)}
    return tuple(
        (relative_name(prefix, block.first, segment.name), tuple(sorted(numbers[i] for i in segment.nodes)))
        for segment in segment_modes(plan)
        if all(i in numbers for i in segment.nodes)
    )


def loop_modes(plan: Plan, chain: BlockChain, blocks: Sequence[Block]) -> LoopModes | None:
    """The modes of the turns of a pass; None if nothing in it is recomputed."""
    known, found = {segment.name: segment for segment in recomputed(plan)}, dict[Place, None]()
    for block in blocks:
        nodes = frozenset(block.nodes)
        found |= {relative_name(chain.prefix, block.first, p.name): None for p in known.values() if p.nodes <= nodes}
    places = tuple(sorted(found))
    names = [[_name(chain, block, place) for place in places] for block in blocks]
    modes = tuple(tuple(plan.recompute.get(name, "none") for name in row) for row in names)
    given = [(known[name], block) for row, block in zip(names, blocks, strict=True) for name in row if name in known]
    one_segment = len(places) == 1 and all(segment.nodes == {*block.nodes} for segment, block in given)
    if not places:
        return None
    whole = _whole(plan, (*blocks[0].carried, *blocks[0].others)) if one_segment and _in_parts(*modes) else ()
    return LoopModes(places, modes, one_segment, whole)


def _in_parts(*modes: Sequence[str]) -> bool:
    return any(mode in IN_PARTS for each in modes for mode in each)


def _whole(plan: Plan, values: Sequence[int]) -> tuple[int, ...]:
    """The positions of the values without samples: every part reads all of them."""
    known = atoms(plan.graph)
    return tuple(place for place, i in enumerate(values) if not known[i].batch)


def _name(chain: BlockChain, block: Block, place: Place) -> str:
    return (entry_name(chain.prefix, block.first + place[0]) + place[1]).removesuffix(".")


def segments_fit(plan: Plan, chain: BlockChain) -> bool:
    """True if every recomputed or compiled segment is within a turn of the loop, around the loop, or outside it."""
    blocks = [frozenset(block.nodes) for one in chain.passes for block in one]
    for segment in _apart(plan):
        if segment.nodes.isdisjoint(chain.nodes) or segment.nodes >= chain.nodes:
            continue
        if not any(segment.nodes == block or (len(chain.passes) == 1 and segment.nodes < block) for block in blocks):
            return False
    return True


# Methods


def segment_calls(plan: Plan, turns: Sequence[frozenset[int]], stored: frozenset[int]) -> tuple[SegmentCall, ...]:
    """The segments that are methods of the model: all but those within turns of loops, given as sets of nodes.

    `stored`: the weights of the model.
    """
    found = (segment for segment in _apart(plan) if not any(segment.nodes <= nodes for nodes in turns))
    return tuple(
        _call(
            plan,
            segment,
            identifier(segment.name.replace(".", "_")),
            f'"{segment.mode}"' if segment.mode != "none" else "",
            stored,
            modes=(segment.mode,),
        )
        for segment in found
    )


def segment_calls_in(
    plan: Plan, chain: BlockChain, blocks: Sequence[Block], block: Block, stored: frozenset[int]
) -> tuple[SegmentCall, ...]:
    """The segments that are methods of the class of `block`."""
    modes_of, known = loop_modes(plan, chain, blocks), {segment.name: segment for segment in segment_modes(plan)}
    if modes_of is None or modes_of.one_segment:
        return ()
    like = [modes for modes, other in zip(modes_of.modes, blocks, strict=True) if other.signature == block.signature]
    made = []
    for number, (offset, rest) in enumerate(modes_of.places):
        segment = known.get(_name(chain, block, (offset, rest)))
        if segment is not None:
            mode = f'"{segment.mode}"' if modes_of.same_in_all_turns else f"modes[{number}]"
            method = f"entry_{offset}{identifier(f'_{rest}') if rest else ''}"
            own = tuple(modes[number] for modes in like)
            made.append(_call(plan, segment, method, mode, stored, block=block, modes=own))
    return tuple(made)


def _call(
    plan: Plan,
    segment: SegmentMode,
    method: str,
    mode: str,
    stored: frozenset[int],
    block: Block | None = None,
    modes: tuple[str, ...] = (),
) -> SegmentCall:
    """`modes`: those of all segments that the method computes."""
    graph = plan.graph
    reads = dict.fromkeys(i for n in sorted(segment.nodes) for i in graph.nodes[n].inputs)
    outs = tuple(i for i in sorted(segment.nodes) if not segment.nodes.issuperset(graph.consumers[i]))
    given = dict(zip(block.outs, block.layouts, strict=True)) if block else {}
    operands = tuple(i for i in reads if i not in segment.nodes | stored and not is_literal(plan, i))
    return SegmentCall(
        method,
        mode,
        nodes=segment.nodes,
        reads=operands,
        outs=outs,
        layouts=tuple(given.get(i, plan.choices[i].given) for i in outs),
        always="none" not in modes,
        whole=_whole(plan, operands) if _in_parts(modes) else (),
    )
