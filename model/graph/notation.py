"""Index notation: the one line that says what an operator computes, and all that its strategies are derived from.

    linear      y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]
    relu        y[i..] = f(x[i..])                 f is opaque: nothing is known of it
    slice       y[i.., j] = L(x[i.., :])[j]        capital L: a linear function of all its arguments together
    softmax     y[i.., j] = f(x[i.., :])[j]        `:` needs the whole dim, `[j]` indexes what the function returns
    embedding   y[b.., e] = w[ids[b..], e]         an access indexed by another: a sum over hits
    group norm  y[n, (g c)] = f(x[n, (g=4 :)])[c]  a dim that is a product of indices, outermost first

Grammar: `out[indices] = term (+ term)*`, `term = [sum(i, j)] factor (* factor)*`,
`factor = operand[indices] | function(operand[indices], ...)[indices]`. `b..` stands for as many dims as are left over.
`(g=4 c)` states a size where no other access tells it. A term whose operand the node lacks (a linear without bias) is
dropped.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod

WHOLE = ":"


@dataclass(frozen=True, slots=True)
class Access:
    """`operand[indices]`, one a dim; an index may itself be an access (a gather), kept in `gathers` under its position.

    The index of a dim that is a product holds the names of its factors with spaces between: `g c` (see `names_of`).
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


@dataclass(frozen=True, slots=True)
class Term:
    """A product of factors, summed over `sums`."""

    sums: tuple[str, ...]
    factors: tuple[Access | Call, ...]


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed line; index names still contain `b..` until `instantiate` gives every operand its number of dims.

    `sizes` are those that the line states, after `instantiate` those of all indices.
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

    def indices(self) -> tuple[tuple[str, ...], tuple[tuple[int, Access], ...]]:
        self.take("[")
        names: list[str] = []
        gathers: list[tuple[int, Access]] = []
        while self.peek() != "]":
            name = self.take()
            if name == "(":
                name = self.factors()
            if self.peek() == "[":
                gathers.append((len(names), Access(name, self.indices()[0])))
                name = f"@{name}"
            names.append(name)
            if self.peek() == ",":
                self.take()
        self.take("]")
        return tuple(names), tuple(gathers)

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

    def factor(self) -> Access | Call:
        if self.tokens[self.at + 1 : self.at + 2] != ["("]:
            return self.access()
        function = self.take()
        self.take("(")
        arguments: list[Access] = []
        while self.peek() != ")":
            arguments.append(self.access())
            if self.peek() == ",":
                self.take()
        self.take(")")
        indices = self.indices()[0] if self.peek() == "[" else ()
        return Call(function == "L", tuple(arguments), indices)

    def term(self) -> Term:
        sums: list[str] = []
        if self.peek() == "sum":
            self.take()
            self.take("(")
            while self.peek() != ")":
                sums.append(self.take())
                if self.peek() == ",":
                    self.take()
            self.take(")")
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
            for access in accesses(term):
                operands[access.operand] = None
                operands.update((g.operand, None) for _, g in access.gathers)
        return Notation(output, tuple(terms), tuple(operands), self.sizes)


def names_of(indices: Iterable[str]) -> tuple[str, ...]:
    """All names in indices, those of products too."""
    return tuple(name for index in indices for name in index.split())


def accesses(term: Term) -> tuple[Access, ...]:
    """All accesses of a term, those inside function calls too (gathered ids not among them)."""
    return tuple(a for f in term.factors for a in ((f,) if isinstance(f, Access) else f.arguments))


@cache
def parse(text: str) -> Notation:
    """Parse one line. Raises ValueError that quotes the line and the place."""
    return _Parser(text).notation()


def _expand(indices: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Replace `b..` by as many names as the rank asks, numbered from the right so that broadcasting aligns."""
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


def _check_bound(text: str, factors: tuple[Access | Call, ...], bound: set[str]) -> None:
    """Every index of a term is summed or in the output; raises ValueError otherwise."""
    for access in accesses(Term((), factors)):
        for names in (access.indices, *(g.indices for _, g in access.gathers)):
            free = set(names_of(names)) - bound - {WHOLE}
            if free:
                indices = ", ".join(sorted(free))
                raise ValueError(f"{text!r}: {indices} of {access.operand} is neither summed nor in the output")


def instantiate(text: str, operands: dict[str, tuple[int, ...]], output: tuple[int, ...]) -> Notation:
    """`_instantiate`, remembered: equal layers ask for the same line at the same sizes again and again."""
    return _remembered(text, tuple(operands.items()), output)


@lru_cache(maxsize=1 << 14)
def _remembered(text: str, operands: tuple[tuple[str, tuple[int, ...]], ...], output: tuple[int, ...]) -> Notation:
    return _instantiate(text, dict(operands), output)


def _instantiate(text: str, operands: dict[str, tuple[int, ...]], output: tuple[int, ...]) -> Notation:
    """The notation of one node: `b..` expanded by the ranks, terms without operand dropped, broadcast dims unnamed.

    `operands` maps the operands that the node has to their shapes. A dim of size 1 whose index is longer elsewhere is
    broadcast: its index becomes `1`. Raises ValueError where ranks or sizes do not fit.
    """
    notation = parse(text)
    sizes: dict[str, int] = dict(notation.sizes)
    products: list[tuple[str, int]] = []

    def expand(access: Access) -> Access:
        return Access(
            access.operand,
            _expand(access.indices, len(operands[access.operand])),
            tuple((p, expand(g)) for p, g in access.gathers),
        )

    def measure(indices: tuple[str, ...], shape: tuple[int, ...]) -> None:
        for index, size in zip(indices, shape, strict=True):
            if " " in index:
                products.append((index, size))
            elif index != WHOLE and sizes.setdefault(index, size) != size and size != 1:
                if sizes[index] != 1:
                    raise ValueError(f"{text!r}: index {index} is {sizes[index]} and {size}")
                sizes[index] = size

    def unname(indices: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
        return tuple("1" if size == 1 and sizes.get(i, 1) != 1 else i for i, size in zip(indices, shape, strict=True))

    def finish(access: Access) -> Access:
        return Access(
            access.operand,
            unname(access.indices, operands[access.operand]),
            tuple((p, finish(g)) for p, g in access.gathers),
        )

    terms = []
    for term in notation.terms:
        names = {a.operand for a in accesses(term)} | {g.operand for a in accesses(term) for _, g in a.gathers}
        if not names <= operands.keys():
            continue
        factors = tuple(
            expand(f) if isinstance(f, Access) else Call(f.linear, tuple(map(expand, f.arguments)), f.indices)
            for f in term.factors
        )
        terms.append((term.sums, factors))
    indices = _expand(notation.output, len(output))
    for _, factors in terms:
        for a in accesses(Term((), factors)):
            measure(a.indices, operands[a.operand])
            for _, g in a.gathers:
                measure(g.indices, operands[g.operand])
    measure(indices, output)
    _factor(text, products, sizes)
    for index, size in zip(indices, output, strict=True):
        if " " not in index and sizes[index] != size:
            raise ValueError(f"{text!r}: index {index} is {sizes[index]}, but {size} in the output")
    used = {i for _, factors in terms for a in accesses(Term((), factors)) for i in names_of(a.indices)}
    done = []
    for sums, factors in terms:
        expanded = _all_of(sums, used)
        _check_bound(text, factors, {*expanded, *names_of(indices)})
        done.append(
            Term(
                expanded,
                tuple(
                    finish(f)
                    if isinstance(f, Access)
                    else Call(f.linear, tuple(map(finish, f.arguments)), _all_of(f.indices, {*used, *indices}))
                    for f in factors
                ),
            )
        )
    return Notation(unname(indices, output), tuple(done), tuple(operands), sizes)


def _all_of(names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names, with all known ones that `b..` stands for in its place."""
    return tuple(
        i for s in names for i in (sorted(k for k in known if k.startswith(s[:-1])) if s.endswith("..") else (s,))
    )


def _factor(text: str, products: list[tuple[str, int]], sizes: dict[str, int]) -> None:
    """Find the sizes of the factors of dims, each from the others; raises ValueError where that cannot be."""
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
            raise ValueError(f"{text!r}: the sizes in ({left[0][0]}) cannot be told")
        waiting = left
