"""Label counts of the whole batch, the divisors of mean losses: each rank computes them from the inputs."""

from collections.abc import Sequence

from ....formulation.spacetime.graph import Graph
from ....model.errors import PartitaError
from ..common.conversions import Used
from ..common.expressions import expression
from ..common.losses import counted, label_count
from ..common.names import value_name
from ..common.statements import FunctionWriter, Statement
from .segment_functions import operator_call


def count_lines(graph: Graph, used: Used) -> list[str]:
    """The body of the function that maps `inputs` to the counts, by the names of the losses; empty without any."""
    pcg, losses = graph.pcg, counted(graph.pcg)
    writer = FunctionWriter(pcg, ("inputs", "device"))
    made: dict[int, int] = {}

    def value(index: int) -> int:
        """The statement of a node that depends on inputs alone."""
        node = pcg.nodes[index]
        if index not in made:
            if node.op in ("parameter", "buffer") or node.gradient:
                raise PartitaError(f"labels depend on {node.name!r}: a step counts labels from its inputs alone")
            if node.op == "input":
                this = Statement(lambda _: f'inputs["{node.name}"]', (), "weight", node.name, index)
            else:
                operands, call = tuple(map(value, node.inputs)), operator_call(graph, index, used)
                kind = "unary" if len(operands) == 1 else "op"
                name = value_name(node.op, node.name, node.path)
                this = Statement(lambda texts: expression(call, texts), operands, kind, name, index)
            made[index] = writer.add(this)
        return made[index]

    def count(index: int) -> int:
        """The statement of a loss's count."""
        node, call = pcg.nodes[index], operator_call(graph, index, used)
        if len(node.inputs) > 2:
            raise PartitaError(f"{node.name}: class weights of a mean are not supported in space-time plans")
        labels = value(node.inputs[1])
        return writer.add(Statement(lambda texts: label_count(call, texts[0], None), (labels,), "op", "count", -1))

    def returned(texts: Sequence[str]) -> str:
        pairs = (f'"{pcg.nodes[i].name}": {text}' for i, text in zip(losses, texts, strict=True))
        return f"return {{{', '.join(pairs)}}}"

    lines = writer.lines([count(index) for index in losses], 4, returned) if losses else []
    return [line.replace("mesh.device", "device") for line in lines]
