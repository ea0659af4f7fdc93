"""Index notation: one line that says what an operator computes, and from which its strategies are derived.

    linear      y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]
    relu        y[i..] = f(x[i..])                 f is opaque
    slice       y[i.., j] = L(x[i.., :])[j]        capital L: linear in all its arguments together
    softmax     y[i.., j] = f(x[i.., :])[j]        `:` needs the whole dim, `[j]` indexes the function's result
    embedding   y[b.., e] = w[ids[b..], e]         an access indexed by another (a gather): a sum over hits
    group norm  y[n, (g c)] = f(x[n, (g=4 :)])[c]  a dim that is a product of indices, outermost first

Grammar: `out[indices] = term (+ term)*`, `term = [sum(i, j)] factor (* factor)*`,
`factor = operand[indices] | function(operand[indices], ...)[indices]`. `b..` stands for the remaining dims. `(g=4 c)`
states a size that no other access tells. A term whose operand the node lacks (a linear without bias) is dropped.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import prod
from typing import TypeAlias, TypeVar

WHOLE = ":"

T = TypeVar("T")

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """`operand[indices]`, one index per dim; an index that is an access (a gather) is in `gathers` with its position.

    The index of a dim that is a product holds the names of its factors, separated by spaces: `g c` (see `names_of`).
    """

    operand: str
    indices: tuple[str, ...]
    gathers: tuple[tuple[int, "Access"], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments)[indices]`: opaque, or linear in its arguments jointly; `indices` cannot be split."""

    linear: bool
    arguments: tuple[Access, ...]
    indices: tuple[str, ...]


Factor: TypeAlias = Access | Call


@dataclass(frozen=True, slots=True)
class Term:
    """A product of factors, summed over `sums`."""

    sums: tuple[str, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed line; `instantiate` replaces `b..` and broadcast dims.

    `sizes` are those that the line states; after `instantiate`, those of all indices.
    """

    output: tuple[str, ...]
    terms: tuple[Term, ...]
    operands: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)


_TOKEN = re.compile(r"\s*([A-Za-z_]\w*(?:\.\.)?|\.\.|\d+|[\[\](),:+*=])")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.sizes, position = text, list[str](), dict[str, int](), 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if not match:
                raise ValueError(f"index notation {text!r}: cannot read {text[position:]!r}")
            self.tokens.append(match[1])
            position = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise ValueError(f"index notation {self.text!r}: expected {expected or 'more'}, found {token or 'the end'}")
        self.at += 1
        return token

    def listed(self, opening: str, item: Callable[[], T], closing: str) -> list[T]:
        """Items between brackets, separated by commas."""
        self.take(opening)
        found: list[T] = []
        while self.peek() != closing:
            found.append(item())
            if self.peek() == ",":
                self.take()
        self.take(closing)
        return found

    def indices(self) -> tuple[tuple[str, ...], tuple[tuple[int, Access], ...]]:
        found = self.listed("[", self.index, "]")
        return tuple(name for name, _ in found), tuple((k, ids) for k, (_, ids) in enumerate(found) if ids is not None)

    def index(self) -> tuple[str, Access | None]:
        """The name of an index, and the access that it is, if any."""
        name = self.take()
        if name == "(":
            name = self.factors()
        return (f"@{name}", Access(name, self.indices()[0])) if self.peek() == "[" else (name, None)

    def factors(self) -> str:
        """The factors of a dim, up to the closing parenthesis."""
        names: list[str] = []
        while self.peek() != ")":
            names.append(self.take())
            if self.peek() == "=":
                self.take()
                self.sizes[names[-1]] = int(self.take())
        self.take(")")
        return " ".join(names)

    def access(self) -> Access:
        operand = self.take()
        indices, gathers = self.indices()
        return Access(operand, indices, gathers)

    def factor(self) -> Factor:
        if self.tokens[self.at + 1 : self.at + 2] != ["("]:
            return self.access()
        function = self.take()
        arguments = self.listed("(", self.access, ")")
        indices = self.indices()[0] if self.peek() == "[" else ()
        return Call(function == "L", tuple(arguments), indices)

    def term(self) -> Term:
        sums: list[str] = []
        if self.peek() == "sum":
            self.take()
            sums = self.listed("(", self.take, ")")
        factors = [self.factor()]
        while self.peek() == "*":
            self.take()
            factors.append(self.factor())
        for factor in factors:
            if isinstance(factor, Access):
                sums.extend(factor.indices[position] for position, _ in factor.gathers)
        return Term(tuple(sums), tuple(factors))

    def notation(self) -> Notation:
        self.take()
        output, _ = self.indices()
        self.take("=")
        terms = [self.term()]
        while self.peek() == "+":
            self.take()
            terms.append(self.term())
        if self.peek():
            raise ValueError(f"index notation {self.text!r}: {self.peek()!r} is left over")
        operands: dict[str, None] = {}
        for term in terms:
            operands.update((access.operand, None) for access in with_gathered(accesses(term)))
        return Notation(output, tuple(terms), tuple(operands), self.sizes)


def names_of(indices: Iterable[str]) -> tuple[str, ...]:
    """All names in indices, those in products too."""
    return tuple(name for index in indices for name in index.split())


def accesses(term: Term) -> tuple[Access, ...]:
    """All accesses of a term, those inside function calls too, without gathered ids."""
    return tuple(a for f in term.factors for a in ((f,) if isinstance(f, Access) else f.arguments))


def with_gathered(found: Iterable[Access]) -> Iterator[Access]:
    """Accesses, each followed by those of its gathered ids."""
    for access in found:
        yield access
        yield from (ids for _, ids in access.gathers)


@cache
def parse(text: str) -> Notation:
    """Parse one line. Raises ValueError that quotes the line."""
    return _Parser(text).notation()


def _expand(indices: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Replace `b..` by names for the remaining dims, numbered from the right so that broadcasting aligns."""
    spare = rank - sum(not i.endswith("..") for i in indices)
    if spare < 0 or (spare and not any(i.endswith("..") for i in indices)):
        raise ValueError(f"indices {', '.join(indices)} do not fit {rank} dims")
    names: list[str] = []
    for i in indices:
        if i.endswith(".."):
            names.extend(f"{i[:-2]}.{k}" for k in reversed(range(spare)))
        else:
            names.append(i)
    return tuple(names)


def _check_bound(text: str, factors: tuple[Factor, ...], bound: set[str]) -> None:
    """Raise ValueError unless every index of a term is summed or in the output."""
    for access in accesses(Term((), factors)):
        for names in (access.indices, *(g.indices for _, g in access.gathers)):
            free = set(names_of(names)) - bound - {WHOLE}
            if free:
                indices = ", ".join(sorted(free))
                raise ValueError(f"{text!r}: {indices} of {access.operand} is neither summed nor in the output")


def instantiate(text: str, operands: Mapping[str, Shape], output: Shape) -> Notation:
    """The notation of one node: `b..` expanded by the ranks, terms without operand dropped, broadcast dims unnamed.

    `operands` maps the operands that the node has to their shapes. A dim of size 1 whose index is longer elsewhere is
    broadcast: its index becomes `1`. Raises ValueError where ranks or sizes do not fit. Cached, since equal layers
    have the same lines at the same sizes.
    """
    return _instantiate(text, tuple(operands.items()), output)


@lru_cache(maxsize=1 << 14)
def _instantiate(text: str, operands: tuple[tuple[str, Shape], ...], output: Shape) -> Notation:
    return _Instance(text, dict(operands), output).notation()


class _Instance:
    """One line at the shapes of a node: `b..` expanded by the ranks, `sizes` of all indices measured."""

    def __init__(self, text: str, operands: Mapping[str, Shape], output: Shape) -> None:
        self.text, self.operands, self.output = text, operands, output
        notation = parse(text)
        self.sizes: dict[str, int] = dict(notation.sizes)
        self.products: list[tuple[str, int]] = []
        self.terms = [
            (term.sums, tuple(_with_indices(factor, self._expanded) for factor in term.factors))
            for term in notation.terms
            if {a.operand for a in with_gathered(accesses(term))} <= operands.keys()
        ]
        self.indices = _expand(notation.output, len(output))
        for _, factors in self.terms:
            for access in with_gathered(accesses(Term((), factors))):
                self._measure(access.indices, operands[access.operand])
        self._measure(self.indices, output)
        _measure_factors(text, self.products, self.sizes)
        for index, size in zip(self.indices, output, strict=True):
            if " " not in index and self.sizes[index] != size:
                raise ValueError(f"{text!r}: index {index} is {self.sizes[index]}, but {size} in the output")

    def notation(self) -> Notation:
        """The finished notation; raises ValueError where an index is neither summed nor in the output."""
        used = {i for _, factors in self.terms for a in accesses(Term((), factors)) for i in names_of(a.indices)}
        terms = []
        for sums, factors in self.terms:
            expanded = _expand_names(sums, used)
            _check_bound(self.text, factors, {*expanded, *names_of(self.indices)})
            terms.append(Term(expanded, tuple(self._finished(f, {*used, *self.indices}) for f in factors)))
        return Notation(self._unname(self.indices, self.output), tuple(terms), tuple(self.operands), self.sizes)

    def _expanded(self, access: Access) -> tuple[str, ...]:
        return _expand(access.indices, len(self.operands[access.operand]))

    def _measure(self, indices: tuple[str, ...], shape: Shape) -> None:
        for index, size in zip(indices, shape, strict=True):
            if " " in index:
                self.products.append((index, size))
            elif index != WHOLE and self.sizes.setdefault(index, size) != size and size != 1:
                if self.sizes[index] != 1:
                    raise ValueError(f"{self.text!r}: index {index} is {self.sizes[index]} and {size}")
                self.sizes[index] = size

    def _unname(self, indices: tuple[str, ...], shape: Shape) -> tuple[str, ...]:
        """Indices with `1` for broadcast dims."""
        pairs = zip(indices, shape, strict=True)
        return tuple("1" if size == 1 and self.sizes.get(i, 1) != 1 else i for i, size in pairs)

    def _finished(self, factor: Factor, names: set[str]) -> Factor:
        factor = _with_indices(factor, lambda access: self._unname(access.indices, self.operands[access.operand]))
        return replace(factor, indices=_expand_names(factor.indices, names)) if isinstance(factor, Call) else factor


def _with_indices(factor: Factor, indices_of: Callable[[Access], tuple[str, ...]]) -> Factor:
    """A factor with other indices of its accesses, gathered ids included."""

    def changed(access: Access) -> Access:
        return Access(access.operand, indices_of(access), tuple((k, changed(ids)) for k, ids in access.gathers))

    if isinstance(factor, Call):
        return replace(factor, arguments=tuple(map(changed, factor.arguments)))
    return changed(factor)


def _expand_names(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names, with those in `known` that `b..` stands for in its place."""
    return tuple(
        i for s in names for i in (sorted(k for k in known if k.startswith(s[:-1])) if s.endswith("..") else (s,))
    )


def _measure_factors(text: str, products: list[tuple[str, int]], sizes: dict[str, int]) -> None:
    """Infer the sizes of the factors of dims from each other; raises ValueError where that is impossible."""
    waiting = products
    while waiting:
        left = []
        for index, size in waiting:
            names = index.split()
            unknown = [name for name in names if name not in sizes]  # `:` is always unknown
            known = prod(sizes[name] for name in names if name in sizes)
            if size % known or (not unknown and size != known):
                raise ValueError(f"{text!r}: ({index}) does not divide a dim of {size}")
            if len(unknown) > 1:
                left.append((index, size))
            elif unknown and unknown != [WHOLE]:
                sizes[unknown[0]] = size // known
        if len(left) == len(waiting):
            raise ValueError(f"{text!r}: the sizes in ({left[0][0]}) are ambiguous")
        waiting = left
