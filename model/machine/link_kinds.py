"""The kinds of links that a machine file can name under `wiring`: one class each, listed in `LINK_KINDS`.

A kind defines the pairs of units that it joins, which messages load each of its resources (one direction of a cable,
an uplink, a medium), and which share of it a part of the level's units gets. For a new kind, write a class, list it in
`LINK_KINDS`, add its fields to `machine_file._Wiring` and its row to docs/machines.md; routes, prices, plan files and
pipeline stages follow from the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from ..json_values import flag, rate, whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Units: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]

Pairs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Base of all kinds; `bandwidth` is that of each resource, bytes/s.

    `JOINS_ALL`: it connects every two units. `SINGLE`: a level has at most one, written by itself instead of in a list:
    as its bandwidth, unless `to_json` and `from_json` say otherwise.
    """

    bandwidth: float
    JOINS_ALL: ClassVar[bool] = True
    SINGLE: ClassVar[bool] = False

    @property
    def direct(self) -> Pairs:
        """Pairs of units whose messages use this link only; all other messages use the other kinds."""
        return ()

    @classmethod
    def check(cls, links: Sequence[Self], size: int) -> None:
        """Raise ValueError unless all links of this kind fit a level of `size` units."""

    def resources(self, size: int, source: Units, target: Units, climbs: Mask) -> Iterator[Mask]:
        """For each resource, a mask over (source, target) of the messages that load it.

        Unit number `size` stands for everything outside the level; `climbs`: messages without a direct link.
        """
        raise NotImplementedError

    def part(self, units: int, parts: int) -> Self:
        """The share of each of `parts` runs of `units` consecutive units, never faster than what any run really has.

        Not called for direct links.
        """
        raise NotImplementedError

    def divided(self, users: float) -> Self:
        """The share of each of `users` that load it evenly at the same time."""
        return replace(self, bandwidth=self.bandwidth / users)

    def to_json(self) -> Any:
        """As in a machine file, without sources."""
        return self.bandwidth if self.SINGLE else asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for malformed data."""
        return cls(rate(data))


@dataclass(frozen=True, slots=True)
class Link(LinkKind):
    """A cable between the two units of every pair; `bandwidth` per direction."""

    pairs: Pairs
    JOINS_ALL = False

    @property
    def direct(self) -> Pairs:
        return self.pairs

    @classmethod
    def check(cls, links: Sequence[Self], size: int) -> None:
        seen: set[frozenset[int]] = set()
        for pair in (pair for link in links for pair in link.pairs):
            if len(set(pair)) != 2 or not all(0 <= unit < size for unit in pair):
                raise ValueError(f"a link joins two different units of 0 to {size - 1}, not {list(pair)}")
            if frozenset(pair) in seen:
                raise ValueError(f"units {pair[0]} and {pair[1]} are linked twice; add up the bandwidths")
            seen.add(frozenset(pair))

    def resources(self, size: int, source: Units, target: Units, climbs: Mask) -> Iterator[Mask]:
        for a, b in self.pairs:
            yield (source == a) & (target == b)
            yield (source == b) & (target == a)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(rate(data["bandwidth"]), tuple((whole(a), whole(b)) for a, b in data["pairs"]))


@dataclass(frozen=True, slots=True)
class Switch(LinkKind):
    """One uplink for every `units` consecutive units; switches are nested, the outermost first.

    `bandwidth` is per direction with `duplex`, else for both directions together.
    """

    units: int
    duplex: bool = True

    @classmethod
    def check(cls, links: Sequence[Self], size: int) -> None:
        around = size
        for switch in links:
            if switch.units < 1 or around % switch.units:
                raise ValueError(f"a switch of {switch.units} units does not divide the {around} around it")
            around = switch.units

    def resources(self, size: int, source: Units, target: Units, climbs: Mask) -> Iterator[Mask]:
        for first in range(0, size, self.units):
            here, there = ((x >= first) & (x < first + self.units) for x in (source, target))
            up, down = climbs & here & ~there, climbs & ~here & there
            if self.duplex:
                yield up
                yield down
            else:
                yield up | down

    def part(self, units: int, parts: int) -> Self:
        """A switch that extends beyond a run is shared evenly by its units."""
        inside = gcd(units, self.units)
        return replace(self, units=inside, bandwidth=self.bandwidth * inside / self.units)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(rate(data["bandwidth"]), whole(data["units"]), flag(data["duplex"]))


@dataclass(frozen=True, slots=True)
class SharedMedium(LinkKind):
    """One medium that all messages without a direct link share, such as the memory of a computer."""

    SINGLE = True

    def resources(self, size: int, source: Units, target: Units, climbs: Mask) -> Iterator[Mask]:
        yield climbs

    def part(self, units: int, parts: int) -> Self:
        return self.divided(parts)


LINK_KINDS: Mapping[str, type[LinkKind]] = {"links": Link, "switches": Switch, "shared": SharedMedium}
"""Key in machine files and plan files -> the kind, in the order in which routes list resources."""
