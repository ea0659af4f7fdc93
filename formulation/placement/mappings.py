"""Placements by name: Unity's machine mappings, and those that users register (Unity, OSDI 2022, section 3.2).

A machine mapping numbers the devices by an n-dimensional array of tasks: a mesh and its placement. Here it is a
function of the machine's hierarchy, so that one name serves any number of nodes.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from itertools import pairwise
from typing import TypeAlias

from ...model.errors import PartitaError
from ...model.options import times
from .placement import Placement, Row, of_rows

Mapping: TypeAlias = Callable[[Row], Placement]


def _by_levels(*ends: int) -> Mapping:
    """One axis for each run of levels: the first up to `ends[0]`, and so on; the last has all that remain."""

    def mapping(hierarchy: Row) -> Placement:
        if len(hierarchy) <= len(ends):
            raise PartitaError(f"{len(ends) + 1} axes need as many levels; the hierarchy has {len(hierarchy)}")
        bounds = [0, *ends, len(hierarchy)]
        return of_rows(
            tuple(size if first <= level < last else 1 for level, size in enumerate(hierarchy))
            for first, last in pairwise(bounds)
        )

    return mapping


# Unity's Figure 7 on Summit's nodes x sockets x GPUs: data parallelism over all GPUs; data over nodes, model inside;
# data over nodes, reduction over a node's sockets, model over a socket's GPUs.
_known: dict[str, Placement | Mapping] = {
    "unity-1d": _by_levels(),
    "unity-2d": _by_levels(1),
    "unity-3d": _by_levels(1, 2),
}


def register(name: str, mapping: Placement | Mapping) -> None:
    """Make a placement, or a function from a hierarchy to one, known by a name.

    Packages can offer theirs as an entry point of the group `partita.mappings`. PartitaError: the name is taken.
    """
    if not name or name in mappings():
        raise PartitaError(f"a machine mapping cannot be called {name!r}: the name is {'taken' if name else 'empty'}")
    _known[name] = mapping


def mappings() -> tuple[str, ...]:
    """The names of all machine mappings."""
    return tuple(_known | {point.name: point for point in entry_points(group="partita.mappings")})


def mapped(name: str, hierarchy: Sequence[int]) -> Placement:
    """The placement that a mapping gives on a hierarchy; PartitaError: unknown, or not one of this hierarchy."""
    levels = tuple(hierarchy)
    if name not in mappings():
        raise PartitaError(f"no machine mapping is called {name!r}; there are {', '.join(mappings())}")
    mapping = _known[name] if name in _known else entry_points(group="partita.mappings")[name].load()
    try:
        placement = mapping if isinstance(mapping, Placement) else mapping(levels)
    except PartitaError as error:
        raise PartitaError(f"machine mapping {name}: {error}") from None
    if placement.hierarchy != levels:
        found = times(placement.hierarchy)
        raise PartitaError(f"machine mapping {name} is for hierarchy {found}, not for {times(levels)}")
    return placement


def without_ones(placement: Placement) -> Placement:
    """The placement without its axes of size 1, which split nothing; a single device keeps one axis."""
    rows = tuple(row for row, size in zip(placement.matrix, placement.sizes, strict=True) if size > 1)
    return of_rows(rows or placement.matrix[:1])
