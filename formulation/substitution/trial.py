"""Tries a rule at given sizes: evaluates both sides on random inputs. A difference refutes the rule.

Agreement proves nothing. A difference in the finite field means that the rule does not hold for opaque functions; in
floats, that it is false in PyTorch too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...model.errors import PartitaError
from ...model.operators.operator import algebra_of
from ...model.operators.sharded import Arithmetic, IllTyped
from .arithmetic import Real
from .evaluate import evaluate
from .moves import MOVES
from .rule import Apply, Rule, Tensor
from .sizes import Size
from .values import ParallelValue

TOLERANCE = 1e-9  # for floats, relative to the largest entry
_PASSING = (*MOVES, "view", "permute", "cat", "split", "slice", "contiguous")


@dataclass(frozen=True, slots=True)
class Trial:
    """`inputs` by name; both sides' outputs, in the rule's order; which of them agree."""

    inputs: Mapping[str, ParallelValue]
    source: tuple[ParallelValue, ...]
    target: tuple[ParallelValue, ...]
    agrees: tuple[bool, ...]

    @property
    def holds(self) -> bool:
        return all(self.agrees)


def trial(rule: Rule, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int = 0) -> Trial:
    """Run both sides on the same random inputs. Raises IllTyped that names the side that does not apply."""
    inputs = random_inputs(rule, sizes, arithmetic, seed)
    tolerance = TOLERANCE if isinstance(arithmetic, Real) else 0.0
    sides = []
    for word, side in (("source", rule.source), ("target", rule.target)):
        try:
            sides.append(evaluate(side, inputs, arithmetic, sizes))
        except IllTyped as error:
            raise IllTyped(f"rule {rule.name!r}, {word}: {error}") from None
    source = tuple(sides[0][name] for name, _ in rule.outputs)
    target = tuple(sides[1][name] for _, name in rule.outputs)
    return Trial(inputs, source, target, tuple(a.same(b, tolerance) for a, b in zip(source, target, strict=True)))


def random_inputs(
    rule: Rule, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int = 0
) -> dict[str, ParallelValue]:
    """Random tensors of the declared sizes and states; ids are valid row numbers of their table.

    Raises PartitaError for a tensor without declared sizes, or a symbol without a value.
    """
    rows = dict(_ids(rule, sizes))
    return {
        tensor.name: random_tensor(tensor, sizes, arithmetic, seed + number, rows.get(tensor.name))
        for number, tensor in enumerate(rule.inputs)
    }


def random_tensor(
    tensor: Tensor, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int, rows: int | None = None
) -> ParallelValue:
    if not tensor.dims:
        raise PartitaError(f"tensor {tensor.name} has no sizes: declare them, as in {tensor.name}[b, k]")
    replicas, *shape = (_number(size, sizes, tensor.name) for size in (tensor.replicas, *tensor.dims))
    degrees = [_number(degree, sizes, tensor.name) for degree in tensor.degrees]
    if rows is None:
        return ParallelValue.of(arithmetic.random((replicas, *shape), seed), degrees)
    ids = np.random.default_rng([seed, replicas, *shape]).integers(0, rows, (replicas, *shape))
    return ParallelValue.of(ids, degrees)


def _number(expression: str | int, sizes: Mapping[str, int], name: str) -> int:
    size = Size.of(expression)
    missing = sorted(size.symbols - set(sizes))
    if missing:
        raise PartitaError(f"tensor {name}: no value for the size {', '.join(missing)}")
    return size.at(sizes)


def _ids(rule: Rule, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(input that holds row numbers, rows of its smallest table)."""
    known = {tensor.name: _number(tensor.dims[0], sizes, tensor.name) for tensor in rule.inputs if tensor.dims}
    found: dict[str, int] = {}
    for side in (rule.source, rule.target):
        makers = {name: apply for apply in side for name in apply.outputs}
        for apply in side:
            if not algebra_of(apply.op).table:
                continue
            rows = _rows(apply.inputs[0], makers, known)
            for name in _origins(apply.inputs[1], makers):
                found[name] = min(found.get(name, rows), rows)
    return iter(found.items())


def _rows(name: str, makers: Mapping[str, Apply], known: Mapping[str, int]) -> int:
    """A lower bound on the rows of a table made of inputs; 1 if unknown."""
    made = makers.get(name)
    if made is None or made.op not in _PASSING:
        return known.get(name, 1)
    rows = [_rows(part, makers, known) for part in made.inputs]
    return sum(rows) if made.op == "cat" and made["dim"] == 0 else min(rows)


def _origins(name: str, makers: Mapping[str, Apply]) -> Iterator[str]:
    """The inputs whose elements a value is made of, through operators that only move elements."""
    made = makers.get(name)
    if made is None:
        yield name
    elif made.op in _PASSING:
        for source in made.inputs:
            yield from _origins(source, makers)
