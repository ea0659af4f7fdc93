"""A plan on another machine with the same levels: its layouts, cuts and order stay, and it is priced there."""

from dataclasses import replace

from ...formulation.pipeline.shares import stage_machines
from ...formulation.pipeline.stage_transfers import broadcast_price, stage_transfers
from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from ..plan.plan import PipelinePlan, Plan
from .plan_price import plan_price


def on_machine(plan: Plan, machine: Machine) -> Plan:
    """The same plan for another machine, without rivals; how collectives run in steps follows from the machine.

    PartitaError: the machine has other levels, or lacks a number that the plan needs.
    """
    if not isinstance(plan, PipelinePlan):
        return replace(plan, machine=machine, rivals=())
    row, shares, count = plan.row, plan.shares, len(plan.stages)
    machines = stage_machines(machine, plan.schedule.stage_row(row), shares, count)
    prices = stage_transfers(machine, row, shares, count)
    stages = tuple(
        replace(stage, machine=own, transfer=price)
        for stage, own, price in zip(plan.stages, machines, prices, strict=True)
    )
    shared = plan.shared and replace(plan.shared, machine=machine, transfer=broadcast_price(machine, row))
    return replace(plan, machine=machine, stages=stages, shared=shared, rivals=())


def step_on(plan: Plan, machine: Machine) -> int | None:
    """The predicted step in ns of a plan on another machine; None if it cannot run there or does not fit."""
    try:
        price = plan_price(on_machine(plan, machine))
    except PartitaError:
        return None
    return price.objective_ns if price.memory_bytes <= machine.device.capacity_bytes else None
