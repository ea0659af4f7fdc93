"""The arguments of a call as the inputs of a plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...model.capture.inputs import bound_leaves
from ...model.errors import PartitaError


class Arguments:
    """Finds the `planned` inputs among the arguments of a forward; `example` are the inputs it was planned with."""

    def __init__(self, kind: str, forward: Callable[..., Any], planned: Iterable[str], example: Any = None) -> None:
        self.kind, self.planned = kind, frozenset(planned)
        self.signature = inspect.signature(forward)
        self.flags = {name: parameter.default for name, parameter in self.signature.parameters.items()}
        if example is not None:
            example = (example,) if isinstance(example, Tensor) else example
            args, kwargs = ((), example) if isinstance(example, Mapping) else (example, {})
            leaves = bound_leaves(self.signature, args, kwargs)
            self.flags |= {name: leaf for name, leaf in leaves if not isinstance(leaf, Tensor)}

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The planned tensors by name.

        Raises PartitaError where some are missing, where there are others, and where arguments that are no tensors
        differ from those planned.
        """
        try:
            given = dict(bound_leaves(self.signature, args, kwargs))
        except TypeError as error:
            raise PartitaError(f"the arguments do not fit {self.kind}.forward: {error}") from error
        tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        if missing := sorted(self.planned - tensors.keys()):
            raise PartitaError(
                f"this call of {self.kind} has no {', '.join(missing)}, with which it is planned: the plan computes "
                "the loss alone; for anything else load whole_state() into a module of your own"
            )
        others = {name: x for name, x in given.items() if name not in tensors and x is not None}
        further = {name for name, x in others.items() if x != self.flags.get(name)} | (tensors.keys() - self.planned)
        if further:
            raise PartitaError(
                f"{self.kind} is planned without {', '.join(sorted(further))}: plan it with these arguments"
            )
        return {name: tensors[name] for name in self.planned}
