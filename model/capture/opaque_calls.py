"""Calls without a rule as opaque operators: the call is in the node's attributes, split as far as running it shows."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from ..graph.dtypes import FLOATS, ITEMSIZE
from ..graph.pcg import Attribute
from ..operators.unknown import MOST_INPUTS, call_source, constants_in
from .building import Complex, as_pairs, dtype_name
from .independence import Finding, NotPureError, findings, unsplit
from .translation import A, Index, T, Value
from .trial_values import Operand

_OWN = ("aten", "prims")
"""The libraries of operators that come with torch."""
_PLACES = ("device", "pin_memory", "layout")
"""Keywords that say where a tensor is, which the program knows."""


def opaque_call(t: T, value: Any, target: Any, given: A) -> Value:
    """The outputs of a call as opaque nodes; `value` is what it returns, as fake tensors.

    Raises PartitaError for a call that cannot be repeated on every rank.
    """
    reason = _refused(target, value)
    if reason:
        raise t.refusal(f"operator {target} ({reason})")
    inputs: list[int] = []
    call = _encoded(t, target, given, inputs)
    operands = tuple(
        Operand(source.shape, getattr(torch, source.dtype), source.gradient and t.gradient)
        for source in map(t.at, inputs)
    )
    several = isinstance(value, list | tuple)
    values = list(value) if several else [value]
    pairs = [as_pairs(v) for v in values]
    shapes = tuple(tuple(int(size) for size in v.shape) for v in pairs)
    try:
        found, intensity = _found(str(target), (call, repr(call)), operands, shapes, several, _safe(target, given, t))
    except NotPureError as error:
        raise t.refusal(f"operator {target} ({error})") from error
    extra: dict[str, Attribute] = {} if intensity is None else {"intensity": intensity}
    if target.namespace not in _OWN:
        extra["library"] = _library(t, target)
    made = []
    for number, (v, pair, finding) in enumerate(zip(values, pairs, found, strict=True)):
        gradient = finding.gradient and any(x.gradient for x in operands)
        made.append(
            t.add(
                "opaque", *inputs, like=pair, gradient=gradient, target=str(target), arguments=call,
                notation=finding.notation, output=number if several else None,
                **extra, **({"complex": True} if v.is_complex() else {}),
            )
        )  # fmt: skip
    return made if several else made[0]


def _library(t: T, target: Any) -> str:
    """The module whose import registers an operator. Raises PartitaError if programs cannot import it."""
    known = OPDEFS.get(target._schema.name)
    name = known._init_fn.__module__ if known is not None else str(target.namespace)
    name = name.removeprefix("partita_user_")  # a file that names a model is imported under another name
    if name == "__main__" or find_spec(name.partition(".")[0]) is None:
        raise t.refusal(
            f"operator {target} (programs cannot import what registers it)",
            "define it in a module that every rank can import, or register an operator for it "
            "(docs/adding-an-operator.md)",
        )
    return name


def _refused(target: Any, value: Any) -> str:
    """Why every rank cannot run a call as it is; empty if it can."""
    tags = target.tags
    if target._schema.is_mutable:
        return "it changes a tensor in place"
    if torch.Tag.nondeterministic_seeded in tags:
        return "it is random"
    if target is torch.ops.aten.view.dtype:
        return "it reads the bits of numbers, which depend on the plan's dtype"
    values = value if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(v, Tensor) for v in values):
        return "it returns something that is not a tensor"
    sizes = [size for v in values for size in v.shape]
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & {*tags} or not all(
        isinstance(size, int) for size in sizes
    ):
        return "the size of its result depends on the data"
    other = next((v.dtype for v in values if dtype_name(as_pairs(v).dtype) not in ITEMSIZE), None)
    if other is not None or any(v.dtype == torch.complex32 for v in values):
        return f"it computes numbers of dtype {dtype_name(other or torch.complex32)}"
    return ""


def _encoded(t: T, target: Any, given: A, inputs: list[int]) -> tuple[Any, ...]:
    """The arguments as (keyword or nothing, value) pairs; nodes that they read are appended to `inputs`."""

    def encode(argument: Any) -> Attribute:
        if isinstance(argument, Index):
            if len(inputs) == MOST_INPUTS:
                raise t.refusal(f"operator {target}, which reads more than {MOST_INPUTS} tensors")
            inputs.append(argument)
            read = ("@", len(inputs) - 1)
            return ("complex", read) if isinstance(argument, Complex) else read
        if isinstance(argument, list | tuple):
            return ("list", *map(encode, argument))
        if isinstance(argument, torch.dtype | torch.memory_format):
            kind = "dtype" if isinstance(argument, torch.dtype) else "memory_format"
            return (kind, str(argument).removeprefix("torch."))
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise t.refusal(f"operator {target} with argument {argument!r}")

    items = [item for item in target._schema.arguments if item.name not in _PLACES]
    while items and _is_default(given[items[-1].name], items[-1]):
        items.pop()
    return tuple(
        (item.name if item.kwarg_only else "", encode(given[item.name]))
        for item in items
        if not (item.kwarg_only and _is_default(given[item.name], item))
    )


def _is_default(value: Any, item: Any) -> bool:
    """True if an argument need not be given."""
    if not item.has_default_value() or isinstance(value, Index):
        return False
    same: bool = type(value) is type(item.default_value) and value == item.default_value
    return same


_CHECKED = (
    "embedding", "gather", "index", "index_add", "index_copy", "index_fill", "index_put", "index_select", "isin",
    "one_hot", "bucketize", "scatter", "scatter_add", "scatter_reduce", "searchsorted", "take", "take_along_dim",
)  # fmt: skip
"""Operators that refuse whole numbers which they cannot use."""


def _safe(target: Any, given: A, t: T) -> bool:
    """True if a call can be run with any whole numbers: some operators take them for places without a look."""
    if torch.Tag.pointwise in target.tags or target._schema.name.removeprefix("aten::") in _CHECKED:
        return True
    tensors = [v for value in given.values() for v in (value if isinstance(value, list) else [value])]
    return not any(
        isinstance(v, Index) and t.at(v).dtype not in (*FLOATS, "bool")
        for v in tensors[1:]  # the first is data
    )


@lru_cache(maxsize=1024)  # equal layers make equal calls
def _found(
    target: str,
    spelled_call: tuple[tuple[Any, ...], str],
    operands: tuple[Operand, ...],
    shapes: tuple[tuple[int, ...], ...],
    several: bool,
    safe: bool,
) -> tuple[list[Finding], float | None]:
    """What is found of every output, and the FLOPs for every element read or written, where PyTorch counts them.

    `spelled_call`: the call, and as text, for the cache: 1, 1.0 and True are equal, but not to an operator. `several`:
    the call returns a list. A call that is not `safe` is not run.
    """
    call, _ = spelled_call
    names = [f"x{i}" for i in range(len(operands))]
    code = compile(call_source(target, call, names), "<opaque operator>", "eval")

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        result = eval(code, {"torch": torch}, dict(zip(names, tensors, strict=True)))
        made = list(result) if several else [result]
        return [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in made]

    found = findings(run, operands, shapes, constants_in(call)) if safe else unsplit(run, operands, shapes)
    return found, _intensity(target, run, operands, shapes)


def _intensity(target: str, run: Any, operands: Sequence[Operand], shapes: Sequence[tuple[int, ...]]) -> float | None:
    """FLOPs by PyTorch's counter for every element that the call reads or writes."""
    overload: Any = torch.ops
    for part in target.split("."):
        overload = getattr(overload, part)
    if overload.overloadpacket not in flop_registry:
        return None
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run([torch.empty(x.shape, dtype=x.dtype, device="meta") for x in operands])
    elements = sum(torch.Size(shape).numel() for shape in (*(x.shape for x in operands), *shapes))
    return float(counter.get_total_flops()) / max(elements, 1)
