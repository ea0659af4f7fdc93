"""Index notation: what is read, how it is fitted to shapes, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from partita.model.graph.notation import Access, Call, instantiate, parse
from partita.model.graph.pcg import Node
from partita.model.operators.operator import operator, operators

LINEAR = "y[b.., o] = sum(i) x[b.., i] * w[o, i] + bias[o]"


def test_terms() -> None:
    notation = parse(LINEAR)
    product, bias = notation.terms
    assert notation.output == ("b..", "o")
    assert notation.operands == ("x", "w", "bias")
    assert (product.sums, bias.sums) == (("i",), ())
    assert product.factors == (Access("x", ("b..", "i")), Access("w", ("o", "i")))


def test_calls() -> None:
    (softmax,) = parse("y[i.., j] = f(x[i.., :])[j]").terms
    (cut,) = parse("y[i.., j] = L(x[i.., :])[j]").terms
    assert softmax.factors == (Call(False, (Access("x", ("i..", ":")),), ("j",)),)
    assert cut.factors == (Call(True, (Access("x", ("i..", ":")),), ("j",)),)


def test_gather_is_a_sum_over_hits() -> None:
    (term,) = parse("y[b.., e] = w[ids[b..], e]").terms
    assert term.sums == ("@ids",)
    assert term.factors == (Access("w", ("@ids", "e"), ((0, Access("ids", ("b..",))),)),)


def test_instantiate() -> None:
    notation = instantiate(LINEAR, {"x": (4, 3, 6), "w": (5, 6)}, (4, 3, 5))
    (product,) = notation.terms  # there is no bias
    assert notation.output == ("b.1", "b.0", "o")
    assert product.factors[0] == Access("x", ("b.1", "b.0", "i"))


@pytest.mark.parametrize(
    ("shapes", "output", "indices"),
    [
        ({"a": (4, 3), "b": (3,)}, (4, 3), [("i.1", "i.0"), ("i.0",)]),
        ({"a": (4, 1), "b": (1, 3)}, (4, 3), [("i.1", "1"), ("1", "i.0")]),
        ({"a": (1, 3), "b": ()}, (1, 3), [("i.1", "i.0"), ()]),
    ],
)
def test_broadcast(shapes: dict[str, tuple[int, ...]], output: tuple[int, ...], indices: list[Any]) -> None:
    notation = instantiate("y[i..] = a[i..] + b[i..]", shapes, output)
    assert [term.factors[0].indices for term in notation.terms] == indices


@pytest.mark.parametrize(
    "text", ["y[i] = ", "y[i] = x[i", "y[i] x[i]", "y[i] = x[i] * ", "y[i] = x[i] z", "y[i] = f(x[i]", "y[i] = x[$]"]
)
def test_bad_text(text: str) -> None:
    with pytest.raises(ValueError, match="index notation"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "shapes", "output", "words"),
    [
        (LINEAR, {"x": (4, 6), "w": (5, 7)}, (4, 5), "index i is 6 and 7"),
        (LINEAR, {"x": (4, 6), "w": (5, 6)}, (4, 4), "index o is 5 and 4"),
        (LINEAR, {"x": (6,), "w": (5,)}, (5,), "do not fit"),
        ("y[i..] = a[i..] + b[i..]", {"a": (5,), "b": (5,)}, (1,), "index i.0 is 5, but 1 in the output"),
        ("y[i..] = a[i..] + b[i..]", {"a": (2, 3), "b": (3,)}, (3,), "i.1 of a is neither summed nor in the output"),
    ],
)
def test_shapes_that_do_not_fit(text: str, shapes: Any, output: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        instantiate(text, shapes, output)


LINES = [entry for entry in operators() if isinstance(entry.notation, str) and entry.notation]


@pytest.mark.parametrize("entry", LINES, ids=lambda entry: entry.name)
def test_every_line_names_its_operands(entry: Any) -> None:
    assert set(parse(entry.notation).operands) == set(entry.operands)


def test_work_of_products() -> None:
    x, w = Node("input", "x", shape=(4, 3, 6)), Node("parameter", "w", shape=(5, 6))
    y = Node("linear", "y", (0, 1), (4, 3, 5))
    assert operator("linear").work(y, (x, w)) == 2 * 4 * 3 * 5 * 6 + 4 * 3 * 5
