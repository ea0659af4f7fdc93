"""Writes a pair of expressions as a rule: names, the most general sizes, and conditions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ...formulation.substitution.arithmetic import Modular
from ...formulation.substitution.evaluate import evaluate
from ...formulation.substitution.rule import PARALLEL, Apply, Rule, Tensor
from ...formulation.substitution.sizes import Size
from ...formulation.substitution.trial import random_inputs, trial
from ...model.errors import PartitaError
from ...model.operators.sharded import count as cuts
from .expressions import Expression, Pair, Side, kinds_of, read, renamed, size, walk
from .operator_sets import OperatorSet
from .shapes import Dims, Sizes, letters, shaped


def sides_in_order(pair: Pair, chosen: OperatorSet) -> Pair:
    """Put first the side that reads all variables, is not a bare variable, and has fewer (parallel) operators.

    Ties go to the side that ends in a compute operator. Variables of one state are named in order of appearance.
    """

    def rank(one: Side) -> tuple[Any, ...]:
        other = pair[1] if one is pair[0] else pair[0]
        bare = all(isinstance(e, int) for e in one)
        last = all(isinstance(e, int) or chosen.operations[e[0]].op in PARALLEL for e in one)
        texts = tuple(_text(e, chosen) for e in one)
        return (not read(one) >= read(other), bare, _parallel(one, chosen), size(one), last, texts)

    first, second = sorted(pair, key=rank)
    order = _appearance((first, second))
    names: dict[int, int] = {}
    for kind in kinds_of(chosen.variables):
        met = sorted((v for v in kind if v in order), key=order.__getitem__)
        names |= dict(zip(met, kind, strict=False))
    a, b = (tuple(renamed(e, names, frozenset()) for e in one) for one in (first, second))
    return a, b


def _text(expression: Expression, chosen: OperatorSet) -> str:
    if isinstance(expression, int):
        return chosen.variables[expression].name
    operands = ", ".join(_text(e, chosen) for e in expression[2:])
    return f"{chosen.operations[expression[0]]}.{expression[1]}({operands})"


def is_parallel(pair: Pair, chosen: OperatorSet) -> bool:
    """True if a side has a parallel operator."""
    return any(_parallel(one, chosen) for one in pair)


def _parallel(one: Side, chosen: OperatorSet) -> int:
    return sum(chosen.operations[e[0]].op in PARALLEL for e in _applications(one))


def _applications(one: Side) -> list[Expression]:
    """The distinct applications of a side, operands first."""
    return list(dict.fromkeys((e[0], 0, *e[2:]) for e in walk(one) if not isinstance(e, int)))


def rules(pair: Pair, chosen: OperatorSet) -> Iterator[Rule]:
    """The pair as rules, the most general first: only required equalities, then even halves, then all dims equal.

    Only rules that hold at trial sizes.
    """
    ordered = sides_in_order(pair, chosen)
    for halves, uniform in ((False, False), (True, False), (True, True)):
        rule = _written(ordered, chosen, halves, uniform)
        if rule is not None and _holds(rule):
            yield rule


def _written(pair: Pair, chosen: OperatorSet, halves: bool, uniform: bool) -> Rule | None:
    sizes = Sizes()
    used = sorted(read(pair[0]) | read(pair[1]), key=_appearance(pair).__getitem__)
    dims = {v: _begun(chosen.variables[v], sizes, uniform) for v in used}
    sides, results = [], []
    for one in pair:
        shapes = _shapes(one, chosen, sizes, dims, halves)
        if shapes is None:
            return None
        results.append([shapes[e] for e in one])
        sides.append(shapes)
    if not all(map(sizes.equate, *((s for shape in side for s in shape) for side in results))) or not sizes.finish():
        return None
    solved = {v: tuple(map(sizes.now, shape)) for v, shape in dims.items()}
    short = letters(s for shape in solved.values() for x in shape for term, _ in x.terms for s in term)
    tensors = tuple(
        replace(chosen.variables[v], dims=tuple(str(size.substitute(short)) for size in solved[v])) for v in used
    )

    def final(size: Size) -> str:
        return str(sizes.now(size).substitute(short))

    names = {v: chosen.variables[v].name for v in used}
    outputs, numbers = _outputs(pair, names), (count(), count())
    source, target = (
        _applies(one, chosen, names | dict(zip(one, out, strict=True)), shapes, final, halves=halves, numbers=numbers)
        for one, out, shapes in zip(pair, outputs, sides, strict=True)
    )
    rule = Rule("generated", tensors, source, target, tuple(zip(*outputs, strict=True)))
    return replace(rule, where=_where(rule))


def _appearance(pair: Pair) -> dict[int, int]:
    """The variables of a pair, numbered in order of appearance."""
    return {v: n for n, v in enumerate(dict.fromkeys(e for e in walk(pair[0] + pair[1]) if isinstance(e, int)))}


def _begun(variable: Tensor, sizes: Sizes, uniform: bool) -> Dims:
    """A symbol per dim that is not a number."""
    return tuple(Size.of(int(d)) if d.isdigit() else Size.of(d) if uniform else sizes.fresh() for d in variable.dims)


def _shapes(
    one: Side, chosen: OperatorSet, sizes: Sizes, dims: Mapping[int, Dims], halves: bool
) -> dict[Expression, Dims] | None:
    found: dict[Expression, Dims] = dict(dims)
    for application in _applications(one):
        operation = chosen.operations[application[0]]
        operands = [found[e] for e in application[2:]]
        made = shaped(operation.op, sizes, dict(operation.attributes), operands, halves)
        if made is None:
            return None
        made *= operation.results if len(made) == 1 else 1
        found |= {(application[0], place, *application[2:]): shape for place, shape in enumerate(made)}
    return found


def _outputs(pair: Pair, names: Mapping[int, str]) -> list[list[str]]:
    """The output names of both sides: equal unless one is a variable."""
    taken = ["out"] if len(pair[0]) == 1 else [f"out{number}" for number in range(len(pair[0]))]
    return [[names[e] if isinstance(e, int) else t for e, t in zip(one, taken, strict=True)] for one in pair]


def _results(application: Expression, chosen: OperatorSet) -> list[Expression]:
    return [(application[0], place, *application[2:]) for place in range(chosen.operations[application[0]].results)]


def _statements(one: Side, chosen: OperatorSet) -> list[list[Expression]]:
    """The applications of a side by line of text: the one assigned, after the calls nested in it."""
    order = _applications(one)
    reads = Counter(e for application in order for e in application[2:])

    def assigned(application: Expression) -> bool:
        results = _results(application, chosen)
        return len(results) > 1 or results[0] in one or reads[results[0]] > 1

    def inside(application: Expression) -> list[Expression]:
        operands = (e for e in application[2:] if not isinstance(e, int) and e[1] == 0)
        return [*(i for e in operands if not assigned(e) for i in inside(e)), application]

    return [inside(application) for application in order if assigned(application)]


def _inner(statement: Sequence[Expression]) -> Iterator[Expression]:
    """The calls nested in a line, in reading order: each before its operands."""
    within = set(statement)

    def visit(application: Expression) -> Iterator[Expression]:
        for operand in application[2:]:
            if operand in within:
                yield operand
                yield from visit(operand)

    return visit(statement[-1])


def _applies(
    one: Side,
    chosen: OperatorSet,
    known: Mapping[Expression, str],
    shapes: Mapping[Expression, Dims],
    final: Any,
    halves: bool,
    numbers: tuple[Iterator[int], Iterator[int]],
) -> tuple[Apply, ...]:
    """The applications of a side. `known` names variables and outputs, `numbers` other assigned and nested values."""
    shared, inner = numbers
    names, applies = dict(known), []
    for statement in _statements(one, chosen):
        for result in _results(statement[-1], chosen):
            names[result] = names.get(result) or f"h{next(shared)}"
        names |= {result: f"_{next(inner)}" for result in _inner(statement)}
        for application in statement:
            operation, results = chosen.operations[application[0]], _results(application, chosen)
            attributes = dict(operation.attributes)
            dim = attributes.get("dim")
            if operation.op == "split" and not halves and isinstance(dim, int):
                attributes = {"dim": dim, "sizes": tuple(_plain(final(shapes[r][dim])) for r in results)}
            reads, makes = tuple(names[e] for e in application[2:]), tuple(names[r] for r in results)
            applies.append(Apply(operation.op, reads, makes, tuple(attributes.items())))
    return tuple(applies)


def _plain(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def trial_sizes(rule: Rule, degree: int) -> dict[str, int]:
    """Distinct values of all symbols, each divisible by the square of the degree."""
    symbols = sorted({s for t in rule.inputs for x in (*t.dims, *t.degrees, t.replicas) for s in Size.of(x).symbols})
    parallel = any(name == "degree" for a in rule.applies for name, _ in a.attributes)
    step = degree * degree if parallel else 1
    spatial = {s for t in rule.inputs if len(t.dims) == 4 for x in t.dims[2:] for s in Size.of(x).symbols}
    found = {s: step * (2 + number) + (s in spatial) for number, s in enumerate(s for s in symbols if s != "d")}
    return found | {"d": degree}


def _holds(rule: Rule) -> bool:
    try:
        return all(trial(rule, trial_sizes(rule, degree), Modular()).holds for degree in (2, 3))
    except PartitaError:
        return False


def _where(rule: Rule) -> tuple[str, ...]:
    """Divisibility conditions: every input dim that is cut in some value."""
    sizes = trial_sizes(rule, 2)
    try:
        inputs = random_inputs(rule, sizes, Modular())
        values = [v for side in rule.sides for v in evaluate(side, inputs, Modular(), sizes).values()]
    except PartitaError:
        return ()
    by_value = {Size.of(x).at(sizes): x for t in rule.inputs for x in t.dims}
    most: dict[str, int] = {}
    for value in values:
        for n, digits in zip(value.shape, value.digits, strict=True):
            power = cuts(digits).bit_length() - 1
            if power and n in by_value:
                most[by_value[n]] = max(most.get(by_value[n], 0), power)
    return tuple(f"{'*'.join(['d'] * power)} divides {name}" for name, power in sorted(most.items()))
