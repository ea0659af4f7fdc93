"""Validation of a space-time plan, and the order in which its tasks run (SuperScaler, section 3.2)."""

from __future__ import annotations

from ...formulation.spacetime.order import Completed, PlanConflict, complete, precedences
from ...formulation.spacetime.tasks import Tasks


def validate(tasks: Tasks, devices: int | None = None) -> Completed:
    """The order in which the tasks of a plan run, completed where the plan says nothing; the same in every run.

    `devices` is the number of ranks there are. Raises PlanConflict for a plan that cannot run: with its problems, or
    with the smallest set of orders and needs that no order of the tasks respects.
    """
    problems = list(tasks.problems)
    for op in tasks.ops:
        follows = op.forward is not None or op.region is not None  # where something else is: told of that
        if devices is not None and not follows and op.device is not None and op.device >= devices:
            problems.append(f"{op.name} is assigned to device {op.device}, of devices 0 to {devices - 1}")
    if problems:
        raise PlanConflict("the plan cannot run:", problems)
    given = precedences(tasks)
    found = complete(given)
    if isinstance(found, Completed):
        return found
    from .conflict import smallest, told

    conflict = smallest(given.waits, found)
    least = "the smallest set that conflicts" if conflict.proved else "these conflict, and none of them can be left out"
    raise PlanConflict(f"the plan would wait for ever; {least}:", told(given, conflict))
