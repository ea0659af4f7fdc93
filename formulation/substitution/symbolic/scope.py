"""The state of typing a rule: the unifier, sizes that operators make, and inferred attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ....model.errors import PartitaError
from ....model.operators.operator import algebra_of
from ..rule import Apply, Value
from ..sizes import Size
from .functions import apply as apply_function
from .functions import grows, inverse, literal
from .maxima import Candidate, maximum
from .terms import Fn, Poly, constant, factor, opaque, size_of, size_poly
from .types import Mismatch, Stuck, Type, Unifier, written
from .values import Symbolic


@dataclass(frozen=True, eq=False)
class Grown:
    """A function of numbers with its attributes."""

    name: str
    given: Mapping[str, Any]
    key: str

    def __call__(self, *values: Poly) -> Poly:
        return apply_function(self.name, self.given, values, lambda *arguments: opaque(self.key, *arguments))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grown) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


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
        self._grown: dict[Poly, tuple[Grown, Poly]] = {}

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
        return constant(literal(value))

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
        function = Grown(name, given or {}, key)
        made = function(*values)
        if len(values) == 1 and grows(name, function.given):
            self._grown[made] = function, values[0]
        return made

    def largest(self, candidates: Sequence[Candidate]) -> Poly:
        """The largest of numbers and rows; of f of something it is f of the largest, if f never decreases."""
        origins = [self._grown.get(c.value) for c in candidates]
        found = [origin for origin in origins if origin is not None]
        if len(found) < len(candidates) or any(f != found[0][0] for f, _ in found):
            return maximum(candidates)
        inner = [replace(c, value=value) for c, (_, value) in zip(candidates, found, strict=True)]
        return found[0][0](self.largest(inner))

    def share(self, type_: Type) -> Poly:
        """One over the size of a type."""
        if self.defined:
            return inverse(size_poly(self.unifier.size(type_)))
        return inverse_size(self.unifier.resolve(type_))

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
        if len(length.symbols) == 1 and (inner := self.unifier.quotients.get(min(length.symbols))) is not None:
            more = length - Size((((min(length.symbols),), 1),))
            if more.number is not None:  # (n / a rounded up + c) / b rounded up
                return self.quotient(inner[0] + more * inner[1], inner[1] * stride)
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
            elif name == "kernel_size" and isinstance(value, int):
                value = (value,) * (rank - 2)
            elif name == "dims":
                dims = value if isinstance(value, tuple) else (value,)
                value = tuple(dim_of(d, rank, apply.op) for d in dims)
            out[name] = value
        return tuple(sorted(out.items()))


def inverse_size(type_: Type) -> Poly:
    """One over the size of a resolved type; as a name for a sum."""
    number, atoms = 1, []
    for radix in type_:
        if isinstance(radix, int):
            number *= radix
        elif isinstance(radix, str):
            atoms.append(radix)
        else:
            name = f"size {written((radix,))}"
            return factor(Fn(name, ())) * inverse_size(tuple(r for r in type_ if r is not radix))
    return size_of(atoms, number, -1)


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
