"""Pattern matching of transfers to collectives (SuperScaler, section 4).

Every source is a box on a device; every target is a box on a device that takes its part of all sources.

    sources on the devices    targets on the same devices      collective
    one box, addends          that box                         all_reduce
    one box, addends          its parts along an atom          reduce_scatter
    parts along an atom       their union                      all_gather
    parts along an atom       parts along another              all_to_all
    one                       its box, on other devices        broadcast
    one box, addends          that box, on any one device      reduce

Parts need not be equal: each then travels as the largest does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .mask import Box


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """A collective of an ordered group, as in `materialized.Collective`."""

    kind: str
    group: tuple[int, ...]
    atoms: tuple[int, ...] = ()


def match(sources: Mapping[int, Box], targets: Mapping[int, Box]) -> GroupPattern | None:
    """The collective that turns `sources` into `targets` (by device); None if no pattern matches."""
    held, wanted = set(sources.values()), set(targets.values())
    if len(sources) == 1 and held == wanted:
        (root,) = sources
        others = tuple(sorted(target for target in targets if target != root))
        return GroupPattern("broadcast", (root, *others)) if len(others) > 1 else None
    if len(targets) == 1 and len(held) == 1 and held == wanted:
        (root,) = targets
        others = tuple(sorted(source for source in sources if source != root))
        return GroupPattern("reduce", (root, *others)) if len(others) > 1 else None
    if sources.keys() != targets.keys() or len(sources) < 2:
        return None
    if held == wanted and len(held) == 1:
        return GroupPattern("all_reduce", tuple(sorted(sources)))
    before, after = along(sources), along(targets)
    if len(held) == 1 and after is not None and held == {after[1]}:
        return GroupPattern("reduce_scatter", after[2], (after[0],))
    if len(wanted) == 1 and before is not None and wanted == {before[1]}:
        return GroupPattern("all_gather", before[2], (before[0],))
    if before is not None and after is not None and before[0] != after[0] and before[1:] == after[1:]:
        return GroupPattern("all_to_all", before[2], (before[0], after[0]))
    return None


def along(boxes: Mapping[int, Box]) -> tuple[int, Box, tuple[int, ...]] | None:
    """The atom along which boxes are adjacent, their union, and their devices in that order; else None."""
    first = next(iter(boxes.values()))
    atoms = {a for box in boxes.values() for a, (x, y) in enumerate(zip(box, first, strict=True)) if x != y}
    if len(atoms) != 1:
        return None
    (atom,) = atoms
    devices = tuple(sorted(boxes, key=lambda device: boxes[device][atom]))
    sides = [boxes[device][atom] for device in devices]
    adjacent = all(a[1] == b[0] for a, b in pairwise(sides))
    if not adjacent or not filled([stop - start for start, stop in sides]):
        return None
    return atom, (*first[:atom], (sides[0][0], sides[-1][1]), *first[atom + 1 :]), devices


def filled(sizes: Sequence[int]) -> bool:
    """True if parts of these sizes, each filled up to the largest, are at most two thirds more."""
    return 3 * len(sizes) * max(sizes) <= 5 * sum(sizes)
