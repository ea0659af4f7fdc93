"""Branches placed on an axis, and the options of a cost network that stand for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...model.graph.layout import Layout
from .bundles import Bundle


@dataclass(frozen=True)
class PlacedBundle:
    """A bundle over an axis: the coordinate of every branch, and what each takes (ns of a step, and bytes).

    `exchange_ns` is what joining them takes, `add_ns` what adding a result to another one at its coordinate does.
    `shares`: how many coordinates every branch has, from its place on (empty: one each).
    """

    bundle: Bundle
    axis: int
    places: tuple[int, ...]
    times: tuple[int, ...]
    sizes: tuple[int, ...]
    exchange_ns: int = 0
    add_ns: int = 0
    shares: tuple[int, ...] = ()

    def _at_most(self, amounts: Sequence[int]) -> tuple[int, frozenset[int]]:
        """The largest sum over a coordinate, and the branches there."""
        sums: dict[int, int] = {}
        for place, amount in zip(self.places, amounts, strict=True):
            sums[place] = sums.get(place, 0) + amount
        first = min(sums, key=lambda place: (-sums[place], place))
        return sums[first], frozenset(b for b, place in enumerate(self.places) if place == first)

    @cached_property
    def slowest(self) -> tuple[int, frozenset[int]]:
        """ns of the slowest coordinate, and its branches."""
        added = self.bundle.adding(self.places)
        return self._at_most([ns + self.add_ns * (b in added) for b, ns in enumerate(self.times)])

    @cached_property
    def fullest(self) -> tuple[int, frozenset[int]]:
        """Bytes of the fullest coordinate, and its branches."""
        return self._at_most(self.sizes)


@dataclass(frozen=True, slots=True)
class BundledOption:
    """A further option of a variable: an ordinary one, in nested bundles (outermost first).

    On a range of coordinates it stands for `layouts` instead: that of a weight or hub, or those of inputs and output.
    """

    levels: tuple[PlacedBundle, ...]
    option: int
    layouts: tuple[Layout, ...] = ()


@dataclass
class BundleCandidate:
    """Nested bundles over axes, outermost first: the ordinary option of each variable inside, and its place.

    `path` names for every variable the bundles that it is inside of, by their join, with its branch. Variables that add
    up a bundle's results are in `adders`: they take no time, since results are added where they are computed. On
    ranges of coordinates, `layouts` and `entries` are those of `RangeCosts`, by variable and read; the join then has
    the time and `held_bytes`, the memory of all that is inside.
    """

    axes: dict[int, tuple[Bundle, int]]
    samples: bool = True  # samples are split on the other axes; else all is whole there
    options: dict[int, int] = field(default_factory=dict)  # of operators, hubs and weights inside
    stored: dict[int, int] = field(default_factory=dict)  # weights: the option whose unary cost is paid
    path: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)  # options of the outermost join -> ns of its exchange
    adders: dict[int, int] = field(default_factory=dict)  # variables that add up -> the join of their bundle
    levels: dict[int, PlacedBundle] = field(default_factory=dict)
    layouts: dict[int, tuple[Layout, ...]] = field(default_factory=dict)
    entries: dict[tuple[int, int, int], Layout] = field(default_factory=dict)
    held_bytes: int = 0

    @property
    def outer(self) -> Bundle:
        return next(iter(self.axes.values()))[0]

    @property
    def nested(self) -> dict[int, tuple[Bundle, int]]:
        """The bundles inside of the outermost one, as in `axes`."""
        return {join: self.axes[join] for join in list(self.axes)[1:]}

    def placed(self, v: int, option: int) -> BundledOption:
        """What the further option of a variable that stands for this one is."""
        return BundledOption(tuple(self.levels.values()), option, self.layouts.get(v, ()))

    def slow(self, v: int) -> bool:
        """True if the time of a variable inside counts: each branch that it is in is at the slowest coordinate."""
        return all(branch in self.levels[join].slowest[1] for join, branch in self.path.get(v, ()))

    def full(self, v: int) -> bool:
        """The same for its memory, at the fullest coordinate."""
        return all(branch in self.levels[join].fullest[1] for join, branch in self.path.get(v, ()))
