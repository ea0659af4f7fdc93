"""What substitution rules need to know of an operator beyond its index notation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # it loads NumPy
    from .sharded import Array, Attributes, Evaluation, Shape

RealFunction: TypeAlias = "Callable[..., Array]"
"""(attributes, *arrays) -> the function of every element, in floats."""

ShapeFunction: TypeAlias = "Callable[[Sequence[Shape], Attributes], Shape]"


@dataclass(frozen=True, slots=True, eq=False)
class Algebra:
    """How rules evaluate an operator on numbers, and how proofs read its notation.

    `evaluation` applies it to shards. Without one, an elementwise operator is evaluated by `multiple` or `real`, and
    an operator that has neither appears only in rules that are proved, not run. `real` is the function in floats;
    `exact(field, attributes, *arrays)` that in a finite field, where it is more than a name (None: it is not).

    `multiple`: `L` of the notation multiplies by this number, or by the attribute of this name. `function`: the
    operator whose function is `f` of the notation. `defaults`: attributes that rules may leave out. `any_order`: the
    order of the attribute `dims` does not matter. `changes_rank`: operands and results may differ in rank.
    `keeps_sizes`: the result is as long as the operand along dims that are whole. `table`: the second operand holds row
    numbers of the first. `unprovable`: why no proof may use the operator.
    """

    evaluation: Evaluation | None = None
    real: RealFunction | None = None
    exact: Callable[..., Array | None] | None = None
    multiple: int | str | None = None
    function: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    any_order: bool = False
    changes_rank: bool = False
    keeps_sizes: bool = False
    table: bool = False
    unprovable: str = ""


class UnfitError(Exception):
    """An operator does not take operands of these shapes."""


def require(fits: bool) -> None:
    """Raise UnfitError unless the operands fit."""
    if not fits:
        raise UnfitError


@dataclass(frozen=True, slots=True, eq=False)
class Rewriting:
    """An operator as a term of an e-graph.

    `shape`: of the result; raises UnfitError. `attributes`: those that terms have, with their defaults (None: rules
    must state them). `leading`: all leading dims are treated alike, so that one dim of a rule may stand for several.
    """

    shape: ShapeFunction
    attributes: Mapping[str, Any] = field(default_factory=dict)
    leading: bool = False

    def shape_of(self, shapes: Sequence[Shape], attributes: Attributes) -> Shape | None:
        """The result's shape; None if the operator does not take these operands."""
        try:
            return self.shape(shapes, attributes)
        except (UnfitError, IndexError, ZeroDivisionError):
            return None


def equal_shapes(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    """The one shape of all operands."""
    require(len({*shapes}) == 1)
    return shapes[0]


def broadcast_shape(shapes: Sequence[Shape], attributes: Attributes) -> Shape:
    """The shape of two operands, broadcast."""
    a, b = sorted(shapes, key=len, reverse=True)
    b = (1,) * (len(a) - len(b)) + b
    require(all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True)))
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))
