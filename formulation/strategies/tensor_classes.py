"""Tensor classes: a tensor and all views of it are one, since layouts live on atoms, which views do not change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ...model.graph.atoms import atoms
from ...model.graph.folded import is_folded, pass_of
from ...model.graph.layout import B, Layout, R, S, atom_of, is_split, splittable
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG, SOURCES
from ...model.graph.recycling import twins
from ...model.graph.segments import segments
from ...model.operators.operator import is_random, operator
from .strategy import rows


@dataclass(frozen=True, slots=True)
class Use:
    """One consumer's read of a tensor class; `atoms` takes the atoms of what it reads to those of the class's base.

    `repeats`: how many passes without gradient repeat the read.
    """

    node: int
    operand: int
    atoms: tuple[int, ...]
    repeats: int = 0


@dataclass(frozen=True)
class Classes:
    """Tensors up to views: `base[n]` is the node that computes what n shows, `atoms[n]` takes atoms to the base's.

    `reads` are all reads of a base, `uses` those that are decided on: the reads of passes without gradient are counted
    at what they repeat, unless they read something else. `handed`: what such a pass hands to another one, in a layout
    that is not decided on (see `handover`). `passes[n]` are the nodes that repeat n; node n is an alternative of
    `alternative_of[n]`.
    """

    base: tuple[int, ...]
    atoms: tuple[tuple[int, ...], ...]
    reads: Mapping[int, tuple[Use, ...]]
    uses: Mapping[int, tuple[Use, ...]]
    constant: tuple[bool, ...]
    twin: Mapping[int, int]
    passes: Mapping[int, tuple[int, ...]]
    handed: frozenset[int]
    alternative_of: Mapping[int, int]

    def decides(self, node: int) -> int:
        """The node whose strategy `node` has: itself, or what it repeats."""
        return self.twin.get(node, node)

    def variable(self, node: int) -> int:
        """The node whose variable decides on `node`: itself, what it repeats, or what it is an alternative of."""
        return self.alternative_of.get(node, self.twin.get(node, node))

    def repetitions(self, tensor: int) -> dict[tuple[int, int], list[Use]]:
        """The reads of a tensor in passes without gradient, by (node, operand) of the read that they repeat."""
        found: dict[tuple[int, int], list[Use]] = {}
        for use in self.reads.get(tensor, ()):
            if use.node in self.twin:
                found.setdefault((self.twin[use.node], use.operand), []).append(use)
        return found


def trains(pcg: PCG, node: int) -> bool:
    """True if weight gradients follow from the output gradient: the node reads a weight, or what only weights give."""
    trained = _trained(origin(pcg))
    return node not in trained and any(i in trained for i in pcg.nodes[node].inputs)


@lru_cache(maxsize=16)
def _trained(pcg: PCG) -> frozenset[int]:
    """Weights with gradients, and what is computed of weights and constants alone."""
    constant = classes(pcg).constant
    found: set[int] = set()
    for index, node in enumerate(pcg.nodes):
        weights = (i for i in node.inputs if not constant[i])
        given = node.op != "parameter" and all(i in found or pcg.nodes[i].op == "parameter" for i in weights)
        if node.gradient and (node.op == "parameter" or (given and any(i in found for i in node.inputs))):
            found.add(index)
    return frozenset(found)


def classes(pcg: PCG) -> Classes:
    """Which nodes only show another tensor (views, permutations), who reads each tensor, and what is constant."""
    return _classes(origin(pcg))  # the same at any batch


@lru_cache(maxsize=16)
def _classes(pcg: PCG) -> Classes:
    base: list[int] = []
    maps: list[tuple[int, ...]] = []
    constant: list[bool] = []
    reads: dict[int, list[Use]] = {}
    known, twin, alternative_of = atoms(pcg), twins(pcg), dict(pcg.alternatives)
    for index, node in enumerate(pcg.nodes):
        fixed = node.op == "buffer" or (
            node.op not in ("input", "parameter")
            and not is_random(node)
            and (operator(node.op).creates or (bool(node.inputs) and all(constant[i] for i in node.inputs)))
        )
        constant.append(fixed)
        shown = None if fixed or index in alternative_of else _shown(pcg, index, index in twin)
        if shown is not None:
            source = node.inputs[0]
            base.append(base[source])
            maps.append(tuple(maps[source][a] for a in shown))
            continue
        base.append(index)
        maps.append(tuple(range(len(known[index].sizes))))
        if not fixed:
            for position, source in enumerate(node.inputs):
                reads.setdefault(base[source], []).append(Use(index, position, maps[source]))
    twin = {n: v for n, v in twin.items() if not constant[n] and (base[n] == n) == (base[v] == v)}
    uses, handed = _uses(pcg, base, reads, twin)
    passes: dict[int, list[int]] = {}
    for node_, model in twin.items():
        passes.setdefault(model, []).append(node_)
    return Classes(
        base=tuple(base),
        atoms=tuple(maps),
        reads={k: tuple(v) for k, v in reads.items()},
        uses=uses,
        constant=tuple(constant),
        twin=twin,
        passes={k: tuple(v) for k, v in passes.items()},
        handed=handed,
        alternative_of=alternative_of,
    )


def _uses(
    pcg: PCG, base: list[int], reads: Mapping[int, list[Use]], twin: Mapping[int, int]
) -> tuple[dict[int, tuple[Use, ...]], frozenset[int]]:
    """The reads to decide on, with how often they are repeated; and the tensors that passes hand to each other."""

    def repeats(tensor: int, use: Use) -> bool:
        """True if the pass with gradient reads what this pass has in its place."""
        model = twin.get(use.node)
        return model is not None and base[pcg.nodes[model].inputs[use.operand]] == twin.get(tensor, tensor)

    handed = {t for t, all_reads in reads.items() if t in twin and not all(repeats(t, u) for u in all_reads)}
    found: dict[int, list[Use]] = {}
    repeated: dict[tuple[int, int, int], int] = {}
    for tensor, all_reads in reads.items():
        for use in all_reads if tensor not in handed else ():
            if repeats(tensor, use):
                place = (twin.get(tensor, tensor), twin[use.node], use.operand)
                repeated[place] = repeated.get(place, 0) + 1
            else:
                found.setdefault(tensor, []).append(use)
    uses = {
        tensor: tuple(replace(u, repeats=repeated.get((tensor, u.node, u.operand), 0)) for u in those)
        for tensor, those in found.items()
    }
    return uses, frozenset(handed)


def handover(pcg: PCG, node: int, sizes: tuple[int, ...]) -> Layout:
    """How a pass hands a tensor to the next one: its samples split over as many axes as leave no rank empty."""
    known = atoms(pcg)[node]
    batch = min(known.batch, default=None)
    layout: list[int] = []
    parts: list[int] = []
    for size in sizes:
        fits = batch is not None and splittable(known.sizes[batch], (*parts, size))
        layout.append(S(batch) if batch is not None and fits else R)
        parts += [size] if fits else []
    return tuple(layout)


def kept_between_passes(pcg: PCG, micro_batches: int) -> Mapping[int, int]:
    """Of how many micro-batches a stage keeps each tensor until another pass reads it, if so many are between passes.

    Of all that is what several passes read. What a pass hands to the next is one tensor for each pass, and a
    micro-batch waits for one of them.
    """
    if not micro_batches or not is_folded(pcg):
        return {}
    known, number = classes(pcg), pass_of(pcg)
    found = dict.fromkeys(pcg.of("from_pass"), -(-micro_batches // max(1, *number)))
    for tensor, reads in known.reads.items():
        if pcg.nodes[tensor].op not in SOURCES and len({number[use.node] for use in reads}) > 1:
            found[tensor] = micro_batches
    return found


def without_addends(layout: Layout) -> Layout:
    """The layout of a value without gradient that is `layout` with one: what is B there is R."""
    return tuple(R if letter == B else letter for letter in layout)


def _shown(pcg: PCG, index: int, repeats: bool) -> tuple[int, ...] | None:
    """For a node that is its input under another shape: for every atom of it the input's; otherwise None."""
    node = pcg.nodes[index]
    if node.op in ("input", "parameter", "buffer"):
        return None
    entry = operator(node.op)
    if entry.passes or entry.transfer or len(node.inputs) != 1:
        return None
    if pcg.nodes[node.inputs[0]].gradient != node.gradient and not repeats:
        return None
    split = [r for r in rows(pcg, index) if is_split(r.output) and is_split(r.inputs[0])]
    pairs = {atom_of(r.output): atom_of(r.inputs[0]) for r in split}
    mine, its = len(atoms(pcg)[index].sizes), len(atoms(pcg)[node.inputs[0]].sizes)
    if node.numel != pcg.nodes[node.inputs[0]].numel or mine != its or sorted(pairs) != list(range(mine)):
        return None
    return tuple(pairs[a] for a in range(mine))


def find_cuts(pcg: PCG, classes: Classes) -> set[int]:
    """Tensors that alone lead from what is before them to what is after (post-dominators of what is before)."""
    return {first for first, alive in _alive(pcg, classes) if alive == {first}}


def find_cuts_beside(pcg: PCG, classes: Classes) -> dict[int, int]:
    """Tensors that lead from what is before them to what is after beside one other, which several layers read: that."""
    layer = {i: number for number, segment in enumerate(segments(pcg)) for i in segment.nodes}
    read = {i: {layer.get(classes.variable(u.node), -1) for u in uses} - {-1} for i, uses in classes.uses.items()}
    pairs = ((first, alive - {first}) for first, alive in _alive(pcg, classes) if len(alive) == 2)
    return {first: other for first, (other,) in pairs if len(read[other] - {layer.get(other)}) > 1}


def find_pairs(pcg: PCG, classes: Classes) -> dict[int, int]:
    """Tensors that end a layer and lead on beside one other, both of them read in later layers alone: that other."""
    layer = {i: number for number, segment in enumerate(segments(pcg)) for i in segment.nodes}
    found: dict[int, int] = {}
    for first, alive in _alive(pcg, classes):
        if len(alive) != 2 or first not in layer:
            continue
        (other,) = alive - {first}
        readers = (classes.variable(u.node) for i in alive for u in classes.uses[i])
        if other not in found.values() and all(i <= first or layer.get(i) != layer[first] for i in readers):
            found[first] = other
    return found


def _alive(pcg: PCG, classes: Classes) -> Iterator[tuple[int, set[int]]]:
    """Each tensor that is computed, with those that are read after it, itself included."""
    alive: dict[int, int] = {}  # the last reader of each
    for first, uses in sorted(classes.uses.items()):
        if not classes.constant[first] and pcg.nodes[first].op not in ("input", "parameter"):
            alive = {i: last for i, last in alive.items() if last > first}
            alive[first] = max(classes.variable(u.node) for u in uses)
            yield first, {*alive}
