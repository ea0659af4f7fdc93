"""Batches as collators make them: dicts of any kind, whose entries may be no tensors, or unknown to forward."""

import dataclasses
import inspect
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import PartitaError


def plain_inputs(value: Any) -> Any:
    """The same values, mappings of every kind (such as a BatchEncoding) as dicts."""
    if isinstance(value, Mapping):
        return {name: plain_inputs(entry) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain_inputs, value))
    return value


def check_leaves(leaves: Iterable[Any]) -> None:
    """Raise PartitaError for inputs that hide tensors, such as dataclasses of which torch was not told."""
    for leaf in leaves:
        fields = getattr(leaf, "__dict__", {})
        hidden = [name for name, value in fields.items() if isinstance(value, Tensor)]
        if hidden and not isinstance(leaf, Tensor | nn.Module):
            kind = type(leaf).__name__
            told = f", or call torch.export.register_dataclass({kind}) before" if dataclasses.is_dataclass(leaf) else ""
            raise PartitaError(
                f"the example inputs contain a {kind}, whose tensors ({', '.join(hidden)}) are not seen: give forward "
                f"tensors, or tuples or dicts of them{told}"
            )


def check_names(module: nn.Module, named: Mapping[str, Any]) -> None:
    """Raise PartitaError for inputs by name that forward does not take.

    A forward with `**kwargs: Unpack[Kind]` takes the names of Kind; one with other keywords takes every name.
    """
    try:
        parameters = inspect.signature(module.forward, eval_str=True).parameters
    except Exception:  # annotations as text that names what is imported for type checkers only
        parameters = inspect.signature(module.forward).parameters
    takes = [name for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = next((p for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    known = set(takes)
    if others is not None:
        kinds = [kind for kind in typing.get_args(others.annotation) if typing.is_typeddict(kind)]
        if not kinds:
            return
        known.update(*(kind.__annotations__ for kind in kinds))
    unknown = [name for name in named if name not in known]
    if unknown:
        raise PartitaError(
            f"the example inputs do not fit {type(module).__name__}.forward: it takes no "
            f"{', '.join(map(repr, unknown))}; leave {'it' if len(unknown) == 1 else 'them'} out (it takes "
            f"{', '.join(takes)})"
        )
