"""Types a whole rule: all dims, inferred attributes, and both sides' values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....model.errors import PartitaError
from ....model.operators.operator import algebra_of
from ..rule import Apply, Rule, Tensor, Value
from ..sizes import Size
from ..text import condition_parts
from .compute import meaning
from .indices import Index, places
from .scope import Scope
from .terms import Poly, Read, factor
from .types import Mismatch, Stuck, Type, Unifier, atoms_of, product_of, written
from .values import Symbolic, same_digits

DEFAULT_RANK = 2
SIZES = ("degree", "shape", "sizes", "start", "stop")  # attributes that hold sizes


@dataclass(slots=True)
class Typed:
    """A rule that type-checks. `outputs`: pairs of values with equal types and states."""

    rule: Rule
    scope: Scope
    inputs: dict[str, Symbolic]
    outputs: list[tuple[Symbolic, Symbolic]]

    @property
    def unifier(self) -> Unifier:
        return self.scope.unifier


class Differ(Mismatch):
    """Both sides type-check, but their outputs differ in dims or states."""


def infer(rule: Rule, fixed: frozenset[str] = frozenset(), agree: bool = True, defined: bool = False) -> Typed:
    """Type a rule. `fixed` symbols stand for every number from 2 on; without `agree`, outputs are not unified; with
    `defined`, functions are more than names (`Scope`).

    Raises Differ if only the outputs disagree, Mismatch if a side type-checks at no sizes, Stuck if that is undecided.
    """
    unifier = Unifier(fixed=set(fixed), declared=set(fixed))
    scope = Scope(unifier, defined)
    sizes = ranks(rule)
    unifier.phase = "inputs"
    inputs = {tensor.name: _input(tensor, sizes, unifier) for tensor in rule.inputs}
    unifier.phase = "where"
    for condition in rule.where:
        left, word, right = condition_parts(condition)
        if word == "==":
            unifier.unify(unifier.of_size(left), unifier.of_size(right), f"where {condition}: ")
    sides = []
    for side, name in zip(rule.sides, ("source", "target"), strict=True):
        unifier.phase = name
        values = dict(inputs)
        for apply in side:
            try:
                made = meaning(scope, apply, [values[i] for i in apply.inputs])
            except Stuck:
                raise
            except PartitaError as error:  # also a missing or ill-typed attribute
                raise Mismatch(f"{name}, {', '.join(apply.outputs)}: {error}") from None
            if len(made) != len(apply.outputs):
                raise Mismatch(f"{name}: {apply.op} makes {len(made)} results, not {len(apply.outputs)}")
            values.update(zip(apply.outputs, made, strict=True))
        sides.append(values)
    unifier.phase = "outputs"
    pairs = [(sides[0][s], sides[1][t]) for s, t in rule.outputs]
    for (a, b), (s, t) in zip(pairs, rule.outputs, strict=True) if agree else ():
        try:
            _agree(a, b, unifier, f"outputs {s} and {t}: ")
        except Mismatch as error:
            raise Differ(str(error)) from None
    return Typed(rule, scope, inputs, pairs)


def _agree(a: Symbolic, b: Symbolic, unifier: Unifier, what: str) -> None:
    """Raise Mismatch unless two outputs have the same dims and state."""
    if len(a.dims) != len(b.dims):
        raise Mismatch(f"{what}{a.show(unifier)} against {b.show(unifier)}")
    for x, y in zip(a.dims, b.dims, strict=True):
        unifier.unify(x, y, what)
    for p, q in zip(a.digits, b.digits, strict=True):
        same_digits(p, q, unifier, what)
    unifier.unify(a.replicas, b.replicas, f"{what}replicas: ")


def _input(tensor: Tensor, known: Mapping[str, int], unifier: Unifier) -> Symbolic:
    if tensor.dims:
        dims = [unifier.of_size(Size.of(d)) for d in tensor.dims]
    else:
        dims = [(unifier.fresh(tensor.name),) for _ in range(known.get(tensor.name, DEFAULT_RANK))]
        unifier.given |= set(atoms_of(product_of(dims)))
    cuts = [unifier.of_size(Size.of(d), ordered=True) for d in tensor.degrees] or [()] * len(dims)
    digits = tuple(((cut, False),) if cut else () for cut in cuts)
    for type_, cut in zip(dims, cuts, strict=True):
        if cut:
            unifier.within(type_, cut, f"input {tensor.name}: ")
    replicas = unifier.of_size(Size.of(tensor.replicas), ordered=True)

    def at(replica: Index, indices: tuple[Index, ...]) -> Poly:
        found = [places(index) for index in (replica, *indices)]
        name = tensor.name + "".join(f"|{case}" for case, _ in found) if any(case for case, _ in found) else tensor.name
        return factor(Read(name, tuple(p for _, ps in found for p in ps)))

    return Symbolic(tuple(dims), digits, replicas, at)


def ranks(rule: Rule) -> dict[str, int]:
    """The ranks of values without declared sizes, inferred from operators."""
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.get(name, name) != name:
            name = group[name]
        return name

    known: dict[str, int] = {}

    def set_rank(name: str, rank: "Value | None") -> None:
        if isinstance(rank, int):
            known.setdefault(name, rank)

    for tensor in rule.inputs:
        if tensor.dims:
            known[tensor.name] = len(tensor.dims)
    for letter, side in (("s", rule.source), ("t", rule.target)):
        own = {name: f"{letter}/{name}" for apply in side for name in apply.outputs}
        for apply in side:
            names = [own.get(n, n) for n in (*apply.inputs, *apply.outputs)]
            if not algebra_of(apply.op).changes_rank:
                same = names[:2] + names[-1:] if apply.op == "conv" else names
                for name in same[1:]:
                    group[root(name)] = root(same[0])
            set_rank(names[0], apply.get("rank"))
            kernel, order = apply.get("kernel"), apply.get("dims")
            if apply.op == "conv":
                set_rank(names[0], len(kernel) + 2 if isinstance(kernel, tuple) else 4)
            if apply.op == "permute" and isinstance(order, tuple):
                set_rank(names[0], len(order))
            if apply.op == "linear":
                for name, rank in zip(names[1:-1], (2, 1), strict=False):
                    set_rank(name, rank)
    by_root = {root(name): rank for name, rank in known.items()}
    return {tensor.name: by_root.get(root(tensor.name), DEFAULT_RANK) for tensor in rule.inputs}


def concrete(typed: Typed, values: Mapping[str, int]) -> tuple[Rule, dict[str, tuple[int, ...]], dict[str, int]]:
    """The rule with numbers for inferred attributes, every input's [replicas, *shape], and the values of all symbols.

    `values`: the sizes of unbound atoms. Raises Stuck where one is missing.
    """
    unifier = typed.unifier

    def measure(type_: Type) -> int:
        size = unifier.size(type_)
        if not size.symbols <= values.keys():
            raise Stuck(f"the size of {written(type_)} is not known")
        return size.at(values)

    def bound(apply: Apply, side: str) -> Apply:
        found: dict[str, Any] = {k: v for k, v in apply.attributes if k != "rank"}
        for key, types in typed.scope.found.get((side, apply.outputs[0]), {}).items():
            if types is None:
                found.pop(key, None)
            elif key == "sizes":
                found[key] = tuple(measure(t) for t in types)
            else:
                found[key] = measure(types)
        return replace(apply, attributes=tuple(found.items()))

    symbols = {name: measure((name,)) for name in unifier.declared}
    shapes = {n: (measure(v.replicas), *(measure(t) for t in v.dims)) for n, v in typed.inputs.items()}
    source = tuple(bound(a, "source") for a in typed.rule.source)
    target = tuple(bound(a, "target") for a in typed.rule.target)
    return replace(typed.rule, source=source, target=target), shapes, symbols


def free_atoms(typed: Typed) -> tuple[str, ...]:
    """The symbols whose values determine all sizes of inputs and attributes."""
    unifier = typed.unifier
    types = [t for v in typed.inputs.values() for t in (*v.dims, v.replicas)]
    types += [(name,) for name in sorted(unifier.declared)]
    for found in typed.scope.found.values():
        for value in found.values():
            types += list(value) if value and isinstance(value[0], tuple) else [value] if value is not None else []
    names: dict[str, None] = {}
    for type_ in types:
        names.update(dict.fromkeys(sorted(unifier.size(type_).symbols)))
    return tuple(names)
