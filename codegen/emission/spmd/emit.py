"""A plan as one readable program: jinja templates for what all programs share, generated lines for the model."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ....formulation.special import special_strategy
from ....formulation.weights.storage import BUCKET_BYTES
from ....model.graph.atoms import atoms
from ....model.graph.buffer_updates import updated
from ....model.graph.layout import P, is_split
from ....model.graph.sparse_tables import sparse_tables
from ....model.machine.precision import precision
from ...plan.plan import Plan
from ...plan.table_spread import loads_text, spread_axis
from ...pricing.axis_groups import Group, axis_groups, summed_over
from ...report.describe import docstring, mesh_sentence
from ..common import defaults
from ..common.conversions import Local, Used
from ..common.data import sample_lines, synthetic_lines
from ..common.text import WIDTH, one_free, shape_text, wrap
from ..templates import FOLDER, environment
from .axes import all_steps, disordered, mesh_lines, table
from .modules import Modules, argument_name

_OPTIMIZERS = {
    "sgd": ("SGD", "torch.optim.SGD(groups, lr)"),
    "adam": ("Adam", f"torch.optim.Adam(groups, lr, betas={defaults.BETAS}, eps={defaults.EPS})"),
    "adamw": ("AdamW", f"torch.optim.AdamW(groups, lr, betas={defaults.BETAS}, eps={defaults.EPS})"),
}


def emit(plan: Plan) -> str:
    """The program of a plan, the same text every time. Raises PartitaError where a plan cannot be written down."""
    used = Used(bool(plan.graph.of("dropout")))
    modules = Modules(plan, used)
    model = modules.text()
    shares, synthetic = share_lines(plan, used), synthetic_lines(plan.graph, plan.batch, used)
    cutting = any("cut(" in line for line in shares)
    loss, sizes = plan.choices[plan.graph.loss].output, plan.placement.sizes
    return rendered(
        common((plan,), [modules], used, axis_groups(plan), cutting)
        | {
            "docstring": docstring(plan),
            "constants": constants(plan, plan.axes, sizes) + named_values((plan,), used, axis_groups(plan)),
            "mesh_doc": mesh_sentence(plan),
            "mesh_lines": mesh_lines(plan.placement, plan.axes, axis_groups(plan)),
            "per_node": plan.placement.hierarchy[-1],
            "pipeline": None,
            "modules": model,
            "aliases": plan.graph.aliases,
            "reduction": plan.graph.nodes[plan.graph.loss].get("reduction", "mean") if modules.divisors else "whole",
            "shares": shares,
            "divisors": modules.divisors,
            "loss_axes": [a for a, x, n in zip(plan.axes, loss, sizes, strict=True) if x == P and n > 1],
            "synthetic": synthetic,
            "samples": sample_lines(plan.graph, plan.batch),
        }
    )


def common(
    plans: Sequence[Plan], modules: Sequence[Modules], used: Used, groups: Sequence[Group], cutting: bool
) -> dict[str, Any]:
    """What the templates are told of a plan, or of all stages of a pipeline; `cutting`: whether inputs are cut."""
    plan = plans[0]
    weights = [
        (n, c) for p in plans for n, c in zip(p.graph.nodes, p.choices, strict=True) if n.op in ("parameter", "buffer")
    ]
    synchronized = {_synchronized(p, i) for p in plans for i in _trained(p)}
    sharded, alone, reduced = (kind in synchronized for kind in ("sharded", "alone", "reduced"))
    dtypes, trained = precision(plan.dtype), [p.choices[i] for p in plans for i in _trained(p)]
    scattered, offloaded = any(c.sharded_gradients for c in trained), any(c.offloaded for c in trained)
    sharded |= any(p.separate_states for p in plans)
    joined = max(m.joins for m in modules)
    cut = bool(joined) or any(is_split(x) for _, c in weights for x in c.output)
    cut = cut or used.placed
    if cut or sharded or cutting or "positions" in used.helpers or "pad" in used.primitives:
        used.primitives |= {"cut"}
    if cut or sharded:
        used.primitives |= {"gather"}
    if sharded:
        used.primitives |= {"scatter_sum"}
    programs = table(groups)
    if programs and (reduced or "all_reduce" in used.primitives):
        used.primitives |= {"add_up"}
    kinds = {"gather": "all_gather", "scatter_sum": "reduce_scatter", "add_up": "all_reduce"}
    steps = all_steps(groups)
    collectives = {kind for name, kind in kinds.items() if name in used.primitives}
    collectives |= {step.collective.value for step in steps}
    uneven = used.uneven or any(map(_uneven_weights, plans))
    modes = frozenset[str]().union(*(m.modes for m in modules))
    return {
        "imports": imports(used, modes),
        "programs": bool(programs),
        "collectives": collectives,
        "resting": any(step.zero for step in steps),
        "disordered": disordered(groups),
        "uneven": uneven,
        "micro": plan.micro_batches > 1,
        "stepped": "dropout" in used.helpers,
        "primitives": used.primitives,
        "moves": [move.code(uneven) for _, move in sorted(used.moves.items())],
        "helpers": used.helpers,
        "recompute": modes,
        "specials": [special_strategy(name).source for name in sorted(used.specials)],
        "random_bits": _counters("mix", "mix_", "random_bits"),
        "dropped": _counters("dropped"),
        "narrow": dtypes.narrow,
        "mixed": dtypes.mixed,
        "cut": cut,
        "placed": used.placed,
        "joined": joined,
        "strided": any(m.strided for m in modules),
        "spread": any(map(_spread, plans)),
        "sharded": sharded,
        "all_sharded": all(m.all_sharded for m in modules) and sharded,
        "apart": any(p.separate_states for p in plans),
        "scattered": scattered,
        "offloaded": offloaded,
        "copied": dtypes.copied,
        "widened": dtypes.gradients != dtypes.parameters,
        "alone": alone,
        "reduced": reduced,
        "frozen": any(n.op in ("parameter", "buffer") and not n.gradient for n, _ in weights),
        "factors": any(m.factors for m in modules),
        "running": any(updated(p.graph) for p in plans),
        "sparse": any(sparse_tables(p.graph) for p in plans),
        "optimizer_doc": f"{_OPTIMIZERS[plan.optimizer][0]} over this rank's part of the weights.",
        "optimizer_call": _OPTIMIZERS[plan.optimizer][1],
        "min_factor": defaults.MIN_FACTOR,
        "lr": defaults.LEARNING_RATE,
        "weight_decay": defaults.WEIGHT_DECAY[plan.optimizer],
        "clip": defaults.CLIP_NORM,
        "warmup": defaults.WARMUP_STEPS,
        "total": defaults.TOTAL_STEPS,
        "loss_scale": plan.dtype == "mixed-float16",
        "regather": "regathered" in used.helpers,
    }


def rendered(context: Mapping[str, Any]) -> str:
    """The program's text."""
    return _spaced(environment().get_template("program.jinja").render(**context))


def _trained(plan: Plan) -> list[int]:
    """The weights that have a dense gradient."""
    sparse = sparse_tables(plan.graph)
    return [i for i in plan.graph.of("parameter") if plan.graph.nodes[i].gradient and i not in sparse]


def _synchronized(plan: Plan, index: int) -> str:
    """What becomes of a weight's gradient: `sharded` (reduce-scatter), `reduced` (all-reduce), or `alone` (nothing)."""
    if not summed_over(plan, index):
        return "alone"
    return "sharded" if plan.choices[index].sharded_states else "reduced"


def _spaced(program: str) -> str:
    """Two blank lines around what stands on the top level, as a formatter does."""
    lines: list[str] = []
    for line in program.splitlines():
        if line.startswith(("class ", "def ", "# ")) and not (lines and lines[-1].startswith("@")):
            while lines and not lines[-1]:
                lines.pop()
            lines += ["", ""]
        lines.append(line.rstrip())
    text = "\n".join(lines).strip() + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)


def imports(used: Used, modes: Set[str] = frozenset(), split: bool = False) -> list[str]:
    """What the program imports; `split`: backward runs in two parts."""
    again = ["CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts"]
    again = again if "selective" in modes else again[1:2]
    names = ["math", "os", "sys", *(["weakref"] if "regathered" in used.helpers else []), "zlib"]
    return [
        *(f"import {name}" for name in names),
        "from functools import partial",
        "",
        "import torch",
        "import torch.distributed as dist",
        "import torch.nn.functional as F",
        "from torch import nn",
        *(["from torch.autograd.graph import GradientEdge"] if split else []),
        *([f"from torch.utils.checkpoint import {', '.join(again)}"] if modes else []),
    ]


def constants(plan: Plan, axes: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """The program's constants: the mesh, the batch, the seed."""
    names = [a.upper() for a in axes]
    mesh = f"{', '.join(names)} = {', '.join(map(str, sizes))}"
    return [
        f"{mesh}  # the mesh",
        f"RANKS = {' * '.join(names)}",
        f"BATCH, MICRO_BATCHES = {plan.batch}, {plan.micro_batches}  # samples in a step, and its pieces",
        f"DTYPE = torch.{precision(plan.dtype).compute}",
        f"SEED, STEPS = {defaults.SEED}, {10}",
        'OUTPUT = os.path.splitext(__file__)[0] + ".trained.pt"  # the weights, unless the command line says where',
        f"BUCKET = {BUCKET_BYTES:_}  # bytes of one gradient message",
    ]


def named_values(plans: Sequence[Plan], used: Used, groups: Sequence[Group]) -> list[str]:
    """Tables on top of the program: of collectives, of long lists of numbers, of what is spread."""
    spread = [line for plan in plans for line in _spread(plan)]
    head = "SPREAD = {  # by coordinate: tables, each with its first column here and the one after the last"
    return [*table(groups), *_values(used), *(["", head, *spread, "}  # fmt: skip"] if spread else [])]


def _values(used: Used) -> list[str]:
    """Long lists of numbers by the names of their nodes, filled into lines."""
    if not used.values:
        return []
    lines = ["", "VALUES = {"]
    for name, values in used.values.items():
        filled = textwrap.fill(", ".join(map(repr, values)), WIDTH - 8)
        lines += [f'    "{name}": [', textwrap.indent(filled, " " * 8), "    ],"]
    return [*lines, "}  # fmt: skip"]


def _spread(plan: Plan) -> list[str]:
    """For every weight of tables that are spread, what each coordinate has."""
    lines: list[str] = []
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
    return [line.replace("~", " ") for line in lines]


def _counters(*names: str) -> str:
    """Functions of the counter-based generator, as text: the reference runs the same."""
    text = (FOLDER / "counters.py").read_text()
    body = text.partition("# --- copied from here ---")[2]
    return "\n\n\n".join(
        part.strip()
        for part in re.split(r"\n(?=def )", body)
        if part.startswith(tuple(f"def {name}(" for name in names))
    )


def share_lines(plan: Plan, used: Used) -> list[str]:
    """One line per input: its micro-batch, then this rank's part of it."""
    lines = []
    for index in plan.graph.of("input"):
        node, choice = plan.graph.nodes[index], plan.choices[index]
        known = atoms(plan.graph)[index]
        text = f'inputs["{node.name}"]'
        local = Local(known, choice.output, plan.placement.sizes, tuple(f"mesh.{axis}" for axis in plan.axes))
        split = {a: [local.axes[i] for i in local.splits(a)] for a in range(len(known.sizes))}
        if plan.micro_batches > 1:
            for a in known.batch:
                split[a].insert(0, "mesh.micro")
        inner = any(axes and known.dim_of(a)[1] > 0 for a, axes in split.items())
        uneven = any(isinstance(local.atom(a), str) for a in split)
        if (inner or uneven) and any(len(dim) > 1 for dim in known.dims):
            scale = {a: plan.micro_batches if a in known.batch else 1 for a in split}
            text += f".reshape{shape_text(known.sizes[a] * scale[a] for a in split)}"
            for a, axes in split.items():
                for axis in axes:
                    text = f"cut({text}, {a}, {axis})"
            text += f".reshape{shape_text(one_free(local.shape()))}"
        else:
            for a, axes in split.items():
                for axis in axes:
                    text = f"cut({text}, {known.dim_of(a)[0]}, {axis})"
        lines += wrap(f'"{argument_name(plan, index)}": {text}.to(mesh.device),', 8)
    return [line.removeprefix(" " * 8) for line in lines]


def _uneven_weights(plan: Plan) -> bool:
    """Whether some weight or input is stored in parts of different sizes."""
    for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
        if node.op in ("parameter", "buffer", "input"):
            local = Local(atoms(plan.graph)[index], choice.output, plan.placement.sizes, plan.axes)
            if any(isinstance(s, str) for s in local.shape()):
                return True
    return False
