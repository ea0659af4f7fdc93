"""The attributes that an operator takes in a rule."""

from collections.abc import Mapping
from string import Formatter

from ...model.errors import PartitaError
from ...model.operators.operator import Operator, find_operator
from .rule import PARALLEL, Apply

_EVERY = ("rank", "activation", "operands", "shape")  # a rank for typing, a fused function, a node's operands and shape
_WINDOW = ("stride", "padding", "dilation")
_MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")

# Of operators whose PyTorch expression is no text with their names.
_NAMED: Mapping[str, tuple[str, ...]] = {
    "split": ("dim", "sizes", "parts"),
    "transpose": (),
    "linear": (),
    "linear_relu": (),
    "einsum": ("equation",),
    "view": ("shape",),
    "expand": ("shape",),
    "slice": ("dim", "start", "stop", "step"),
    "part": ("dim", "of", "number"),
    "cat": ("dim",),
    "flip": ("dims",),
    "roll": ("shifts", "dims"),
    "pad": ("pad", "mode", "value"),
    "conv": ("kernel", "groups", *_WINDOW),
    "conv_transpose": ("kernel", "groups", "output_padding", *_WINDOW),
    "max_pool": ("kernel_size", *_WINDOW, "ceil_mode"),
    "avg_pool": _MEAN,
    "adaptive_max_pool": ("output_size",),
    "adaptive_avg_pool": ("output_size",),
    "attention": ("causal", "scale", "grouped"),
    "layer_norm": ("normalized", "eps"),
    "rms_norm": ("normalized", "eps"),
    "group_norm": ("groups", "eps"),
    "batch_norm": ("count", "eps", "momentum"),
    "local_batch_norm": ("eps", "momentum"),
    "embedding": ("sparse",),
    "embedding_bag": ("sparse",),
    "gather": ("dim",),
    "index": ("dim",),
}


def check_attributes(apply: Apply) -> None:
    """Raise PartitaError for a name that is no attribute of the operator: what is not read must not change a rule.

    Rules made from nodes of a graph may have more. Nothing is raised where the operator's attributes are not known.
    """
    if apply.op in PARALLEL:
        return  # `check_operator` knows them
    entry = find_operator(apply.op)
    known = _NAMED[apply.op] if apply.op in _NAMED or entry is None else _fields(entry)
    wrong = [name for name, _ in apply.attributes if known is not None and name not in (*known, *_EVERY)]
    if known is not None and wrong:
        names = ", ".join(sorted(known))
        raise PartitaError(f"{apply.op} has no attribute {wrong[0]}; it takes {names or 'none'}")


def _fields(entry: Operator) -> tuple[str, ...] | None:
    """The names in braces in an operator's expression; None if there is none."""
    if not entry.emit or not isinstance(entry.emit, str):
        return None
    found = [name for _, name, _, _ in Formatter().parse(entry.emit) if name]
    return (*dict.fromkeys(name for name in found if name not in entry.operands), *entry.algebra.defaults)
