"""Finds rules by comparing all small graphs over operator sets; a prover checks each (TASO §3, Unity §4).

Graphs run on random tensors over a finite field; pairs with the same values in the same states, at two degrees and
sizes, are candidates. Those left after pruning are written with the most general sizes and kept if the given prover
proves them. The output is deterministic, to the byte.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...formulation.substitution.arithmetic import Modular
from ...formulation.substitution.rule import Rule, Tensor
from ...formulation.substitution.text import write_rule
from .consequences import basic
from .enumeration import Graph, graphs
from .expressions import Pair, kinds_of, translated
from .operator_sets import SETS, OperatorSet
from .pool import Pool
from .pruning import STEPS, candidates, general, groups, renamings
from .writing import Vocabulary, is_parallel, rules

FORMAT = 1
SEED = 0
SIZES = {"n": 4, "h": 3, "d": 2}  # at which consequences are tried

Proves = Callable[[Rule], bool]


@dataclass(frozen=True, slots=True)
class GeneratedRule:
    """A rule and the operator set in which it was first found."""

    rule: Rule
    origin: str


@dataclass(frozen=True, slots=True)
class SetCounts:
    """Counts of one operator set: graphs, the pairs left by every pruning step, and proved rules.

    `parallel`: how many of the general pairs have a parallel operator.
    """

    chosen: OperatorSet
    graphs: int
    left: Counter[str]
    parallel: int = 0
    proved: int = 0
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Generated:
    """Proved rules by set, size and name; candidates of which no form was proved; counts."""

    rules: tuple[GeneratedRule, ...]
    unproved: tuple[Rule, ...]
    counts: tuple[SetCounts, ...]
    prime: int
    seed: int


def generate(
    sets: Sequence[OperatorSet] = SETS,
    proves: Proves | None = None,
    most: int | None = None,
    composed: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> Generated:
    """All rules over the operator sets, up to `most` operators a side instead of each set's own.

    `proves`: the prover; without one, rules that hold at trial sizes are kept unproved. `composed` also keeps rules
    that follow from smaller ones.
    """
    chosen = [each if most is None else replace(each, most=min(most, each.most)) for each in sets]
    words, arithmetic = vocabulary(chosen), Modular()
    every, commutative, counts = _searched(chosen, words, arithmetic, tell)
    wide = general(every, words.variables, commutative)
    deep = _basic(wide, every, words, commutative, arithmetic)
    for step, pairs in (("general", wide), ("basic", deep)):
        for pair in pairs:
            counts[every[pair][0]].left[step] += 1
    found, unproved = list[GeneratedRule](), list[Rule]()
    for number, each in enumerate(chosen):
        start = time.monotonic()
        parallel = sum(every[pair][0] == number and is_parallel(pair, words) for pair in wide)
        mine = [_written(pair, words, proves) for pair in (wide if composed else deep) if every[pair][0] == number]
        proved = sorted((rule for rule, is_proved in mine if rule and is_proved), key=_order)
        unproved += [rule for rule, is_proved in mine if rule and not is_proved]
        found += [GeneratedRule(rule, each.name) for rule in proved]
        seconds = counts[number].seconds + time.monotonic() - start
        counts[number] = replace(counts[number], parallel=parallel, proved=len(proved), seconds=seconds)
        tell(f"{each.name}: {len(proved):,} of {len(mine):,} proved")
    return Generated(_named(found), tuple(unproved), tuple(counts), arithmetic.prime, SEED)


_Every = dict[
    Pair, tuple[int, bool]
]  # the set in which a pair was first found, and whether it follows from smaller pairs


def _searched(
    chosen: Sequence[OperatorSet], words: Vocabulary, arithmetic: Modular, tell: Callable[[str], None]
) -> tuple[_Every, frozenset[int], list[SetCounts]]:
    """The candidates of all sets, the commutative operations, and the counts so far."""
    commutative = frozenset[int]()
    every: _Every = {}
    counts = []
    for number, each in enumerate(chosen):
        start = time.monotonic()
        pairs, commutes, count = _enumerated(each, words, arithmetic)
        commutative |= commutes
        for pair, follows in pairs.items():
            first, known = every.get(pair, (number, False))
            every[pair] = first, known or follows
        counts.append(replace(count, seconds=time.monotonic() - start))
        tell(f"{each.name}: {count.graphs:,} graphs, {count.left['renamed']:,} candidates")
    return every, commutative, counts


def _basic(
    pairs: Iterable[Pair],
    every: _Every,
    words: Vocabulary,
    commutative: frozenset[int],
    arithmetic: Modular,
) -> list[Pair]:
    """The pairs that do not follow from smaller ones."""
    whole = OperatorSet("all", words.operations, words.variables, (), weights=words.weights)
    return basic((p for p in pairs if not every[p][1]), commutative, Pool(whole, SIZES, arithmetic, SEED))


def vocabulary(sets: Sequence[OperatorSet]) -> Vocabulary:
    """All operations and variables of the sets, each once and numbered alike for every set."""
    operations = dict.fromkeys(operation for chosen in sets for operation in chosen.operations)
    variables = dict.fromkeys(variable for chosen in sets for variable in chosen.variables)
    weights = tuple(dict.fromkeys(weight for chosen in sets for weight in chosen.weights))
    return Vocabulary(tuple(operations), tuple(variables), weights)


def _enumerated(
    chosen: OperatorSet, words: Vocabulary, arithmetic: Modular
) -> tuple[dict[Pair, bool], frozenset[int], SetCounts]:
    """Candidates of a set in the numbers of the vocabulary, its commutative operations, and counts."""
    pools = [Pool(chosen, sizes, arithmetic, SEED) for sizes in chosen.trials]
    own = _commutative(chosen, pools[0])
    total = Counter[str]()

    def counted() -> Iterator[Graph]:
        for graph in graphs(pools[0], chosen, own):
            total["graphs"] += 1
            yield graph

    pairs, left = candidates(groups(counted(), pools[1:]), chosen)
    operations = [words.operations.index(operation) for operation in chosen.operations]
    variables = [words.variables.index(variable) for variable in chosen.variables]
    commutative = frozenset(operations[number] for number in own)
    moved = {
        (translated(a, operations, variables), translated(b, operations, variables)): follows
        for (a, b), follows in pairs.items()
    }
    once = renamings(moved, kinds_of(words.variables), commutative)
    return once, commutative, SetCounts(chosen, total["graphs"], left + Counter(renamed=len(once)))


def _commutative(chosen: OperatorSet, pool: Pool) -> frozenset[int]:
    """Commutative operations, found by trying all pairs of variables."""
    numbers = range(len(chosen.variables))

    def commutes(operation: int) -> bool:
        pairs = [(a, b) for a in numbers for b in numbers if a < b and pool.apply(operation, (a, b))]
        return bool(pairs) and all(pool.apply(operation, (a, b)) == pool.apply(operation, (b, a)) for a, b in pairs)

    return frozenset(n for n, operation in enumerate(chosen.operations) if operation.arity == 2 and commutes(n))


def _written(pair: Pair, words: Vocabulary, proves: Proves | None) -> tuple[Rule | None, bool]:
    """(the most general proved form of a pair, otherwise the first one that holds or None; True if proved)."""
    first = None
    for rule in rules(pair, words):
        rule = replace(rule, name=_title(rule))
        first = first or rule
        if proves is None or proves(rule):
            return rule, True
    return first, False


def _order(rule: Rule) -> tuple[Any, ...]:
    return len(rule.source) + len(rule.target), _title(rule), write_rule(rule)


def _title(rule: Rule) -> str:
    """The operators of both sides, from the results inwards."""
    sides = (dict.fromkeys(apply.op for apply in reversed(side)) for side in (rule.source, rule.target))
    return " to ".join("-".join(side) or "input" for side in sides)


def _named(found: Iterable[GeneratedRule]) -> tuple[GeneratedRule, ...]:
    """Rules named by their operators, numbered where these are ambiguous."""
    listed = list(found)
    titles = Counter(_title(each.rule) for each in listed)
    met = Counter[str]()
    named = []
    for each in listed:
        title = _title(each.rule)
        met[title] += 1
        name = title if titles[title] == 1 else f"{title} {met[title]}"
        named.append(replace(each, rule=replace(each.rule, name=name)))
    return tuple(named)


def to_json(generated: Generated) -> dict[str, Any]:
    """The rules in text notation by set, and how they were made; without times, so machine-independent."""
    return {
        "format": FORMAT,
        "what": "Substitutions generated over operator sets and proved; `partita rules generate` makes this file.",
        "prime": generated.prime,
        "seed": generated.seed,
        "sets": [
            {
                "name": count.chosen.name,
                "note": count.chosen.note,
                "operators": [str(operation) for operation in count.chosen.operations],
                "variables": [str(variable) for variable in map(_variable, count.chosen.variables)],
                "most": count.chosen.most,
                "outputs": count.chosen.outputs,
                "trials": [dict(sizes) for sizes in count.chosen.trials],
                "graphs": count.graphs,
                **{step: count.left[step] for step in STEPS},
                "parallel": count.parallel,
                "proved": count.proved,
                "rules": [write_rule(each.rule) for each in generated.rules if each.origin == count.chosen.name],
            }
            for count in generated.counts
        ],
    }


def _variable(tensor: Tensor) -> str:
    dims = (dim if degree == 1 else f"{dim}/{degree}" for dim, degree in zip(tensor.dims, tensor.degrees, strict=True))
    return f"{tensor.name}[{', '.join(dims)}]" + ("" if tensor.replicas == 1 else f"*{tensor.replicas}")


def written(generated: Generated) -> str:
    """`to_json` as the text of a file."""
    return json.dumps(to_json(generated), indent=1, ensure_ascii=False) + "\n"
