"""How the units of one level are joined where that is no plain switch: direct links, and nested switches for the rest.

Two units with a direct link use it. Everything else, also what enters and leaves the unit around them, climbs the
switches: `Switch(2, b)` is the uplink that every two consecutive units share. For example the eight GPUs of a V100
server: NVLink between neighbours, and a PCIe switch for every two. All of it together may share one more medium, as
messages between processes do that the same cores copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd
from typing import Any

from ..errors import PartitaError

MAX_UNITS = 256  # routes are kept for all pairs of units


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between the two units of every pair; `bandwidth` in bytes/s per direction."""

    pairs: tuple[tuple[int, int], ...]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Switch:
    """One uplink for every `units` consecutive units, `bandwidth` in bytes/s.

    That is per direction with `duplex`, else for both directions together.
    """

    units: int
    bandwidth: float
    duplex: bool = True


@dataclass(frozen=True, slots=True)
class Wiring:
    """Direct links, and switches from the outermost inwards.

    `shared`: bytes/s of one medium that all units together have for what takes no direct link; None: there is none.
    """

    links: tuple[Link, ...] = ()
    switches: tuple[Switch, ...] = ()
    shared: float | None = None

    def check(self, name: str, size: int) -> None:
        """PartitaError where this does not join `size` units: `name` says whose wiring it is."""
        if size > MAX_UNITS:
            raise PartitaError(f"{name}: wiring joins at most {MAX_UNITS} units, not {size}")
        seen: set[frozenset[int]] = set()
        for pair in (pair for link in self.links for pair in link.pairs):
            if len(set(pair)) != 2 or not all(0 <= unit < size for unit in pair):
                raise PartitaError(f"{name}: a link joins two different units of 0 to {size - 1}, not {list(pair)}")
            if frozenset(pair) in seen:
                raise PartitaError(f"{name}: units {pair[0]} and {pair[1]} are linked twice; add up the bandwidths")
            seen.add(frozenset(pair))
        around = size
        for switch in self.switches:
            if switch.units < 1 or around % switch.units:
                raise PartitaError(f"{name}: a switch of {switch.units} units does not divide the {around} around it")
            around = switch.units
        if not self.switches and self.shared is None and len(seen) < size * (size - 1) // 2:
            a, b = next((a, b) for b in range(size) for a in range(b) if frozenset((a, b)) not in seen)
            raise PartitaError(f"{name}: units {a} and {b} have no link, switch or shared medium between them")

    def shared_by(self, users: int) -> Wiring:
        """What each of so many has of it that use it evenly and at once."""
        if users == 1:
            return self
        links = tuple(replace(link, bandwidth=link.bandwidth / users) for link in self.links)
        switches = tuple(replace(switch, bandwidth=switch.bandwidth / users) for switch in self.switches)
        return Wiring(links, switches, self.shared and self.shared / users)

    def part(self, size: int, parts: int) -> Wiring:
        """How the units of any of `parts` equal runs of the `size` units are joined, at the least.

        A direct link is one that every run has, at its least bandwidth. A switch that reaches beyond a run is shared
        evenly among the units that it serves. Where one run has a direct link and another does not, each unit gets an
        uplink of its own that is no faster than that link.
        """
        if parts == 1:
            return self
        units = size // parts
        speeds = {frozenset(pair): link.bandwidth for link in self.links for pair in link.pairs}
        direct: dict[float, list[tuple[int, int]]] = {}
        slowest = float("inf")
        for a, b in combinations(range(units), 2):
            found = [speeds.get(frozenset((run + a, run + b))) for run in range(0, size, units)]
            here = [speed for speed in found if speed is not None]
            if len(here) == parts:
                direct.setdefault(min(here), []).append((a, b))
            else:
                slowest = min((slowest, *here))
        links = tuple(Link(tuple(pairs), bandwidth) for bandwidth, pairs in direct.items())
        switches = []
        for switch in self.switches:
            inside = gcd(units, switch.units)
            switches.append(replace(switch, units=inside, bandwidth=switch.bandwidth * inside / switch.units))
        if slowest < float("inf"):
            shares = [switch.bandwidth / switch.units for switch in switches]
            switches.append(Switch(1, min((slowest, *shares)), duplex=all(switch.duplex for switch in switches)))
        return Wiring(links, tuple(switches), self.shared and self.shared / parts)

    def to_json(self) -> dict[str, Any]:
        """Lists of links and switches, and the shared medium where there is one."""
        shared = {} if self.shared is None else {"shared": self.shared}
        return shared | {
            "links": [{"pairs": [list(pair) for pair in x.pairs], "bandwidth": x.bandwidth} for x in self.links],
            "switches": [{"units": x.units, "bandwidth": x.bandwidth, "duplex": x.duplex} for x in self.switches],
        }
