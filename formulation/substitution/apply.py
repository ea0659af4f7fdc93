"""Applies rules to small graphs: finds matches of the source and replaces them by the target.

A rule's sizes, degrees and replicas must match the states of the graph's values, which are inferred again after every
application: a proof holds only for the declared states, and the graph may be partitioned already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...model.errors import PartitaError
from ...model.operators.sharded import IllTyped, count
from .arithmetic import Modular
from .evaluate import bound, evaluate
from .rule import PARALLEL, Apply, Rule, Tensor, Value
from .sizes import Size
from .text import condition_parts, parse_rule
from .trial import random_tensor
from .values import ParallelValue


@dataclass(frozen=True)
class Graph:
    """Applications in topological order on `inputs`, whose sizes and states are numbers, with their `outputs`.

    Raises PartitaError if an operator does not apply.
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
        """Parse rule notation: a line of inputs with their sizes, `x[4, 8/2]`, then statements."""
        inputs, *body = (line for line in text.splitlines() if line.strip())
        rule = parse_rule("\n".join(["graph:", inputs, *body, "=>", *body, f"outputs {', '.join(outputs)}"]))
        return Graph(rule.inputs, rule.source, outputs)

    @cached_property
    def states(self) -> Mapping[str, ParallelValue]:
        """A value of the state of every name: shape, digits of its dims, replicas."""
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
    """One match: the graph's value for each of the source's, the values of symbols, the matched operators."""

    values: Mapping[str, str]
    sizes: Mapping[str, int]
    places: tuple[int, ...]


def matches(rule: Rule, graph: Graph, sizes: Mapping[str, int] | None = None) -> Iterator[Match]:
    """All matches of a rule's source in the graph, in the order of its operators.

    `sizes` fixes symbols in advance, also those that only the target has (a degree).
    """
    for values, places in _places(rule.source, graph, {}, ()):
        found = _sizes(rule, graph, values, places, sizes or {})
        if found is not None:
            yield Match(values, found, places)


def _places(
    source: Sequence[Apply], graph: Graph, values: Mapping[str, str], places: tuple[int, ...]
) -> Iterator[tuple[Mapping[str, str], tuple[int, ...]]]:
    """All assignments of the source's operators to the graph's with the same dataflow; attributes are ignored."""
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
    """Values of a rule's symbols that fit the match and its conditions; None if there are none."""
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
    """Solve pairs (expression, required value) for their symbols; None if they cannot be solved one by one."""
    found, waiting = dict(given), list(equal)
    while waiting:
        unsolved: list[tuple[Value, Value]] = []
        for mine, its in waiting:
            if isinstance(mine, tuple) and isinstance(its, tuple):
                if len(mine) != len(its):
                    return None
                unsolved += zip(mine, its, strict=True)
            elif not isinstance(mine, str) or not isinstance(its, int):
                if mine != its:
                    return None
            elif not _unified(Size.of(mine), its, found):
                return None
            elif Size.of(mine).symbols - found.keys():
                unsolved.append((mine, its))
        if unsolved == waiting:
            return None  # several unknown symbols in one expression
        waiting = unsolved
    return found


def _unified(size: Size, number: int, found: dict[str, int]) -> bool:
    """True if a size can equal a number; binds its only unknown symbol if that is linear."""
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
    """True if a condition holds. Raises PartitaError for a symbol without a value."""
    a, word, b = condition_parts(text)
    missing = sorted((a.symbols | b.symbols) - sizes.keys())
    if missing:
        raise PartitaError(f"condition {text!r}: give a number for {', '.join(missing)}")
    left, right = a.at(sizes), b.at(sizes)
    if word == "divides":
        return right % left == 0
    return left == right if word == "==" else left >= right


def apply_rule(rule: Rule, graph: Graph, match: Match) -> Graph:
    """Replace a match by the target and drop unused operators.

    Results keep the names of what they replace. Raises PartitaError if the target has a symbol without a value, does
    not apply to these states, changes a result's state, or would read its own result.
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
    """Merge equal applications."""
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
    """An operator of the target on the graph's values, with symbols evaluated; extends `made` by its results."""
    lacking = [name for name in apply.inputs if name not in made]
    if lacking:
        raise PartitaError(f"rule {rule.name!r}: {lacking[0]} is not a value of the source, so it is not bound")
    inputs = tuple(made[name] for name in apply.inputs)
    for name in apply.outputs:
        made[name] = _fresh(name, taken)
        taken.add(made[name])
    attributes = tuple((name, bound(value, sizes)) for name, value in apply.attributes)
    if apply.op in PARALLEL and not all(isinstance(value, int) for name, value in attributes if name == "degree"):
        raise PartitaError(f"rule {rule.name!r}: give a number for {dict(attributes)['degree']}")
    return Apply(apply.op, inputs, tuple(made[name] for name in apply.outputs), attributes)


def _fresh(name: str, taken: set[str]) -> str:
    """A free name: the target's, if free; unnamed values are numbered."""
    if name not in taken and not name.startswith("_"):
        return name
    return next(wish for wish in (f"_{n}" for n in range(len(taken) + 1)) if wish not in taken)


def _renamed(apply: Apply, names: Mapping[str, str]) -> Apply:
    inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (apply.inputs, apply.outputs))
    return replace(apply, inputs=inputs, outputs=outputs)


def _ordered(applies: Sequence[Apply], outputs: Sequence[str], rule: Rule) -> list[Apply]:
    """The operators that the outputs need, in topological order."""
    makers = {name: apply for apply in applies for name in apply.outputs}
    done: list[Apply] = []
    waiting: set[int] = set()

    def visit(name: str) -> None:
        apply = makers.get(name)
        if apply is None or any(apply is other for other in done):
            return
        if id(apply) in waiting:
            raise PartitaError(f"rule {rule.name!r}: {name} would depend on itself")
        waiting.add(id(apply))
        for source in apply.inputs:
            visit(source)
        done.append(apply)

    for name in outputs:
        visit(name)
    return done
