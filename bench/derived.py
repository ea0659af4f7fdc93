"""Rules with parallel operators, derived from the strategy space: both sides are among what the search compares.

Each row is a family of the shipped rules, by what the parallel operators move past; the last ones are rules that only
concatenate tensors as replicas, and Unity's examples. Columns are the verdicts of `derivation.derive`, the most axes of
a mesh that a rule takes, and seconds. The summary says what else rules take, and why others are not derived.
"""

import time
from collections import Counter
from collections.abc import Sequence

from ..formulation.rewriting.spelling import is_parallel
from ..formulation.substitution.rule import PARALLEL, REPLICA, Rule
from ..formulation.substitution.rule_file import basis
from ..formulation.substitution.text import parse_rules
from .cases import Row, Tell, each
from .derivation.derive import VERDICTS, derive
from .derivation.layouts import IN_TIME

SMALL = 0, -1  # the rules of a family

FIGURES = """
figure 10, queries by heads:
    x[b, k], w[k, n]
    y = matmul(x, w)
  =>
    y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
  where d divides n

figure 10, scores by heads:
    q[h/d, s, e], k[h/d, e, t]
    y = matmul(combine(q, dim=0, degree=d), combine(k, dim=0, degree=d))
  =>
    y = combine(matmul(q, k), dim=0, degree=d)
  where d divides h

figure 10, softmax by heads:
    x[h/d, s, t]
    y = softmax(combine(x, dim=0, degree=d), dim=2)
  =>
    y = combine(softmax(x, dim=2), dim=0, degree=d)
  where d divides h

figure 10, rows:
    a[b, h/d], w[h, n]
    y = matmul(combine(a, dim=1, degree=d), w)
  =>
    y = reduce(matmul(a, partition(w, dim=0, degree=d)), degree=d)
  where d divides h

figure 10, relu by columns:
    x[b, n/d]
    y = relu(combine(x, dim=1, degree=d))
  =>
    y = combine(relu(x), dim=1, degree=d)
  where d divides n

figure 11a:
    x[c, h, w]
    y = relu(x)
  =>
    y = combine(relu(partition(x, dim=1, degree=d)), dim=1, degree=d)
  where d divides h

figure 11b:
    x[n, m], y[n, m]
    z = add(x, y)
  =>
    z = reduce(cat(x, y, dim="replica"), degree=2)

figure 16a:
    x[b, k], w[k, n]
    y = relu(matmul(x, w))
  =>
    y = relu(reduce(matmul(partition(x, dim=1, degree=d), partition(w, dim=0, degree=d)), degree=d))
  where d divides k

figure 16b:
    x[b, k], y[b, k], v[k, n], w[k, n]
    z = matmul(cat(x, y, dim=1), cat(v, w, dim=0))
  =>
    z = reduce(matmul(cat(x, y, dim="replica"), cat(v, w, dim="replica")), degree=2)
"""
"""The examples of Unity (OSDI 2022): of Figure 10 one rule of each kind, matrices for einsums."""

MOVES_ALONE, ELEMENTWISE, CONCATENATED, ONLY_CONCATENATED, IN_STEPS, EXAMPLES = (
    "moves alone",
    "elementwise",
    "tensors as replicas",
    "only tensors as replicas",
    "in time",
    "Unity's figures",
)
OPERATORS = {"softmax": {"softmax"}, "matmul": {"matmul"}, "cat and split": {"cat", "split"}}
FAMILIES = (MOVES_ALONE, ELEMENTWISE, *OPERATORS, CONCATENATED, IN_STEPS, ONLY_CONCATENATED, EXAMPLES)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every family of rules."""
    given = families()
    if small:
        given = {name: [rules[place] for place in SMALL] for name, rules in given.items()}
    return [measure(name, given[name]) for name in each(given, only, tell, str, "family")]


def families() -> dict[str, list[Rule]]:
    """The shipped rules on which layouts decide, and Unity's examples."""
    found: dict[str, list[Rule]] = {name: [] for name in FAMILIES}
    for rule in filter(is_parallel, basis()):
        found[_family(rule)].append(rule)
    return found | {EXAMPLES: list(parse_rules(FIGURES))}


def _family(rule: Rule) -> str:
    names = {apply.op for apply in rule.applies}
    if names & {*IN_TIME}:
        return IN_STEPS
    if any(apply.get("dim") == REPLICA for apply in rule.applies):
        return CONCATENATED if names & {*PARALLEL} else ONLY_CONCATENATED
    others = names - {*PARALLEL}
    return next((name for name, those in OPERATORS.items() if others & those), ELEMENTWISE if others else MOVES_ALONE)


def measure(family: str, rules: Sequence[Rule]) -> Row:
    """How many rules of a family are derived, by verdict."""
    start = time.monotonic()
    found = [(rule.name, derive(rule)) for rule in rules]
    counts = Counter(x.verdict for _, x in found)
    return {
        "family": family,
        "rules": len(rules),
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "axes": max((x.axes for _, x in found), default=0),
        "s": time.monotonic() - start,
        "why": [(name, x.verdict, x.why) for name, x in found if x.why],
    }


def summary(rows: list[Row]) -> list[Row]:
    """What else rules take, and why others are not derived, each with the first rule."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for name, verdict, why in row.pop("why"):  # too long a list for a table
            found.setdefault((row["family"], verdict, why), []).append(name)
    return [
        {"family": family, "verdict": verdict, "why": why, "rules": len(names), "first": names[0]}
        for (family, verdict, why), names in found.items()
    ]
