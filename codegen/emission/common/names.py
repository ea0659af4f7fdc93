"""Names of variables, by the nodes that they hold."""

import keyword
import re
from collections.abc import Callable, Iterable

from ....model.graph.constants import built_once
from ....model.graph.dtypes import FLOATS
from ....model.graph.layout import P
from ....model.graph.pcg import PCG, Node
from ....model.operators.keywords import literal
from ....model.operators.loss import CLASSIFIED, LOSSES
from ...plan.plan import Plan

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
    **dict.fromkeys(("topk", "argsort", "cummax", "cummin", "argmax", "argmin", "kthvalue", "mode"), "places"),
    **dict.fromkeys(("lstm", "gru", "rnn"), "hidden"),
    "grouped_product": "product",
    "scatter_add": "sums",
    "scatter": "written",
    "scatter_reduce": "reduced",
    "pad": "padded",
    "roll": "rolled",
    "flip": "flipped",
    "slice": "piece",
    "part": "piece",
    "cat": "joined",
    "full": "constant",
    "arange": "index",
}


def identifier(text: str) -> str:
    """`text` as a Python name."""
    name = re.sub(r"\W+", "_", text).strip("_") or "x"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def value_name(op: str, name: str, path: str) -> str:
    """The preferred variable name of a node."""
    if op in GENERIC and re.sub(r"(_\d+)+$", "", name.rpartition(".")[2]) in (op, GENERIC[op], "add", "sub", "rsub"):
        return GENERIC[op]
    last = re.sub(r"(_\d+)+$", "", name.rpartition(".")[2])
    if last.isdigit():
        last = path.rpartition(".")[2] if path and not path.rpartition(".")[2].isdigit() else GENERIC.get(op, op)
    return identifier(last)


def short_names(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Dotted names to identifiers: as many trailing parts, at least two, as make them unique."""
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
    taken = dict.fromkeys([*reserved, "mesh", "dtype", "i", "compute"], 1)
    for name, short in result.items():  # a.b_c and a_b.c
        taken[short] = taken.get(short, 0) + 1
        if taken[short] > 1:
            result[name] = f"{short}_{taken[short]}"
    return result


def joined_argument(graph: PCG) -> str:
    """The argument for the tensors that weights join: `tables`, or `joined` if not only tables; "" if none joins."""
    kinds = {kind for i in graph.of("parameter") for kind in ("tables", "joined") if graph.nodes[i].get(kind)}
    return min(kinds, default="")


def is_outside(plan: Plan, index: int) -> bool:
    """True if no function of the model computes a node: it is a Python number, or computed once."""
    return is_literal(plan, index) or index in built_once(plan.graph)


def is_literal(plan: Plan, index: int) -> bool:
    """True if a node is a scalar constant that every reader accepts as a Python number."""
    graph = plan.graph
    node = graph.nodes[index]
    if node.op != "full" or node.shape or node.dtype not in FLOATS:
        return False
    for reader in graph.consumers[index]:
        required = zip(graph.nodes[reader].inputs, plan.choices[reader].inputs, strict=True)
        if any(i == index and P in x for i, x in required):
            return False
    readers = [graph.nodes[i] for i in graph.consumers[index]]
    return bool(readers) and all(
        reader.op in ("where", "add", "sub", "mul", "div")
        and reader.inputs.count(index) == 1
        and all(graph.nodes[i].op != "full" for i in reader.inputs if i != index)
        and all(graph.nodes[i].dtype in (reader.dtype, "bool") for i in reader.inputs if i != index)
        for reader in readers
    )


def literal_text(plan: Plan, index: int) -> str:
    """The Python number of an `is_literal` node."""
    return literal("value", plan.graph.nodes[index]["value"])


def _rotation(graph: PCG, index: int, found: dict[int, str]) -> None:
    """Name the argument of a sine: angles are products of positions and frequencies."""
    while graph.nodes[index].op in ("cat", *_VIEWS, "to"):
        found[index] = "angles"
        index = graph.nodes[index].inputs[0]
    found[index] = "angles"
    for i in graph.nodes[index].inputs if graph.nodes[index].op == "mul" else ():
        while graph.nodes[i].op in (*_VIEWS, "to"):
            i = graph.nodes[i].inputs[0]
        if graph.nodes[i].op in ("exp", "reciprocal", "pow", "power", "div"):
            found[i] = "frequencies"
            found.update(dict.fromkeys((k for k in graph.nodes[i].inputs if graph.nodes[k].op == "scale"), "exponents"))


_VIEWS = ("view", "permute", "slice", "part", "contiguous", "expand", "dropout")
_GATES = ("silu", "gelu", "sigmoid", "relu", "tanh")
_SCORES = ("scale", "where", "add", "div", "shift", "softmax", "dropout", "mul")


def roles(graph: PCG) -> dict[int, str]:
    """Names by the purpose of a value: queries, keys, values, scores, logits."""
    found: dict[int, str] = {}

    def back(index: int, name: str, shows: tuple[str, ...]) -> int:
        """Name the views on the way back from `index`; returns the node that they view."""
        while graph.nodes[index].op in shows and len(graph.consumers[index]) == 1:
            found.setdefault(index, name)
            index = graph.nodes[index].inputs[0]
        return index

    for index, node in enumerate(graph.nodes):
        if node.op == "attention":
            for name, i in zip("qkv", node.inputs, strict=False):
                source = back(i, name, _VIEWS)
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
                back(graph.nodes[scores].inputs[0], "q", _VIEWS)
                back(graph.nodes[scores].inputs[1], "k", _VIEWS)
                back(graph.nodes[reader].inputs[1], "v", _VIEWS)
        elif node.op == "mul" and any(graph.nodes[i].op in _GATES for i in node.inputs):
            found.setdefault(index, "gated")
        elif node.op == "moments":
            found[index] = "sums"
        elif node.op in ("sin", "cos"):
            found[index] = node.op
            _rotation(graph, node.inputs[0], found)
        elif node.op in CLASSIFIED:
            source = back(node.inputs[0], "logits", _VIEWS)
            found.setdefault(source, "logits")
    return found


def joined_text(node: Node, original: Callable[[str], str] = '"{}"'.format) -> str:
    """The tensors that a weight joins, name to rows; `original` writes a name."""
    return f"{{{', '.join(f'{original(name)}: {shape[0]}' for name, shape in node.originals.items())}}}"
