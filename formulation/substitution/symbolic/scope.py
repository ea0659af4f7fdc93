"""The state of typing a rule: the unifier, sizes that operators make, and inferred attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from ....model.errors import PartitaError
from ....model.operators.operator import algebra_of
from ..rule import Apply, Value
from ..sizes import Size
from .functions import apply as apply_function
from .terms import Fn, Poly, constant, factor, opaque, size_poly
from .types import Mismatch, Stuck, Type, Unifier
from .values import Symbolic


class Scope:
    """The state of typing one rule.

    `defined`: functions mean what `functions` and `rows` say; otherwise they are names. `found`: inferred attributes,
    as types, by side and first result. `lookups`: (side, ids, number of table rows) of every embedding.
    """

    def __init__(self, unifier: Unifier, defined: bool = False) -> None:
        self.unifier, self.defined = unifier, defined
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.lookups: list[tuple[str, Symbolic, Type]] = []
        self._made: dict[str, Type] = {}

    def type_of(self, value: Value, ordered: bool = False) -> Type:
        """The type of a size in an attribute. Raises Mismatch if it is not a size."""
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise Mismatch(f"{value!r} is not a size")
        try:
            return self.unifier.of_size(Size.of(value), ordered=ordered)
        except PartitaError as error:
            raise Mismatch(str(error)) from None

    def number(self, value: Value) -> Poly:
        """A scalar attribute: a number, or an expression over declared sizes and other symbols."""
        if isinstance(value, str):
            with suppress(PartitaError):
                return self._expression(Size.of(value))
            return factor(Fn(f"scalar {value}", ()))
        if isinstance(value, tuple):
            raise Mismatch(f"{value!r} is not a number")
        return constant(Fraction(value))

    def _expression(self, size: Size) -> Poly:
        total = Poly()
        for monomial, number in size.terms:
            product = constant(number)
            for name in monomial:
                known = name in self.unifier.declared
                product = product * (
                    size_poly(self.unifier.size((name,))) if known else factor(Fn(f"scalar {name}", ()))
                )
            total = total + product
        return total

    def function(self, name: str, *values: Poly, key: str = "", given: Mapping[str, Any] | None = None) -> Poly:
        """A function of numbers by the name of its operator; `key` names the opaque one, with its attributes."""
        key = key or name
        if not self.defined:
            return opaque(key, *values)
        return apply_function(name, given or {}, values, lambda *arguments: opaque(key, *arguments))

    def made(self, key: str, size: Size | None = None) -> Type:
        """The type of a dim that an operator makes, one per key; its size may be known."""
        if key not in self._made:
            atom = self.unifier.fresh("made")
            if size is not None:
                self.unifier.sizes[atom] = size
            self._made[key] = (atom,)
        return self._made[key]

    def quotient(self, length: Size, stride: int) -> Type:
        """The type of a dim with `length / stride` places, rounded up."""
        size = length.rounded_up(stride)
        if size is not None and (size.number is not None or size in map(Size.of, size.symbols)):
            return self.unifier.of_size(size, declared=False)
        made = self.made(f"{length} / {stride}", size)
        if size is None:
            self.unifier.quotients[str(made[0])] = length, stride
        return made

    @staticmethod
    def key(apply: Apply) -> str:
        """A name for the function that is computed: the operator and the attributes that do not select rows."""
        algebra = algebra_of(apply.op)
        one = not isinstance(dims := apply.get("dims"), tuple) or len(dims) == 1 or algebra.any_order
        where = ("rank", "keepdim", "dim", *(("dims",) if one else ()))  # they select rows
        every = {**algebra.defaults, **dict(apply.attributes)}
        given = ", ".join(f"{name}={value}" for name, value in sorted(every.items()) if name not in where)
        return f"{apply.op}({given})" if given else apply.op

    @staticmethod
    def plain(apply: Apply, values: Sequence[Symbolic]) -> tuple[tuple[str, Any], ...]:
        """The attributes as nodes have them: dims counted from 0."""
        rank = len(values[0].dims) if values else 0
        out: dict[str, Any] = dict(algebra_of(apply.op).defaults)
        for name, value in apply.attributes:
            if name == "dim":
                value = dim_of(value, rank, apply.op)
            elif name == "dims":
                dims = value if isinstance(value, tuple) else (value,)
                value = tuple(dim_of(d, rank, apply.op) for d in dims)
            out[name] = value
        return tuple(sorted(out.items()))


def dim_of(value: Value | None, rank: int, what: str) -> int:
    """A dim counted from 0. Raises Mismatch if it does not exist."""
    if isinstance(value, bool) or not isinstance(value, int) or not -rank <= value < rank:
        raise Mismatch(f"{what}: a tensor of {rank} dims has no dim {value}")
    return value % rank


def whole_number(value: Value | None, what: str) -> int:
    """An integer literal. Raises Stuck for a symbol."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Stuck(f"{what} is not a number but {value!r}")
    return value
