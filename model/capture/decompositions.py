"""torch's own decomposition of a single ATen call, as a small graph of other calls.

A composite operator is traced through its kernel, any other through the entry of torch's table of decompositions, whose
own composite calls are kept. Nothing is computed: the operands are fake.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Key: TypeAlias = tuple[object, ...]
"""A call: its operator, the shapes, strides and dtypes of its tensors, its other arguments."""


MOST_NODES = 300
"""Larger decompositions, of recurrent layers for instance, are not used."""


class Decompositions:
    """Decompositions of calls; equal calls are traced once."""

    def __init__(self) -> None:
        self._made: dict[Key, fx.GraphModule | None] = {}
        self._open: list[Key] = []

    def of(self, target: OpOverload, args: Any, kwargs: Any) -> "Decomposition | None":
        """The decomposition of a call; None if it has none, or if it is inside its own.

        The arguments hold fx nodes, whose fake tensors are read.
        """
        leaves, structure = pytree.tree_flatten((args, kwargs))
        own = kwargs.keys() - {item.name for item in target._schema.arguments}
        nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        operands = [node.meta.get("val") for node in nodes]
        if own or not all(isinstance(x, torch.Tensor) for x in operands):
            return None
        descriptions = iter([(tuple(x.shape), x.stride(), x.dtype) for x in operands if isinstance(x, torch.Tensor)])
        key = (
            target,
            str(structure),
            *(next(descriptions) if isinstance(leaf, fx.Node) else (type(leaf), leaf) for leaf in leaves),
        )
        if key in self._open:
            return None
        if key not in self._made:
            self._made[key] = _traced(target, leaves, structure, operands)
        graph = self._made[key]
        return None if graph is None else Decomposition(self._open, key, graph, nodes)


class Decomposition:
    """A traced call: `graph` reads the values of `operands`. Within it as a context, its own call is not decomposed."""

    def __init__(self, calls: list[Key], key: Key, module: fx.GraphModule, operands: Sequence[fx.Node]) -> None:
        self._calls, self._key = calls, key
        self.graph = module.graph
        self.operands = operands

    def __enter__(self) -> "Decomposition":
        self._calls.append(self._key)
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.pop()


def _traced(
    target: OpOverload, leaves: Sequence[Any], structure: Any, operands: Sequence[Any]
) -> fx.GraphModule | None:
    """The calls by which `target` computes its results, which the graph returns as a flat list."""
    composite = target._can_decompose()
    function: Callable[..., Any] | None = target.decompose if composite else decomposition_table.get(target)
    function = function or getattr(target, "impl_aten", None)  # of a primitive, which some decompositions call
    if function is None:
        return None

    def call(*tensors: torch.Tensor) -> list[Any]:
        given = iter(tensors)
        args, kwargs = pytree.tree_unflatten([next(given) if _node(leaf) else leaf for leaf in leaves], structure)
        result = function(*args, **kwargs)
        return list(result) if isinstance(result, list | tuple) else [result]

    mode = next((x.fake_mode for x in operands if isinstance(x, torch._subclasses.FakeTensor)), FakeTensorMode())
    try:
        with mode, torch.no_grad():
            given = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in operands]
            made = make_fx(call, pre_dispatch=not composite)(*given)
            return made if len(made.graph.nodes) <= MOST_NODES else None
    except Exception:  # whatever torch raises: it has a decomposition, but not for this call
        return None


def _node(leaf: object) -> bool:
    return isinstance(leaf, fx.Node)
