"""Runs a typed rule at small sizes: both sides on the same simple numbers, compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...model.operators.sharded import Arithmetic
from .arithmetic import Real
from .evaluate import bound, evaluate
from .evaluations import evaluation
from .moves import MOVES
from .rule import Apply, Rule, Tensor, Value
from .sizes import Size
from .symbolic.infer import SIZES, Typed, concrete, free_atoms
from .symbolic.types import Stuck
from .text import condition_parts
from .trial import TOLERANCE, random_inputs
from .values import ParallelValue

MOST_ENTRIES = 20_000  # per input


@dataclass(frozen=True, slots=True)
class Sample:
    """A rule with numbers for all sizes and degrees, the values of its symbols, its inputs, and both sides' outputs."""

    rule: Rule
    sizes: dict[str, int]
    inputs: dict[str, ParallelValue]
    source: list[ParallelValue]
    target: list[ParallelValue]

    def differs(self) -> int | None:
        """The index of the first output whose states or finite values differ; None if all agree."""
        for number, (a, b) in enumerate(zip(self.source, self.target, strict=True)):
            if a.state != b.state:
                return number
            finite = np.isfinite(a.array) & np.isfinite(b.array)
            top = 1 + float(np.max(np.abs(b.array[finite]), initial=0.0))
            if bool(np.any(np.abs(a.array[finite] - b.array[finite]) > TOLERANCE * top)):
                return number
        return None


def samples(typed: Typed, count: int, seed: int = 0, tries: int = 4) -> Iterator[Sample]:
    """The rule at up to `count` small sizes at which both sides apply; at most `count * tries` are drawn."""
    atoms = free_atoms(typed)
    rng = np.random.default_rng(seed)
    found = 0
    for number in range(count * tries):
        drawn = draw(typed, atoms, rng, number)
        sample = run(typed, drawn, seed + number) if drawn is not None else None
        if sample is not None:
            yield sample
            found += 1
            if found == count:
                return


def degrees(typed: Typed) -> frozenset[str]:
    """The symbols that stand for degrees or numbers of replicas."""
    unifier, rule = typed.unifier, typed.rule
    given = [a.get("degree") for side in (rule.source, rule.target) for a in side]
    given += [d for t in rule.inputs for d in (*t.degrees, t.replicas)]
    names = {name for v in given if isinstance(v, str | int) for name in Size.of(v).symbols}
    return frozenset(names | {s for name in names for s in unifier.size((name,)).symbols})


def draw(typed: Typed, atoms: tuple[str, ...], rng: np.random.Generator, number: int) -> dict[str, int] | None:
    """Values of the free atoms: first all distinct, then small ones, 1 included; None if a condition fails."""
    counts = degrees(typed)
    reach = max((n for side in (typed.rule.source, typed.rule.target) for a in side for n in _reach(a)), default=0)
    low, high = (1, 3 + reach // 2) if number % 4 else (2 + reach // 2, 5 + reach)
    values = {atom: int(rng.integers(2, 4)) if atom in counts else int(rng.integers(low, high + 1)) for atom in atoms}
    if not number % 4 and len(atoms) <= 3:
        plain = [a for a in atoms if a not in counts]
        values |= {atom: 2 + k for k, atom in enumerate(plain)}
    return values if _allowed(typed, values) else None


def _reach(apply: Apply) -> Iterator[int]:
    """How far along dims an application reads, by the numbers in its attributes."""
    for key in ("start", "stop", "kernel_size", "kernel"):
        value = apply.get(key)
        yield from (n for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, int))


def _allowed(typed: Typed, values: Mapping[str, int]) -> bool:
    unifier = typed.unifier
    for atom in unifier.sizes:
        size = unifier.size((atom,))
        if size.symbols <= values.keys() and size.at(values) < 1:
            return False
    for condition in typed.rule.where:
        left, word, right = condition_parts(condition)
        sizes = [s.substitute({n: unifier.size((n,)) for n in s.symbols}) for s in (left, right)]
        if all(s.symbols <= values.keys() for s in sizes):
            a, b = (s.at(values) for s in sizes)
            if not {"==": a == b, ">=": a >= b, "divides": a > 0 and b % a == 0}[word]:
                return False
    return True


def run(typed: Typed, values: Mapping[str, int], seed: int, arithmetic: Arithmetic | None = None) -> Sample | None:
    """Run both sides on simple numbers; None if a side does not apply at these sizes."""
    arithmetic = arithmetic or Real()
    try:
        rule, shapes, symbols = concrete(typed, values)
    except Stuck:
        return None
    if any(np.prod(shape) > MOST_ENTRIES for shape in shapes.values()):
        return None
    tensors = tuple(_numbered(t, shapes[t.name], symbols) for t in rule.inputs)
    rule = replace(rule, inputs=tensors, where=())
    return evaluated(rule, symbols, seed, arithmetic)


def _numbered(tensor: Tensor, shape: tuple[int, ...], symbols: Mapping[str, int]) -> Tensor:
    degrees = tuple(Size.of(d).at(symbols) for d in tensor.degrees) or (1,) * (len(shape) - 1)
    return Tensor(tensor.name, tuple(map(str, shape[1:])), degrees, shape[0])


def evaluated(rule: Rule, symbols: dict[str, int], seed: int, arithmetic: Arithmetic) -> Sample | None:
    """Run a rule on multiples of 1/4 from -1 to 1. None if a side does not apply."""
    try:
        rule = numbered(rule, symbols)
        inputs = random_inputs(rule, symbols, arithmetic, seed)
        if isinstance(arithmetic, Real):
            inputs = {n: _simple(v) for n, v in inputs.items()}
        with np.errstate(all="ignore"):
            sides = [evaluate(side, inputs, arithmetic, symbols) for side in (rule.source, rule.target)]
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
    ):  # it does not apply at these sizes, or an operator has no evaluation
        return None
    source, target = ([sides[k][pair[k]] for pair in rule.outputs] for k in (0, 1))
    return Sample(rule, dict(symbols), inputs, source, target)


def numbered(rule: Rule, symbols: Mapping[str, int]) -> Rule:
    """The rule with numbers for all sizes and degrees."""

    def of(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return Size.of(value).at(symbols) if isinstance(value, str) else value

    def moved(apply: Apply) -> Apply:
        return replace(
            apply, attributes=tuple((k, of(v) if k in SIZES else bound(v, symbols)) for k, v in apply.attributes)
        )

    def tensor(t: Tensor) -> Tensor:
        dims = tuple(str(of(d)) for d in t.dims)
        return Tensor(t.name, dims, tuple(int(str(of(d))) for d in t.degrees), int(str(of(t.replicas))))

    source, target = (tuple(map(moved, side)) for side in (rule.source, rule.target))
    return replace(rule, inputs=tuple(map(tensor, rule.inputs)), source=source, target=target)


def runs(rule: Rule) -> bool:
    """True if all operators of a rule can be evaluated."""
    return all(a.op in MOVES or evaluation(a.op) is not None for side in (rule.source, rule.target) for a in side)


def _simple(value: ParallelValue) -> ParallelValue:
    array = value.array if value.array.dtype.kind == "i" else np.round(value.array * 4) / 4
    return ParallelValue(array, value.digits)
