"""A parallel graph as JSON, and back."""

from dataclasses import asdict
from typing import Any

from ...model.errors import PartitaError
from ...model.graph.graph_file import attribute_from_json, attribute_to_json
from ...model.json_values import whole
from ..plan.choice import as_list
from .graph import MachineMapping, Nested, Node, ParallelGraph, ParallelTensor, Work, nested

FORMAT = 1


def to_json(graph: ParallelGraph) -> dict[str, Any]:
    """A JSON object; machine mappings are a table of their own, since there are few."""
    number = {mapping: i for i, mapping in enumerate(graph.mappings)}
    return {
        "format": FORMAT,
        "axes": [{"name": name, "size": size} for name, size in graph.axes],
        "micro_batches": graph.micro_batches,
        "objective_ns": graph.objective_ns,
        "memory_bytes": graph.memory_bytes,
        "reserve_bytes": graph.reserve_bytes,
        "hidden_ns": graph.hidden_ns,
        "host_bound_ns": graph.host_bound_ns,
        "output": graph.output,
        "mappings": [{"tasks": list(m.tasks), "devices": _lists(m.devices)} for m in graph.mappings],
        "nodes": [_node_json(node, number[node.mapping]) for node in graph.nodes],
    }


def _lists(value: Nested) -> Any:
    return [_lists(x) for x in value] if isinstance(value, tuple) else value


def _node_json(node: Node, mapping: int) -> dict[str, Any]:
    return {
        "operator": node.operator,
        "name": node.name,
        "inputs": list(node.inputs),
        "of": node.of,
        "attributes": {key: attribute_to_json(value) for key, value in node.attributes},
        "tensor": {
            "dims": [{"size": n, "degree": d} for n, d in zip(node.tensor.shape, node.tensor.degrees, strict=True)],
            "replicas": node.tensor.replicas,
            "letters": list(node.tensor.letters),
            "dtype": node.tensor.dtype,
        },
        "mapping": mapping,
        "gradient": node.gradient,
        "work": [asdict(work) | {"axes": list(work.axes)} for work in node.work],
        "kept": dict(node.kept),
    }


def from_json(data: Any) -> ParallelGraph:
    """Read what `to_json` gave. Raises PartitaError that says what is wrong and where."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PartitaError(f"not a parallel graph of format {FORMAT}: {data!s:.60}")
    where = "parallel graph"
    try:
        axes = tuple((_text(axis["name"]), whole(axis["size"])) for axis in as_list(data["axes"]))
        table = [
            MachineMapping(_texts(item["tasks"]), tuple(map(nested, as_list(item["devices"]))))
            for item in as_list(data["mappings"])
        ]
        nodes = []
        for index, item in enumerate(as_list(data["nodes"])):
            where = f"parallel graph, node {index}"
            nodes.append(_node(item, table))
        where = "parallel graph"
        beside = (whole(data.get(name, 0)) for name in ("hidden_ns", "host_bound_ns"))
        numbers = *(whole(data[name]) for name in ("output", "reserve_bytes")), *beside
        graph = ParallelGraph(axes, whole(data["micro_batches"]), tuple(nodes), *numbers)
        for name in ("objective_ns", "memory_bytes"):
            if whole(data[name]) != getattr(graph, name):
                raise ValueError(f"{name} is {data[name]}, but the operators sum to {getattr(graph, name)}")
    except KeyError as error:
        raise PartitaError(f"{where}: {error} is missing") from error
    except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise PartitaError(f"{where}: {error}") from error
    return graph


def _node(item: Any, table: list[MachineMapping]) -> Node:
    state, number = item["tensor"], whole(item["mapping"])
    if not 0 <= number < len(table):
        raise ValueError(f"mapping {number} of {len(table)}")
    dims = as_list(state["dims"])
    if not isinstance(item["gradient"], bool):
        raise ValueError(f"gradient {item['gradient']!r:.60} is neither true nor false")
    return Node(
        operator=_text(item["operator"]),
        name=_text(item["name"]),
        inputs=tuple(map(whole, as_list(item["inputs"]))),
        tensor=ParallelTensor(
            tuple(whole(dim["size"]) for dim in dims),
            tuple(whole(dim["degree"]) for dim in dims),
            whole(state["replicas"]),
            _texts(state["letters"]),
            _text(state["dtype"]),
        ),
        mapping=table[number],
        of=whole(item["of"]),
        attributes=tuple((_text(key), attribute_from_json(value)) for key, value in item["attributes"].items()),
        gradient=item["gradient"],
        work=tuple(map(_work, as_list(item["work"]))),
        kept=tuple((_text(part), whole(size)) for part, size in item["kept"].items()),
    )


def _work(item: Any) -> Work:
    part, kind, phase = (_text(item[name]) for name in ("part", "kind", "phase"))
    ns, count, size = (whole(item[name]) for name in ("ns", "count", "bytes"))
    return Work(part, kind, phase, ns, count, _texts(item["axes"]), bytes=size)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.60} is not a name")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(_text, as_list(values)))
