"""Sizes of a generated rule: the weakest constraints that the operators of both sides put on its variables' dims.

Every dim starts as its own symbol; operators equate sizes, and each equation is solved for a symbol. Two sums (of
concatenations) are equated last, term by term.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, TypeAlias

from ...formulation.substitution.sizes import Size

Dims: TypeAlias = tuple[Size, ...]
LETTERS = "nmkpqrstabceghijlo"  # d is the degree


@dataclass(slots=True)
class Sizes:
    """Solved symbols, and pending equations of two sums."""

    solved: dict[str, Size] = field(default_factory=dict)
    pending: list[tuple[Size, Size]] = field(default_factory=list)
    count: int = 0

    def fresh(self) -> Size:
        self.count += 1
        return Size.of(f"s{self.count}")

    def now(self, size: Size) -> Size:
        return size.substitute(self.solved)

    def equate(self, a: Size, b: Size) -> bool:
        """Require two sizes to be equal; False if they cannot be."""
        a, b = self.now(a), self.now(b)
        if a == b:
            return True
        for one, other in ((a, b), (b, a)):
            symbol = _symbol(one)
            if symbol is not None and symbol not in other.symbols:
                self._solve(symbol, other)
                return True
        shared = gcd(*(factor for size in (a, b) for _, factor in size.terms))
        if shared > 1:
            return self.equate(*(Size(tuple((m, f // shared) for m, f in size.terms)) for size in (a, b)))
        if len(a.terms) > 1 and len(b.terms) > 1:
            self.pending.append((a, b))
            return True
        return False

    def _solve(self, symbol: str, size: Size) -> None:
        self.solved = {name: known.substitute({symbol: size}) for name, known in self.solved.items()} | {symbol: size}

    def finish(self) -> bool:
        """Solve the pending equations term by term; False if one cannot hold."""
        while self.pending:
            a, b = map(self.now, self.pending.pop(0))
            if a == b:
                continue
            if len(a.terms) == 1 or len(b.terms) == 1:
                if not self.equate(a, b):
                    return False
                continue
            rest = [[t for t in x.terms if t not in y.terms] for x, y in ((a, b), (b, a))]
            if len(rest[0]) != len(rest[1]):
                return False
            pairs = zip(*([Size((term,)) for term in terms] for terms in rest), strict=True)
            if not all(self.equate(x, y) for x, y in pairs):
                return False
        return True


def _symbol(size: Size) -> str | None:
    """The name of a size that is one symbol."""
    if len(size.terms) == 1:
        ((monomial, factor),) = size.terms
        if factor == 1 and len(monomial) == 1:
            return monomial[0]
    return None


Shaper: TypeAlias = Callable[[Sizes, Mapping[str, Any], Sequence[Dims]], "list[Dims] | None"]


def _same(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    first = operands[0]
    alike = all(len(o) == len(first) and all(map(sizes.equate, first, o)) for o in operands)
    return [first] if alike else None


def _matmul(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    a, b = operands
    if len(a) != len(b) or len(a) < 2 or not all(map(sizes.equate, (*a[:-2], a[-1]), (*b[:-2], b[-2]))):
        return None
    return [(*a[:-1], b[-1])]


def _cat(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    dim, (a, b) = given["dim"], operands
    if not isinstance(dim, int):
        return _same(sizes, given, operands)
    if len(a) != len(b) or not all(sizes.equate(x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != dim):
        return None
    return [(*a[:dim], a[dim] + b[dim], *a[dim + 1 :])]


def _split(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    """Split a sum of two terms into them, any other dim into two parts of any size."""
    dim, (a,) = given["dim"], operands
    if not isinstance(dim, int):
        return [a, a]
    whole = sizes.now(a[dim])
    if len(whole.terms) == 2 and all(factor == 1 for _, factor in whole.terms):
        parts = [Size((term,)) for term in whole.terms]
    else:
        parts = [sizes.fresh(), sizes.fresh()]
        if not sizes.equate(whole, parts[0] + parts[1]):
            return None
    return [(*a[:dim], part, *a[dim + 1 :]) for part in parts]


def _halves(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    dim, (a,) = given["dim"], operands
    if not isinstance(dim, int):
        return [a, a]
    part = sizes.fresh()
    return [(*a[:dim], part, *a[dim + 1 :])] * 2 if sizes.equate(a[dim], part * 2) else None


def _permute(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    return [tuple(operands[0][d] for d in given["dims"])]


def _conv(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    x, w = operands
    if not sizes.equate(x[1], w[1]):
        return None
    reach = 2 * given.get("padding", 0) + 1
    return [(x[0], w[0], *(s + reach - sizes.now(k) for s, k in zip(x[2:], w[2:], strict=True)))]


def _pad(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    (x,), pad = operands, given["pad"]
    grown = [pad[2 * i] + pad[2 * i + 1] for i in range(len(pad) // 2)][::-1]
    kept = len(x) - len(grown)
    return [(*x[:kept], *(s + more for s, more in zip(x[kept:], grown, strict=True)))]


def _pool(sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims]) -> list[Dims] | None:
    (x,), size, padding = operands, given["kernel_size"], given.get("padding", 0)
    kept = len(x) - len(size)
    return [(*x[:kept], *(s + (2 * padding + 1 - k) for s, k in zip(x[kept:], size, strict=True)))]


SHAPERS: Mapping[str, Shaper] = {
    "matmul": _matmul,
    "cat": _cat,
    "split": _split,
    "permute": _permute,
    "conv": _conv,
    "pad": _pad,
    "avg_pool": _pool,
    "max_pool": _pool,
}
"""Operators that change shapes; results of all others have their operands' shape."""


def shaped(
    op: str, sizes: Sizes, given: Mapping[str, Any], operands: Sequence[Dims], halves: bool
) -> list[Dims] | None:
    """The dims of an operator's results; None if the operands cannot fit."""
    shaper = _halves if op == "split" and halves else SHAPERS.get(op, _same)
    return shaper(sizes, given, operands)


def letters(symbols: Iterator[str]) -> dict[str, Size]:
    """Short names for symbols, in order of appearance."""
    return {name: Size.of(letter) for name, letter in zip(dict.fromkeys(symbols), LETTERS, strict=False)}
