"""Finds rules by comparing all small graphs over operator sets; a prover checks each (TASO §3, Unity §4).

Graphs run on random tensors over a finite field; pairs with the same values in the same states, at two degrees and
sizes, are candidates. Those left after pruning are written with the most general sizes and kept if the given prover
proves them. The output is deterministic, to the byte.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...formulation.substitution.arithmetic import PRIME, Modular
from ...formulation.substitution.rule import Rule
from ...formulation.substitution.text import write_rule, write_tensor
from .consequences import basic
from .enumeration import RuleGraph, graphs
from .expressions import Pair, kinds_of, translated
from .operator_sets import SETS, OperatorSet
from .pool import Pool
from .pruning import STEPS, candidates, general, groups, renamings
from .writing import is_parallel, rules

FORMAT = 1
SEED = 0
SIZES = {"n": 4, "h": 3, "d": 2}  # at which consequences are tried


@dataclass(frozen=True, slots=True)
class SetResult:
    """What one operator set gave: counts of graphs and of the pairs left by every pruning step, and the proved rules.

    `parallel`: how many of the general pairs have a parallel operator.
    """

    chosen: OperatorSet
    graphs: int
    left: Counter[str]
    parallel: int = 0
    rules: tuple[Rule, ...] = ()  # by size and name; each in the set in which it was first found
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Generated:
    """The results by set, and the candidates of which no form was proved."""

    sets: tuple[SetResult, ...]
    unproved: tuple[Rule, ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The proved rules of all sets."""
        return tuple(rule for each in self.sets for rule in each.rules)


def generate(
    sets: Sequence[OperatorSet] = SETS,
    proves: Callable[[Rule], bool] | None = None,
    most: int | None = None,
    composed: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> Generated:
    """All rules over the operator sets, up to `most` operators a side instead of each set's own.

    `proves`: the prover; without one, rules that hold at trial sizes are kept unproved. `composed` also keeps rules
    that follow from smaller ones.
    """
    chosen = [each if most is None else replace(each, most=min(most, each.most)) for each in sets]
    everything = joined(chosen)
    pairs, commutative, results = _enumerated_sets(chosen, everything, tell)
    wide = general(pairs, everything.variables, commutative)
    pool = Pool(everything, SIZES, Modular(), SEED)
    deep = basic((pair for pair in wide if not pairs[pair].follows), commutative, pool)
    for step, found in (("general", wide), ("basic", deep)):
        for pair in found:
            results[pairs[pair].first].left[step] += 1
    unproved = list[Rule]()
    for number, result in enumerate(results):
        start = time.monotonic()
        parallel = sum(pairs[pair].first == number and is_parallel(pair, everything) for pair in wide)
        own = [pair for pair in (wide if composed else deep) if pairs[pair].first == number]
        written_pairs = [_written(pair, everything, proves) for pair in own]
        proved = sorted((rule for rule, is_proved in written_pairs if rule and is_proved), key=_order)
        unproved += [rule for rule, is_proved in written_pairs if rule and not is_proved]
        seconds = result.seconds + time.monotonic() - start
        results[number] = replace(result, parallel=parallel, rules=tuple(proved), seconds=seconds)
        tell(f"{result.chosen.name}: {len(proved):,} of {len(own):,} proved")
    return Generated(_numbered(results), tuple(unproved))


class _Origin(NamedTuple):
    """The number of the set in which a pair was first found, and whether the pair follows from smaller ones."""

    first: int
    follows: bool


def _enumerated_sets(
    chosen: Sequence[OperatorSet], everything: OperatorSet, tell: Callable[[str], None]
) -> tuple[dict[Pair, _Origin], frozenset[int], list[SetResult]]:
    """The candidates of all sets, the commutative operations, and the counts so far."""
    commutative = frozenset[int]()
    found: dict[Pair, _Origin] = {}
    results = []
    for number, each in enumerate(chosen):
        start = time.monotonic()
        pairs, commutes, result = _enumerated(each, everything)
        commutative |= commutes
        for pair, follows in pairs.items():
            first, known = found.get(pair, (number, False))
            found[pair] = _Origin(first, known or follows)
        results.append(replace(result, seconds=time.monotonic() - start))
        tell(f"{each.name}: {result.graphs:,} graphs, {result.left['renamed']:,} candidates")
    return found, commutative, results


def joined(sets: Sequence[OperatorSet]) -> OperatorSet:
    """All operations and variables of the sets, each once and numbered alike for every set."""
    operations = dict.fromkeys(operation for chosen in sets for operation in chosen.operations)
    variables = dict.fromkeys(variable for chosen in sets for variable in chosen.variables)
    weights = tuple(dict.fromkeys(weight for chosen in sets for weight in chosen.weights))
    return OperatorSet("all", tuple(operations), tuple(variables), (), weights=weights)


def _enumerated(chosen: OperatorSet, everything: OperatorSet) -> tuple[dict[Pair, bool], frozenset[int], SetResult]:
    """Candidates of a set in the numbers of `everything`, its commutative operations, and counts."""
    pools = [Pool(chosen, sizes, Modular(), SEED) for sizes in chosen.trials]
    own = _commutative(chosen, pools[0])
    total = Counter[str]()

    def counted() -> Iterator[RuleGraph]:
        for graph in graphs(pools[0], chosen, own):
            total["graphs"] += 1
            yield graph

    pairs, left = candidates(groups(counted(), pools[1:]), chosen)
    operations = [everything.operations.index(operation) for operation in chosen.operations]
    variables = [everything.variables.index(variable) for variable in chosen.variables]
    commutative = frozenset(operations[number] for number in own)
    moved = {
        (translated(a, operations, variables), translated(b, operations, variables)): follows
        for (a, b), follows in pairs.items()
    }
    once = renamings(moved, kinds_of(everything.variables), commutative)
    return once, commutative, SetResult(chosen, total["graphs"], left + Counter(renamed=len(once)))


def _commutative(chosen: OperatorSet, pool: Pool) -> frozenset[int]:
    """Commutative operations, found by trying all pairs of variables."""
    numbers = range(len(chosen.variables))

    def commutes(operation: int) -> bool:
        pairs = [(a, b) for a in numbers for b in numbers if a < b and pool.apply(operation, (a, b))]
        return bool(pairs) and all(pool.apply(operation, (a, b)) == pool.apply(operation, (b, a)) for a, b in pairs)

    return frozenset(n for n, operation in enumerate(chosen.operations) if operation.arity == 2 and commutes(n))


def _written(pair: Pair, everything: OperatorSet, proves: Callable[[Rule], bool] | None) -> tuple[Rule | None, bool]:
    """(the most general proved form of a pair, otherwise the first one that holds or None; True if proved)."""
    first = None
    for rule in rules(pair, everything):
        rule = replace(rule, name=_title(rule))
        first = first or rule
        if proves is None or proves(rule):
            return rule, True
    return first, False


def _order(rule: Rule) -> tuple[Any, ...]:
    return len(rule.applies), rule.name, write_rule(rule)


def _title(rule: Rule) -> str:
    """The operators of both sides, from the results inwards."""
    sides = (dict.fromkeys(apply.op for apply in reversed(side)) for side in rule.sides)
    return " to ".join("-".join(side) or "input" for side in sides)


def _numbered(results: Sequence[SetResult]) -> tuple[SetResult, ...]:
    """The results with numbers in the names of rules where these are ambiguous."""
    titles = Counter(rule.name for each in results for rule in each.rules)
    met = Counter[str]()

    def named(rule: Rule) -> Rule:
        met[rule.name] += 1
        return rule if titles[rule.name] == 1 else replace(rule, name=f"{rule.name} {met[rule.name]}")

    return tuple(replace(each, rules=tuple(map(named, each.rules))) for each in results)


def to_json(generated: Generated) -> dict[str, Any]:
    """The rules in text notation by set, and how they were made; without times, so machine-independent."""
    return {
        "format": FORMAT,
        "what": "Substitutions generated over operator sets and proved; `partita rules generate` makes this file.",
        "prime": PRIME,
        "seed": SEED,
        "sets": [
            {
                "name": result.chosen.name,
                "note": result.chosen.note,
                "operators": list(map(str, result.chosen.operations)),
                "variables": list(map(write_tensor, result.chosen.variables)),
                "most": result.chosen.most,
                "outputs": result.chosen.outputs,
                "trials": [dict(sizes) for sizes in result.chosen.trials],
                "graphs": result.graphs,
                **{step: result.left[step] for step in STEPS},
                "parallel": result.parallel,
                "proved": len(result.rules),
                "rules": list(map(write_rule, result.rules)),
            }
            for result in generated.sets
        ],
    }


def written(generated: Generated) -> str:
    """`to_json` as the text of a file."""
    return json.dumps(to_json(generated), indent=1, ensure_ascii=False) + "\n"
