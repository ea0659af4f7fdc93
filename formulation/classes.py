"""Tensor classes: a tensor and all views of it are one, since layouts live on atoms, which views do not change."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..model.atoms import atoms
from ..model.layout import atom_of, is_split
from ..model.operator import operator
from ..model.pcg import PCG
from .strategy import rows


@dataclass(frozen=True, slots=True)
class Use:
    """One consumer's read of a tensor class; `atoms` takes the atoms of what it reads to those of the class's base."""

    node: int
    operand: int
    atoms: tuple[int, ...]


@dataclass(frozen=True)
class Classes:
    """Tensors up to views: `base[n]` is the node that computes what n shows, `atoms[n]` takes atoms to the base's."""

    base: tuple[int, ...]
    atoms: tuple[tuple[int, ...], ...]
    uses: Mapping[int, tuple[Use, ...]]
    constant: tuple[bool, ...]


@lru_cache(maxsize=16)
def classes(pcg: PCG) -> Classes:
    """Find which nodes only show another tensor (views, permutations), who reads each tensor, and what is constant."""
    base: list[int] = []
    maps: list[tuple[int, ...]] = []
    constant: list[bool] = []
    uses: dict[int, list[Use]] = {}
    known = atoms(pcg)
    for index, node in enumerate(pcg.nodes):
        fixed = node.op == "buffer" or (
            node.op not in ("input", "parameter")
            and (operator(node.op).creates or all(constant[i] for i in node.inputs))
        )
        constant.append(fixed)
        shown = None if fixed else _shown(pcg, index)
        if shown is not None:
            source = node.inputs[0]
            base.append(base[source])
            maps.append(tuple(maps[source][a] for a in shown))
            continue
        base.append(index)
        maps.append(tuple(range(len(known[index].sizes))))
        if not fixed:
            for position, source in enumerate(node.inputs):
                uses.setdefault(base[source], []).append(Use(index, position, maps[source]))
    return Classes(tuple(base), tuple(maps), {k: tuple(v) for k, v in uses.items()}, tuple(constant))


def _shown(pcg: PCG, index: int) -> tuple[int, ...] | None:
    """For a node that is its input under another shape: for every atom of it the input's; otherwise None."""
    node = pcg.nodes[index]
    if node.op in ("input", "parameter", "buffer"):
        return None
    entry = operator(node.op)
    if entry.passes or len(node.inputs) != 1 or pcg.nodes[node.inputs[0]].gradient != node.gradient:
        return None
    pairs = {atom_of(r.output): atom_of(r.inputs[0]) for r in rows(pcg, index) if is_split(r.output)}
    mine, its = len(atoms(pcg)[index].sizes), len(atoms(pcg)[node.inputs[0]].sizes)
    if node.numel != pcg.nodes[node.inputs[0]].numel or mine != its or sorted(pairs) != list(range(mine)):
        return None
    return tuple(pairs[a] for a in range(mine))
