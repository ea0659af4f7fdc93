"""Conversions between layouts as program text: which function on which dim, and the primitives that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod

from ....model.graph.atoms import Atoms, atoms
from ....model.graph.layout import Action, Layout, R, Step, atom_of, is_split, kind
from ...plan.plan import Plan
from ...plan.routes import route
from .text import Size, product

WORDS = {"R": "equal", "B": "broadcast", "P": "addends", "S": "split"}

PRIMITIVES = {
    Action.SLICE: "cut",
    Action.PAD: "pad",
    Action.KEEP_FIRST: "keep_first",
    Action.GATHER: "gather",
    Action.SCATTER_SUM: "scatter_sum",
    Action.SUM: "all_reduce",
    Action.EXCHANGE: "exchange",
    Action.NOTHING: "same",
}


@dataclass(frozen=True, slots=True)
class ConversionFunction:
    """A conversion on one axis as a function of the program: its actions on the value and on the gradient."""

    source: str
    target: str
    value: Action
    gradient: Action
    stored: bool = False  # of a weight

    @property
    def name(self) -> str:
        if self.stored:
            return "gathered"
        return f"{WORDS[self.source]}_to_{WORDS[self.target]}"

    @property
    def doc(self) -> str:
        if self.stored:
            return "A fully sharded weight, gathered in every forward; its gradient is reduce-scattered."
        if self.value == self.gradient == Action.EXCHANGE:
            return "S(i) -> S(j): all-to-all, both ways."
        value, gradient = _VALUE[self.value], _GRADIENT[self.gradient]
        return f"{self.source} -> {self.target}: {value}; {gradient}."

    def code(self, uneven: bool) -> str:
        """The function's definition."""
        if self.value is Action.EXCHANGE:
            size, whole = (", size=None", ", size") if uneven else ("", "")
            back = ", x.shape[target]" if uneven else ""
            head = f"x, source, target, axis{size}"
            value = f"(exchange, source, target, axis{whole})"
            gradient = f"(exchange, target, source, axis{back})"
        else:
            along = "S" in (self.source, self.target)
            sized = uneven and self.source == "S"
            head = "x, " + ("dim, " if along else "") + "axis" + (", size=None" if sized else "")
            value = self._call(self.value, along, "size" if sized else None)
            gradient = self._call(self.gradient, along, "x.shape[dim]" if uneven else None)
        body = f"Move.apply(x, {value}, {gradient})"
        return f'def {self.name}({head}):\n    """{self.doc}"""\n    return {body}\n'

    @staticmethod
    def _call(action: Action, along: bool, size: str | None) -> str:
        if action is Action.NOTHING:
            return "(same,)"
        parts = [PRIMITIVES[action]]
        if along and action not in (Action.SUM, Action.KEEP_FIRST):
            parts.append("dim")
        parts.append("axis")
        if size and action in (Action.GATHER, Action.PAD):
            parts.append(size)
        return f"({', '.join(parts)})"


_VALUE = {
    Action.NOTHING: "the same value",
    Action.SLICE: "keep this rank's part",
    Action.PAD: "this rank's part among zeros",
    Action.KEEP_FIRST: "the value at coordinate 0, zeros elsewhere",
    Action.GATHER: "all-gather the value",
    Action.SCATTER_SUM: "reduce-scatter the addends",
    Action.SUM: "all-reduce the addends",
}
_GRADIENT = {
    Action.NOTHING: "the gradient as it is",
    Action.SLICE: "this rank's part of the gradient",
    Action.PAD: "the gradient among zeros",
    Action.KEEP_FIRST: "the gradient at coordinate 0, zeros elsewhere",
    Action.GATHER: "all-gather the gradient",
    Action.SCATTER_SUM: "reduce-scatter the gradient's addends",
    Action.SUM: "all-reduce the gradient's addends",
}


@dataclass
class Used:
    """What the lines of a program use.

    `has_dropout`: masks depend on the step; `overlap`: weights may travel ahead of their use.
    """

    has_dropout: bool = False
    overlap: bool = False
    gathers: bool = False  # True if some weights are gathered together, ahead of their use
    forgets: bool = False  # ... and backward gathers some of them again
    several_layers: bool = False  # ... and a class has those of several layers
    several_axes: bool = False  # ... and some are gathered over several axes
    conversions: dict[str, ConversionFunction] = field(default_factory=dict)
    primitives: set[str] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    values: dict[str, Sequence[object]] = field(default_factory=dict)  # long lists of numbers, constants of the program
    functions: dict[str, str] = field(default_factory=dict)  # autograd functions of the module: name -> source
    libraries: set[str] = field(default_factory=set)  # modules that register operators
    specials: set[str] = field(default_factory=set)  # the special strategies whose functions are called
    uneven: bool = False
    placed: bool = False  # True if some weights are at one coordinate of an axis
    modes: bool = False  # True if some lines differ between training and evaluation
    noise: bool = False  # True if some lines draw random numbers, which may or may not be drawn in evaluation


@dataclass(frozen=True, slots=True)
class Local:
    """The sizes of one rank's part of a tensor: its atoms in a layout, on axes with sizes and names."""

    known: Atoms
    layout: Layout
    sizes: tuple[int, ...]
    axes: tuple[str, ...]

    def with_letter(self, axis: int, letter: int) -> Local:
        """The part under a layout with another letter on one axis."""
        layout = tuple(letter if i == axis else x for i, x in enumerate(self.layout))
        return replace(self, layout=layout)

    def splits(self, atom: int) -> tuple[int, ...]:
        """The axes that split an atom, outermost first."""
        return tuple(i for i, x in enumerate(self.layout) if is_split(x) and atom_of(x) == atom and self.sizes[i] > 1)

    def atom(self, atom: int) -> Size:
        """Local size of an atom: a number, or where ranks differ an expression."""
        size: Size = self.known.sizes[atom]
        for axis in self.splits(atom):
            if isinstance(size, int) and size % self.sizes[axis] == 0:
                size //= self.sizes[axis]
            else:
                size = f"{self.axes[axis]}.share({size})"
        return size

    def dim(self, dim: int) -> Size:
        return product(self.atom(a) for a in self.known.of_dim(dim))

    def shape(self) -> tuple[Size, ...]:
        return tuple(self.dim(d) for d in range(len(self.known.dims)))


def local_part(plan: Plan, index: int, layout: Layout) -> Local:
    """A rank's part of a node's tensor under a layout."""
    return Local(atoms(plan.graph)[index], layout, plan.placement.sizes, plan.axes)


def local_shape_text(local: Local) -> str:
    """A local shape in a docstring: `[8/data, 16, 64/tensor]`."""
    parts = []
    for dim, numbers in enumerate(local.known.dims):
        text = str(prod(numbers))
        axes = [local.axes[i] for a in local.known.of_dim(dim) for i in local.splits(a)]
        parts.append("/".join([text, *axes]))
    return f"[{', '.join(parts)}]"


def conversion(before: Local, steps: Sequence[Step], used: Used, *, gradient: bool, weight: bool = False) -> list[str]:
    """One line for every step of a layout conversion of {x}; without `gradient` the value alone is converted.

    `before`: the local part to convert; `weight`: it is a stored weight.
    """
    lines: list[str] = []
    for step in steps:
        if before.sizes[step.axis] > 1 and (gradient or step.move.value is not Action.NOTHING):
            lines.append(_text(before, step, gradient, used, weight))
        before = before.with_letter(step.axis, step.target)
    return lines


def between(
    plan: Plan, index: int, ends: tuple[Layout, Layout], used: Used, *, gradient: bool, weight: bool = False
) -> list[str]:
    """The lines that convert a node's tensor {x} from one layout to another one."""
    return conversion(
        local_part(plan, index, ends[0]), route(plan, index, *ends), used, gradient=gradient, weight=weight
    )


def makes_new(plan: Plan, index: int, ends: tuple[Layout, Layout]) -> bool:
    """True if converting a node's tensor from one layout to another one allocates memory."""
    sizes = plan.placement.sizes
    steps = [s for s in route(plan, index, *ends) if sizes[s.axis] > 1]
    return any(s.move.value not in (Action.NOTHING, Action.SLICE) for s in steps)


def _text(before: Local, step: Step, gradient: bool, used: Used, weight: bool) -> str:
    """One step: unflatten the dims of which it converts an inner atom, convert, flatten them again."""
    source, target = kind(step.source), kind(step.target)
    value, back = step.move.value, step.move.gradient
    if gradient:
        entry = ConversionFunction(source, target, value, back, weight and (source, target) == ("S", "B"))
        used.conversions[entry.name] = entry
        used.primitives |= {PRIMITIVES[value], PRIMITIVES[back]}
        function = entry.name
    else:
        function = PRIMITIVES[value]
        used.primitives.add(function)
    if not any(map(is_split, (step.source, step.target))):
        return f"{function}({{x}}, {before.axes[step.axis]})"
    found, text = taken_apart(before, step), "{x}"
    used.uneven |= found.uneven
    for dim, lengths in found.unflattened:
        text += f".unflatten({dim}, ({', '.join(map(str, lengths))}))"
    arguments = [text, *map(str, found.dims), before.axes[step.axis]]
    if found.size is not None:
        arguments.append(str(found.size))
    text = f"{function}({', '.join(arguments)})"
    for first, last in found.flattened:
        text += f".flatten({first}, {last})"
    return text


@dataclass(frozen=True, slots=True)
class TakenApart:
    """How a step sees a tensor: dims unflattened into lengths (-1: any), the `dims` moved, and dims flattened again.

    `size`: of the moved dim while it is not split, where the parts that are joined are of unequal length.
    """

    unflattened: tuple[tuple[int, tuple[Size, ...]], ...]
    dims: tuple[int, ...]
    flattened: tuple[tuple[int, int], ...]
    size: Size | None
    uneven: bool


def taken_apart(before: Local, step: Step) -> TakenApart:
    """Unflatten the dims of which a step converts an inner atom."""
    parts = before.sizes[step.axis]
    moved = [atom_of(x) for x in (step.source, step.target) if is_split(x)]
    known = before.known
    # Size of each moved atom while this axis does not split it, and whether it divides.
    without = before.with_letter(step.axis, R)
    even = {a: isinstance(n := without.atom(a), int) and n % parts == 0 for a in moved}
    dims = [known.dim_of(a) for a in moved]
    one_dim = len(dims) == 2 and dims[0][0] == dims[1][0]
    marked = {a for a, (_, position) in zip(moved, dims, strict=True) if one_dim or position > 0 or not even[a]}
    shift, place, apart, undo = 0, dict[int, int](), list[tuple[int, tuple[Size, ...]]](), list[tuple[int, int]]()
    for dim in sorted({d for d, _ in dims}):
        runs = _runs(known.of_dim(dim), marked)
        for a in moved:
            if known.dim_of(a)[0] == dim:
                place[a] = dim + shift + next(i for i, run in enumerate(runs) if a in run)
        if len(runs) > 1:
            lengths: list[Size] = [product(before.atom(a) for a in run) for run in runs]
            free = next(i for i, run in enumerate(runs) if run[0] in moved)
            lengths[free] = -1
            apart.append((dim + shift, tuple(lengths)))
            undo.append((dim + shift, dim + shift + len(runs) - 1))
            shift += len(runs) - 1
    size = without.atom(moved[0]) if is_split(step.source) and not even[moved[0]] else None
    return TakenApart(tuple(apart), tuple(place[a] for a in moved), tuple(reversed(undo)), size, not all(even.values()))


def _runs(numbers: range, marked: set[int]) -> list[tuple[int, ...]]:
    """Consecutive atoms, every marked one alone."""
    keys = {a: a if a in marked else -1 - sum(m < a for m in marked) for a in numbers}
    return [tuple(run) for _, run in groupby(numbers, key=lambda a: keys[a])] or [()]
