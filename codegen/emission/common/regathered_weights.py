"""Operators of which autograd might keep a copy of an operand: of a weight that backward gathers again, of any other.

Whether a product copies its operands, and a reshape its input, depends on sizes and strides. Where parts have unequal
sizes, ranks would differ: those that keep a copy do not gather again, and the others would wait for them forever. And a
copy would stay in memory until backward, which the plan does not count. So a product keeps its operands as they are,
and what is made of a weight alone, view or copy, is dropped with it and made again from it. A product does not copy
other operands to keep them either: their other readers keep them as they are.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from .conversions import Used
from .operator_calls import OperatorCall, Rule, registered
from .text import enclosed

VIEWS = ("view", "permute", "expand", "contiguous", "slice", "part", "detach", "to")
"""Operators whose result may be a view of their input."""
_MAY_COPY = re.compile(r"\.(flatten|reshape|contiguous)\(")

Line: TypeAlias = Callable[[Sequence[str]], str]


def kept_whole(call: OperatorCall, names: Sequence[str], line: Line) -> str:
    """The line of an operator whose operands `call.regathered` are such weights; `line` writes the ordinary one."""
    if call.node.op in PRODUCTS:
        return PRODUCTS[call.node.op](call, names, line)
    return remade(names[0], lambda x: line([x]), call.used) if call.node.op in VIEWS else line(names)


def remade(x: str, line: Callable[[str], str], used: Used) -> str:
    """An operator on such a weight alone, whose result may be a view on some ranks and a copy on others."""
    if not _MAY_COPY.search(text := line("w")):
        return line(x)
    used.helpers |= {"regathered", "reshaped"}
    return f"reshaped({x}, lambda w: {text})"


def _einsum(call: OperatorCall, names: Sequence[str], line: Line) -> str:
    if len(names) == 1:  # no product: nothing is kept
        return line(names)
    sources, _, output = call.node["equation"].partition("->")
    terms = sources.split(",")
    once = ["".join(dict.fromkeys(term)) for term in terms]
    operands = [
        name if term == all_letters else f'torch.einsum("{all_letters}->{term}", {name})'  # diagonals, as views
        for all_letters, term, name in zip(terms, once, names, strict=True)
    ]
    return _contracted(call, ",".join(once), output, operands)


def _matmul(call: OperatorCall, names: Sequence[str], line: Line) -> str:
    dims = a, b = [len(source.shape) for source in call.sources]
    if max(dims[p] for p in call.regathered) <= 2:  # a matrix is kept as a view, even expanded over a batch
        return line(names)
    batch = _BATCH[: max(dims) - 2]
    first, second = (batch[len(batch) - n + 2 :] if n > 2 else "" for n in dims)
    rows, columns = "m" if a > 1 else "", "n" if b > 1 else ""
    return _contracted(call, f"{first}{rows}k,{second}k{columns}", f"{batch}{rows}{columns}", names)


_BATCH = "abcdefgh"
PRODUCTS = {"einsum": _einsum, "matmul": _matmul}


def copied(equation: str) -> bool:
    """True if a product of two operands copies one: its matrix product joins letters that are not adjacent in it."""
    sources, _, output = equation.partition("->")
    terms = sources.split(",")
    if len(terms) != 2:
        return False
    order = {letter: place for place, letter in enumerate([*output, *sorted({*sources} - {*output, ","})])}
    for term, other in (terms, terms[::-1]):
        groups: dict[tuple[bool, bool], list[int]] = {}
        for place, letter in sorted(enumerate(term), key=lambda pair: order[pair[1]]):
            groups.setdefault((letter in other, letter in output), []).append(place)
        if any(places != list(range(places[0], places[0] + len(places))) for places in groups.values()):
            return True
    return False


def _product(call: OperatorCall, names: Sequence[str]) -> str:
    """A product that saves its operands without copying them, since others save them too."""

    def plain(operands: Sequence[str]) -> str:
        return registered(call, [enclosed(name) for name in operands])

    copies = call.node.gradient and copied(call.node["equation"])
    return _einsum(call, names, plain) if copies else plain(names)


RULES: dict[str, Rule] = {"einsum": _product}


def _contracted(call: OperatorCall, sources: str, output: str, operands: Sequence[str]) -> str:
    call.used.helpers.add("contracted")
    return f'contracted("{sources}->{output}", {", ".join(operands)})'
