"""Opaque operators: calls that nothing is known of but what capture found by running them.

`notation`: along which dims a call is independent (`model/capture/independence.py`); without it every rank computes the
whole result from whole inputs. `intensity`: FLOPs for every element read or written, where they are not one.
`complex`: the result is a complex tensor, which nodes hold as `torch.view_as_real` gives it; so are arguments tagged
`complex`.
"""

import re
from collections.abc import Sequence
from typing import Any

from ..graph.notation import Call, parse
from ..graph.pcg import Node
from .keywords import literal
from .operator import Operator

MOST_INPUTS = 64
"""Most tensors that a call may read: what each keeps for backward has a name of its own."""

MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")


def is_target(text: Any) -> bool:
    """True for the name of a library's operator, such as `aten.logcumsumexp.default`."""
    return isinstance(text, str) and bool(re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", text, re.ASCII))


def is_call_notation(text: Any) -> bool:
    """True for a line that says of one opaque call what it reads, and in which dims it is independent."""
    if not isinstance(text, str) or len(text) > 10_000:
        return False
    try:
        notation = parse(text)
    except (ValueError, IndexError):
        return False
    return len(notation.terms) == 1 and all(isinstance(f, Call) for f in notation.terms[0].factors)


def whole_notation(ranks: Sequence[int], rank: int) -> str:
    """The notation of a call that is independent along no dim; `ranks` of the inputs, `rank` of the output."""
    arguments = ", ".join(f"x{i}[{', '.join(':' * given)}]" for i, given in enumerate(ranks))
    names = ", ".join(f"d{d}" for d in range(rank))
    return f"y[{names}] = f({arguments})[{names}]"


def call_source(target: str, arguments: Sequence[Any], names: Sequence[str]) -> str:
    """Python source of a call, with these names for the tensors that it reads. Raises ValueError if it is malformed."""
    if not is_target(target):
        raise ValueError(f"{target!r} is not an operator")
    if any(i >= len(names) for i in refers_to(arguments)):
        raise ValueError(f"the call reads more than its {len(names)} inputs")
    call = [(key, _source(value, names)) for key, value in arguments]
    given = ", ".join(f"{key}={text}" if key.isidentifier() else text for key, text in call)
    return f"torch.ops.{target}({given})"


def constants_in(value: Any) -> list[float]:
    """The numbers among the arguments of a call, as capture encoded them."""
    if isinstance(value, tuple):
        return [] if value[:1] == ("@",) else [n for v in value for n in constants_in(v)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def refers_to(value: Any) -> list[int]:
    """The values that an argument, or all arguments of a call, refer to by number."""
    if not isinstance(value, tuple):
        return []
    return [value[1]] if value[:1] == ("@",) else [i for v in value for i in refers_to(v)]


ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "pow": "**"}
"""How sizes are computed from others."""


def _source(value: Any, names: Sequence[str]) -> str:
    """Python source of an argument that capture encoded: tensors, lists, dtypes and sizes are tagged tuples."""
    if not isinstance(value, tuple):
        return literal("", value)
    tag, *rest = value
    if tag == "@":
        return names[rest[0]]
    if tag == "complex":
        return f"torch.view_as_complex({_source(rest[0], names)}.contiguous())"
    if tag in ("dtype", "memory_format"):
        if not re.fullmatch(r"\w+", rest[0], re.ASCII):
            raise ValueError(f"{rest[0]!r} is not a {tag}")
        return f"torch.{rest[0]}"
    texts = [_source(v, names) for v in rest]
    if tag in ("dtype_of", "device_of"):
        return f"{texts[0]}.{tag.removesuffix('_of')}"
    if tag == "size":
        return f"{texts[0]}.shape[{texts[1]}]"
    if tag in ARITHMETIC:
        return f"({texts[0]} {ARITHMETIC[tag]} {texts[1]})"
    return f"[{', '.join(texts)}]"


def _notation(node: Node, inputs: tuple[Node, ...]) -> str:
    if len(inputs) > MOST_INPUTS:
        raise ValueError(f"an opaque operator reads at most {MOST_INPUTS} tensors, not {len(inputs)}")
    call_source(node["target"], node["arguments"], [f"x{i}" for i in range(len(inputs))])
    text: str = node.get("notation") or whole_notation([len(x.shape) for x in inputs], len(node.shape))
    if parse(text).operands != tuple(f"x{i}" for i in range(len(inputs))):
        raise ValueError(f"{text!r} does not read the {len(inputs)} inputs in order")
    return text


def _flops(node: Node, inputs: tuple[Node, ...]) -> int:
    return int(node.get("intensity", 1) * (node.numel + sum(x.numel for x in inputs)))


def _call(node: Node, names: Sequence[str]) -> str:
    return result_source(node, call_source(node["target"], node["arguments"], names))


def result_source(node: Node, call: str) -> str:
    """A node's own output of a call, as a pair of real and imaginary parts if it is complex."""
    text = call if node["output"] is None else f"{call}[{node['output']}]"
    return f"torch.view_as_real({text}.resolve_conj())" if node.get("complex") else text


OPERATORS = (
    Operator(
        "opaque",
        ("x",),
        _notation,
        _call,
        saved=(*(f"x{i}" for i in range(MOST_INPUTS)), "y"),
        flops=_flops,
        variadic=True,
    ),
)
