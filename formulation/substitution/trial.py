"""Runs both sides of a rule on the same inputs: at given sizes, at small ones, or at random ones.

Agreement proves nothing. A difference in the finite field means that the rule does not hold for opaque functions; in
floats, that it is false in PyTorch too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...model.errors import PartitaError
from ...model.operators.operator import algebra_of, find_operator
from ...model.operators.sharded import Arithmetic, IllTyped
from .arithmetic import Real
from .evaluate import bound, evaluate, evaluation, names_of_size
from .moves import MOVES
from .rule import Apply, Rule, Tensor, Value
from .sizes import Size
from .symbolic.infer import SIZES, Typed, concrete, free_atoms, ranks
from .symbolic.types import Stuck
from .text import condition_parts
from .values import ParallelValue

TOLERANCE = 1e-9  # for floats, relative to the largest entry
MAX_ENTRIES = 20_000  # of an input
ATTEMPTS = 4  # draws of sizes per small trial
RANDOM_TRIALS = 400
SCALARS = ("value", "slope", "alpha", "scale", "min", "max", "min_val", "max_val")  # attributes that hold numbers
_PASSING = (*MOVES, "view", "permute", "cat", "split", "slice", "contiguous")
_ROW_BY_ROW = ("linear", "matmul", "softmax", "log_softmax", "layer_norm", "rms_norm")


@dataclass(frozen=True, slots=True)
class RuleTrial:
    """A rule at given values of its symbols, its inputs by name, and both sides' outputs in the rule's order."""

    rule: Rule
    sizes: Mapping[str, int]
    inputs: Mapping[str, ParallelValue]
    source: tuple[ParallelValue, ...]
    target: tuple[ParallelValue, ...]

    @property
    def agrees(self) -> tuple[bool, ...]:
        """Which outputs are equal: exactly in the field, up to TOLERANCE in floats."""
        pairs = zip(self.source, self.target, strict=True)
        return tuple(a.same(b, TOLERANCE if a.array.dtype.kind == "f" else 0.0) for a, b in pairs)

    @property
    def holds(self) -> bool:
        return all(self.agrees)

    def difference(self) -> int | None:
        """The index of the first output whose states or finite values differ; None if all agree.

        On inputs from -1 to 1, where nothing overflows, the target must also be finite where the source is.
        """
        small = all(np.all(np.abs(value.array) <= 1) for value in self.inputs.values())
        for number, (a, b) in enumerate(zip(self.source, self.target, strict=True)):
            if a.state != b.state:
                return number
            finite = np.isfinite(a.array) & np.isfinite(b.array)
            if small and not finite[np.isfinite(a.array)].all():
                return number
            top = 1 + float(np.max(np.abs(b.array[finite]), initial=0.0))
            if bool(np.any(np.abs(a.array[finite] - b.array[finite]) > TOLERANCE * top)):
                return number
        return None


def trial(rule: Rule, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int = 0) -> RuleTrial:
    """Run both sides on random inputs. Raises IllTyped that names the side that does not apply."""
    return _run(rule, sizes, arithmetic, random_inputs(rule, sizes, arithmetic, seed))


def _run(
    rule: Rule, sizes: Mapping[str, int], arithmetic: Arithmetic, inputs: Mapping[str, ParallelValue]
) -> RuleTrial:
    sides = []
    for word, side, names in zip(("source", "target"), rule.sides, zip(*rule.outputs, strict=True), strict=True):
        try:
            values = evaluate(side, inputs, arithmetic, sizes)
        except IllTyped as error:
            raise IllTyped(f"rule {rule.name!r}, {word}: {error}") from None
        sides.append(tuple(values[name] for name in names))
    return RuleTrial(rule, sizes, inputs, *sides)


def small_trials(typed: Typed, count: int, seed: int = 0) -> Iterator[RuleTrial]:
    """The rule at up to `count` small sizes at which both sides apply."""
    atoms = free_atoms(typed)
    rng = np.random.default_rng(seed)
    found = 0
    for number in range(count * ATTEMPTS):
        drawn = draw(typed, atoms, rng, number)
        made = trial_at(typed, drawn, seed + number) if drawn is not None else None
        if made is not None:
            yield made
            found += 1
            if found == count:
                return


def degrees(typed: Typed) -> frozenset[str]:
    """The symbols that stand for degrees or numbers of replicas."""
    unifier = typed.unifier
    names = {name for d in typed.rule.degrees if isinstance(d, str | int) for name in Size.of(d).symbols}
    return frozenset(names | {s for name in names for s in unifier.size((name,)).symbols})


def draw(typed: Typed, atoms: tuple[str, ...], rng: np.random.Generator, number: int) -> dict[str, int] | None:
    """Values of the free atoms: first all distinct, then small ones, 1 included; None if a condition fails."""
    counts = degrees(typed)
    reach = max((n for apply in typed.rule.applies for n in _reach(apply)), default=0)
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
    """True if no size is below 1 and no condition of the rule fails."""
    unifier = typed.unifier
    for atom in unifier.sizes:
        size = unifier.size((atom,))
        if size.symbols <= values.keys() and size.at(values) < 1:
            return False
    for condition in typed.rule.where:
        stated = condition_parts(condition)
        word = stated[1]
        sizes = [s.substitute({n: unifier.size((n,)) for n in s.symbols}) for s in (stated[0], stated[2])]
        if all(s.symbols <= values.keys() for s in sizes):
            left, right = (s.at(values) for s in sizes)
            if not _holds(left, word, right):
                return False
    return True


def trial_at(
    typed: Typed, values: Mapping[str, int], seed: int, arithmetic: Arithmetic | None = None
) -> RuleTrial | None:
    """Run both sides on simple numbers; None if a side does not apply at these sizes."""
    try:
        rule, shapes, symbols = concrete(typed, values)
    except Stuck:
        return None
    if any(np.prod(shape) > MAX_ENTRIES for shape in shapes.values()):
        return None
    tensors = tuple(
        replace(t, dims=tuple(map(str, shapes[t.name][1:])), replicas=shapes[t.name][0]) for t in rule.inputs
    )
    return _simple_trial(replace(rule, inputs=tensors), symbols, seed, arithmetic or Real())


def random_trials(rule: Rule) -> Iterator[RuleTrial]:
    """The rule at random sizes at which both sides happen to apply; undeclared inputs get any size."""
    rng = np.random.default_rng(0)
    declared = ranks(rule)
    names = _symbols(rule)
    for number in range(RANDOM_TRIALS):
        symbols = {name: int(rng.integers(2, 5)) for name in names}
        pool = [int(rng.choice([2, 2, 3, 4, 4, 6])) for _ in range(2 + number % 3)]
        tensors = tuple(
            t if t.dims else Tensor(t.name, tuple(str(int(rng.choice(pool))) for _ in range(declared[t.name])))
            for t in rule.inputs
        )
        made = _simple_trial(replace(rule, inputs=tensors), symbols, number, Real())
        if made is not None:
            yield made


def _symbols(rule: Rule) -> list[str]:
    """The symbols of sizes and degrees, in order of appearance."""
    found: dict[str, None] = {}
    values: list[object] = [d for t in rule.inputs for d in (*t.dims, *t.degrees, t.replicas)]
    values += [value for apply in rule.applies for key, value in apply.attributes if key in SIZES]
    while values:
        value = values.pop(0)
        if isinstance(value, tuple):
            values += value
        elif isinstance(value, str):
            try:
                found.update(dict.fromkeys(sorted(Size.of(value).symbols)))
            except PartitaError:
                continue
    return list(found)


def _simple_trial(rule: Rule, symbols: Mapping[str, int], seed: int, arithmetic: Arithmetic) -> RuleTrial | None:
    """Run a rule on multiples of 1/4 from -1 to 1, with odd seeds on multiples of 2 from -8 to 8.

    None if a side does not apply, or an operator has no evaluation.
    """
    try:
        drawn = _scalars(rule, symbols, seed)
        if drawn is None:
            return None
        symbols = {**symbols, **drawn}
        rule = replace(_with_numbers(rule, symbols), where=())
        inputs = random_inputs(rule, symbols, arithmetic, seed)
        if isinstance(arithmetic, Real):
            inputs = {name: _rounded(value, 8 if seed % 2 else 1) for name, value in inputs.items()}
        with np.errstate(all="ignore"):
            return _run(rule, symbols, arithmetic, inputs)
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _with_numbers(rule: Rule, symbols: Mapping[str, int]) -> Rule:
    """The rule with numbers for all sizes and degrees."""

    def of(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return Size.of(value).at(symbols) if isinstance(value, str) else value

    def tensor(t: Tensor) -> Tensor:
        dims = tuple(str(of(d)) for d in t.dims)
        return Tensor(t.name, dims, tuple(int(str(of(d))) for d in t.degrees), int(str(of(t.replicas))))

    def attribute(name: str, value: Value) -> Value:
        result: Value = of(value) if name in SIZES else bound(value, symbols)
        return result

    return rule.map(lambda apply: apply.map(attribute), inputs=tuple(map(tensor, rule.inputs)))


def can_run(rule: Rule) -> bool:
    """True if all operators of a rule can be evaluated."""
    return all(apply.op in MOVES or evaluation(apply.op) is not None for apply in rule.applies)


def _rounded(value: ParallelValue, times: int) -> ParallelValue:
    array = value.array if value.array.dtype.kind == "i" else np.round(value.array * 4) / 4 * times
    return ParallelValue(array, value.digits)


def _scalars(rule: Rule, symbols: Mapping[str, int], seed: int) -> dict[str, int] | None:
    """Whole numbers, negative ones too, for symbols that are factors or addends; None if a condition fails."""
    values = [value for apply in rule.applies for key, value in apply.attributes if key in SCALARS]
    names = sorted(
        {name for value in values if isinstance(value, str) for name in names_of_size(value)} - symbols.keys()
    )
    rng = np.random.default_rng([seed, len(names)])
    drawn = {name: int(rng.integers(-3, 4)) for name in names}
    for condition in rule.where:
        left, word, right = condition_parts(condition)
        known, mentioned = {**symbols, **drawn}, left.symbols | right.symbols
        if mentioned & drawn.keys() and mentioned <= known.keys() and not _holds(left.at(known), word, right.at(known)):
            return None
    return drawn


def _holds(a: int, word: str, b: int) -> bool:
    """Whether a condition holds of two numbers."""
    return {"==": a == b, ">=": a >= b, "divides": a > 0 and b % a == 0}[word]


def random_inputs(
    rule: Rule, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int = 0
) -> dict[str, ParallelValue]:
    """Random tensors of the declared sizes and states; ids are valid row numbers of their table.

    Raises PartitaError for a tensor without declared sizes, or a symbol without a value.
    """
    rows = dict(_ids(rule, sizes))
    return {
        tensor.name: random_tensor(tensor, sizes, arithmetic, seed + number, rows.get(tensor.name))
        for number, tensor in enumerate(rule.inputs)
    }


def random_tensor(
    tensor: Tensor, sizes: Mapping[str, int], arithmetic: Arithmetic, seed: int, rows: int | None = None
) -> ParallelValue:
    if not tensor.dims:
        raise PartitaError(f"tensor {tensor.name} has no sizes: declare them, as in {tensor.name}[b, k]")
    replicas, *shape = (_number(size, sizes, tensor.name) for size in (tensor.replicas, *tensor.dims))
    degrees = [_number(degree, sizes, tensor.name) for degree in tensor.degrees]
    if rows is None:
        return ParallelValue.of(arithmetic.random((replicas, *shape), seed), degrees)
    ids = np.random.default_rng([seed, replicas, *shape]).integers(0, rows, (replicas, *shape))
    return ParallelValue.of(ids, degrees)


def _number(expression: str | int, sizes: Mapping[str, int], name: str) -> int:
    size = Size.of(expression)
    missing = sorted(size.symbols - set(sizes))
    if missing:
        raise PartitaError(f"tensor {name}: no value for the size {', '.join(missing)}")
    return size.at(sizes)


def _ids(rule: Rule, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(input that holds row numbers, rows of its smallest table)."""
    known = {t.name: _number(t.dims[0], sizes, t.name) if len(t.dims) > 1 else 1 for t in rule.inputs if t.dims}
    found: dict[str, int] = {}
    for side in rule.sides:
        makers = {name: apply for apply in side for name in apply.outputs}
        for apply in side:
            if not algebra_of(apply.op).table:
                continue
            rows = _rows(apply.inputs[0], makers, known)
            for name in _origins(apply.inputs[1], makers):
                found[name] = min(found.get(name, rows), rows)
    return iter(found.items())


def _rows(name: str, makers: Mapping[str, Apply], known: Mapping[str, int]) -> int:
    """A lower bound on the rows of a table made of inputs; 1 if unknown."""
    made = makers.get(name)
    if made is None:
        return known.get(name, 1)
    rows = [_rows(part, makers, known) for part in made.inputs]
    entry = find_operator(made.op)
    if entry is not None and isinstance(entry.notation, str) and entry.notation.startswith("y[i..] = "):
        return max(rows)  # elementwise, broadcast
    if made.op in _ROW_BY_ROW:
        return rows[0]
    if made.op not in _PASSING:
        return 1
    return sum(rows) if made.op == "cat" and made["dim"] == 0 else min(rows)


def _origins(name: str, makers: Mapping[str, Apply]) -> Iterator[str]:
    """The inputs whose elements a value is made of, through operators that only move elements."""
    made = makers.get(name)
    if made is None:
        yield name
    elif made.op in _PASSING:
        for source in made.inputs:
            yield from _origins(source, makers)
