"""Substitutions as data: a rule says that two small graphs of operators compute the same (Unity §4, TASO §3).

A rule has input tensors with symbolic sizes and states, a source and a target (operator applications in topological
order), and pairs of values that are equal on both sides. Operators are those of the registry and the parallel ones
(Unity §3.3), whose attributes are in `PARALLEL`. `text` reads and writes the notation of rule files:

    columns:
        x[b, k], w[k, n]
        y = matmul(x, w)
      =>
        y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
      where d divides n
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from ...model.errors import PartitaError
from ...model.operators.operator import operator

Value: TypeAlias = "int | float | str | tuple[Value, ...]"

REPLICA = "replica"

# The parallel operators and their required attributes. Tile copies a data dim, fold sums its blocks.
PARALLEL: Mapping[str, tuple[str, ...]] = {
    "partition": ("degree", "dim"),
    "combine": ("degree", "dim"),
    "replicate": ("degree",),
    "reduce": ("degree",),
    "pipeline": ("degree", "dim"),
    "batch": ("degree", "dim"),
    "tile": ("degree", "dim"),
    "fold": ("degree", "dim"),
}

# Only rules have these: captured graphs have slices for split, permute for transpose (of the last two dims).
RULE_OPERATORS = ("split", "transpose")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of a rule.

    `dims`: a size expression per data dim ("b", "2*n"), or () to infer them. `degrees`: the initial partition degree of
    each data dim, () for none. `replicas`: the size of the replica dim.
    """

    name: str
    dims: tuple[str, ...] = ()
    degrees: tuple[str | int, ...] = ()
    replicas: str | int = 1

    def __post_init__(self) -> None:
        if self.dims and not self.degrees:
            object.__setattr__(self, "degrees", (1,) * len(self.dims))
        if len(self.degrees) != len(self.dims):
            raise PartitaError(f"tensor {self.name}: {len(self.degrees)} degrees for {len(self.dims)} dims")


@dataclass(frozen=True, slots=True)
class Apply:
    """One operator application: names of its inputs and outputs, and its attributes, sorted by name."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(sorted(self.attributes)))

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """An attribute, or the default."""
        return next((value for key, value in self.attributes if key == name), default)

    def map(self, function: Callable[[str, Value], Value]) -> Apply:
        """Replace every attribute by `function(name, value)`."""
        return replace(self, attributes=tuple((name, function(name, value)) for name, value in self.attributes))

    def __getitem__(self, name: str) -> Value:
        value = self.get(name)
        if value is None:
            raise PartitaError(f"{self.op} that makes {', '.join(self.outputs)} lacks the attribute {name}")
        return value


@dataclass(frozen=True, slots=True)
class Rule:
    """`source => target`: for every pair (s, t) of `outputs`, value s of the source equals value t of the target.

    `where` holds side conditions: "d divides n", "n == 2*m". `note` cites the rule's source, `id` is its number in a
    published file. Raises PartitaError for names used before they are defined or defined twice, unknown operators, and
    rules without outputs.
    """

    name: str
    inputs: tuple[Tensor, ...]
    source: tuple[Apply, ...]
    target: tuple[Apply, ...]
    outputs: tuple[tuple[str, str], ...]
    where: tuple[str, ...] = ()
    note: str = ""
    id: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given = [tensor.name for tensor in self.inputs]
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise PartitaError(f"rule {self.name!r}: input {twice[0]} is declared twice")
        words = ("source", "target")
        known = [self._check(side, set(given), word) for side, word in zip(self.sides, words, strict=True)]
        if not self.outputs:
            raise PartitaError(f"rule {self.name!r} has no outputs: give a result the same name on both sides")
        for pair in self.outputs:
            for value, names, word in zip(pair, known, words, strict=True):
                if value not in names:
                    raise PartitaError(f"rule {self.name!r}: output {value} is not a value of the {word}")

    @property
    def sides(self) -> tuple[tuple[Apply, ...], tuple[Apply, ...]]:
        return self.source, self.target

    @property
    def applies(self) -> tuple[Apply, ...]:
        """The applications of both sides."""
        return (*self.source, *self.target)

    @property
    def degrees(self) -> tuple[Value, ...]:
        """All degrees and numbers of replicas."""
        given = [degree for apply in self.applies if (degree := apply.get("degree")) is not None]
        return (*given, *(d for tensor in self.inputs for d in (*tensor.degrees, tensor.replicas)))

    def map(self, function: Callable[[Apply], Apply], **changes: Any) -> Rule:
        """Replace every application by `function(apply)`, and the fields named in `changes`."""
        source, target = (tuple(map(function, side)) for side in self.sides)
        return replace(self, source=source, target=target, **changes)

    def _check(self, side: tuple[Apply, ...], known: set[str], where: str) -> set[str]:
        for apply in side:
            place = f"rule {self.name!r}, {where}: {apply.op}"
            check_operator(apply, place)
            for name in apply.inputs:
                if name not in known:
                    raise PartitaError(f"{place} reads {name}, which is neither an input nor made before it")
            for name in apply.outputs:
                if name in known:
                    raise PartitaError(f"{place} makes {name}, a name that is taken")
                known.add(name)
        return known

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `rule_file.read_rule` reads it back."""
        tensors = [{f.name: _plain(getattr(t, f.name)) for f in fields(Tensor)} for t in self.inputs]
        source, target = ([_apply_json(apply) for apply in side] for side in self.sides)
        record = {"name": self.name, "inputs": tensors, "source": source, "target": target}
        return record | {"outputs": _plain(self.outputs), "where": list(self.where), "note": self.note}


def check_operator(apply: Apply, place: str) -> None:
    """Raise PartitaError unless the operator is known and has the results and attributes it needs."""
    if not apply.outputs:
        raise PartitaError(f"{place} makes nothing")
    if apply.op not in PARALLEL and apply.op not in RULE_OPERATORS:
        operator(apply.op)
    if apply.op != "split" and len(apply.outputs) != 1:
        raise PartitaError(f"{place} makes one result, not {len(apply.outputs)}")
    if apply.op in PARALLEL:
        names = tuple(name for name, _ in apply.attributes)
        if names != PARALLEL[apply.op]:
            required = ", ".join(PARALLEL[apply.op])
            raise PartitaError(f"{place} takes the attributes {required}, not {', '.join(names) or 'none'}")
        if len(apply.inputs) != 1:
            raise PartitaError(f"{place} takes one tensor, not {len(apply.inputs)}")


def _apply_json(apply: Apply) -> dict[str, Any]:
    attributes = {name: _plain(value) for name, value in apply.attributes}
    return {"op": apply.op, "inputs": list(apply.inputs), "outputs": list(apply.outputs), "attributes": attributes}


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
