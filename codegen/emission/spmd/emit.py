"""A plan as one readable program: its features' templates, and generated classes for the model."""

from collections.abc import Sequence

from ....formulation.weights.buckets import BUCKET_BYTES
from ....model.machine.precision import precision
from ....model.operators.operator import is_random
from ...plan.plan import Plan
from ...pricing.axis_groups import axis_groups
from ...report.describe import docstring
from ..common.conversions import Used
from ..common.data import reading_axes, share_lines
from ..common.features import program_text
from ..common.training import SEED_AND_STEPS
from .emission import Emission
from .features import FEATURES
from .gatherings import travels_ahead
from .mesh import mesh_lines
from .micro_batches import divided
from .model_classes import ModelClasses


def emit(plan: Plan) -> str:
    """The program of a plan, the same text every time. Raises PartitaError where a plan cannot be written down."""
    used = used_by(plan)
    reading = reading_axes([plan])
    modules = ModelClasses(plan, used, divided([plan.graph], plan.micro_batches)[0])
    emission = Emission(
        plan,
        (plan,),
        [modules],
        used,
        classes=modules.text(),
        mesh_lines=mesh_lines(plan.placement, plan.axes, axis_groups(plan)),
        shares=share_lines(plan, used, reading),
        reading=[plan.axes[i] for i in reading],
    )
    return program_text(emission, docstring(plan), constants(plan, plan.axes, plan.placement.sizes), FEATURES)


def used_by(plan: Plan) -> Used:
    """What a plan's program uses, as far as that is known before its lines are written."""
    has_dropout = any(is_random(node) for part in plan.stages for node in part.graph.nodes)
    # Where a backward comes in halves, weights gathered again would have to stay from the first to the second.
    return Used(has_dropout, not plan.schedule.splits_backward and any(map(travels_ahead, plan.stages)))


def constants(plan: Plan, axes: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """The program's constants: the mesh, the batch, the seed."""
    names = [a.upper() for a in axes]
    mesh = f"{', '.join(names)} = {', '.join(map(str, sizes))}"
    return [
        f"{mesh}  # the mesh",
        f"RANKS = {' * '.join(names)}",
        f"BATCH, MICRO_BATCHES = {plan.batch}, {plan.micro_batches}  # samples in a step, and its parts",
        f"DTYPE = torch.{precision(plan.dtype).compute}",
        SEED_AND_STEPS,
        'OUTPUT = os.path.splitext(__file__)[0] + ".trained.pt"  # where weights are saved by default',
        f"BUCKET = {BUCKET_BYTES:_}  # bytes of one gradient message",
    ]
