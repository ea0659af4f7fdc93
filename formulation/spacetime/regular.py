"""Transfers between regular layouts, along paths found by the RVD search (SuperScaler, section 4).

A layout is regular if it cuts a region into equal parts, each with the same number of replicas and addends, one piece
per device; every reader takes its part of the whole region. Where sizes do not divide, parts are equal that consist of
as many cells of a grid, each of which travels as the largest does.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import gcd, prod
from typing import TypeAlias

from ..rvd.crossing import adding_roots
from ..rvd.prices import ROOTED
from ..rvd.state import RVD, Path, Piece, RvdStep, State, pieces_of
from .aligned import GroupPattern, filled
from .builder import EventBuilder, Part, Place
from .mask import GRADIENT, Box, hull, meet
from .materialized import Register
from .supplies import Demand, Supply

COLLECTIVES = {
    "all-gather": "all_gather", "all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
}  # fmt: skip
"""Path steps that are collectives, by their kind in a program."""

Registers: TypeAlias = "dict[int, Register]"
"""One register per device."""


@dataclass(frozen=True, slots=True)
class Region:
    """A box whose pieces are cut along the atoms `dims` only; `shape` is its shape along these, in entries.

    An entry is one of the tensor's, or along an atom of `grids` a cell between two consecutive borders.
    """

    box: Box
    dims: tuple[int, ...]
    grids: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(
            len(self.grids[atom]) - 1 if atom in self.grids else self.box[atom][1] - self.box[atom][0]
            for atom in self.dims
        )

    @property
    def rest(self) -> int:
        """Tensor entries per entry of `shape`, of the largest cells."""
        others = (stop - start for atom, (start, stop) in enumerate(self.box) if atom not in self.dims)
        return prod(others) * prod(max(b - a for a, b in pairwise(grid)) for grid in self.grids.values())

    def full_box(self, inner: Box) -> Box:
        """The box over all atoms from a box over the dims."""
        found = list(self.box)
        for atom, (start, stop) in zip(self.dims, inner, strict=True):
            first, grid = self.box[atom][0], self.grids.get(atom)
            found[atom] = (start + first, stop + first) if grid is None else (grid[start], grid[stop])
        return tuple(found)

    def _inner(self, box: Box) -> Box:
        """The box over the dims from a box over all atoms, whose borders lie on the grids."""
        return tuple(
            (self.grids[atom].index(box[atom][0]), self.grids[atom].index(box[atom][1]))
            if atom in self.grids
            else (box[atom][0] - self.box[atom][0], box[atom][1] - self.box[atom][0])
            for atom in self.dims
        )

    def boxes(self, state: State) -> dict[int, Box]:
        """The box of each device's piece."""
        pieces = zip(state.devices, state.pieces, strict=True)
        return {device: self.full_box(piece.box(state.rvd, self.shape)) for device, piece in pieces}

    def state(self, boxes: Mapping[int, Box], addends: Mapping[int, int]) -> State | None:
        """The RVD state of boxes and addend numbers, by device; None if irregular."""
        inner = {device: self._inner(box) for device, box in sorted(boxes.items())}
        sizes = [stop - start for start, stop in next(iter(inner.values()))]
        cuts = tuple(size // part for size, part in zip(self.shape, sizes, strict=True))
        copies: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        pieces = []
        for device, box in inner.items():
            parts = tuple(start // size for (start, _), size in zip(box, sizes, strict=True))
            piece = Piece(copies[addends[device], parts], addends[device], parts)
            copies[piece.value, parts] += 1
            pieces.append(piece)
        rvd = RVD(max(copies.values()), 1 + max(addends.values()), cuts)
        even = len(pieces) == rvd.devices and {*pieces} == {*pieces_of(rvd)} and rvd.fits(self.shape)
        if not even or self.boxes(found := State(rvd, tuple(inner), tuple(pieces))) != boxes:
            return None
        return found


@dataclass(frozen=True, slots=True)
class Regular:
    """A transfer between RVD states, with the supply and the demand of every device."""

    region: Region
    source: State
    target: State
    supplies: Mapping[int, Supply]
    demands: Mapping[int, Demand]


def regular(supplies: Sequence[Supply], demands: Sequence[Demand]) -> Regular | None:
    """The supplies and their remote demands as a regular transfer; None if irregular."""
    taken = [(supply, q, supply.takers[q]) for supply in supplies for q in demands if q in supply.takers]
    if any(len(boxes) > 1 or (q in supply.local and q.device not in supply.holders) for supply, q, boxes in taken):
        return None
    before = {supply: hull([boxes[0] for other, _, boxes in taken if other is supply]) for supply in supplies}
    after = {demand: hull([boxes[0] for _, other, boxes in taken if other is demand]) for demand in demands}
    for supply in supplies:
        for demand in demands:
            shared = meet(before[supply], after[demand])
            if supply.takers.get(demand, ()) != (() if shared is None else (shared,)):
                return None
    holders = {device: supply for supply in supplies for device in supply.holders}
    readers = {demand.device: demand for demand in demands}
    if len(holders) < sum(len(supply.holders) for supply in supplies) or len(readers) < len(demands):
        return None
    box = hull(list(before.values()))
    held = {device: before[supply] for device, supply in holders.items()}
    wanted = {device: after[demand] for device, demand in readers.items()}
    grids = _grids(box, held.values(), wanted.values())
    if grids is None:
        return None
    region = Region(box, _dims(box, [*held.values(), *wanted.values()], max(len(holders), len(readers))), grids)
    number = {supply: sum(before[x] == before[supply] for x in supplies[:k]) for k, supply in enumerate(supplies)}
    source = region.state(held, {device: number[supply] for device, supply in holders.items()})
    target = region.state(wanted, dict.fromkeys(readers, 0))
    return None if source is None or target is None else Regular(region, source, target, holders, readers)


def _grids(region: Box, *sides: Collection[Box]) -> dict[int, tuple[int, ...]] | None:
    """The grids of the atoms along which one of the sides has unequal boxes; None if a grid is too uneven."""
    found = {}
    for atom in range(len(region)):
        if any(len({box[atom][1] - box[atom][0] for box in side}) > 1 for side in sides):
            found[atom] = tuple(sorted({border for side in sides for box in side for border in box[atom]}))
            if not filled([b - a for a, b in pairwise(found[atom])]):
                return None
    return found


def _dims(region: Box, boxes: Sequence[Box], devices: int) -> tuple[int, ...]:
    """The atoms along which a box is cut, and the one other atom that divides best among the devices."""
    cut = {atom for box in boxes for atom, side in enumerate(box) if side != region[atom]}
    others = [atom for atom in range(len(region)) if atom not in cut]
    more = max(others, key=lambda atom: gcd(region[atom][1] - region[atom][0], devices), default=None)
    return tuple(sorted(cut if more is None else {*cut, more}))


def ready(path: Path, held: Mapping[int, int]) -> dict[int, int]:
    """Per device, when the result of a path is ready, given when its input is (`held`)."""
    at = dict(held)
    for step in path.steps:
        if step.messages:
            after = dict.fromkeys(step.after.devices, -1)
            for message in step.messages:
                after[message.receiver] = max(after[message.receiver], at[message.sender])
            at = after
        elif step.kind in COLLECTIVES:
            at |= {device: max(at[member] for member in group) for group in step.groups for device in group}
    return at


def follow(
    path: Path,
    region: Region,
    held: Registers,
    builder: EventBuilder,
    floor: Place,
    own: Callable[[int, Box], Register],
) -> Registers:
    """Add the steps of a path to the program; returns the final registers.

    `own`: what a device adds to what it gets in a box at the end of the path.
    """

    def zeros(device: int, box: Box) -> Register:
        return builder.zeros(device, next(iter(held.values())).tensor, box, floor)

    for step in path.steps:
        boxes = region.boxes(step.after)
        if step.kind in ROOTED:
            adds = own if step is path.steps[-1] else zeros
            held = _rooted(step, boxes, held, partial(builder.collective, floor=floor), adds)
        elif step.messages:
            held = _exchange(step, region, held, builder, floor)
        elif step.kind in COLLECTIVES:
            atoms = tuple(region.dims[dim] for dim in (step.joined, step.dim) if dim is not None)
            made: dict[int, Register] = {}
            for group in step.groups:
                members = {device: held[device] for device in group}
                made |= builder.collective(GroupPattern(COLLECTIVES[step.kind], group, atoms), members, boxes, floor)
            held = made
        else:
            assert step.kind == "schunk", step.kind  # the only other step without addends
            kept = builder.graph.of_parameter(next(iter(held.values())).tensor, GRADIENT)  # until the update
            held = {device: builder.slice(x, boxes[device], floor, kept) for device, x in held.items()}
    return held


def _rooted(
    step: RvdStep,
    boxes: Mapping[int, Box],
    held: Registers,
    collective: Callable[[GroupPattern, Registers, Mapping[int, Box]], Registers],
    adds: Callable[[int, Box], Register],
) -> Registers:
    """Broadcasts or reduces; the new pieces. `adds`: what a root of a reduce without an addend in the path adds."""
    adding, made = adding_roots(step.messages), dict[int, Register]()
    for group in step.groups:
        root, *others = group
        if step.kind == "reduce":
            first = held[root] if root in adding else adds(root, boxes[root])
            members, gets = {root: first} | {device: held[device] for device in others}, [root]
        else:
            members, gets = {root: held[root]}, others
        found = collective(GroupPattern(step.kind, group), members, {device: boxes[device] for device in gets})
        made |= {device: register for device, register in found.items() if device in boxes}
    return made


def _exchange(step: RvdStep, region: Region, held: Registers, builder: EventBuilder, floor: Place) -> Registers:
    """Per device, the joined received pieces."""
    parts: dict[int, list[Part]] = defaultdict(list)
    for message in step.messages:
        box, register = region.full_box(message.box), held[message.sender]
        if message.sender != message.receiver:
            register = builder.send(builder.slice(register, box, floor), message.receiver, floor)
        parts[message.receiver].append((box, register))
    tensor = next(iter(held.values())).tensor
    made = {}
    for device, box in region.boxes(step.after).items():
        place = builder.after([register for _, register in parts[device]], floor)
        made[device] = builder.assemble(device, tensor, box, parts[device], place)
    return made
