"""The wiring of one level, if its units are not joined by a plain switch.

Two units with a direct link use it. All other messages, also those from and to other units of the outer level, use the
other kinds: the eight GPUs of a V100 server have NVLink between neighbours, and a PCIe switch for every two.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..errors import PartitaError
from .link_kinds import LINK_KINDS, Link, LinkKind, Switch

MAX_UNITS = 256  # routes are kept for all pairs of units
_ALWAYS_WRITTEN = ("links", "switches")  # in plan files, even where a level has none


@dataclass(frozen=True, slots=True)
class Wiring:
    """The links of one level, sorted by kind; switches from the outermost inwards."""

    links: tuple[LinkKind, ...] = ()

    def __post_init__(self) -> None:
        order = list(LINK_KINDS.values())
        object.__setattr__(self, "links", tuple(sorted(self.links, key=lambda link: order.index(type(link)))))

    def of_kind(self, kind: type[LinkKind]) -> list[LinkKind]:
        return [link for link in self.links if type(link) is kind]

    def check(self, name: str, size: int) -> None:
        """Raise PartitaError unless this joins `size` units; `name` is the level's in messages."""
        if size > MAX_UNITS:
            raise PartitaError(f"{name}: wiring joins at most {MAX_UNITS} units, not {size}")
        try:
            for key, kind in LINK_KINDS.items():
                links = self.of_kind(kind)
                if kind.SINGLE and len(links) > 1:
                    raise ValueError(f"{key!r} has {len(links)} links, a level can have one")
                kind.check(links, size)
        except ValueError as error:
            raise PartitaError(f"{name}: {error}") from None
        joined = {frozenset(pair) for link in self.links for pair in link.direct}
        if not any(link.JOINS_ALL for link in self.links) and len(joined) < size * (size - 1) // 2:
            a, b = next((a, b) for b in range(size) for a in range(b) if frozenset((a, b)) not in joined)
            raise PartitaError(f"{name}: units {a} and {b} have no link, switch or shared medium between them")

    def divided(self, users: float) -> Wiring:
        """The share of each of `users` that load it evenly at the same time."""
        return self if users == 1 else Wiring(tuple(link.divided(users) for link in self.links))

    def part(self, size: int, parts: int) -> Wiring:
        """The wiring inside each of `parts` equal runs of the `size` units, never faster than that of any run.

        Direct links are those that every run has, at their least bandwidth. If some runs have a link and others do not,
        each unit gets an uplink of its own that is no faster than that link.
        """
        if parts == 1:
            return self
        units = size // parts
        bandwidths = {frozenset(pair): link.bandwidth for link in self.links for pair in link.direct}
        in_all_runs: dict[float, list[tuple[int, int]]] = {}
        slowest = float("inf")
        for a, b in combinations(range(units), 2):
            found = [bandwidths.get(frozenset((first + a, first + b))) for first in range(0, size, units)]
            present = [bandwidth for bandwidth in found if bandwidth is not None]
            if len(present) == parts:
                in_all_runs.setdefault(min(present), []).append((a, b))
            else:
                slowest = min((slowest, *present))
        links: list[LinkKind] = [Link(bandwidth, tuple(pairs)) for bandwidth, pairs in in_all_runs.items()]
        links += (link.part(units, parts) for link in self.links if not link.direct)
        if slowest < float("inf"):
            switches = [link for link in links if isinstance(link, Switch)]
            shares = [switch.bandwidth / switch.units for switch in switches]
            links.append(Switch(min((slowest, *shares)), 1, duplex=all(switch.duplex for switch in switches)))
        return Wiring(tuple(links))

    def to_json(self) -> dict[str, Any]:
        """Every kind under its key: a list, or a number if a level has at most one."""
        data: dict[str, Any] = {}
        for key, kind in LINK_KINDS.items():
            links = [link.to_json() for link in self.of_kind(kind)]
            if links or key in _ALWAYS_WRITTEN:
                data[key] = links[0] if kind.SINGLE else links
        return data

    @classmethod
    def from_json(cls, data: Any) -> Wiring:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for malformed data."""
        links: list[LinkKind] = []
        for key, kind in LINK_KINDS.items():
            if key in data or key in _ALWAYS_WRITTEN:
                links += (kind.from_json(x) for x in ([data[key]] if kind.SINGLE else data[key]))
        return cls(tuple(links))
