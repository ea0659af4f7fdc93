"""A materialized space-time plan as one readable program that needs only torch."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

from ....formulation.spacetime.looped import Looped
from ....formulation.spacetime.materialized import Collective, Materialized, Receive
from ....formulation.spacetime.messages import joined
from ....model.initial_values import InitialValues
from ....model.machine.precision import precision
from ..common import training
from ..common.conversions import Used
from ..common.features import program_text
from ..common.rolled_lines import Line, Piece, of_rank
from .data_flow import Flow
from .device_statements import DeviceWriter, Written
from .features import FEATURES, SpaceTimeEmission
from .function_table import Functions, device_functions
from .label_counts import count_lines
from .loop_statements import check_loss, statements
from .program_tables import differing, families, groups_of
from .weight_prefetch import by_layer

_GROUP = re.compile(r"⟨([\d,]+)⟩")
_REDUCE_SCATTER = (
    'reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor'
    "  # renamed in torch 2.13",
    "",
)


def emit(
    looped: Looped,
    *,
    dtype: str = "float32",
    optimizer: str = "adamw",
    summary: Sequence[str] = (),
    initial: InitialValues | None = None,
) -> str:
    """The program's text, the same every time; `summary` are lines for the top of it.

    Raises PartitaError for parameters updated where they are not kept.
    """
    form = precision(dtype)
    check_loss(looped)
    looped = by_layer(looped)
    program = looped.program
    graph, pcg = looped.graph, looped.pcg
    used = Used()
    functions = Functions(used, form, _fetches(program))
    losses = (op for op in program.tasks.ops if op.node == pcg.loss and op.is_forward)
    copies = Counter(op.mask(None).addends for op in losses)
    names, groups = families(groups_of(program), len(program.devices))
    messages = joined(looped, form)
    alike = partial(differing, loss=pcg.loss, copies=copies, names=names, messages=messages)
    first = looped.equal_ranks([alike(own) for own in program.devices])
    ranks = {d: [rank for rank, other in enumerate(first) if other == d] for d in sorted({*first})}
    flows = {d: Flow(program, d, graph, own, messages) for d, own in ranks.items()}
    writers = {d: DeviceWriter(flow, functions, program.shapes, copies) for d, flow in flows.items()}
    rolls = {d: statements(looped, writer.flow, _named(writer.lines(), names)) for d, writer in writers.items()}
    bodies = [[of_rank(piece, ranks[d].index(rank)) for piece in rolls[d]] for rank, d in enumerate(first)]
    texts, table = device_functions([writers[d].arranged.segments for d in first], bodies)
    emission = SpaceTimeEmission(
        looped,
        form,
        optimizer,
        used,
        functions,
        devices=texts,
        table=table,
        groups=groups if names else [],
        counts=count_lines(graph, used),
        initial=initial,
        joins=bool(messages),
    )
    constants = [
        *(_REDUCE_SCATTER if "reduce_scatter" in emission.collectives else ()),
        f"RANKS = {len(bodies)}",
        f"BATCH = {pcg.batch}  # samples in a step",
        f"DTYPE = torch.{form.compute}",
        training.SEED_AND_STEPS,
        'OUTPUT = os.path.splitext(__file__)[0] + ".trained.pt"  # unless the command line says where',
    ]
    text = program_text(emission, _docstring(summary, len(bodies)), constants, FEATURES)
    return text if re.search(r"\bF\.", text) else text.replace("import torch.nn.functional as F\n", "")


def _fetches(program: Materialized) -> bool:
    """True if some device takes weights from others."""
    return any(
        isinstance(i, Receive | Collective) and program.tasks.graph.of_parameter(i.target.tensor)
        for device in program.devices
        for i in device
    )


def _named(written: Sequence[Written], names: dict[tuple[int, ...], str]) -> list[Written]:
    """The statements with groups replaced by the names of their families."""

    def named(piece: Piece) -> Piece:
        assert isinstance(piece, Line)
        text = tuple(_GROUP.sub(lambda m: f'"{names[tuple(map(int, m[1].split(",")))]}"', part) for part in piece.text)
        return Line(text, piece.numbers)

    return [Written(own.step, list(map(named, own.pieces))) for own in written]


def _docstring(summary: Sequence[str], ranks: int) -> str:
    lines = ['"""Training program of a space-time plan.', ""]
    lines += [f"    {line}" for line in summary] + ([""] if summary else [])
    lines += [f"Run: torchrun --nproc-per-node {ranks} program.py", '"""']
    return "\n".join(lines)
