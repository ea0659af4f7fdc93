"""The class of one stage: what it receives, computes and sends."""

import re
from collections.abc import Mapping, Sequence

from ....model.errors import PartitaError
from ....model.graph.builder import free_name
from ....model.graph.pcg import SOURCES
from ...plan.plan import Plan
from ..common.conversions import Used, local_part
from ..common.data import argument_name, share_lines
from ..common.names import GENERIC, identifier
from ..common.operator_calls import dtype_text
from ..common.statements import reserved
from ..common.text import shape_text, wrap
from ..spmd.block_classes import BlockClasses
from ..spmd.constructors import reduces_behind
from ..spmd.function_body import FunctionBody
from ..spmd.model_classes import ModelClasses
from ..spmd.repeated_blocks import Divided

TITLE, DOC, LAYERS = "<title>", "<doc>", "<layers>"
"""Placeholders in a stage's class: its name, its docstring, a further argument of its constructor."""


class StageModules(ModelClasses):
    """Writes the class of one stage of a pipeline.

    `tied`: weight shared with other stages -> the axis of the ranks that have it.
    `ranges` are the lists that its loops iterate over; `entries(k)` is the placeholder of the k-th in its text.
    """

    single_blocks = True

    def __init__(
        self, plan: Plan, used: Used, found: tuple[Divided, bool], classes: BlockClasses, tied: Mapping[str, str]
    ) -> None:
        self.tied = tied
        self.ranges: list[str] = []
        super().__init__(plan, used, found, classes)
        self.handed = self._named()

    def stage(self, reading: Sequence[int]) -> str:
        """The class, with TITLE, DOC and LAYERS in it; `reading`: the axes over which ranks read different samples."""
        lines = [self.model(TITLE, DOC, f"mesh, dtype{LAYERS}")]
        shares = [f"            {line}" for line in share_lines(self.plan, self.used, reading)]
        share = ["        return {", *shares, "        }"] if shares else ["        return {}"]
        names = [self.plan.axes[i] for i in reading] if shares else []
        share = [f"        {name} = Axis(1, 0) if local else mesh.{name}" for name in names] + share
        doc = "This rank's part of the inputs of this stage in one micro-batch of the global batch."
        if self.plan.micro_batches == 1:
            doc = doc.replace(" one micro-batch of", "")
        lines += ["", *self._function("share", ["inputs", *["local=False"] * bool(reading)], doc, share, axes=())]
        if self.handed:
            lines += ["", *self._received()]
        return "\n".join(lines)

    def _named(self) -> dict[int, str]:
        """Names of the received tensors in forward: after their role, or the node that made them."""
        graph = self.plan.graph
        taken = {argument_name(self.plan, i) for i in graph.of("input")} | reserved() | {*self.plan.axes}
        found: dict[int, str] = {}
        for index in graph.of("receive"):
            last = re.sub(r"(_\d+)+$", "", graph.nodes[index]["peer"].rpartition(".")[2])
            last = GENERIC.get(last, "x" if last.isdigit() else last)
            found[index] = free_name(self.roles.get(index) or identifier(last), taken, "")
            taken.add(found[index])
        return found

    def _inputs(self, body: FunctionBody) -> None:
        """First what the stage before hands over, then the graph's inputs."""
        for index, name in self.handed.items():
            body.received(index, name)
        super()._inputs(body)

    def _results(self, body: FunctionBody) -> list[int]:
        """The values sent, in the next stage's layout; of the last stage the loss."""
        nodes, choices = self.plan.graph.nodes, self.plan.choices
        sent = self.plan.graph.of("send")
        return [body.value(nodes[i].inputs[0], choices[i].inputs[0]) for i in sent] or super()._results(body)

    def _returned(self, texts: Sequence[str]) -> str:
        if not self.plan.graph.of("send"):
            return super()._returned(texts)
        return f"return ({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def _entries(self, text: str) -> str:
        self.ranges.append(text)
        return entries(len(self.ranges) - 1)

    def _groups(self) -> list[str]:
        return [*super()._groups(), *dict.fromkeys(self.tied.values())]

    def _options(self, index: int) -> dict[str, str]:
        options = super()._options(index)
        name = next(iter(self.plan.graph.nodes[index].originals))
        return options | ({"tied": self.tied[name]} if name in self.tied and "trainable" not in options else {})

    def _count(self, loss: int, name: str, own: frozenset[int], weights: dict[int, str]) -> list[str]:
        graph = self.plan.graph
        stack = list(graph.nodes[loss].inputs[1:])
        while stack:
            node = graph.nodes[stack.pop()]
            if node.op == "receive":
                raise PartitaError(
                    f"the loss {graph.nodes[loss].name!r} divides by what counts in the whole batch, which follows "
                    f"from {node['peer']!r} of another stage: no pipeline can know it before it has run"
                )
            stack += [] if node.op in SOURCES else node.inputs
        return super()._count(loss, name, own, weights)

    def _received(self) -> list[str]:
        """The method that returns shapes and dtypes of the received tensors."""
        plan = self.plan
        texts = []
        for index in self.handed:
            local = local_part(plan, index, plan.choices[index].output)
            texts.append(f"({shape_text(local.shape())}, {dtype_text(plan.graph.nodes[index].dtype)})")
        lines = wrap(f"return [{', '.join(texts)}]", 8)
        return self._function("received", [], "Shapes and dtypes of the tensors that the stage before sends.", lines)


def agree(modules: Sequence[StageModules], plan: Plan) -> None:
    """Let the stages of a plan describe their weights alike."""
    kinds = {module.joined_argument for module in modules} - {""}
    sharded, ordered = all(module.all_sharded for module in modules), reduces_behind(plan)
    for module in modules:
        module.joined_argument, module.all_sharded, module.ordered = min(kinds, default=""), sharded, ordered


def entries(number: int) -> str:
    """The placeholder in a stage's class for the list of its loop of this number."""
    return f"<entries {number}>"
