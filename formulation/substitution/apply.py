"""Applying rules to small graphs: where a source matches, and the graph with the target in its place.

What a rule says of sizes, degrees and replicas is compared with the states that the graph's values have, which are
inferred anew after every application: a proof holds for the states that a rule declares, and a matched graph may be
partitioned already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...model.errors import PartitaError
from .arithmetic import Modular
from .evaluate import bound, evaluate
from .rule import PARALLEL, Apply, Rule, Tensor, Value
from .sizes import Size
from .text import condition_parts, parse_rule
from .trial import random_tensor
from .values import IllTyped, ParallelValue, count


@dataclass(frozen=True)
class Graph:
    """Applications in topological order on `inputs`, whose sizes and states are numbers; `outputs` are wanted.

    Raises PartitaError where an operator does not apply.
    """

    inputs: tuple[Tensor, ...]
    applies: tuple[Apply, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        missing = [name for name in self.outputs if name not in self.states]
        if missing:
            raise PartitaError(f"the graph does not make {missing[0]}, one of its outputs")

    @staticmethod
    def parse(text: str, *outputs: str) -> Graph:
        """Read the notation of rules: a line of inputs with their sizes, `x[4, 8/2]`, then statements."""
        inputs, *body = (line for line in text.splitlines() if line.strip())
        rule = parse_rule("\n".join(["graph:", inputs, *body, "=>", *body, f"outputs {', '.join(outputs)}"]))
        return Graph(rule.inputs, rule.source, outputs)

    @cached_property
    def states(self) -> Mapping[str, ParallelValue]:
        """A value with the state of each name: shape, digits of its dims, replicas."""
        field = Modular()
        given = {t.name: random_tensor(t, {}, field, number) for number, t in enumerate(self.inputs)}
        return evaluate(self.applies, given, field)

    def __str__(self) -> str:
        rows = [(tensor.name, self.states[tensor.name]) for tensor in self.inputs]
        rows += [(_text(apply), self.states[apply.outputs[0]]) for apply in self.applies]
        width = max(len(text) for text, _ in rows)
        return "\n".join(f"{text:<{width}}  {state}" for text, state in rows)


def _text(apply: Apply) -> str:
    quoted = ((name, f'"{value}"' if isinstance(value, str) else value) for name, value in apply.attributes)
    given = (*apply.inputs, *(f"{name}={value}" for name, value in quoted))
    return f"{', '.join(apply.outputs)} = {apply.op}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Match:
    """Where a rule applies: the graph's value for each of the source's, numbers for symbols, the matched operators."""

    values: Mapping[str, str]
    sizes: Mapping[str, int]
    places: tuple[int, ...]


def matches(rule: Rule, graph: Graph, sizes: Mapping[str, int] | None = None) -> Iterator[Match]:
    """All places where the source of a rule is in the graph, in the order of its operators.

    `sizes` gives numbers to symbols beforehand, to those that only the target has (a degree) as well.
    """
    for values, places in _places(rule.source, graph, {}, ()):
        found = _sizes(rule, graph, values, places, sizes or {})
        if found is not None:
            yield Match(values, found, places)


def _places(
    source: Sequence[Apply], graph: Graph, values: Mapping[str, str], places: tuple[int, ...]
) -> Iterator[tuple[Mapping[str, str], tuple[int, ...]]]:
    """Ways to find operators that read and make alike, attributes aside."""
    if len(places) == len(source):
        yield values, places
        return
    wanted = source[len(places)]
    for place, apply in enumerate(graph.applies):
        if place in places or _kind(apply) != _kind(wanted):
            continue
        pairs = (*zip(wanted.inputs, apply.inputs, strict=True), *zip(wanted.outputs, apply.outputs, strict=True))
        found = dict(values)
        if all(found.setdefault(name, value) == value for name, value in pairs):
            yield from _places(source, graph, found, (*places, place))


def _kind(apply: Apply) -> tuple[str, int, int]:
    return apply.op, len(apply.inputs), len(apply.outputs)


def _sizes(
    rule: Rule, graph: Graph, values: Mapping[str, str], places: Sequence[int], given: Mapping[str, int]
) -> dict[str, int] | None:
    """Numbers for the symbols of a rule that fit what is matched and its conditions; None where there are none."""
    equal: list[tuple[Value, Value]] = []
    for wanted, place in zip(rule.source, places, strict=True):
        mine, its = dict(wanted.attributes), dict(graph.applies[place].attributes)
        if mine.keys() != its.keys():
            return None
        equal += [(mine[name], its[name]) for name in mine]
    for tensor in rule.inputs:
        if tensor.name not in values:
            continue
        state = graph.states[values[tensor.name]]
        if any(digit.time for digits in state.digits for digit in digits):
            return None  # rules declare parts in space
        if tensor.dims:
            equal += [(tensor.dims, state.shape), (tensor.degrees, tuple(map(count, state.digits)))]
        equal.append((tensor.replicas, state.replicas))
    found = _solved(equal, given)
    return found if found is not None and all(_holds(text, found) for text in rule.where) else None


def _solved(equal: Sequence[tuple[Value, Value]], given: Mapping[str, int]) -> dict[str, int] | None:
    """Numbers with which all pairs (expression, what it must be) are equal, symbol by symbol."""
    found, waiting = dict(given), list(equal)
    while waiting:
        later: list[tuple[Value, Value]] = []
        for mine, its in waiting:
            if isinstance(mine, tuple) and isinstance(its, tuple):
                if len(mine) != len(its):
                    return None
                later += zip(mine, its, strict=True)
            elif not isinstance(mine, str) or not isinstance(its, int):
                if mine != its:
                    return None
            elif not _unified(Size.of(mine), its, found):
                return None
            elif Size.of(mine).symbols - found.keys():
                later.append((mine, its))
        if later == waiting:
            return None  # several unknown symbols in one expression
        waiting = later
    return found


def _unified(size: Size, number: int, found: dict[str, int]) -> bool:
    """Whether a size can be a number; binds the only unknown symbol of a sum in which it stands alone."""
    left = size.substitute({name: Size.of(value) for name, value in found.items()})
    if left.number is not None:
        return left.number == number
    if len(left.symbols) > 1 or any(len(names) > 1 for names, _ in left.terms):
        return True  # not yet
    (symbol,) = left.symbols
    terms = dict(left.terms)
    factor, rest = terms[symbol,], number - terms.get((), 0)
    if rest % factor or rest // factor < 1:
        return False
    found[symbol] = rest // factor
    return True


def _holds(text: str, sizes: Mapping[str, int]) -> bool:
    """Whether a condition holds. Raises PartitaError where it has a symbol that has no number."""
    a, word, b = condition_parts(text)
    missing = sorted((a.symbols | b.symbols) - sizes.keys())
    if missing:
        raise PartitaError(f"condition {text!r}: give a number for {', '.join(missing)}")
    left, right = a.at(sizes), b.at(sizes)
    if word == "divides":
        return right % left == 0
    return left == right if word == "==" else left >= right


def apply_rule(rule: Rule, graph: Graph, match: Match) -> Graph:
    """The graph with a match replaced by the target; what nothing needs any more is left out.

    Results keep the names of what they replace. Raises PartitaError where the target has a symbol without a number,
    where it does not apply to these states, where a result would have another state, or where it would read itself.
    """
    made = {tensor.name: match.values[tensor.name] for tensor in rule.inputs if tensor.name in match.values}
    taken = set(graph.states)
    added = [_instance(apply, made, taken, match.sizes, rule) for apply in rule.target]
    instead = {match.values[source]: made[target] for source, target in rule.outputs}
    old = [replace(apply, inputs=tuple(instead.get(name, name) for name in apply.inputs)) for apply in graph.applies]
    outputs = tuple(instead.get(name, name) for name in graph.outputs)
    left = _ordered((*old, *added), outputs, rule)
    kept = {name for apply in left for name in (*apply.inputs, *apply.outputs)} | {t.name for t in graph.inputs}
    back = {new: name for name, new in instead.items() if name not in kept and new not in graph.states}
    applies = tuple(_renamed(apply, back) for apply in left)
    try:
        result = Graph(graph.inputs, applies, tuple(back.get(name, name) for name in outputs))
    except IllTyped as error:
        raise PartitaError(f"rule {rule.name!r} does not apply to these states: {error}") from error
    for name, new in instead.items():
        before, after = graph.states[name], result.states.get(back.get(new, new))
        if after is not None and after.state != before.state:
            raise PartitaError(f"rule {rule.name!r} makes {after} of {name}, which is {before}")
    return result


def shared(graph: Graph) -> Graph:
    """The graph with equal applications once."""
    made: dict[Apply, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    applies = []
    for apply in graph.applies:
        inputs = tuple(names.get(name, name) for name in apply.inputs)
        known = made.setdefault(replace(apply, inputs=inputs, outputs=()), apply.outputs)
        names |= dict(zip(apply.outputs, known, strict=True))
        if known == apply.outputs:
            applies.append(replace(apply, inputs=inputs))
    return Graph(graph.inputs, tuple(applies), tuple(names.get(name, name) for name in graph.outputs))


def _instance(apply: Apply, made: dict[str, str], taken: set[str], sizes: Mapping[str, int], rule: Rule) -> Apply:
    """An operator of the target on the graph's values, with numbers for symbols; `made` learns what it makes."""
    lacking = [name for name in apply.inputs if name not in made]
    if lacking:
        raise PartitaError(f"rule {rule.name!r}: {lacking[0]} is no value of the source, and nothing tells what it is")
    inputs = tuple(made[name] for name in apply.inputs)
    for name in apply.outputs:
        made[name] = _fresh(name, taken)
        taken.add(made[name])
    attributes = tuple((name, bound(value, sizes)) for name, value in apply.attributes)
    if apply.op in PARALLEL and not all(isinstance(value, int) for name, value in attributes if name == "degree"):
        raise PartitaError(f"rule {rule.name!r}: give a number for {dict(attributes)['degree']}")
    return Apply(apply.op, inputs, tuple(made[name] for name in apply.outputs), attributes)


def _fresh(name: str, taken: set[str]) -> str:
    """A name that is free, that of the target's value if it is; nameless ones are numbered."""
    if name not in taken and not name.startswith("_"):
        return name
    return next(wish for wish in (f"_{n}" for n in range(len(taken) + 1)) if wish not in taken)


def _renamed(apply: Apply, names: Mapping[str, str]) -> Apply:
    inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (apply.inputs, apply.outputs))
    return replace(apply, inputs=inputs, outputs=outputs)


def _ordered(applies: Sequence[Apply], outputs: Sequence[str], rule: Rule) -> list[Apply]:
    """What the outputs need, every operator behind those that it reads."""
    makers = {name: apply for apply in applies for name in apply.outputs}
    done: list[Apply] = []
    waiting: set[int] = set()

    def visit(name: str) -> None:
        apply = makers.get(name)
        if apply is None or any(apply is other for other in done):
            return
        if id(apply) in waiting:
            raise PartitaError(f"rule {rule.name!r}: {name} would be made from itself")
        waiting.add(id(apply))
        for source in apply.inputs:
            visit(source)
        done.append(apply)

    for name in outputs:
        visit(name)
    return done
