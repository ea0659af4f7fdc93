"""The parallel operators on values (Unity §3.3), and concatenation and splitting along the replica dim.

Partition and pipeline push a digit, combine and batch pop one; the values stay. Replicate copies along the replica dim,
reduce sums its blocks. Tile and fold do the same along a data dim, as in FlexFlow's published rules.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...model.operators.sharded import Arithmetic, Digit, Digits, IllTyped, count, dim_of
from .values import ParallelValue, merged, part_sizes


def _with(value: ParallelValue, dim: int, digits: Iterable[Digit]) -> tuple[Digits, ...]:
    return (*value.digits[:dim], merged(digits), *value.digits[dim + 1 :])


def _push(time: bool) -> Callable[..., ParallelValue]:
    def push(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
        dim, degree = dim_of(attributes["dim"], len(value.shape)), attributes["degree"]
        if value.shape[dim] % (count(value.digits[dim]) * degree):
            raise IllTyped(f"dim {dim} of {value} cannot be cut {degree} times more")
        return ParallelValue(value.array, _with(value, dim, (*value.digits[dim], Digit(degree, time))))

    return push


def _pop(time: bool) -> Callable[..., ParallelValue]:
    def pop(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
        dim, degree = dim_of(attributes["dim"], len(value.shape)), attributes["degree"]
        left = _divided(value.digits[dim][-1:], degree, time, f"dim {dim} of {value}")
        return ParallelValue(value.array, _with(value, dim, (*value.digits[dim][:-1], left)))

    return pop


def _divided(last: Digits, degree: int, time: bool, what: str) -> Digit:
    """What is left of the last digit after dividing it by a degree."""
    if degree > 1 and (not last or last[0].time != time or last[0].degree % degree):
        raise IllTyped(f"{what} is not cut {degree} times in {'time' if time else 'space'}")
    return Digit(last[0].degree // degree, last[0].time) if last else Digit(1)


def _replicate(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
    return ParallelValue(np.concatenate([value.array] * attributes["degree"]), value.digits)


def _reduce(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
    degree = attributes["degree"]
    if value.replicas % degree:
        raise IllTyped(f"{value} cannot be reduced by {degree}")
    return ParallelValue(f.sum(value.array.reshape(degree, -1, *value.shape), 0), value.digits)


def _tile(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
    """FlexFlow's REPLICATE of a data dim: concatenated copies, on `degree` times as many devices."""
    dim, degree = dim_of(attributes["dim"], len(value.shape)), attributes["degree"]
    array = np.concatenate([value.array] * degree, dim + 1)
    return ParallelValue(array, _with(value, dim, (Digit(degree), *value.digits[dim])))


def _fold(value: ParallelValue, attributes: Mapping[str, Any], f: Arithmetic) -> ParallelValue:
    """FlexFlow's REDUCE of a data dim: the sum of its blocks; a cut dim is left on fewer devices."""
    dim, degree = dim_of(attributes["dim"], len(value.shape)), attributes["degree"]
    if value.shape[dim] % degree:
        raise IllTyped(f"dim {dim} of {value} has no {degree} equal blocks")
    cut = value.digits[dim]
    left = _divided(cut[:1], degree, False, f"dim {dim} of {value}") if cut else Digit(1)
    shape = (*value.array.shape[: dim + 1], degree, -1, *value.shape[dim + 1 :])
    return ParallelValue(f.sum(value.array.reshape(shape), dim + 1), _with(value, dim, (left, *value.digits[dim][1:])))


MOVES: Mapping[str, Callable[[ParallelValue, Mapping[str, Any], Arithmetic], ParallelValue]] = {
    "partition": _push(time=False),
    "combine": _pop(time=False),
    "pipeline": _push(time=True),
    "batch": _pop(time=True),
    "replicate": _replicate,
    "reduce": _reduce,
    "tile": _tile,
    "fold": _fold,
}


def _cat_replicas(values: Sequence[ParallelValue], attributes: Mapping[str, Any]) -> list[ParallelValue]:
    if len({(value.shape, value.digits) for value in values}) != 1:
        raise IllTyped(f"cat along the replica dim of {' and '.join(map(str, values))}: states differ")
    return [ParallelValue(np.concatenate([value.array for value in values]), values[0].digits)]


def _split_replicas(values: Sequence[ParallelValue], attributes: Mapping[str, Any]) -> list[ParallelValue]:
    (value,) = values
    sizes = part_sizes(attributes, value.replicas)
    cuts = np.cumsum([0, *sizes])
    return [ParallelValue(value.array[a:b], value.digits) for a, b in pairwise(cuts)]


ALONG_REPLICAS = {"cat": _cat_replicas, "split": _split_replicas}
