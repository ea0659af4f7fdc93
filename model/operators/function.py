"""User-defined autograd functions: forward and backward as two lists of ATen calls, which capture traced together.

A value is a number: inputs from 0, then the gradient of every output, then the result of every statement of `body`,
which are in order of computation. `results` are the values that forward returns, `gradients` those that backward
returns, None for inputs without one. `linear`: backward is linear in the gradients, so these may be addends.
"""

import builtins
import keyword
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..graph.pcg import Node
from .operator import Operator
from .unknown import MOST_INPUTS, call_source, refers_to, whole_notation

if TYPE_CHECKING:
    from torch import Tensor

ITEM = "getitem"
"""The target of a statement that takes one of the results of another."""
_TAKEN = {*keyword.kwlist, *dir(builtins), "ctx", "torch"}


def class_source(name: str, node: Node) -> str:
    """The class of a node's function under this name, as Python source."""
    body = node["body"]
    return _class_source(name, len(node.inputs), body, node["results"], node["gradients"], repr(body))


@lru_cache(maxsize=256)
def _class_source(
    name: str,
    inputs: int,
    body: tuple[Any, ...],
    results: tuple[int, ...],
    gradients: tuple[int | None, ...],
    spelled: str,
) -> str:
    """`spelled`: the body as text, for the cache: 1, 1.0 and True are equal, but spelled differently."""
    names = _names(inputs, len(results), body)
    first = inputs + len(results)
    read = [refers_to(arguments) for _, arguments in body]
    forward = needed(results, read, first)
    wanted = [value for value in gradients if value is not None]
    backward = needed(wanted, read, first)
    own = [value for value in backward if value >= first and value not in forward]
    outside = {value for v in own for value in read[v - first]} | {*wanted}
    saved = sorted(v for v in outside if v not in own and not inputs <= v < first)
    lines = [
        f"class {name}(torch.autograd.Function):",
        '    """A function of the module with a backward of its own."""',
        "",
        "    @staticmethod",
        f"    def forward({', '.join(['ctx', *names[:inputs]])}):",
        *(f"        {names[v]} = {_statement(body[v - first], names)}" for v in forward if v >= first),
    ]
    if saved:
        lines.append(f"        ctx.save_for_backward({', '.join(names[v] for v in saved)})")
    lines += [
        f"        return {', '.join(names[v] for v in results)}",
        "",
        "    @staticmethod",
        f"    def backward({', '.join(['ctx', *names[inputs:first]])}):",
    ]
    if saved:
        given = ", ".join(names[v] for v in saved) + ("," if len(saved) == 1 else "")
        lines.append(f"        {given} = ctx.saved_tensors")
    lines += [f"        {names[v]} = {_statement(body[v - first], names)}" for v in own]
    returned = ["None" if value is None else names[value] for value in gradients]
    return "\n".join([*lines, f"        return {', '.join(returned)}"])


def _statement(statement: tuple[str, Any], names: Sequence[str]) -> str:
    target, arguments = statement
    if target == ITEM:
        (_, (_, value)), (_, number) = arguments
        return f"{names[value]}[{number}]"
    return call_source(target, arguments, names)


def needed(values: Iterable[int], read: Sequence[Sequence[int]], first: int) -> list[int]:
    """These values and all that they are computed from, in order."""
    found: set[int] = set()
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += read[value - first] if value >= first else ()
    return sorted(found)


def _names(inputs: int, outputs: int, body: Sequence[Any]) -> list[str]:
    """A name for every value: that of the call which computes it, numbered."""
    names = ["x"] if inputs == 1 else [f"x{i}" for i in range(inputs)]
    names += ["grad"] if outputs == 1 else [f"grad{i}" for i in range(outputs)]
    taken = {*names, *_TAKEN}
    for target, _ in body:
        wish = target.split(".")[1].strip("_") if "." in target else "part"
        name, number = wish, 2
        while name in taken:
            name, number = f"{wish}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def check_function(node: Node) -> None:
    """Raise ValueError unless every value is computed before it is read."""
    inputs, results, gradients = len(node.inputs), node["results"], node["gradients"]
    first = inputs + len(results)
    if len(gradients) != inputs or not 0 <= node["output"] < len(results):
        raise ValueError(f"a function of {inputs} inputs has {len(gradients)} gradients")
    for number, (_, arguments) in enumerate(node["body"]):
        if any(value >= first + number for value in refers_to(arguments)):
            raise ValueError(f"statement {number} of {node.name!r} reads a value that is computed later")
    last = first + len(node["body"])
    if any(value is not None and value >= last for value in (*results, *gradients)):
        raise ValueError(f"{node.name!r} returns a value that it does not compute")
    read = [refers_to(arguments) for _, arguments in node["body"]]
    if any(inputs <= value < first for value in needed(results, read, first)):
        raise ValueError(f"{node.name!r} reads gradients in its forward")


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    check_function(node)
    text: str = node.get("notation") or whole_notation([len(x.shape) for x in inputs], len(node.shape))
    return text


def apply_function(node: Node, tensors: Sequence["Tensor"]) -> "Tensor":
    """One output of a node's function."""
    made = _function(class_source("Function", node))(*tensors)
    result: Tensor = made[node["output"]] if isinstance(made, tuple) else made
    return result


@lru_cache(maxsize=256)
def _function(source: str) -> Callable[..., Any]:
    """The function that a class's source defines."""
    import torch

    scope: dict[str, Any] = {"torch": torch}
    exec(source, scope)  # made of checked attributes: see `class_source`
    found: Callable[..., Any] = scope["Function"].apply
    return found


def _flops(node: Node, inputs: tuple[Node, ...]) -> int:
    """One for every element of inputs and output, in every statement of the forward."""
    first = len(inputs) + len(node["results"])
    read = [refers_to(arguments) for _, arguments in node["body"]]
    statements = [value for value in needed(node["results"], read, first) if value >= first]
    return max(1, len(statements)) * (node.numel + sum(x.numel for x in inputs))


OPERATORS = (
    Operator(
        "function",
        ("x",),
        _notation,
        lambda node, names: f"{node['title']}.apply({', '.join(names)})",
        saved=(*(f"x{i}" for i in range(MOST_INPUTS)), "y"),
        flops=_flops,
        variadic=True,
        reference=apply_function,
    ),
)
