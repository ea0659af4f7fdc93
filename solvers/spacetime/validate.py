"""Validation of a space-time plan, and the order in which its tasks run (SuperScaler, section 3.2)."""

from ...formulation.spacetime.order import Completed, PlanConflict, complete, precedences
from ...formulation.spacetime.site import told
from ...formulation.spacetime.tasks import Tasks
from .conflict import described, smallest


def validate(tasks: Tasks, devices: int | None = None) -> Completed:
    """The deterministic total order of a plan's tasks on `devices` ranks.

    Raises PlanConflict for a plan that cannot run, with its problems or the smallest conflicting set of orders and
    needs.
    """
    problems = list(tasks.problems)
    for op in tasks.ops:
        follows = op.forward is not None or op.region is not None  # reported with its forward operator or store
        if devices is not None and not follows and op.device is not None and op.device >= devices:
            problems.append(
                told(op.assigned, f"{op.name} is assigned to device {op.device}, of devices 0 to {devices - 1}")
            )
    if problems:
        raise PlanConflict("the plan cannot run:", problems)
    given = precedences(tasks)
    found = complete(given)
    if isinstance(found, Completed):
        return found
    conflict = smallest(given.waits, found)
    kind = "the smallest conflict" if conflict.proved else "an irreducible conflict"
    raise PlanConflict(f"the plan would deadlock; {kind}:", described(given, conflict))
