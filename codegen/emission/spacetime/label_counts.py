"""Label counts of the whole batch, the divisors of mean losses: each rank computes them from the inputs."""

from __future__ import annotations

from collections.abc import Sequence

from ....model.errors import PartitaError
from ....model.graph.atoms import atoms
from ....model.graph.pcg import PCG
from ..common.conversions import Used
from ..common.expressions import expression
from ..common.losses import label_count
from ..common.names import value_name
from ..common.operator_calls import OperatorCall
from ..common.statements import FunctionWriter, Statement


def count_lines(pcg: PCG, losses: Sequence[int], used: Used) -> list[str]:
    """The body of the function that maps `inputs` to the counts, by the names of the losses."""
    writer = FunctionWriter(pcg, ("inputs", "device"))
    made: dict[int, int] = {}

    def call(index: int) -> OperatorCall:
        node, known = pcg.nodes[index], atoms(pcg)
        return OperatorCall(
            node=node,
            sources=tuple(pcg.nodes[i] for i in node.inputs),
            known=known[index],
            source_atoms=tuple(known[i] for i in node.inputs),
            inputs=((),) * len(node.inputs),
            layout=(),
            sizes=(),
            axes=(),
            micro_batches=1,
            mixed=False,
            used=used,
        )

    def value(index: int) -> int:
        node = pcg.nodes[index]
        if index in made:
            return made[index]
        if node.op in ("parameter", "buffer") or node.gradient:
            raise PartitaError(f"labels that count depend on {node.name!r}: a step can count only what its inputs say")
        if node.op == "input":
            made[index] = writer.add(Statement(lambda _: f'inputs["{node.name}"]', (), "weight", node.name, index))
            return made[index]
        here = call(index)
        operands = tuple(value(i) for i in node.inputs)
        kind = "unary" if len(operands) == 1 else "op"
        name = value_name(node.op, node.name, node.path)
        this = Statement(lambda t: expression(here, t), operands, kind, name, index)
        made[index] = writer.add(this)
        return made[index]

    results = []
    for index in losses:
        node = pcg.nodes[index]
        if len(node.inputs) > 2:
            raise PartitaError(f"{node.name}: class weights of a mean are not supported in space-time plans")
        here = call(index)
        results.append(
            writer.add(
                Statement(lambda t, h=here: label_count(h, t[0], None), (value(node.inputs[1]),), "op", "count", -1)  # type: ignore[misc]
            )
        )
    pairs = [f'"{pcg.nodes[i].name}"' for i in losses]
    lines = writer.lines(
        results, 4, lambda texts: f"return {{{', '.join(f'{k}: {t}' for k, t in zip(pairs, texts, strict=True))}}}"
    )
    return [line.replace("mesh.device", "device") for line in lines]
