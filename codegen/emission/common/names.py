"""Names that a reader recognises: of mesh axes by what they split, of variables by the nodes that they hold."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ....model.graph.atoms import atoms
from ....model.graph.dtypes import FLOATS
from ....model.graph.layout import P, atom_of, is_split
from ....model.graph.pcg import PCG, SOURCES
from ....model.operators.convolution import CONVOLUTIONS
from ....model.operators.loss import CLASSIFIED, LOSSES
from ....model.operators.operator import operator

if TYPE_CHECKING:
    from ...plan.plan import Plan

USES = ("data", "tensor", "sequence", "space", "branches")

GENERIC = {
    "add": "x",
    "sub": "x",
    "mul": "x",
    "div": "x",
    "scale": "x",
    "shift": "x",
    "view": "x",
    "permute": "x",
    "expand": "x",
    "contiguous": "x",
    "dropout": "x",
    "attention": "mixed",
    "layer_norm": "normed",
    "rms_norm": "normed",
    "batch_norm": "normed",
    "local_batch_norm": "normed",
    "linear": "y",
    "linear_relu": "y",
    "matmul": "product",
    **dict.fromkeys(LOSSES, "loss"),
    "embedding_bag": "bags",
    "gather": "picked",
    "index": "picked",
    "pad": "padded",
    "roll": "rolled",
    "flip": "flipped",
    "slice": "piece",
    "part": "piece",
    "cat": "joined",
    "full": "constant",
    "arange": "index",
}


def axis_names(*plans: Plan) -> tuple[str, ...]:
    """For every axis what most of the work, by FLOPs, is split by: samples, weights, or other dims of activations.

    Where weights are stored in parts over an axis that splits samples, as another does, or no work, it is `shard`
    (fully sharded data parallelism). What else splits no work is named by its number; a second one of the same use
    gets a number too. Several plans of one mesh are the stages of a pipeline.
    """
    work = [dict.fromkeys(USES, 0.0) for _ in plans[0].placement.sizes]
    for plan in plans:
        _add_work(plan, work)
    uses = [max(USES, key=shares.__getitem__) if any(shares.values()) else "" for shares in work]
    stored = [_stores_parts(plans, axis) for axis in range(len(uses))]
    if uses.count("data") > 1 or "" in uses:
        data = [a for a, use in enumerate(uses) if use == "data"]
        first = next((a for a in data if not stored[a]), data[0] if data else None)
        uses = ["shard" if stored[a] and a != first and use in ("data", "") else use for a, use in enumerate(uses)]
    result: list[str] = []
    for axis, use in enumerate(uses):
        wish = use or f"axis{axis}"
        result.append(wish if wish not in result else f"{wish}{sum(r.startswith(wish) for r in result) + 1}")
    return tuple(result)


def _add_work(plan: Plan, work: Sequence[dict[str, float]]) -> None:
    """Add what each axis splits in a plan, in FLOPs by use."""
    graph, known = plan.graph, atoms(plan.graph)
    for index, (node, choice) in enumerate(zip(graph.nodes, plan.choices, strict=True)):
        if node.op in SOURCES or operator(node.op).creates:
            continue
        amount = node.numel * 1e-6
        if operator(node.op).matmul:
            amount += operator(node.op).work(node, tuple(graph.nodes[i] for i in node.inputs))
        for axis, shares in enumerate(work):
            if axis in choice.alone:
                shares["branches"] += amount
            letters = [(i, x[axis]) for i, x in zip(node.inputs, choice.inputs, strict=True)]
            split = [(i, x) for i, x in (*letters, (index, choice.output[axis])) if is_split(x)]
            if not split:
                continue
            if any(atom_of(x) in known[i].batch for i, x in split):
                shares["data"] += amount
            elif node.op in CONVOLUTIONS and any(known[i].dim_of(atom_of(x))[0] > 1 for i, x in split[:1]):
                shares["space"] += amount
            elif any(_reaches_weight(plan, i) for i, _ in split) or not operator(node.op).matmul:
                shares["tensor"] += amount
            else:
                shares["sequence"] += amount


def _stores_parts(plans: Sequence[Plan], axis: int) -> bool:
    """Whether most of the trained weights, by elements, are stored in parts over an axis."""
    trained = [(p.graph.nodes[i].numel, p.choices[i].output[axis]) for p in plans for i in p.graph.of("parameter")]
    return 2 * sum(n for n, letter in trained if is_split(letter)) > sum(n for n, _ in trained)


def _reaches_weight(plan: Plan, index: int) -> bool:
    return plan.graph.nodes[index].op == "parameter"


def identifier(text: str) -> str:
    """`text` as a Python name."""
    name = re.sub(r"\W+", "_", text).strip("_") or "x"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def wish(op: str, name: str, path: str) -> str:
    """The variable name that a node would like."""
    if op in GENERIC and re.sub(r"(_\d+)+$", "", name.rpartition(".")[2]) in (op, GENERIC[op], "add", "sub", "rsub"):
        return GENERIC[op]
    last = re.sub(r"(_\d+)+$", "", name.rpartition(".")[2])
    if last.isdigit():
        last = path.rpartition(".")[2] if path and not path.rpartition(".")[2].isdigit() else GENERIC.get(op, op)
    return identifier(last)


def short_names(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Dotted names to identifiers: as many trailing parts, from two on, as keep them apart."""
    everything = tuple(names)
    result: dict[str, str] = {}
    for name in everything:
        parts = name.split(".")
        for count in range(min(2, len(parts)), len(parts) + 1):
            tail = ".".join(parts[-count:])
            if tail[0].isdigit() and count < len(parts):
                continue
            if sum(other == tail or other.endswith(f".{tail}") for other in everything) == 1:
                break
        result[name] = identifier(tail)
    taken = dict.fromkeys([*reserved, "mesh", "dtype", "i"], 1)
    for name, short in result.items():  # a.b_c and a_b.c
        taken[short] = taken.get(short, 0) + 1
        if taken[short] > 1:
            result[name] = f"{short}_{taken[short]}"
    return result


def joins(graph: PCG) -> str:
    """What the program calls what weights join: tables alone, or any parameters; nothing where none does."""
    kinds = {kind for i in graph.of("parameter") for kind in ("tables", "joined") if graph.nodes[i].get(kind)}
    return min(kinds, default="")


def is_literal(plan: Plan, index: int) -> bool:
    """Whether a node is a scalar constant that every reader can take as a Python number."""
    graph = plan.graph
    node = graph.nodes[index]
    if node.op != "full" or node.shape or node.dtype not in FLOATS:
        return False
    for reader in graph.consumers[index]:
        asked = zip(graph.nodes[reader].inputs, plan.choices[reader].inputs, strict=True)
        if any(i == index and P in x for i, x in asked):
            return False
    readers = [graph.nodes[i] for i in graph.consumers[index]]
    return bool(readers) and all(
        reader.op in ("where", "add", "sub", "mul", "div")
        and reader.inputs.count(index) == 1
        and all(graph.nodes[i].op != "full" for i in reader.inputs if i != index)
        and all(graph.nodes[i].dtype in (reader.dtype, "bool") for i in reader.inputs if i != index)
        for reader in readers
    )


def _rotation(graph: PCG, index: int, found: dict[int, str]) -> None:
    """Name what a sine is taken of: angles, products of positions and frequencies."""
    while graph.nodes[index].op in ("cat", *_SHOWS, "to"):
        found[index] = "angles"
        index = graph.nodes[index].inputs[0]
    found[index] = "angles"
    for i in graph.nodes[index].inputs if graph.nodes[index].op == "mul" else ():
        while graph.nodes[i].op in (*_SHOWS, "to"):
            i = graph.nodes[i].inputs[0]
        if graph.nodes[i].op in ("exp", "reciprocal", "pow", "power", "div"):
            found[i] = "frequencies"
            found.update(dict.fromkeys((k for k in graph.nodes[i].inputs if graph.nodes[k].op == "scale"), "exponents"))


_SHOWS = ("view", "permute", "slice", "part", "contiguous", "expand", "dropout")
_GATES = ("silu", "gelu", "sigmoid", "relu", "tanh")
_SCORES = ("scale", "where", "add", "div", "shift", "softmax", "dropout", "mul")


def roles(graph: PCG) -> dict[int, str]:
    """Names that follow from what a value is for: queries, keys, values, scores, logits."""
    found: dict[int, str] = {}

    def back(index: int, name: str, shows: tuple[str, ...]) -> int:
        """Name the views on the way back from `index`; what they show."""
        while graph.nodes[index].op in shows and len(graph.consumers[index]) == 1:
            found.setdefault(index, name)
            index = graph.nodes[index].inputs[0]
        return index

    for index, node in enumerate(graph.nodes):
        if node.op == "attention":
            for name, i in zip("qkv", node.inputs, strict=False):
                source = back(i, name, _SHOWS)
                if graph.nodes[source].op == "add":  # of a rotation
                    found.setdefault(source, name)
        elif node.op == "softmax":
            scores = node.inputs[0]
            while graph.nodes[scores].op in _SCORES:
                found[scores] = "scores"
                floats = [i for i in graph.nodes[scores].inputs if graph.nodes[i].dtype in FLOATS]
                scores = max(floats, key=lambda i: len(graph.nodes[i].shape))
            reader = index
            while len(graph.consumers[reader]) == 1 and graph.nodes[reader].op in ("softmax", "dropout"):
                found[reader] = "scores"
                reader = graph.consumers[reader][0]
            if graph.nodes[scores].op == "matmul" and graph.nodes[reader].op == "matmul":
                found[scores], found[reader] = "scores", "mixed"
                back(graph.nodes[scores].inputs[0], "q", _SHOWS)
                back(graph.nodes[scores].inputs[1], "k", _SHOWS)
                back(graph.nodes[reader].inputs[1], "v", _SHOWS)
        elif node.op == "mul" and any(graph.nodes[i].op in _GATES for i in node.inputs):
            found.setdefault(index, "gated")
        elif node.op == "moments":
            found[index] = "sums"
        elif node.op in ("sin", "cos"):
            found[index] = node.op
            _rotation(graph, node.inputs[0], found)
        elif node.op in CLASSIFIED:
            source = back(node.inputs[0], "logits", _SHOWS)
            found.setdefault(source, "logits")
    return found
