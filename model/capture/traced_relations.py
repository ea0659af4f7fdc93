"""How what a list of ATen calls computes from a whole relates to what it computes from two parts.

Every value of the list has a relation, followed call by call from those of the inputs. For each call, fresh random
values that have the relations of what it reads show the relation of what it returns. So it does not matter which values
the calls before it tend to compute: `where(x.amax() > 1e7, x - x.mean(0), x)` is not independent, although on random
inputs it looks so, since `amax` of the parts is not that of the whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..operators.function import ITEM, needed
from ..operators.unknown import call_source, constants_in, refers_to
from .trial_values import KINDS, equal, values

Relation: TypeAlias = int | str | None
"""A dim: both parts, joined along it, are the whole. Or one of `RELATIONS`. None: nothing is known."""
Triple: TypeAlias = tuple[Any, Any, Any]
"""A value of the whole, of the first part and of the second."""

ZERO, FIRST, SECOND, SAME, SUM = "zero", "first", "second", "same", "sum"
RELATIONS = (ZERO, FIRST, SECOND, SAME, SUM)
"""Zero; the whole is the first part and the second is zero, or the other way around; all are equal; the parts add up.

In the order in which they are chosen: of a constant zero all are true.
"""
ADDITIVE = (ZERO, FIRST, SECOND, SUM)
"""Where the whole is the sum of the parts."""
FEWEST = 3
"""Random values that a call must accept."""
LARGE = 1000
"""Whole numbers are drawn below it, where a call accepts that."""


class TracedCalls:
    """The body of a node `function` for `inputs` inputs: see `model/operators/function.py`."""

    def __init__(self, attributes: Mapping[str, Any], inputs: int) -> None:
        self.body = attributes["body"]
        self.results, self.gradients = attributes["results"], attributes["gradients"]
        self.inputs, self.first = inputs, inputs + len(self.results)
        read = [refers_to(arguments) for _, arguments in self.body]
        self._forward = [v for v in needed(self.results, read, self.first) if v >= self.first]
        wanted = [v for v in self.gradients if v is not None]
        later = [v for v in needed(wanted, read, self.first) if v >= self.first]
        self._order = [*self._forward, *(v for v in later if v not in self._forward)]

    def relations(
        self, tensors: Sequence[Triple], given: Sequence[Relation], gradients: Sequence[Relation]
    ) -> tuple[list[Relation], list[Relation]]:
        """The relations of results and gradients, for inputs and gradients of results with these relations.

        `tensors` are the inputs. Their values matter only for the shapes of what is computed. Raises what calls raise.
        """
        with torch.no_grad():
            computed = self._computed(tensors)
            known: dict[int, Any] = dict(enumerate([*given, *gradients]))
            for value in self._order:
                known[value] = self._relation(value, known, computed)
        return (
            [known[v] for v in self.results],
            [ZERO if v is None else known[v] for v in self.gradients],
        )

    def _computed(self, tensors: Sequence[Triple]) -> dict[int, Triple]:
        """All values, for gradients of ones."""
        found: dict[int, Triple] = dict(enumerate(tensors))
        for value in self._forward:
            found[value] = self._applied(value, found)
        for number, result in enumerate(self.results):
            whole, first, second = found[result]
            found[self.inputs + number] = torch.ones_like(whole), torch.ones_like(first), torch.ones_like(second)
        for value in self._order[len(self._forward) :]:
            found[value] = self._applied(value, found)
        return found

    def _applied(self, value: int, found: Mapping[int, Triple]) -> Triple:
        target, arguments = self.body[value - self.first]
        if target == ITEM:
            (_, (_, source)), (_, number) = arguments
            whole, first, second = found[source]
            return whole[number], first[number], second[number]
        code = _code(target, arguments, repr(arguments))
        read = refers_to(arguments)
        whole, first, second = (eval(code, {"torch": torch, **{f"v{i}": found[i][k] for i in read}}) for k in range(3))
        return whole, first, second

    def _relation(self, value: int, known: Mapping[int, Any], computed: Mapping[int, Triple]) -> Any:
        """The relation of what a call returns, or a list of them."""
        target, arguments = self.body[value - self.first]
        if target == ITEM:
            (_, (_, source)), (_, number) = arguments
            return known[source][number]
        read = [*dict.fromkeys(refers_to(arguments))]
        several = isinstance(computed[value][0], list | tuple)
        shown = [_listed(each) for each in computed[value]]
        if any(known[i] is None for i in read):
            return [None] * len(shown[0]) if several else None
        possible = [[*_possible(*parts)] for parts in zip(*shown, strict=True)]
        tried, varied = 0, [False] * len(possible)
        for number, (scale, kind) in enumerate(product(_scales(arguments), KINDS)):
            drawn = {i: _drawn(known[i], computed[i], kind, scale, 31 * number + i) for i in read}
            try:
                made = [_listed(each) for each in self._applied(value, drawn)]
            except Exception:  # it does not accept such values
                continue
            tried += 1
            for place, parts in enumerate(zip(*made, strict=True)):
                possible[place] = [r for r in possible[place] if _holds(r, *parts)]
                varied[place] |= _varies(parts[0])
            if not any(possible):
                break
        alike = all(known[i] in (SAME, ZERO) for i in read)
        found = [
            next((r for r in each if alike or shows or isinstance(r, int)), None) if tried >= FEWEST else None
            for each, shows in zip(possible, varied, strict=True)
        ]
        return found if several else found[0]


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


@lru_cache(maxsize=4096)
def _code(target: str, arguments: Any, spelled: str) -> Any:
    """A call as compiled Python; `spelled`: its arguments as text, since 1, 1.0 and True are equal."""
    names = [f"v{i}" for i in range(1 + max(refers_to(arguments), default=0))]
    return compile(call_source(target, arguments, names), "<traced call>", "eval")


def _scales(arguments: Any) -> list[float]:
    """Magnitudes of values below and above the constants of a call."""
    own = [3 * abs(float(c)) for c in constants_in(arguments) if isfinite(c) and c and abs(c) < 1e30]
    return [*dict.fromkeys((1.0, 30.0, *own))]


def _possible(whole: Any, first: Any, second: Any) -> Iterator[Relation]:
    """The relations that the shapes allow."""
    if (
        not all(isinstance(x, Tensor) for x in (whole, first, second))
        or len({*map(Tensor.dim, (whole, first, second))}) > 1
    ):
        return
    if whole.shape == first.shape == second.shape:
        yield from RELATIONS
    for dim in range(whole.dim()):
        sizes = list(whole.shape)
        cut = sizes[dim] == first.shape[dim] + second.shape[dim]
        sizes[dim] = -1
        others = [[-1 if d == dim else n for d, n in enumerate(x.shape)] for x in (first, second)]
        if cut and others == [sizes, sizes]:
            yield dim


def _holds(relation: Relation, whole: Tensor, first: Tensor, second: Tensor) -> bool:
    """True if three tensors have a relation."""
    if isinstance(relation, int):
        return equal(torch.cat([first, second], relation), whole)
    if relation == ZERO:
        return not any(bool(x.count_nonzero()) for x in (whole, first, second))
    if relation == FIRST:
        return equal(first, whole) and not bool(second.count_nonzero())
    if relation == SECOND:
        return equal(second, whole) and not bool(first.count_nonzero())
    if relation == SAME:
        return equal(first, whole) and equal(second, whole)
    return whole.dtype != torch.bool and equal(first + second, whole)


def _varies(y: Tensor) -> bool:
    """False for truth values and whole numbers that are all one: which relation they have is an accident."""
    return y.dtype.is_floating_point or y.is_complex() or (y.numel() > 0 and bool((y != y.flatten()[0]).any()))


def _drawn(relation: Relation, known: Triple, kind: str, scale: float, seed: int) -> Triple:
    """Random values with a relation, of the shapes and dtypes of known ones."""
    whole, first, second = known
    generator = torch.Generator().manual_seed(seed)

    def random(like: Tensor) -> Tensor:
        if like.dtype == torch.bool and kind in ("positive", "above one"):  # all but one true, or one
            one = torch.zeros(like.shape, dtype=torch.bool)
            if like.numel():
                one.view(-1)[int(torch.randint(like.numel(), (), generator=generator))] = True
            return one if kind == "above one" else ~one
        return values(like.shape, like.dtype, kind, scale, generator, LARGE).to(like.dtype)

    if isinstance(relation, int):
        made = random(whole)
        at = first.shape[relation]
        rest = made.narrow(relation, at, second.shape[relation])
        return made, made.narrow(relation, 0, at).contiguous(), rest.contiguous()
    if relation == SAME:
        made = random(whole)
        return made, made, made
    if relation == ZERO:
        return torch.zeros_like(whole), torch.zeros_like(first), torch.zeros_like(second)
    zero = torch.zeros_like(whole)
    a = random(whole) if relation in (FIRST, SUM) else zero
    b = random(whole) if relation in (SECOND, SUM) else zero
    return a + b, a, b
