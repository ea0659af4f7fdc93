"""Indices of dims, with one digit per radix of the dim's type, and how digits regroup."""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import TypeAlias

from .terms import Place, Poly, free_of, position, size_poly, variable
from .types import Cases, Radix, Stuck, Type, Unifier, canonical, parts

# The digit of a number or an atom is a place; that of cases is the case's number and an index inside.
Digit: TypeAlias = "Place | tuple[int, Index]"
Index: TypeAlias = "tuple[tuple[Radix, Digit], ...]"


def every(type_: Type) -> Iterator[tuple[Index, tuple[tuple[str, str], ...]]]:
    """All indices of a resolved type: one per choice of cases and numbers, with variables that count atoms."""
    options: list[list[tuple[Radix, Digit, tuple[tuple[str, str], ...]]]] = []
    for radix in type_:
        if isinstance(radix, str):
            name = variable()
            options.append([(radix, Place.of(name), ((name, radix),))])
        elif isinstance(radix, int):
            if radix > 64:
                raise Stuck(f"{radix} entries are too many to enumerate")
            options.append([(radix, Place(offset=i), ()) for i in range(radix)])
        else:
            options.append(
                [(radix, (k, inner), vs) for k, e in enumerate(radix.elements) for inner, vs in every(canonical(e))]
            )
    for choice in product(*options):
        yield tuple((r, d) for r, d, _ in choice), tuple(v for _, _, vs in choice for v in vs)


def take(index: Index, type_: Type) -> tuple[Index, Index]:
    """Split an index into the digits of a leading type and the rest. Raises Stuck if they do not regroup."""
    first: list[tuple[Radix, Digit]] = []
    left = list(index)
    for radix in type_:
        if not left:
            raise Stuck(f"an index ends before {radix}")
        if isinstance(radix, int):
            first.append((radix, _number(left, radix)))
        else:
            if left[0][0] != radix:
                raise Stuck(f"an index along {left[0][0]} where {radix} is expected")
            first.append(left.pop(0))
    return tuple(first), tuple(left)


def _number(left: list[tuple[Radix, Digit]], radix: int) -> Place:
    """Take the digit of a number from the front, joining or splitting digits as needed."""
    value, have = 0, 1
    while have < radix:
        size, digit = left.pop(0) if left else (0, Place())
        if not isinstance(size, int) or not isinstance(digit, Place) or digit.terms or not size:
            raise Stuck(f"an index along {size} where a digit of {radix} is expected")
        need = radix // have
        if size > need:
            if size % need or radix % have:
                raise Stuck(f"an index along {size} where a digit of {radix} is expected")
            rest = size // need
            left.insert(0, (rest, Place(offset=digit.offset % rest)))
            size, digit = need, Place(offset=digit.offset // rest)
        value, have = value * size + digit.offset, have * size
    if have != radix:
        raise Stuck(f"an index along {have} where a digit of {radix} is expected")
    return Place(offset=value)


def case_of(index: Index, types: Sequence[Type]) -> tuple[int, Index]:
    """(case, index inside it) of an index along a concatenation of resolved types."""
    whole = canonical((Cases(tuple(types)),))
    elements = [parts(canonical(t)) for t in types]
    all_parts = [e for es in elements for e in es]
    if all(e == all_parts[0] for e in all_parts):
        (number,), rest = take(index, (len(all_parts),))
        assert isinstance(number[1], Place)
        at, inner = number[1].offset, rest
    else:
        (only,), rest = take(index, whole)
        assert isinstance(only[1], tuple)
        at, inner = only[1][0], only[1][1] + rest
    for place, es in enumerate(elements):
        if at < len(es):
            return place, in_part(canonical(types[place]), len(es), at, inner)
        at -= len(es)
    raise AssertionError("the index lies outside its type")


def in_part(type_: Type, count: int, at: int, inner: Index) -> Index:
    """The index along a type, given its part and the index inside."""
    if type_ and isinstance(type_[0], Cases):
        if len(type_) > 1:
            mine, rest = take(inner, type_[0].elements[at])
            return ((type_[0], (at, mine)), *rest)
        return ((type_[0], (at, inner)),)
    return ((count, Place(offset=at)), *inner) if count > 1 else inner


def into_case(types: Sequence[Type], number: int, index: Index) -> Index:
    """The inverse of `case_of`: the index along a concatenation of an index along one case."""
    elements = [parts(canonical(t)) for t in types]
    before = sum(len(es) for es in elements[:number])
    own = canonical(types[number])
    count = len(elements[number])
    if count > 1 and isinstance(own[0], Cases):
        ((_, digit),), rest = take(index, own[:1])
        assert isinstance(digit, tuple)
        at, inner = digit[0], digit[1] + rest
    elif count > 1:
        ((_, place),), inner = take(index, (count,))
        assert isinstance(place, Place)
        at = place.offset
    else:
        at, inner = 0, index
    all_parts = [e for es in elements for e in es]
    if all(e == all_parts[0] for e in all_parts):
        return ((len(all_parts), Place(offset=before + at)), *inner)
    (whole,) = canonical((Cases(tuple(types)),))
    return ((whole, (before + at, inner)),)


def places(index: Index) -> tuple[str, tuple[Place, ...]]:
    """An index in canonical form: a name for its cases, and the places along its numbers and atoms."""
    merged: list[tuple[Radix, Digit]] = []
    for radix, digit in index:
        last = merged[-1] if merged else None
        if isinstance(radix, int) and last and isinstance(last[0], int):
            assert isinstance(digit, Place) and isinstance(last[1], Place)
            merged[-1] = (last[0] * radix, Place(offset=last[1].offset * radix + digit.offset))
        elif radix != 1:
            merged.append((radix, digit))
    name, found = "", list[Place]()
    for _, digit in merged:
        if isinstance(digit, Place):
            found.append(digit)
        else:
            inside, more = places(digit[1])
            name += f"{digit[0]}({inside})"
            found += more
    return name, tuple(found)


def number_of(index: Index, unifier: Unifier) -> Poly | None:
    """An index as a number along the whole dim; None if that needs a product of symbols."""
    total = Poly()
    for radix, digit in index:
        size = unifier.size((radix,))
        if size.number is None and free_of(total):
            return None
        mine: Poly | None
        if isinstance(digit, Place):
            mine = position(digit)
        else:
            assert isinstance(radix, Cases)
            inside = number_of(digit[1], unifier)
            before = [size_poly(unifier.size(e)) for e in radix.elements[: digit[0]]]
            mine = None if inside is None else reduce(Poly.__add__, before, inside)
        if mine is None:
            return None
        total = total * size_poly(size) + mine
    return total
