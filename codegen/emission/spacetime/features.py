"""The features of programs of space-time plans, in the order of their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ....formulation.spacetime.graph import Graph
from ....formulation.spacetime.looped import Looped
from ....formulation.spacetime.materialized import Collective, Materialized, Send
from ....formulation.spacetime.op import Op, Phase
from ....formulation.special import special_strategy
from ....model.graph.buffer_updates import updated
from ....model.graph.pcg import PCG
from ....model.graph.sparse_tables import sparse_tables
from ....model.initial_values import InitialValues
from ....model.machine.precision import Precision
from ....model.optimizers import optimizer_states
from ..common import initial, training
from ..common.conversions import Used
from ..common.data import sample_lines
from ..common.features import Context, Feature, section
from ..common.operator_calls import value_lines
from .function_table import Functions
from .program_tables import buffers, frozen, hosted, joined, kept, overlapping, places, sparse


@dataclass(frozen=True)
class SpaceTimeEmission:
    """What a program is emitted from: a materialized plan, and the text of its functions and devices."""

    looped: Looped
    precision: Precision
    optimizer: str
    used: Used
    functions: Functions
    devices: Sequence[str]  # functions of devices
    table: Sequence[str]  # which rank runs which
    groups: Sequence[str]  # the table of groups; empty without communication
    counts: Sequence[str]
    initial: InitialValues | None
    joins: bool  # whether weights or gradients travel together

    @property
    def program(self) -> Materialized:
        return self.looped.program

    @property
    def pcg(self) -> PCG:
        return self.looped.pcg

    @cached_property
    def collectives(self) -> frozenset[str]:
        return frozenset(i.kind for device in self.program.devices for i in device if isinstance(i, Collective))

    @cached_property
    def sends(self) -> bool:
        """True if devices send each other messages."""
        return any(isinstance(i, Send) for device in self.program.devices for i in device)

    @cached_property
    def batches(self) -> bool:
        """True if some of these messages have several tensors."""
        return any(isinstance(i, Send) and i.more for device in self.program.devices for i in device)

    @cached_property
    def swaps(self) -> bool:
        """True if activations of some operators are offloaded."""
        return any(op.swapped for op in self.forward)

    @cached_property
    def hosted(self) -> Sequence[str]:
        """The table of updates whose states are on the host; empty if there are no such states."""
        keeps = optimizer_states(self.optimizer) + self.precision.copied
        return hosted(self.program) if keeps else ()

    @cached_property
    def selective(self) -> bool:
        """True if some recomputed operators keep what they give."""
        return any(op.is_kept for op in self.forward)

    @cached_property
    def splits_backward(self) -> bool:
        return any(op.split for op in self.forward)

    @cached_property
    def once(self) -> bool:
        """True if segments compute constants in the first step alone."""
        return any("at.once(" in self.functions.text(name) for name in self.functions.codes)

    @cached_property
    def cuts(self) -> bool:
        """True if collectives have parts of unequal sizes."""
        return any(isinstance(i, Collective) and bool(i.cuts) for device in self.program.devices for i in device)

    @cached_property
    def uneven(self) -> bool:
        """True if some parts are smaller than others."""
        return not all(op.even for op in self.forward)

    @property
    def graph(self) -> Graph:
        """That of all samples of a step."""
        return self.looped.graph

    @property
    def sparse(self) -> bool:
        """True if some tables have sparse gradients."""
        return bool(sparse_tables(self.pcg))

    @property
    def changes(self) -> bool:
        """True if a step changes buffers."""
        return bool(updated(self.pcg))

    @property
    def scales_loss(self) -> bool:
        return self.precision.compute == "float16"

    @property
    def forward(self) -> list[Op]:
        return [op for op in self.program.tasks.ops if op.phase is Phase.FORWARD]


def _run(e: SpaceTimeEmission) -> Context:
    """The runtime: it runs the segments of a device and moves tensors between devices."""
    return {
        "groups": bool(e.groups),
        "statistics": "statistics" in e.used.helpers,
        "counts": bool(e.counts),
        "once": e.once,
        "joins": e.joins,
        "batches": e.batches,
        "collectives": e.collectives,
        "cuts": e.cuts,
        "split": e.splits_backward,
        "swapped": e.swaps,
        "selective": e.selective,
        "fetches": e.functions.fetches,
        "narrow": e.precision.narrow,
        "buffers": bool(e.pcg.of("buffer")),
        "stored": " or ".join(
            f"name in {names}" for names, some in (("SPARSE", e.sparse), ("CHANGED_BUFFERS", e.changes)) if some
        ),
        "changes": e.changes,
        "sparse": e.sparse,
        "widened": e.precision.gradients != e.precision.compute,
        "loss_scale": e.scales_loss,
        "uneven": e.uneven,
        "exchanges": bool(e.used.specials),
    }


def _tensors(e: SpaceTimeEmission) -> Context | None:
    """Functions on tensors that devices and segments call."""
    used = e.used
    return {"helpers": used.helpers, "primitives": used.primitives} if used.helpers or used.primitives else None


def _collectives(e: SpaceTimeEmission) -> Context | None:
    """What functions of special strategies call."""
    called = {name for special in e.used.specials for name in special_strategy(special).primitives}
    names = {"gather": "all_gather", "scatter_sum": "reduce_scatter"}
    collectives = {names[name] for name in called & names.keys()} - e.collectives
    flat = {"programs": False, "resting": False, "disordered": False, "in_steps": ()}  # in one step each
    return {"primitives": called, "collectives": collectives, "uneven": e.uneven, **flat} if called else None


def _special_strategies(e: SpaceTimeEmission) -> Context | None:
    sources = [special_strategy(name).source for name in sorted(e.used.specials)]
    return {"sources": sources} if sources else None


def _devices(e: SpaceTimeEmission) -> Context:
    functions = [e.functions.text(name) for name in e.functions.codes]
    return {"functions": functions, "devices": e.devices, "table": e.table}


def _weights(e: SpaceTimeEmission) -> Context:
    return {
        "joined": bool(joined(e.pcg)),
        "buffers": any(i in e.graph.given for i in e.pcg.of("buffer")),
        "changes": e.changes,
        "sparse": e.sparse and e.precision.master != e.precision.parameters,
        "fetches": e.functions.fetches,
        "once": e.once,
        "swapped": e.swaps,
        "narrow": e.precision.narrow,
        "mixed": e.precision.mixed,
    }


def _weight_constants(e: SpaceTimeEmission) -> list[str]:
    return [
        "",
        *places(e.program),
        *joined(e.pcg),
        f"FROZEN = {frozen(e.program)}",
        *([f"KEPT = {kept(e.graph)}"] if e.functions.fetches else []),
        *buffers(e.graph),
        *([f"SPARSE = {sparse(e.pcg)}"] if e.sparse else []),
    ]


def _checkpoint(e: SpaceTimeEmission) -> Context:
    buffers = {"buffers": bool(_lacking(e)), "unsaved": bool(_unsaved(e))}
    return {"aliases": e.pcg.aliases, **buffers, "copies": False}


def _lacking(e: SpaceTimeEmission) -> list[str]:
    """The constant that names buffers which a checkpoint may lack."""
    return initial.buffers(e.initial, [e.pcg])


def _unsaved(e: SpaceTimeEmission) -> list[str]:
    return initial.unsaved([e.pcg], e.pcg.aliases)


def _optimizer(e: SpaceTimeEmission) -> Context:
    name, call = training.OPTIMIZERS[e.optimizer][0], training.optimizer_call(e.optimizer, fused=False)
    doc = f"{name} on the parts of weights that this rank updates."
    return {
        "optimizer_doc": doc,
        "optimizer_call": call,
        "overlapping": overlapping(e.program),
        "copied": e.precision.copied,
        "sparse": e.sparse,
        "cast": e.precision.gradients != e.precision.master,
        "narrow": e.precision.narrow and not e.precision.copied and not e.precision.mixed,
        "loss_scale": e.scales_loss,
        "hosted": bool(e.hosted),
    }


def _checkpoints(e: SpaceTimeEmission) -> Context:
    """How to continue; a rank keeps weights that it does not update."""
    return {
        **training.CHECKPOINTS,
        "kept": not e.precision.copied,
        "masters": e.precision.copied,
        "loss_scale": e.scales_loss,
        "overlapping": overlapping(e.program),
        "offloaded": bool(e.hosted),
    }


def _main(e: SpaceTimeEmission) -> Context:
    samples = sample_lines(e.pcg, e.pcg.batch) is not None
    built = {"builds_on_device": False, "compiles": False, "overlaps_steps": False, "rank": "mesh.rank"}
    return {"samples": samples, **built, **training.rate(e.pcg, e.pcg.batch)}


_KEEPING = ("from contextlib import nullcontext", "from torch.utils._python_dispatch import TorchDispatchMode")

FEATURES: tuple[Feature[SpaceTimeEmission], ...] = (
    Feature(
        "spacetime/mesh.jinja",
        lambda e: {"groups": bool(e.groups), "cuts": e.cuts, "sends": e.sends},
        constants=lambda e: ["", *e.groups] if e.groups else [],
    ),
    section("The runtime of the devices' programs."),
    Feature(
        "spacetime/run.jinja",
        _run,
        imports=lambda e: [
            "from torch.autograd.graph import get_gradient_edge",
            *(["import tempfile"] if e.swaps else []),
            *(_KEEPING if e.selective else []),
        ],
    ),
    Feature(
        "spacetime/helpers.jinja",
        _tensors,
        imports=lambda e: ["from functools import reduce"] if "added" in e.used.helpers else [],
    ),
    Feature("helpers.jinja", lambda e: training.helpers(e.used, sparse=e.sparse) if e.used.helpers else None),
    Feature("collectives.jinja", _collectives),
    Feature("sources.jinja", _special_strategies),
    Feature("sources.jinja", lambda e: {"sources": [*e.used.functions.values()]} if e.used.functions else None),
    Feature(
        "spacetime/devices.jinja",
        _devices,
        imports=lambda e: [
            *(["from functools import partial"] if any("partial(" in line for line in e.table) else []),
            *training.library_imports(e.used),
        ],
    ),
    section("Weights, under their names in the original module."),
    Feature(
        "blocks.jinja",
        lambda e: {"factors": True, "joined": bool(joined(e.pcg))},
        imports=lambda _: ["import itertools"],
        constants=lambda _: training.PIECE,
    ),
    Feature("spacetime/weights.jinja", _weights, constants=_weight_constants),
    Feature(
        "initialize.jinja",
        lambda e: {**initial.context(e.initial, [e.pcg]), "copies": False},
        imports=lambda e: initial.imports(e.initial),
        constants=lambda e: initial.constants(e.initial),
    ),
    Feature("safetensors.jinja", lambda _: {}, imports=lambda _: ["import json"]),
    Feature("checkpoint.jinja", _checkpoint, constants=lambda e: [*_lacking(e), *_unsaved(e)]),
    section("Training."),
    Feature("spacetime/label_counts.jinja", lambda e: {"counts": e.counts} if e.counts else None),
    Feature("learning_rate.jinja", lambda _: training.learning_rate()),
    Feature("to_host.jinja", lambda e: {} if e.hosted else None),
    Feature("spacetime/optimizer.jinja", _optimizer, constants=lambda e: e.hosted),
    Feature("make_optimizer.jinja", lambda e: training.make_optimizer(e.optimizer)),
    Feature(
        "spacetime/training_step.jinja",
        lambda e: {"reduction": e.pcg.nodes[e.pcg.loss].get("reduction", "mean"), "sparse": e.sparse},
    ),
    section("Checkpoints of training, which any plan of the same model and batch can continue from."),
    Feature("spacetime/training_state.jinja", lambda e: {"loss_scale": e.scales_loss}),
    Feature("checkpoints.jinja", _checkpoints, imports=lambda _: training.CHECKPOINT_IMPORTS),
    section("Data."),
    Feature(
        "data.jinja",
        lambda e: training.data(e.pcg, e.pcg.batch, e.used),
        constants=lambda e: value_lines(e.used),
    ),
    Feature("main.jinja", _main, imports=lambda _: training.MAIN_IMPORTS, constants=lambda _: training.TIMEOUT),
)
