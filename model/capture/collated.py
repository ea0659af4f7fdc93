"""Batches as collators make them: dicts of any kind, whose entries may be no tensors, or unknown to forward."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..errors import PartitaError


def plain_inputs(value: Any) -> Any:
    """The same values, mappings of every kind (such as a BatchEncoding) as dicts."""
    if isinstance(value, Mapping):
        return {name: plain_inputs(entry) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain_inputs, value))
    return value


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
