"""Operators on groups of channels: a rank gives the number of groups that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....model.operators.operator import operator
from .conversions import Local
from .operator_calls import OperatorCall, Rule
from .text import Size, product


class _Expression(str):
    """Program text among the attributes of a node."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _grouped(call: OperatorCall, names: Sequence[str]) -> str:
    node, entry = call.node, operator(call.node.op)
    assert callable(entry.emit)
    groups = _outer(call.source(0), 1, node["groups"])
    here = groups if isinstance(groups, int) else _Expression(groups)
    attributes = tuple((k, here if k == "groups" else v) for k, v in node.attributes)
    return entry.emit(replace(node, attributes=attributes), names)


def _outer(local: Local, dim: int, factor: int) -> Size:
    """The local part of the outer factor of a dim; a dim whose atoms do not fit the factor is not split."""
    atoms, whole = [], 1
    for atom in local.known.of_dim(dim):
        if whole == factor:
            break
        atoms.append(atom)
        whole *= local.known.sizes[atom]
    return product(map(local.atom, atoms)) if whole == factor else factor


RULES: dict[str, Rule] = {"conv": _grouped, "conv_transpose": _grouped, "group_norm": _grouped}
