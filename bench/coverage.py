"""How many rules of given files follow from the generated ones: TASO's, FlexFlow's, the user's.

Both sides of a rule are rewritten by the basis, two steps each; where they meet, the rule follows. Degrees of the
basis are taken to be those of the rule. A path counts only where all graphs on it have one value on random tensors of a
size at which the rule runs. `typed` are rules whose sides apply at some size; `apart` have an operator that the basis
lacks (a linear instead of a product, copies or folds of data dims). The rest of `typed` is `covered` or `missed`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..formulation.substitution.arithmetic import Modular
from ..formulation.substitution.rule import Apply, Rule, Tensor, Value
from ..formulation.substitution.rule_file import basis, load_rules
from ..formulation.substitution.symbolic.infer import free_atoms, infer
from ..formulation.substitution.trial import RuleTrial, small_trials, trial_at
from ..formulation.substitution.values import ParallelValue
from ..model.errors import PartitaError
from .cases import Row, Tell, each
from .rule_generation.consequences import Rewriter
from .rule_generation.expressions import Expression, Pair
from .rule_generation.operator_sets import Operation, OperatorSet
from .rule_generation.pool import Pool

EQUAL = 4  # every free size, so that a split in equal parts is one of any two sizes
SMALL = 40  # rules of a file
SEED = 0
COMMUTATIVE = ("add", "mul")


def run(small: bool, only: Sequence[str], tell: Tell, rules: Sequence[str] = ()) -> list[Row]:
    """A row for every file of rules. PartitaError: none is given."""
    if not rules:
        raise PartitaError("bench coverage needs files of rules: --rules FILE")
    return [
        {"file": Path(path).stem} | measure(load_rules(path)[: SMALL if small else None])
        for path in each(rules, only, tell, str, "file")
    ]


def measure(given: Sequence[Rule]) -> Row:
    """How many of the given rules follow from the basis."""
    known = basis()
    operators = {apply.op for rule in known for apply in rule.applies}
    start, counts = time.monotonic(), Counter[str]()
    for rule in given:
        sample = _sample(rule)
        if sample is None:
            continue
        counts["typed"] += 1
        apart = {apply.op for apply in rule.applies} - operators
        counts["apart" if apart else "covered" if covered(rule, sample.inputs, known) else "missed"] += 1
    found = {key: counts[key] for key in ("typed", "apart", "covered", "missed")}
    return {"rules": len(given), **found, "s": time.monotonic() - start}


def _sample(rule: Rule) -> RuleTrial | None:
    """The rule at a size at which both sides apply, None where there is none."""
    try:
        typed = infer(rule)
    except PartitaError:
        return None
    return trial_at(typed, dict.fromkeys(free_atoms(typed), EQUAL), 0) or next(iter(small_trials(typed, 1)), None)


@dataclass(slots=True)
class _Reader:
    """Converts rules to expressions; `degree` is the value of symbolic degrees."""

    degree: int
    operations: dict[Operation, int] = field(default_factory=dict)

    def pair(self, rule: Rule, variables: Mapping[str, int]) -> Pair:
        sides = []
        for number, side in enumerate(rule.sides):
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
    reader = _Reader(next((d for apply in rule.applies if isinstance(d := apply.get("degree"), int)), 2))
    own = [_numbered(name, value) for name, value in inputs.items()]
    pair = reader.pair(rule, {tensor.name: number for number, tensor in enumerate(own)})
    places: dict[int, list[int]] = {}
    others: list[Tensor] = []
    for rank in (2, 3, 4):
        places[rank] = [len(own) + len(others) + i for i in range(6)]
        others += [Tensor(f"v{rank}{i}", ("1",) * rank) for i in range(6)]
    known = []
    for known_rule in basis:
        left = {rank: iter(numbers) for rank, numbers in places.items()}
        known.append(reader.pair(known_rule, {t.name: next(left[len(t.dims)]) for t in known_rule.inputs}))
    chosen = OperatorSet("covered", tuple(reader.operations), (*own, *others), ({},))
    commutes = frozenset(n for operation, n in reader.operations.items() if operation.op in COMMUTATIVE)
    rewriter = Rewriter(commutes, Pool(chosen, {}, Modular(), SEED))
    for one in known:
        rewriter.add(one)
    return all(rewriter.joins(a, b) for a, b in zip(*pair, strict=True))


def _numbered(name: str, value: ParallelValue) -> Tensor:
    degrees = tuple(digits[0].degree if digits else 1 for digits in value.digits)
    return Tensor(name, tuple(map(str, value.shape)), degrees, value.replicas)
