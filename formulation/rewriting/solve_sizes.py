"""Solves the sizes of a rule from those of matched tensors, as egglog facts."""

from collections.abc import Sequence

from ..substitution.sizes import Size


def solved_sizes(equations: Sequence[tuple[Size, str]]) -> tuple[list[str], list[str]]:
    """Facts that define every symbol and check the equations left over, and the symbols that remain unknown.

    An equation says that a size equals an egglog term. It defines a symbol if that is the only unknown one and occurs
    linearly: `m+n` with n known defines m. Symbols are at least 1.
    """
    known, facts = set[str](), list[str]()
    waiting = list(equations)
    while waiting:
        for equation in waiting:
            size, text = equation
            unknown = size.symbols - known
            if not unknown:
                facts.append(f"(= {text} {expression(size)})")
                break
            defined = _definition(size, text, *unknown) if len(unknown) == 1 else None
            if defined is not None:
                facts += defined
                known |= unknown
                break
        else:
            return facts, sorted({name for size, _ in waiting for name in size.symbols} - known)
        waiting.remove(equation)
    return facts, []


def _definition(size: Size, text: str, name: str) -> list[str] | None:
    """Facts that define a symbol by `size == text`; None if it does not occur linearly."""
    factor = Size.collect(
        (tuple(other for other in monomial if other != name), count)
        for monomial, count in size.terms
        if name in monomial
    )
    rest = Size.collect((monomial, count) for monomial, count in size.terms if name not in monomial)
    if any(monomial.count(name) > 1 for monomial, _ in size.terms):
        return None
    symbol, left = f"s_{name}", text if rest == Size() else f"(- {text} {expression(rest)})"
    if factor == Size.of(1):
        return [f"(= {symbol} {left})", *([f"(>= {symbol} 1)"] if rest != Size() else [])]
    return [f"(= {symbol} (/ {left} {expression(factor)}))", f"(>= {symbol} 1)", f"(= {text} {expression(size)})"]


def expression(size: Size) -> str:
    """A size as egglog arithmetic over `s_` symbols."""
    terms = [_product(monomial, count) for monomial, count in size.terms]
    text = terms[0] if terms else "0"
    for term in terms[1:]:
        text = f"(+ {text} {term})"
    return text


def _product(monomial: tuple[str, ...], count: int) -> str:
    factors = [*([str(count)] if count != 1 or not monomial else []), *(f"s_{name}" for name in monomial)]
    text = factors[0]
    for factor in factors[1:]:
        text = f"(* {text} {factor})"
    return text
