"""The features of emitted programs, in the order of their text.

A new feature is a template, a function that gives its context, and an entry of `FEATURES`.
"""

import math
import textwrap

from ....formulation.special import special_strategy
from ....formulation.weights.buckets import BUCKET_BYTES
from ....model.graph.atoms import atoms
from ....model.graph.layout import P
from ....model.graph.segments import IN_PARTS
from ...plan.table_spread import loads_text, spread_axis
from ...pricing.axis_groups import summed_over
from ...pricing.weights import bucket_price
from ...report.describe import mesh_sentence
from ..common import initial, training
from ..common.data import sample_lines
from ..common.features import Context, Feature, section
from ..common.operator_calls import value_lines
from ..common.text import WIDTH, wrap
from .constructors import trained
from .emission import Emission

LEAST_BYTES = 1_000_000
"""The fewest bytes of a bucket that ends with its layer."""

LATENCY = 0.1
"""The largest latency of the sum of such a bucket, as a share of the time that it hides."""


def _mesh(e: Emission) -> Context:
    found = e.collectives
    return {
        "mesh_doc": mesh_sentence(e.plan),
        "mesh_lines": e.mesh_lines,
        "per_node": e.plan.placement.hierarchy[-1],
        "micro": e.accumulates,
        "stepped": e.has_dropout,
        "modes": e.used.modes,
        "again": e.used.overlap and bool(e.recomputation_modes),
        "placed": e.storage.placed,
        "ranged": e.storage.ranged,
        **vars(found),
    }


def _collectives(e: Emission) -> Context | None:
    return vars(e.collectives) if e.collectives.primitives or e.collectives.collectives else None


def _steps(e: Emission) -> Context | None:
    """Collectives in several steps behind what is computed."""
    return vars(e.collectives) if e.collectives.in_steps else None


def _conversions(e: Emission) -> Context | None:
    """Functions that convert between layouts, with their gradients."""
    functions = [found.code(e.collectives.uneven) for _, found in sorted(e.used.conversions.items())]
    return {"functions": functions} if functions else None


def _helpers(e: Emission) -> Context | None:
    if not e.used.helpers:
        return None
    selective = "selective" in e.recomputation_modes
    return training.helpers(e.used, modes=True, sparse=e.storage.sparse, selective=selective, compiles=e.plan.compile)


def _helper_imports(e: Emission) -> list[str]:
    drawing = ["from contextlib import contextmanager"] if "drawing" in e.used.helpers else []
    return drawing + (["import weakref"] if "regathered" in e.used.helpers else [])


def _gathering(e: Emission) -> Context | None:
    """Fully sharded weights that travel ahead of their use."""
    if not e.used.gathers:
        return None
    return {
        **vars(e.collectives),
        "regather": e.used.forgets,
        "layers": e.used.several_layers,
        "several": e.used.several_axes,
        "recompute": bool(e.recomputation_modes),
        "selective": "selective" in e.recomputation_modes,
        "compiles": e.plan.compile,
    }


def _gathering_imports(e: Emission) -> list[str]:
    disable = ["from torch.utils._python_dispatch import _disable_current_modes"]
    return [
        "import itertools",
        "from types import SimpleNamespace",
        *(disable if "selective" in e.recomputation_modes else []),
    ]


def _recomputation(e: Emission) -> Context | None:
    modes = e.recomputation_modes
    if not modes:
        return None
    return {
        "recompute": modes,
        "parts": not modes.isdisjoint(IN_PARTS),
        "micro": e.accumulates,
        "stepped": e.has_dropout,
        "gathers": e.used.overlap,
    }


def _recomputation_imports(e: Emission) -> list[str]:
    selective = ["CheckpointPolicy", "create_selective_checkpoint_contexts"]
    names = ["checkpoint", *(selective if "selective" in e.recomputation_modes else [])]
    return [f"from torch.utils.checkpoint import {', '.join(names)}"]


def _special_strategies(e: Emission) -> Context | None:
    sources = [special_strategy(name).source for name in sorted(e.used.specials)]
    return {"sources": sources} if sources else None


def _functions(e: Emission) -> Context | None:
    """Autograd functions of the module, with a backward of their own."""
    return {"sources": list(e.used.functions.values())} if e.used.functions else None


_FLAGS = {
    "sharded": "whether ranks update shares",
    "scattered": "whether they accumulate shares",
    "offloaded": "whether states are on the host",
}
"""Options of single weights, with their documentation."""


def _weights(e: Emission) -> Context:
    """Parameters as this rank's parts of the original ones."""
    storage, states = e.storage, e.synchronization
    said = vars(states) | {"sharded": states.sharded and not states.all_sharded}
    flags = [flag for flag in _FLAGS if said[flag]]
    options = {
        "cuts=None": storage.cut,
        "summed=None": True,
        "tied=None": _tied(e),
        "trainable=True": storage.frozen,
        "running=None": storage.running,
        **{f"{flag}=False": True for flag in flags},
        "sparse=False": storage.sparse,
        f"{storage.joined}=None": bool(storage.joined),
        "spread=None": storage.spread,
    }
    arguments = ["name", "shape", "dtype", *(option for option, present in options.items() if present)]
    names = ["summed", *flags]
    docs = [f"`{flag}` {_FLAGS[flag]}" for flag in flags]
    return {
        **vars(storage),
        "head": wrap(f"def weight({', '.join(arguments)}):", 0),
        "summed_doc": "`summed` is the axis over which gradients are summed",
        "flag_docs": "".join((", " if doc == docs[0] else ",\n    ") + doc for doc in docs),
        "flags": flags,
        "assignment": f"{', '.join(f'part.{name}' for name in names)} = {', '.join(names)}",
        "tied": _tied(e),
        "uneven": e.collectives.uneven,
        "narrow": e.precision.narrow,
        "mixed": e.precision.mixed,
    }


def _spread_tables(e: Emission) -> list[str]:
    """The tables of each coordinate, for every weight of spread tables."""
    lines: list[str] = []
    for plan in e.stages:
        for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
            axis = spread_axis(plan, index)
            if axis is None:
                continue
            lines += [f"    # {line}" for line in textwrap.wrap(loads_text(plan, index, plan.axes[axis]), WIDTH - 6)]
            lines.append(f'    "{node.name}": [')
            for coordinate in range(plan.placement.sizes[axis]):
                own = [f'("{name}",~{start},~{stop}),' for name, start, stop, place in choice.at if place == coordinate]
                filled = textwrap.wrap(" ".join(own), WIDTH - 12, break_on_hyphens=False)
                lines += ["        [", *(f"            {line}" for line in filled), "        ],"]
            lines.append("    ],")
    if not lines:
        return []
    head = "SPREAD = {  # by coordinate: tables, each with the first column there and the one after the last"
    return ["", head, *(line.replace("~", " ") for line in lines), "}  # fmt: skip"]


def _classes(e: Emission) -> Context:
    """The classes of the model: one for every kind of repeated block, one for the rest."""
    return {"classes": e.classes}


def _pipeline(e: Emission) -> Context | None:
    return {"pipeline": e.pipeline, "modes": e.used.modes, "noise": e.used.noise} if e.pipeline else None


def _pipeline_imports(e: Emission) -> list[str]:
    return ["from torch.autograd.graph import GradientEdge"] if e.pipeline and e.pipeline["split"] else []


def _compile(e: Emission) -> Context | None:
    """What `torch.compile` compiles."""
    if not e.plan.compile:
        return None
    return {"stale": e.pipeline is not None and e.pipeline["stale"]}


_COMPILE = ("COMPILE = True  # blocks, by torch.compile",)


def _buffers(e: Emission) -> list[str]:
    return initial.buffers(e.plan.initial, [plan.graph for plan in e.stages])


def _unsaved(e: Emission) -> list[str]:
    return initial.unsaved([plan.graph for plan in e.stages], e.plan.graph.aliases)


def _blocks(e: Emission) -> Context:
    return {"factors": e.storage.factors, "joined": bool(e.storage.joined)}


def _parts(e: Emission) -> Context:
    """What a rank holds of the weights, by block of the original tensors."""
    shares, stale = e.synchronization.sharded, e.pipeline is not None and e.pipeline["stale"]
    return {**vars(e.storage), "shares": shares, "stale": stale}


def _parts_imports(e: Emission) -> list[str]:
    return ["import itertools"] if e.storage.factors or e.storage.joined else []


def _initialize(e: Emission) -> Context:
    return {**initial.context(e.plan.initial, [plan.graph for plan in e.stages]), "copies": _copies(e)}


def _checkpoint(e: Emission) -> Context:
    return {
        "buffers": bool(_buffers(e)),
        "unsaved": bool(_unsaved(e)),
        "aliases": e.plan.graph.aliases,
        "copies": _copies(e),
    }


def _optimizer(e: Emission) -> Context:
    """The context of all parts of the optimizer."""
    return {
        **_parts(e),
        **vars(e.synchronization),
        "programs": e.collectives.programs,
        "copied": e.precision.copied,
        "widened": _widened(e),
        "loss_scale": e.scales_loss,
        "pipeline": e.pipeline,
        "tied": _tied(e),
        "bare": not all(map(trained, e.stages)),
        "alike": _updates_alike(e),
        "ranks": "RANKS // PIPELINE" if e.pipeline else "RANKS",
        "optimizer_doc": f"{training.OPTIMIZERS[e.plan.optimizer][0]} over this rank's part of the weights.",
        "optimizer_call": training.optimizer_call(
            e.plan.optimizer, fused=not (e.storage.sparse or e.synchronization.offloaded)
        ),
        "narrow": e.precision.gradients not in ("float32", "float64"),
        "micro": e.accumulates,
        "shared": e.pipeline is not None and e.pipeline["shared"],
        "split": e.pipeline is not None and e.pipeline["split"],
    }


def _updates_alike(e: Emission) -> bool:
    """True if every rank has all weights whole, and the same sum of all gradients, to the last bit.

    Gradients that ranks compute for themselves may differ in the last bits, as may sums in several steps.
    """
    storage, sums = e.storage, e.synchronization
    parts = storage.cut or storage.placed or storage.ranged or storage.spread or storage.sparse
    axes = sum(size > 1 for size in e.plan.placement.sizes)
    unlike = parts or sums.sharded or sums.separate or sums.alone or e.collectives.programs or axes > 1
    return not (unlike or e.pipeline or e.scales_loss)


def _optimizer_in_place(e: Emission) -> Context | None:
    return None if e.synchronization.separate else _optimizer(e)


def _optimizer_separate(e: Emission) -> Context | None:
    """The optimizer whose gradients or states are separate from the weights: on the host, or in another dtype."""
    return _optimizer(e) if e.synchronization.separate else None


def _reductions(e: Emission) -> Context | None:
    """The order of reductions behind backward."""
    return _optimizer(e) if e.synchronization.behind else None


def _step(e: Emission) -> Context:
    """One step: its micro-batches, and the loss."""
    last = e.stages[-1]
    letters = zip(last.axes, last.choices[last.graph.loss].output, last.placement.sizes, strict=True)
    reduction = e.plan.graph.nodes[e.plan.graph.loss].get("reduction", "mean")
    return {
        "shares": e.shares,
        "reading": e.reading,
        "modes": e.used.modes,
        "reduction": reduction if e.divisors else "whole",
        "divisors": e.divisors,
        "loss_axes": [axis for axis, letter, size in letters if letter == P and size > 1],
        "micro": e.accumulates,
        "stepped": e.has_dropout,
        "regather": "regathered" in e.used.helpers,
        "loss_scale": e.scales_loss,
    }


def _checkpoints(e: Emission) -> Context:
    several = {
        "inner": "inner",
        "inners": "optimizer.inner",
        "schedule": "schedule",
        "schedules": "optimizer.schedules",
    }
    return {
        **training.CHECKPOINTS,
        **(several if e.synchronization.separate else {}),
        "copies": _copies(e),
        "offloaded": e.synchronization.offloaded,
        "publishes": e.synchronization.sharded,
        "loss_scale": e.scales_loss,
        "frozen": e.storage.frozen,
        "stale": e.pipeline is not None and e.pipeline["stale"],
    }


def _whole_step(e: Emission) -> Context | None:
    return None if e.pipeline else _step(e)


def _pipelined_step(e: Emission) -> Context | None:
    if not e.pipeline:
        return None
    return {
        **vars(e.synchronization),
        **_step(e),
        "pipeline": e.pipeline,
        "overlap": e.plan.overlap,
        "widened": _widened(e),
    }


def _data(e: Emission) -> Context:
    return training.data(e.plan.graph, e.plan.batch, e.used, reading=bool(e.reading))


def _own_samples(e: Emission) -> Context | None:
    """The samples that each rank reads; ranks of a plan whose inputs count no samples read the same."""
    if not any(atoms(e.plan.graph)[index].batch for index in e.plan.graph.of("input")):
        return None
    text, in_parts = "torch.arange(BATCH)", bool(e.reading) and e.accumulates
    text += ".view(MICRO_BATCHES, -1)" if in_parts else ""
    for axis in e.reading:
        text = f"cut({text}, {int(in_parts)}, mesh.{axis})"
    return {"numbers": text + (".flatten()" if in_parts else "")}


def _main(e: Emission) -> Context:
    return {
        **training.rate(e.plan.graph, e.plan.batch),
        "samples": sample_lines(e.plan.graph, e.plan.batch) is not None,
        "overlaps_steps": e.pipeline is not None and e.pipeline["stale"],
        "builds_on_device": True,
        "compiles": e.plan.compile,
        "rank": "dist.get_rank()",
    }


def _least(e: Emission) -> list[str]:
    if not e.synchronization.behind:
        return []
    note = "bytes of a bucket that ends with its layer, and is reduced behind backward"
    return [f"LEAST = {_least_bytes(e):_}  # {note}"]


def _least_bytes(e: Emission) -> int:
    """The fewest bytes with which a bucket ends before it is full, in steps of 100 kB.

    One more message costs one more latency, and saves only the share of its time that hides behind backward.
    """
    lines = [
        bucket_price(plan, axes, "all_reduce")
        for plan in e.stages
        for axes in {summed_over(plan, index) for index in trained(plan)} - {()}
    ]
    enough = max((line.latency_ns / line.ns_per_byte for line in lines), default=0.0)
    enough /= LATENCY * e.plan.machine.hidden_share
    return min(BUCKET_BYTES, max(LEAST_BYTES, math.ceil(enough / 1e5) * 100_000))


def _widened(e: Emission) -> bool:
    """True if gradients are accumulated in another dtype than the weights'."""
    return e.precision.gradients != e.precision.parameters


def _copies(e: Emission) -> bool:
    """True if several stages of a rank have the same buffers."""
    return e.pipeline is not None and e.pipeline["copies"]


def _tied(e: Emission) -> bool:
    """True if several stages have the same weight."""
    return e.pipeline is not None and e.pipeline["tied"]


FEATURES: tuple[Feature[Emission], ...] = (
    Feature("mesh.jinja", _mesh, constants=lambda e: e.programs),
    Feature("collectives.jinja", _collectives),
    Feature("steps.jinja", _steps, imports=lambda _: ["from functools import cache"]),
    Feature("conversions.jinja", _conversions),
    Feature("helpers.jinja", _helpers, imports=_helper_imports),
    Feature("gathering.jinja", _gathering, imports=_gathering_imports),
    Feature("recomputation.jinja", _recomputation, imports=_recomputation_imports),
    Feature("sources.jinja", _special_strategies),
    Feature("sources.jinja", _functions),
    section("The model."),
    Feature("weights.jinja", _weights, imports=lambda _: ["from functools import partial"]),
    Feature(
        "classes.jinja",
        _classes,
        imports=lambda e: training.library_imports(e.used),
        constants=lambda e: [*value_lines(e.used), *_spread_tables(e)],
    ),
    Feature("pipeline.jinja", _pipeline, imports=_pipeline_imports),
    Feature("compile.jinja", _compile, constants=lambda e: _COMPILE if e.plan.compile else []),
    section("Weights, under their names in the original module."),
    Feature("blocks.jinja", _blocks, constants=lambda _: training.PIECE),
    Feature("parts.jinja", _parts, imports=_parts_imports),
    Feature(
        "initialize.jinja",
        _initialize,
        imports=lambda e: initial.imports(e.plan.initial),
        constants=lambda e: initial.constants(e.plan.initial),
    ),
    Feature("safetensors.jinja", lambda _: {}, imports=lambda _: ["import json"]),
    Feature("checkpoint.jinja", _checkpoint, constants=lambda e: [*_buffers(e), *_unsaved(e)]),
    section("Training."),
    Feature("learning_rate.jinja", lambda _: training.learning_rate()),
    Feature("bucket.jinja", _optimizer_in_place),
    Feature("to_host.jinja", lambda e: {} if e.synchronization.offloaded else None),
    Feature("separate_bucket.jinja", _optimizer_separate),
    Feature("buckets.jinja", _optimizer, constants=_least),
    Feature("reductions.jinja", _reductions),
    Feature("optimizer.jinja", _optimizer_in_place),
    Feature("separate_optimizer.jinja", _optimizer_separate),
    Feature("make_optimizer.jinja", lambda e: training.make_optimizer(e.plan.optimizer)),
    Feature("whole_gradients.jinja", _optimizer),
    section("Checkpoints of training, which any plan of the same model and batch can continue from."),
    Feature("training_state.jinja", _optimizer),
    Feature("checkpoints.jinja", _checkpoints, imports=lambda _: training.CHECKPOINT_IMPORTS),
    section("A step."),
    Feature("training_step.jinja", _whole_step),
    Feature("stages.jinja", _pipelined_step),
    Feature("data.jinja", _data),
    Feature("own_samples.jinja", _own_samples),
    Feature("main.jinja", _main, imports=lambda _: training.MAIN_IMPORTS, constants=lambda _: training.TIMEOUT),
)
