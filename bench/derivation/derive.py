"""Derives a rule with parallel operators from the strategy space.

Without its parallel operators, each side is a computation, and for every value a layout. If both sides are the same
computation, they are two choices of layouts for it. Every operator of both sides, with the layouts that it reads and
gives, is looked up among the options that the planner has for it on a mesh, and every conversion among those that a
cost network prices. If all are there, the search compares the two sides by cost, and the rule adds nothing. (A detour
through other layouts is never cheaper than the conversion that the network prices; that is checked too.)

A false rule is not derived: what layouts claim is checked on values, and computations must be equal as written, or by
a rule that is proved.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod

from ...formulation.bundles.bundles import MOST_BRANCHES, find_bundles
from ...formulation.encoding.encode import encode
from ...formulation.placement.placement import placements
from ...formulation.rewriting.spelling import is_parallel
from ...formulation.substitution.rule import REPLICA, Apply, Rule, Tensor
from ...formulation.substitution.rule_file import basis
from ...formulation.substitution.symbolic.infer import free_atoms, infer
from ...formulation.substitution.trial import RuleTrial, degrees, trial_at
from ...formulation.substitution.values import ParallelValue
from ...model.errors import PartitaError
from ...model.graph.builder import Builder
from ...model.graph.layout import Layout, R
from ...model.machine.machine import Machine
from ...solvers.proof.verify import verify_rule
from ..coverage import covered
from .layouts import AT, FIELD, IN_TIME, Expression, Placed, Sample, Term, Walk, Walker
from .options import conversion_ns, offers

DEGREES = (2, 3)
SIZE = 4  # of every free size
MOST_AXES = 3

VERDICTS = ("layouts", "branches", "sequential", "micro-batches", "not derived")
"""Each side is a choice of layouts; tensors that the rule concatenates as replicas are parallel branches, which meet in
a sum; the computations differ too, and are equal by a rule without parallel operators; one side runs in steps, and
both are plans if the whole graph does, since there is one number of steps; none of these."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """One of `VERDICTS`, the number of axes of the mesh, and which rule it takes or why there is no derivation."""

    verdict: str
    axes: int = 0
    why: str = ""


def derive(rule: Rule) -> Derivation:
    """Derive a rule at every trial degree, or say what fails.

    PartitaError: an operator that graphs do not have, or that lacks attributes there.
    """
    found = [_derived(Sample(trial)) for trial in trials(rule)]
    if not found:
        return Derivation("not derived", why="no sizes at which both sides apply")
    return min(found, key=lambda x: (x.verdict != "not derived", -x.axes))


def trials(rule: Rule) -> list[RuleTrial]:
    """The rule at sizes that its degrees divide: at every trial degree, unless it states numbers, where it applies."""
    try:
        typed = infer(rule)
    except PartitaError:
        return []
    names, atoms = degrees(typed), free_atoms(typed)
    every = [{a: degree if a in names else SIZE for a in atoms} for degree in DEGREES[: None if names else 1]]
    found = [trial_at(typed, values, 0, FIELD) for values in every]
    return [trial for trial in found if trial is not None]


def _meshes(sample: Sample) -> Iterator[tuple[int, ...]]:
    """Meshes whose axes have the degrees of a rule, smaller ones first."""
    sizes = {int(str(d)) for d in sample.rule.degrees}
    for side, values in zip(sample.rule.sides, sample.sides, strict=True):
        sizes |= {values[name].replicas for a in side if a.get("dim") == REPLICA for name in a.outputs}
    for axes in range(1, MOST_AXES + 1):
        yield from product(sorted(sizes - {1}), repeat=axes)


def _derived(sample: Sample) -> Derivation:
    """Derive a trial of a rule, or say where that fails."""
    failed, furthest = list[Derivation](), [(-1, ""), (-1, "")]
    for axes in _meshes(sample):
        walker = Walker(sample, axes)
        for given in walker.given():
            for sides in _meeting(sample.rule, walker, given):
                found = _checked(walker, sides)
                if found.verdict != "not derived":
                    return found
                failed.append(found)
        furthest = [max(pair) for pair in zip(furthest, walker.furthest, strict=True)]
    reasons = [why for _, why in furthest if why]
    return failed[0] if failed else Derivation("not derived", why=(*reasons, "the sides end in different layouts")[0])


def _meeting(rule: Rule, walker: Walker, given: Mapping[str, Placed]) -> Iterator[tuple[Walk, Walk]]:
    """The walks of both sides that end in one layout of every output."""
    ends: dict[tuple[Layout, ...], Walk] = {}
    for walk in walker.walks(0, given):
        ends.setdefault(tuple(walk.values[s].letters for s, _ in rule.outputs), walk)
    for walk in walker.walks(1, given):
        other = ends.get(tuple(walk.values[t].letters for _, t in rule.outputs))
        if other is not None:
            yield other, walk


def _checked(walker: Walker, sides: tuple[Walk, Walk]) -> Derivation:
    """The verdict of two walks that meet."""
    sample, axes = walker.sample, len(walker.axes)
    for number, walk in enumerate(sides):
        fault = walker.fault(number, walk) or _not_offered(walker, walk)
        if fault:
            return Derivation("not derived", axes, fault)
    apart = [value for walk in sides for value in walk.values.values() if AT in value.letters]
    if apart:
        reason = _not_branches(walker, sides, apart)
        if reason:
            return Derivation("not derived", axes, reason)
    in_time = any(apply.op in IN_TIME for apply in sample.rule.applies)
    if in_time and (reason := _not_in_steps(sample)):
        return Derivation("not derived", axes, reason)
    pairs = [
        (a, b)
        for s, t in sample.rule.outputs
        for a, b in zip(sides[0].values[s].parts, sides[1].values[t].parts, strict=True)
        if a != b
    ]
    if pairs:
        return _by_sequential_rule(sample, pairs, axes)
    return Derivation("micro-batches" if in_time else "branches" if apart else "layouts", axes)


def _not_offered(walker: Walker, walk: Walk) -> str:
    """The first operator or conversion of a walk that the cost network does not have; empty if it has all."""
    for operation in walk.operations:
        if not offers(*operation, walker.axes):
            return f"{operation.form.op} has no option of these layouts"
    ends: dict[tuple[Expression, Layout], tuple[Layout, int]] = {}  # where the moves to a layout began, and their price
    for move in walk.moves:
        shape = walker.sample.value(move.value).shape
        start, before = ends.get((move.value, move.source), (move.source, 0))
        step, whole = (conversion_ns(shape, source, move.target, walker.axes) for source in (move.source, start))
        if step is None or whole is None:
            return "a conversion is not priced"
        if whole > before + step:
            return "a detour is cheaper than the conversion that is priced"
        ends[move.value, move.target] = start, before + step
    return ""


# Branches


def _not_branches(walker: Walker, sides: Sequence[Walk], apart: Sequence[Placed]) -> str:
    """Why tensors at the coordinates of an axis are no parallel branches of the planner; empty if they are."""
    open_ends = any(AT in sides[0].values[name].letters for name, _ in walker.sample.rule.outputs)
    if any(walk.taken_apart for walk in sides):
        return "branches end in a sum or a concatenation, and are not taken apart again"
    if open_ends and any(apply.op == "reduce" for apply in walker.sample.rule.applies):
        return "a sum of branches inside of branches"
    axes = {axis for value in apart for axis, letter in enumerate(value.letters) if letter == AT}
    every = [value.letters for walk in sides for value in walk.values.values()]
    if any(letter != R for letters in every for axis, letter in enumerate(letters) if axis not in axes):
        return "inside of branches the other axes split samples, and nothing else"
    parts = max((value.parts for value in apart), key=lambda parts: max(map(_depth, parts)))
    if len(parts) > MOST_BRANCHES:
        return f"more than {MOST_BRANCHES} branches"
    return "" if _is_bundle(walker.sample, parts, weighted=open_ends) else "these branches are no bundle"


def _depth(expression: Expression) -> int:
    return 1 + max(map(_depth, expression.operands), default=0) if isinstance(expression, Term) else 0


def _leaves(expression: Expression) -> frozenset[str]:
    if not isinstance(expression, Term):
        return frozenset((expression,))
    return frozenset[str]().union(*map(_leaves, expression.operands))


def _is_bundle(sample: Sample, parts: Sequence[Expression], weighted: bool) -> bool:
    """True if the cost network can run these parts of a sum side by side.

    What only one part reads is computed with a weight; what several read is an input of the graph. `weighted`: each
    part is also multiplied by a weight before they are added up.
    """
    b, made = Builder(), dict[Expression, int]()
    reads = [_leaves(p) for p in parts]

    def times_weight(node: int) -> int:
        shape = b.nodes[node].shape
        return b.add("mul", node, b.parameter("weight", shape), shape=shape)

    for name in sorted(frozenset[str]().union(*reads)):
        made[name] = b.input(f"in_{name}", sample.value(name).shape, batch_dim=None)
        if sum(name in those for those in reads) == 1:
            made[name] = times_weight(made[name])

    def node(e: Expression) -> int:
        if e not in made:
            assert isinstance(e, Term)
            form = sample.form(e)
            made[e] = b.add(form.op, *map(node, e.operands), shape=form.shape, **dict(form.attributes))
        return made[e]

    total, *rest = (times_weight(node(e)) if weighted else node(e) for e in parts)
    for other in rest:
        total = b.add("add", total, other, shape=b.nodes[other].shape)
    graph, axes = b.build(b.add("projection", total, shape=())), (len(parts),)
    if not any(bundle.join == total and len(bundle.ends) == len(parts) for bundle in find_bundles(graph)):
        return False
    return bool(encode(graph, Machine.adhoc(axes), placements(axes, mesh=axes)[0]).bundled)


# Sequential rules


def _by_sequential_rule(sample: Sample, pairs: Iterable[tuple[Expression, Expression]], axes: int) -> Derivation:
    """The verdict where the sides differ as computations: equal ones follow from a rule that ships, or a new one."""
    names = list[str]()
    for a, b in pairs:
        rule = _sequential(sample, a, b)
        if not any(verify_rule(one).verdict == "proved" for one in (rule, _reversed(rule))):
            return Derivation("not derived", axes, "the sides compute different tensors")
        names.append(_shipped(rule))
    return Derivation("sequential", axes, ", ".join(dict.fromkeys(names)))


def _sequential(sample: Sample, a: Expression, b: Expression) -> Rule:
    """The rule that two expressions are equal, at the sizes of the trial."""
    inputs = tuple(Tensor(n, tuple(map(str, sample.value(n).shape))) for n in sorted(_leaves(a) | _leaves(b)))

    def side(e: Expression) -> tuple[tuple[Apply, ...], str]:
        made = dict[object, tuple[str, ...]]()
        applies = list[Apply]()

        def name(x: Expression) -> str:
            if not isinstance(x, Term):
                return x
            operands = tuple(map(name, x.operands))
            key = x.op, x.attributes, operands
            if key not in made:
                made[key] = tuple(f"_{len(made)}_{n}" for n in range(sample.results(x)))
                applies.append(Apply(x.op, operands, made[key], x.attributes))
            return made[key][x.result]

        last = name(e)
        return tuple(applies), last

    (source, s), (target, t) = side(a), side(b)
    return Rule("without parallel operators", inputs, source, target, ((s, t),))


def _reversed(rule: Rule) -> Rule:
    """The rule from its target to its source: one side may read less than the other."""
    return replace(rule, source=rule.target, target=rule.source, outputs=tuple((t, s) for s, t in rule.outputs))


def _shipped(rule: Rule) -> str:
    """Which shipped rules without parallel operators prove an equality."""
    operators = {apply.op for apply in rule.applies}
    known = [r for r in basis() if not is_parallel(r) and operators.issuperset(apply.op for apply in r.applies)]
    trial = next(iter(trials(rule)), None)
    if trial is None or not covered(rule, trial.inputs, known):
        return "by a rule that does not ship"
    alone = next((other.name for other in known if covered(rule, trial.inputs, [other])), None)
    return "by several shipped rules" if alone is None else f"by {alone!r}"


# Steps in time


def _not_in_steps(sample: Sample) -> str:
    """Why the sides are not the whole graph in one step and in several; empty if they are."""
    for side, values, ends in zip(sample.rule.sides, sample.sides, zip(*sample.rule.outputs, strict=True), strict=True):
        inside = [[values[name] for name in (*a.inputs, *a.outputs)] for a in side if a.op not in IN_TIME]
        results = [values[name] for name in ends]
        if any(d.time for value in (*chain(*inside), *results) for digits in value.digits[1:] for d in digits):
            return "steps cut another dim than samples"
        counts = {max(map(_steps, those)) for those in inside}  # a weight is in one step
        if len(counts | {*map(_steps, results)} - {1}) > 1:
            return "a part of the graph runs in steps, another at once"
    return ""


def _steps(value: ParallelValue) -> int:
    """Into how many steps a value is cut."""
    return prod(digit.degree for digits in value.digits for digit in digits if digit.time)
