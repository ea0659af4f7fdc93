"""A graph as JSON. What is read is verified, since operators and names end up in programs."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ..errors import PartitaError
from .batch import check_samples
from .pcg import PCG, Attribute, Node
from .verification import verify, verify_file

FORMAT = 1


def graph_to_json(pcg: PCG) -> dict[str, Any]:
    """A graph for JSON (format: docs/plan-file.md)."""
    return {
        "format": FORMAT,
        "batch": pcg.batch,
        "loss": pcg.loss,
        "aliases": [list(a) for a in pcg.aliases],
        **({"samples": [list(dims) for dims in pcg.samples]} if pcg.samples else {}),
        "nodes": [
            {
                "op": n.op,
                "name": n.name,
                "inputs": list(n.inputs),
                "shape": list(n.shape),
                "dtype": n.dtype,
                "attributes": {k: attribute_to_json(v) for k, v in n.attributes},
                "gradient": n.gradient,
                "path": n.path,
            }
            for n in pcg.nodes
        ],
    }


def graph_from_json(data: Any) -> PCG:
    """Read and verify what `graph_to_json` wrote. Raises PartitaError naming the node that is wrong."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise PartitaError(f"not a graph of format {FORMAT}: {json.dumps(data)[:80]}")
    nodes: list[Node] = []
    try:
        for item in data["nodes"]:
            nodes.append(_node(item))
        aliases = tuple((str(a), str(b)) for a, b in data["aliases"])
        samples = tuple(tuple(map(_integer, dims)) for dims in data.get("samples", ()))
        graph = PCG(tuple(nodes), _integer(data["loss"]), _integer(data["batch"]), aliases, samples)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PartitaError(f"graph file: node {len(nodes)} is malformed ({error})") from error
    verify_file(graph)
    verify(graph)
    check_samples(graph)
    return graph


def _node(item: Any) -> Node:
    return Node(
        str(item["op"]),
        str(item["name"]),
        tuple(map(_integer, item["inputs"])),
        shape=tuple(map(_integer, item["shape"])),
        dtype=str(item["dtype"]),
        attributes=tuple(sorted((str(k), attribute_from_json(v)) for k, v in item["attributes"].items())),
        gradient=bool(item["gradient"]),
        path=str(item["path"]),
    )


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def attribute_to_json(value: Attribute) -> Any:
    """An attribute for JSON; infinities and NaN, which it lacks, become {"float": "-inf"}."""
    if isinstance(value, tuple):
        return [attribute_to_json(v) for v in value]
    return {"float": repr(value)} if isinstance(value, float) and not isfinite(value) else value


def attribute_from_json(value: Any) -> Attribute:
    """What `attribute_to_json` wrote; ValueError where it is not an attribute."""
    if isinstance(value, Mapping) and value.get("float") in ("inf", "-inf", "nan"):
        return float(value["float"])
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(attribute_from_json(v) for v in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is not an attribute")
