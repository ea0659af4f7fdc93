"""Operator sets over which rules are generated: operators with their attributes, input variables, and sizes.

A variable is a tensor of a rule, with sizes and degrees as expressions; variables of one state are interchangeable.
Partitioned and replicated variables are essential: without them no rule starts with combine or reduce. `trials` are the
sizes at which values are compared: the first says which graphs are enumerated, the others drop what was a coincidence
of a degree or a size.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...formulation.substitution.rule import REPLICA, Tensor, Value


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with its attributes, applied to `arity` tensors and making `results`.

    `weights`: which operands are weights; None if all are of one kind, which the result then has too.
    """

    op: str
    arity: int = 1
    attributes: tuple[tuple[str, Value], ...] = ()
    results: int = 1
    weights: tuple[bool, ...] | None = None

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value}" for name, value in self.attributes)
        return f"{self.op}({words})" if words else self.op


@dataclass(frozen=True, slots=True)
class OperatorSet:
    """What graphs are made of: up to `most` operators, with `outputs` results.

    `weights`: the variables that are weights.
    """

    name: str
    operations: tuple[Operation, ...]
    variables: tuple[Tensor, ...]
    trials: tuple[Mapping[str, int], ...]
    most: int = 3
    outputs: int = 1
    weights: tuple[Tensor, ...] = ()
    note: str = ""


def _operation(op: str, arity: int = 1, results: int = 1, **attributes: Value) -> Operation:
    return Operation(op, arity, tuple(sorted(attributes.items())), results)


def _of_data(op: str, *weights: bool, **attributes: Value) -> Operation:
    """An operator whose first operand is data; `weights` says which others are weights."""
    return Operation(op, 1 + len(weights), tuple(sorted(attributes.items())), weights=(False, *weights))


def _along(dims: Iterable[int], *names: str) -> tuple[Operation, ...]:
    """Parallel operators on dims, all of degree d."""
    return tuple(_operation(name, dim=dim, degree="d") for name in names for dim in dims)


def _plain(names: str, dims: Sequence[str] = ("n", "n")) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, tuple(dims)) for name in names.split())


MATMUL, ADD, MUL, RELU = (
    _operation("matmul", 2),
    _operation("add", 2),
    _operation("mul", 2),
    _operation("relu"),
)
SCALE = _operation("scale", value=7)  # not a small sum of copies
CATS = tuple(_operation("cat", 2, dim=dim) for dim in (0, 1))
SPLITS = tuple(_operation("split", results=2, dim=dim, parts=2) for dim in (0, 1))
REPLICAS = (_operation("replicate", degree="d"), _operation("reduce", degree="d"))
SPACE, TIME = ("partition", "combine"), ("pipeline", "batch")
CAT_REPLICAS, SPLIT_REPLICAS = _operation("cat", 2, dim=REPLICA), _operation("split", results=2, dim=REPLICA, parts=2)

_IMAGE = ("n", "n", "h", "h")
_KERNELS = (*_plain("w v", ("n", "n", "3", "3")), *_plain("p q", ("n", "n", "1", "1")))
_DEGREES = ({"n": 4, "d": 2}, {"n": 18, "d": 3})
_SIZES = ({"n": 4}, {"n": 6})

SETS: tuple[OperatorSet, ...] = (
    OperatorSet(
        "unity",
        (MATMUL, ADD, MUL, RELU, *CATS, *SPLITS, *_along((0, 1), *SPACE), *REPLICAS, *_along((0, 1), *TIME)),
        _plain("x y z"),
        _DEGREES,
        note="Unity's set of two dims, unpartitioned variables",
    ),
    OperatorSet(
        "states",
        (MATMUL, ADD, MUL, RELU, *_along((0, 1), *SPACE), *REPLICAS, CAT_REPLICAS, *_along((0,), *TIME)),
        (
            *_plain("x y z"),
            *(Tensor(name, ("n", "n"), ("d", 1)) for name in ("r", "s")),
            *(Tensor(name, ("n", "n"), (1, "d")) for name in ("c", "e")),
            *(Tensor(name, ("n", "n"), (1, 1), "d") for name in ("u", "v")),
        ),
        _DEGREES,
        note="partitioned and replicated variables, concatenation along the replica dim",
    ),
    OperatorSet(
        "algebra",
        (
            *(MATMUL, ADD, MUL, RELU, *CATS),
            _operation("permute", dims=(1, 0)),
            SCALE,
        ),
        _plain("x y z w"),
        _SIZES,
        note="TASO's operators on matrices",
    ),
    OperatorSet(
        "outputs",
        (MATMUL, ADD, MUL, RELU, *CATS, *SPLITS, CAT_REPLICAS, SPLIT_REPLICAS),
        _plain("x y z"),
        _SIZES,
        outputs=2,
        note="graphs with two results, which merge operators that share an input",
    ),
    OperatorSet(
        "convolution",
        (
            _of_data("conv", True, padding=1),
            _of_data("conv", True),
            *CATS,
            *(ADD, MUL, SCALE),
            _of_data("relu"),
            _operation("pad", pad=(1, 1, 1, 1), mode="constant", value=0),
            _of_data("avg_pool", kernel_size=(3, 3), padding=1, stride=1),
        ),
        (*_plain("x y", _IMAGE), *_KERNELS),
        ({"n": 2, "h": 3}, {"n": 3, "h": 4}),
        weights=_KERNELS,
        note="TASO's convolutions: 3 x 3 with stride 1 that keep the size, and 1 x 1",
    ),
    OperatorSet(
        "images",
        (ADD, MUL, RELU, *CATS),
        _plain("x y z t", _IMAGE),
        ({"n": 2, "h": 2}, {"n": 3, "h": 2}),
        note="elementwise operators and concatenation of images",
    ),
    OperatorSet(
        "branches",
        (_of_data("conv", True, padding=1), _of_data("relu"), *CATS, *SPLITS),
        (*_plain("x y", _IMAGE), *_KERNELS[:2]),
        ({"n": 2, "h": 3}, {"n": 4, "h": 4}),
        outputs=2,
        weights=_KERNELS[:2],
        note="graphs with two results, which merge convolutions that share an input or a kernel",
    ),
    OperatorSet(
        "attention",
        (
            *(MATMUL, ADD, RELU),
            _operation("softmax", dim=2),
            *_along((0, 1, 2), *SPACE),
            *REPLICAS,
        ),
        (
            *_plain("x y", ("n", "n", "n")),
            *(Tensor(name, ("n", "n", "n"), ("d", 1, 1)) for name in ("r", "s")),
            *(Tensor(name, ("n", "n", "n"), (1, "d", 1)) for name in ("q",)),
        ),
        ({"n": 2, "d": 2}, {"n": 3, "d": 3}),
        note="batched products and softmax, as heads of attention",
    ),
)
