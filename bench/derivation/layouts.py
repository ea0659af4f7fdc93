"""The sides of a parallel rule as layouts: what they compute without parallel operators, and the letters of all values.

A parallel operator changes the letter of a value on one mesh axis and leaves the value alone:

    partition R -> S(dim)     combine S(dim) -> R     replicate R -> B     reduce P -> R

A replica dim that the rule makes by a concatenation has a tensor of its own at every coordinate of an axis (`AT`), as
parallel branches have; a `reduce` adds them up. Pipeline and batch change the number of steps, which is no letter. On
which axes the operators of a rule act is searched. What the letters claim is checked on the values of a trial: parts
in the order of the axes, copies equal, addends that sum to the value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from ...formulation.strategies.row import Row
from ...formulation.substitution.arithmetic import Modular
from ...formulation.substitution.evaluate import applied, evaluate
from ...formulation.substitution.rule import PARALLEL, REPLICA, Apply, Rule, Tensor, Value
from ...formulation.substitution.trial import RuleTrial
from ...formulation.substitution.values import ParallelValue, part_sizes
from ...model.graph.layout import B, Layout, P, R, S
from ...model.operators.sharded import dim_of
from .options import Form, rows_of

AT = -1
COMMUTATIVE = ("add", "mul")
IN_TIME = ("pipeline", "batch")
FIELD = Modular()

Expression: TypeAlias = "str | Term"


class Term(NamedTuple):
    """Result number `result` of an operator on the values of expressions; a name is an input of the rule."""

    op: str
    attributes: tuple[tuple[str, Value], ...]
    result: int
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A value of a side: the expression that it is without parallel operators, one for each coordinate of an `AT` axis,
    its letters, and the axes of its replica dim, outermost first."""

    parts: tuple[Expression, ...]
    letters: Layout
    replicas: tuple[int, ...] = ()

    def moved(self, axis: int, letter: int, replicas: tuple[int, ...]) -> "Placed":
        """The same value with another letter on one axis."""
        return replace(self, letters=_with(self.letters, axis, letter), replicas=replicas)


class Operation(NamedTuple):
    """An operator with the layouts of its operands and of its result."""

    form: Form
    operands: tuple[Layout, ...]
    output: Layout


class Move(NamedTuple):
    """A value that goes from one layout to another."""

    value: Expression
    source: Layout
    target: Layout


@dataclass(frozen=True)
class Walk:
    """A side on the axes of a mesh: the values by name, what is computed and what moves."""

    values: Mapping[str, Placed]
    operations: tuple[Operation, ...] = ()
    moves: tuple[Move, ...] = ()
    taken_apart: bool = False  # a tensor with several parts is split along its replica dim

    def after(self, names: Sequence[str], results: Sequence[Placed], *, apart: bool = False) -> "Walk":
        known = {**self.values, **dict(zip(names, results, strict=True))}
        return replace(self, values=known, taken_apart=self.taken_apart or apart)


@dataclass(frozen=True)
class Sample:
    """A trial of a rule in the finite field, with the values of expressions."""

    trial: RuleTrial

    @property
    def rule(self) -> Rule:
        return self.trial.rule

    @cached_property
    def sides(self) -> tuple[dict[str, ParallelValue], ...]:
        """The values of each side by name."""
        return tuple(evaluate(side, self.trial.inputs, FIELD, self.trial.sizes) for side in self.rule.sides)

    @cached_property
    def _known(self) -> dict[Expression, np.ndarray]:
        found: dict[Expression, np.ndarray] = {}
        for name, value in self.trial.inputs.items():
            found[name] = FIELD.sum(value.array, 0)
            found |= {part(name, i): value.array[i] for i in range(value.replicas)}
        return found

    def value(self, expression: Expression) -> np.ndarray:
        """The tensor that an expression stands for; that of an input with replicas is their sum."""
        if expression not in self._known:
            assert isinstance(expression, Term)
            given = [ParallelValue.of(self.value(e)[None]) for e in expression.operands]
            made = applied(expression.op, dict(expression.attributes), given, FIELD)
            self._known[expression] = made[expression.result].array[0]
        return self._known[expression]

    def results(self, term: Term) -> int:
        """How many results the operator of a term has."""
        if term.op != "split":
            return 1
        dim = dict(term.attributes)["dim"]
        assert isinstance(dim, int)
        return len(part_sizes(dict(term.attributes), self.value(term.operands[0]).shape[dim]))

    def form(self, term: Term) -> Form:
        """An operator of a graph with the shapes of this trial."""
        shapes = tuple(self.value(e).shape for e in term.operands)
        given = dict(term.attributes)
        if term.op == "split":
            dim = given["dim"]
            assert isinstance(dim, int)
            bounds = (0, *accumulate(part_sizes(given, shapes[0][dim])))
            start, stop = bounds[term.result : term.result + 2]
            return Form(
                "slice", (("dim", dim), ("start", start), ("step", 1), ("stop", stop)), shapes, self.value(term).shape
            )
        return Form(term.op, term.attributes, shapes, self.value(term).shape)


def part(name: str, number: int) -> str:
    """The name of one replica of an input."""
    return f"{name}_{number}"


def term(op: str, attributes: Sequence[tuple[str, Value]], result: int, operands: Sequence[Expression]) -> Term:
    """A term with the operands of commutative operators in one order."""
    ordered = sorted(operands, key=repr) if op in COMMUTATIVE else operands
    return Term(op, tuple(attributes), result, tuple(ordered))


def _with(letters: Layout, axis: int, letter: int) -> Layout:
    return (*letters[:axis], letter, *letters[axis + 1 :])


class Walker:
    """Finds the walks of the sides of a sample on the axes of a mesh.

    `furthest`: for each side how many applications it came at the most, and why no further; no reason for all of them.
    """

    def __init__(self, sample: Sample, axes: tuple[int, ...]) -> None:
        self.sample, self.axes = sample, axes
        self.furthest = [(-1, ""), (-1, "")]

    def given(self) -> Iterator[dict[str, Placed]]:
        """The inputs of the rule on the mesh: on which axes they are cut, and on which one their replicas are."""
        choices = [list(self._input(tensor)) for tensor in self.sample.rule.inputs]
        for chosen in product(*choices):
            yield {t.name: placed for t, placed in zip(self.sample.rule.inputs, chosen, strict=True)}

    def _input(self, tensor: Tensor) -> Iterator[Placed]:
        cuts = [(S(d), g) for d, g in enumerate(map(int, tensor.degrees)) if g > 1]
        several = int(tensor.replicas) > 1
        readings = [P, AT] if several else [R]  # addends are the general case
        for reading in readings:
            wanted = [*cuts, *([(reading, int(tensor.replicas))] if several else [])]
            parts = (
                tuple(part(tensor.name, i) for i in range(int(tensor.replicas))) if reading == AT else (tensor.name,)
            )
            for places in product(range(len(self.axes)), repeat=len(wanted)):
                letters = [R] * len(self.axes)
                for axis, (letter, _) in zip(places, wanted, strict=True):
                    letters[axis] = letter
                if len({*places}) == len(places) and all(
                    self.axes[a] == g for a, (_, g) in zip(places, wanted, strict=True)
                ):
                    yield Placed(parts, tuple(letters), places[-1:] if several else ())

    def walks(self, number: int, given: Mapping[str, Placed]) -> Iterator[Walk]:
        """All walks of side `number` from these inputs."""
        side = self.sample.rule.sides[number]

        def go(place: int, walk: Walk) -> Iterator[Walk]:
            if place == len(side):
                self.furthest[number] = (place, "")
                yield walk
                return
            found = False
            for further in self._applied(side[place], walk):
                found = True
                yield from go(place + 1, further)
            if not found:
                self.furthest[number] = max(self.furthest[number], (place, self._reason(side[place], walk)))

        yield from go(0, Walk(given))

    def _reason(self, apply: Apply, walk: Walk) -> str:
        letters = [walk.values[name].letters for name in apply.inputs]
        if apply.op in PARALLEL or apply.get("dim") == REPLICA:
            return f"{apply.op} acts on no axis"
        if apply.op in ("cat", "split") and any(S(int(str(apply["dim"]))) in x for x in letters):
            return f"{apply.op} along a dim that is cut takes the shards in another order"
        return f"{apply.op} has no row for such operands"

    def _applied(self, apply: Apply, walk: Walk) -> Iterator[Walk]:
        values = [walk.values[name] for name in apply.inputs]
        if apply.op in IN_TIME:
            yield walk.after(apply.outputs, values)
        elif apply.op == "reduce":
            yield from self._reduced(apply, values[0], walk)
        elif apply.op in PARALLEL:
            for moved in self._moved(apply, values[0]):
                steps = tuple(Move(e, _whole_at(values[0].letters), _whole_at(moved.letters)) for e in moved.parts)
                yield replace(walk, moves=(*walk.moves, *steps)).after(apply.outputs, [moved])
        elif apply.get("dim") == REPLICA:
            yield from self._along_replicas(apply, values, walk)
        else:
            yield from self._computed(apply, values, walk)

    # Parallel operators

    def _free(self, value: Placed, degree: int) -> Iterator[int]:
        return (a for a, size in enumerate(self.axes) if size == degree and value.letters[a] == R)

    def _moved(self, apply: Apply, value: Placed) -> Iterator[Placed]:
        degree = int(str(apply["degree"]))
        if apply.op == "replicate":
            for axis in self._free(value, degree):
                yield value.moved(axis, B, (axis, *value.replicas))
            return
        letter = S(dim_of(apply["dim"], len(self.sample.value(value.parts[0]).shape)))
        cut = [a for a, x in enumerate(value.letters) if x == letter]
        if apply.op == "partition":  # the innermost cut, so the last of the axes
            yield from (
                value.moved(axis, letter, value.replicas)
                for axis in self._free(value, degree)
                if axis > max(cut, default=-1)
            )
        elif apply.op == "combine" and cut and self.axes[cut[-1]] == degree:
            yield value.moved(cut[-1], R, value.replicas)

    def _reduced(self, apply: Apply, value: Placed, walk: Walk) -> Iterator[Walk]:
        """A sum of addends is a move; copies are multiplied by their number, and branches are added up."""
        if not value.replicas or self.axes[value.replicas[0]] != int(str(apply["degree"])):
            return
        axis, *others = value.replicas
        letter, made = value.letters[axis], value.moved(axis, R, tuple(others))
        layout = _whole_at(made.letters)
        if letter == P:
            steps = tuple(Move(e, _whole_at(value.letters), layout) for e in value.parts)
            yield replace(walk, moves=(*walk.moves, *steps)).after(apply.outputs, [made])
            return
        if letter == B:
            sums = [term("scale", (("value", self.axes[axis]),), 0, (e,)) for e in value.parts]
        else:
            sums = list(accumulate(value.parts, lambda a, b: term("add", (), 0, (a, b))))[1:]
        done = tuple(Operation(self.sample.form(t), (layout,) * len(t.operands), layout) for t in sums)
        result = replace(made, parts=tuple(sums) if letter == B else (sums[-1],))
        yield replace(walk, operations=(*walk.operations, *done)).after(apply.outputs, [result])

    def _along_replicas(self, apply: Apply, values: Sequence[Placed], walk: Walk) -> Iterator[Walk]:
        """A concatenation along the replica dim puts tensors at the coordinates of an axis; a split takes them off."""
        if any(len(v.replicas) > 1 or P in v.letters for v in values):
            return
        parts = tuple(e for v in values for e in self._parts(v))
        base = [_with(v.letters, v.replicas[0], R) if v.replicas else v.letters for v in values]
        if len({*base}) > 1:
            return
        sizes = [len(parts)] if apply.op == "cat" else part_sizes(dict(apply.attributes), len(parts))
        pieces = [parts[a:b] for a, b in pairwise((0, *accumulate(sizes)))]
        apart = apply.op == "split" and len({*parts}) > 1
        for chosen in product(*(list(self._at(piece, base[0])) for piece in pieces)):
            yield walk.after(apply.outputs, chosen, apart=apart)

    def _parts(self, value: Placed) -> tuple[Expression, ...]:
        copies = self.axes[value.replicas[0]] if value.replicas and len(value.parts) == 1 else 1
        return value.parts * copies

    def _at(self, parts: tuple[Expression, ...], letters: Layout) -> Iterator[Placed]:
        """Tensors at the coordinates of some axis; equal ones are copies."""
        if len(parts) == 1:
            yield Placed(parts, letters)
            return
        for axis in self._free(Placed(parts, letters), len(parts)):
            if len({*parts}) == 1:
                yield Placed(parts[:1], _with(letters, axis, B), (axis,))
            else:
                yield Placed(parts, _with(letters, axis, AT), (axis,))

    # Operators

    def _computed(self, apply: Apply, values: Sequence[Placed], walk: Walk) -> Iterator[Walk]:
        apart = {a for v in values for a, letter in enumerate(v.letters) if letter == AT}
        if len(apart) > 1 or any(v.letters[a] not in (AT, B) for v in values for a in apart):
            return
        count = self.axes[min(apart)] if apart else 1
        each = [v.parts if len(v.parts) == count else v.parts * count for v in values]
        order = sorted(range(len(values)), key=lambda i: repr(each[i][0])) if apply.op in COMMUTATIVE else None
        inputs = tuple(_whole_at(values[i].letters, apart) for i in order or range(len(values)))
        results = list[list[tuple[Placed, list[Operation]]]]()
        for number in range(len(apply.outputs)):
            terms = tuple(term(apply.op, apply.attributes, number, x) for x in zip(*each, strict=True))
            forms = [self.sample.form(t) for t in terms]
            letters = product(
                *(
                    [AT] if a in apart else _outputs([x[a] for x in inputs], rows_of(forms[0]))
                    for a in range(len(self.axes))
                )
            )
            placed = [Placed(terms, given, _replicas(values, given)) for given in letters]
            results.append([(x, [Operation(f, inputs, _whole_at(x.letters, apart)) for f in forms]) for x in placed])
        for chosen in product(*results):
            done = tuple(operation for _, those in chosen for operation in those)
            yield replace(walk, operations=(*walk.operations, *done)).after(apply.outputs, [x for x, _ in chosen])

    # What the letters claim

    def fault(self, number: int, walk: Walk) -> str:
        """The first value of a side that is not what its letters say; empty if there is none."""
        for name, value in self.sample.sides[number].items():
            if name in walk.values and not self._holds(value, walk.values[name]):
                return f"{name} is {value}, which is not what its layout {walk.values[name].letters} says"
        return ""

    def _holds(self, value: ParallelValue, placed: Placed) -> bool:
        for dim, digits in enumerate(value.digits):
            parts = prod(self.axes[a] for a, letter in enumerate(placed.letters) if letter == S(dim))
            if prod(digit.degree for digit in digits if not digit.time) != parts:
                return False
        sizes = [self.axes[a] for a in placed.replicas]
        if prod(sizes) != value.replicas:
            return False
        array = value.array.reshape(*sizes, *value.shape)
        for place in reversed(range(len(sizes))):
            if placed.letters[placed.replicas[place]] == P:
                array = FIELD.sum(array, place)
        left = [a for a in placed.replicas if placed.letters[a] != P]
        for index in product(*(range(self.axes[a]) for a in left)):
            number = next((i for a, i in zip(left, index, strict=True) if placed.letters[a] == AT), 0)
            if not np.array_equal(array[index], self.sample.value(placed.parts[number])):
                return False
        return True


def _whole_at(letters: Layout, apart: Collection[int] = ()) -> Layout:
    """The layout of one branch, which is whole at its coordinate of the axis on which they are apart."""
    return tuple(R if letter == AT or axis in apart else letter for axis, letter in enumerate(letters))


def _outputs(inputs: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """What an operator may give on one axis where it reads these letters."""
    return list(dict.fromkeys(row.output for row in rows if row.inputs == tuple(inputs) and not row.special))


def _replicas(values: Sequence[Placed], letters: Layout) -> tuple[int, ...]:
    """The axes of a result's replica dim: those of summed indices, then those that all operands have."""
    surplus = [a for a in values[0].replicas if letters[a] in (B, P, AT) and all(a in v.replicas for v in values)]
    return (*(a for a, letter in enumerate(letters) if letter in (B, P, AT) and a not in surplus), *surplus)
