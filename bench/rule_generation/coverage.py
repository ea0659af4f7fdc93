"""Tells which given rules follow from the generated ones: both sides are rewritten a few steps each until they meet.

Degrees of generated rules are taken to be those of the given one. A path counts only where all graphs on it have one
value on random tensors of a size at which the given rule runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...formulation.substitution.arithmetic import Modular
from ...formulation.substitution.rule import Apply, Rule, Tensor, Value
from ...formulation.substitution.values import ParallelValue
from .consequences import Rewriter
from .expressions import Expression, Pair
from .operator_sets import Operation, OperatorSet
from .pool import Pool

SEED = 0
COMMUTATIVE = ("add", "mul")


@dataclass(slots=True)
class _Reader:
    """Converts rules to expressions; `degree` is the value of symbolic degrees."""

    degree: int
    operations: dict[Operation, int] = field(default_factory=dict)

    def pair(self, rule: Rule, variables: Mapping[str, int]) -> Pair:
        sides = []
        for number, side in enumerate((rule.source, rule.target)):
            known: dict[str, Expression] = dict(variables)
            for apply in side:
                known |= self._made(apply, tuple(known[name] for name in apply.inputs))
            sides.append(tuple(known[names[number]] for names in rule.outputs))
        return sides[0], sides[1]

    def _made(self, apply: Apply, operands: tuple[Expression, ...]) -> dict[str, Expression]:
        """The results of an application; a fused activation becomes an application of its own."""
        given = dict(_plain(apply, self.degree))
        activation = given.pop("activation", "none")
        number = self._number(Operation(apply.op, len(operands), tuple(sorted(given.items())), len(apply.outputs)))
        made: dict[str, Expression] = {name: (number, i, *operands) for i, name in enumerate(apply.outputs)}
        if activation in ("none", ""):
            return made
        after = self._number(Operation(str(activation)))
        return {name: (after, 0, expression) for name, expression in made.items()}

    def _number(self, operation: Operation) -> int:
        return self.operations.setdefault(operation, len(self.operations))


def _plain(apply: Apply, degree: int) -> Iterable[tuple[str, Value]]:
    """Attributes in one form: numeric degrees, equal parts of splits, numeric padding of convolutions."""
    for name, value in apply.attributes:
        if name == "degree":
            yield name, degree if isinstance(value, str) else value
        elif name == "sizes":
            yield "parts", len(apply.outputs)
        elif name == "padding" and value in ("same", "valid"):
            kernel = apply.get("kernel", (1, 1))
            assert isinstance(kernel, tuple) and isinstance(kernel[0], int)
            yield from ((name, kernel[0] // 2),) if value == "same" and kernel[0] > 1 else ()
        elif not (name in ("rank", "kernel", "groups") or (name == "stride" and value in (1, (1, 1)))):
            yield name, value


def covered(rule: Rule, inputs: Mapping[str, ParallelValue], basis: Sequence[Rule]) -> bool:
    """True if the basis leads from one side of a rule to the other for each of its outputs.

    `inputs`: tensors of a size at which both sides run.
    """
    reader = _Reader(degree=next((d for side in (rule.source, rule.target) for a in side for d in _degrees(a)), 2))
    own = [_numbered(name, value) for name, value in inputs.items()]
    pair = reader.pair(rule, {tensor.name: number for number, tensor in enumerate(own)})
    places: dict[int, list[int]] = {}
    others: list[Tensor] = []
    for rank in (2, 3, 4):
        places[rank] = [len(own) + len(others) + i for i in range(6)]
        others += [Tensor(f"v{rank}{i}", ("1",) * rank) for i in range(6)]
    known = []
    for each in basis:
        left = {rank: iter(numbers) for rank, numbers in places.items()}
        known.append(reader.pair(each, {t.name: next(left[len(t.dims)]) for t in each.inputs}))
    chosen = OperatorSet("covered", tuple(reader.operations), (*own, *others), ({},))
    commutes = frozenset(n for operation, n in reader.operations.items() if operation.op in COMMUTATIVE)
    rewriter = Rewriter(commutes, Pool(chosen, {}, Modular(), SEED))
    for one in known:
        rewriter.add(one)
    return all(rewriter.joins(a, b) for a, b in zip(*pair, strict=True))


def _degrees(apply: Apply) -> Iterable[int]:
    return (value for name, value in apply.attributes if name == "degree" and isinstance(value, int))


def _numbered(name: str, value: ParallelValue) -> Tensor:
    degrees = tuple(digits[0].degree if digits else 1 for digits in value.digits)
    return Tensor(name, tuple(map(str, value.shape)), degrees, value.replicas)
