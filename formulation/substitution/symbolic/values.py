"""Symbolic parallel tensors, and how an operator applies to their shards.

A value is a function of the replica index and the global indices of its dims. An operator applies shard by shard; the
letters of its notation say which dims go together. A task has one digit of every letter that is cut; an operand that
lacks a letter has, in its replica dim, a copy for each of that letter's digits:

    matmul x[B:a, K:b, rep:(c,e)] w[K:b, N:c, rep:(a,e)] -> y[B:a, N:c, rep:(b,e)]

Digits of time need no copies, and a letter that has one cannot be summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias, TypeVar

from .indices import Index, every, take
from .terms import Poly
from .types import Mismatch, Stuck, Type, Unifier, atoms_of, product_of, written

Cut: TypeAlias = "tuple[Type, bool]"  # (degree, in time)
Digits: TypeAlias = "tuple[Cut, ...]"
At: TypeAlias = "Callable[[Index, tuple[Index, ...]], Poly]"
Letters: TypeAlias = "tuple[tuple[str, ...], ...]"  # per dim the letters of its factors; none if it is whole
Item = TypeVar("Item")


def put(items: tuple[Item, ...], place: int, item: Item) -> tuple[Item, ...]:
    """The items with another one at a place."""
    return (*items[:place], item, *items[place + 1 :])


@dataclass(frozen=True, slots=True, eq=False)
class Symbolic:
    """A parallel tensor of symbolic sizes."""

    dims: tuple[Type, ...]
    digits: tuple[Digits, ...]
    replicas: Type
    at: At

    def show(self, unifier: Unifier) -> str:
        dims = [
            written(unifier.resolve(t)) + "".join(f"/{written(unifier.resolve(c))}" + "t" * time for c, time in ds)
            for t, ds in zip(self.dims, self.digits, strict=True)
        ]
        replicas = unifier.resolve(self.replicas)
        return f"[{', '.join(dims)}]" + (f" x {written(replicas)}" if replicas else "")


def merged(digits: Digits, unifier: Unifier) -> Digits:
    """Multiply neighbouring digits of one kind; drop those of 1."""
    out: list[Cut] = []
    for cut, time in digits:
        cut = unifier.resolve(cut)
        if cut and out and out[-1][1] == time:
            out[-1] = unifier.resolve((*out[-1][0], *cut)), time
        elif cut:
            out.append((cut, time))
    return tuple(out)


def same_digits(a: Digits, b: Digits, unifier: Unifier, what: str) -> None:
    """Unify the digits of two dims. Raises Mismatch if they are cut differently."""
    left, right = merged(a, unifier), merged(b, unifier)
    if [time for _, time in left] != [time for _, time in right]:
        raise Mismatch(f"{what}dims that go together are cut differently")
    for (x, _), (y, _) in zip(left, right, strict=True):
        unifier.unify(x, y, what)


def all_cuts(digits: Digits) -> Type:
    return product_of(cut for cut, _ in digits)


@dataclass(slots=True)
class Letter:
    """A letter of one application: the type of its index and its digits."""

    type: Type
    digits: Digits = ()


@dataclass(slots=True)
class Application:
    """One operator application and its letters."""

    unifier: Unifier
    what: str
    values: Sequence[Symbolic]
    inputs: Sequence[Letters]
    output: Letters
    summed: tuple[str, ...]
    letters: dict[str, Letter] = field(default_factory=dict)
    surplus: str = ""

    def infer(self) -> None:
        """Infer types and digits of all letters, and the surplus of replica dims. Raises Mismatch or Stuck."""
        for value, names in zip(self.values, self.inputs, strict=True):
            if len(names) != len(value.dims):
                raise Mismatch(f"{self.what}takes {len(names)} dims, not {value.show(self.unifier)}")
        found = [
            (t, ds, dim)
            for v, names in zip(self.values, self.inputs, strict=True)
            for t, ds, dim in zip(v.dims, v.digits, names, strict=True)
        ]
        for type_, digits, dim in sorted(found, key=lambda entry: len(entry[2]) > 1):  # products of known factors last
            self.dim(type_, digits, dim)
        self.surplus = self.unifier.fresh("e", loose=True)
        for value, names in zip(self.values, self.inputs, strict=True):
            foreign = product_of(self.space(letter) for letter in self.foreign(names))
            self.unifier.unify(value.replicas, (*foreign, self.surplus), f"{self.what}replicas: ")
        for name in self.summed:
            if any(time for _, time in self.letters[name].digits):
                raise Mismatch(f"{self.what}sums over steps in time")
        for name, letter in self.letters.items():
            cut = all_cuts(letter.digits)
            try:
                self.unifier.within(letter.type, cut, self.what)
            except Stuck:  # only sums need the blocks of their letter one by one
                if name in self.summed:
                    raise

    def dim(self, type_: Type, digits: Digits, names: tuple[str, ...]) -> None:
        if not names:
            if merged(digits, self.unifier):
                raise Mismatch(f"{self.what}needs a dim whole that is cut")
            return
        if len(names) > 1:
            self.unifier.unify(type_, product_of(self.letter(n, ()).type for n in names), self.what)
            head = self.letters[names[0]]
            same_digits(head.digits, digits, self.unifier, self.what)
        elif names[0] in self.letters:
            letter = self.letters[names[0]]
            self.unifier.unify(letter.type, type_, self.what)
            same_digits(letter.digits, digits, self.unifier, self.what)
        else:
            self.letters[names[0]] = Letter(type_, digits)

    def letter(self, name: str, digits: Digits) -> Letter:
        if name not in self.letters:
            self.letters[name] = Letter((self.unifier.fresh(name, loose=True),), digits)
        return self.letters[name]

    @property
    def order(self) -> tuple[str, ...]:
        """Letters in task order: the output's, then the summed ones."""
        names = dict.fromkeys((*(name for dim in self.output for name in dim), *self.summed))
        return tuple(name for name in names if name in self.letters)

    def foreign(self, names: Letters) -> tuple[str, ...]:
        """The letters that an operand lacks."""
        mine = {name for dim in names for name in dim}
        return tuple(letter for letter in self.order if letter not in mine)

    def space(self, letter: str) -> Type:
        """The space digits of a letter, which replicas hold where an operand lacks it."""
        return product_of(cut for cut, time in self.letters[letter].digits if not time)

    def result(self, body: Callable[[ElementTask], Poly]) -> Symbolic:
        """The value whose element is made by `body`."""
        dims = tuple(product_of(self.letters[n].type for n in dim if n in self.letters) for dim in self.output)
        digits = tuple(
            merged(self.letters[dim[0]].digits, self.unifier) if dim and dim[0] in self.letters else ()
            for dim in self.output
        )
        replicas = (*product_of(self.space(n) for n in self.summed), self.surplus)
        return Symbolic(dims, digits, replicas, lambda replica, indices: body(ElementTask(self, replica, indices)))


class ElementTask:
    """The task that computes one element of an application's result, and the operands' elements that it reads."""

    def __init__(self, of: Application, replica: Index, indices: tuple[Index, ...]) -> None:
        self.of, self.index = of, dict[str, Index]()
        self._cuts: dict[str, Index] = {}
        resolve = of.unifier.resolve
        for dim, index in zip(of.output, indices, strict=True):
            for name in dim[:-1]:
                self.index[name], index = take(index, resolve(of.letters[name].type))
            if dim:
                self.index[dim[-1]] = index
        for name in of.summed:
            self._cuts[name], replica = take(replica, resolve(of.space(name)))
        self.replica = replica

    def cuts(self, name: str) -> Index:
        """The index of a letter's space digits."""
        if name not in self._cuts:
            found: Index = ()
            rest = self.index[name]
            for cut, time in self.of.letters[name].digits:
                mine, rest = take(rest, self.of.unifier.resolve(cut))
                found += () if time else mine
            self._cuts[name] = found
        return self._cuts[name]

    def over(self, names: Sequence[str]) -> Iterator[tuple[Mapping[str, Index], tuple[tuple[str, str], ...]]]:
        """All indices of summed letters in this task, with variables that count atoms."""
        resolve = self.of.unifier.resolve
        options = []
        for name in names:
            letter = self.of.letters[name]
            rest = _after(resolve(letter.type), resolve(all_cuts(letter.digits)))
            options.append([(self.cuts(name) + index, variables) for index, variables in every(rest)])
        for choice in product(*options):
            yield dict(zip(names, (i for i, _ in choice), strict=True)), tuple(v for _, vs in choice for v in vs)

    def read(self, operand: int, known: Mapping[str, Index], whole: Sequence[Index] = ()) -> Poly:
        """An operand at this task's indices and those of summed letters (`known`); `whole`: those of whole dims."""
        names, rest = self.of.inputs[operand], list(whole)
        indices = []
        for dim in names:
            if dim:
                indices.append(tuple(d for name in dim for d in (known.get(name) or self.index.get(name, ()))))
            else:
                indices.append(rest.pop(0) if rest else ())
        replica = tuple(d for name in self.of.foreign(names) for d in self.cuts(name)) + self.replica
        return self.of.values[operand].at(replica, tuple(indices))


def _after(type_: Type, digits: Type) -> Type:
    """A resolved type without its leading digits."""
    unifier = Unifier(fixed=set(atoms_of(type_)))
    return unifier.within(type_, digits)
