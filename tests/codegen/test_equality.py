"""The zoo's small twins, planned for many meshes and machines: the program trains as the user's module does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.verification.verify import verify
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.atoms import atoms
from partita.model.graph.layout import P, atom_of, is_split
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Level, Machine
from partita.model.training import Training
from partita.model.zoo import entry, zoo
from partita.solvers.budget import Budget
from partita.solvers.search.memory_limits import least_use
from partita.solvers.search.planning_problem import PlanningProblem

from ..levels import exhaustive, some

BATCH = 12
TWINS = tuple({(entry(name).make, str(entry(name).small)): name for name in reversed(zoo())}.values())
"""One model of each family: the others have the same small twin."""
MESHES = ((2,), (4,), (6,), (16,), (2, 2), (3, 2), (2, 4), (4, 4), (2, 2, 2), (2, 2, 3))
TIGHT = ((2,), (8,), (3, 2), (4, 4))
NOBODY = ((5,), (2, 3), (2, 2, 2))
"""Families take turns at these: each is planned for some of one axis and of more, each mesh for several families."""
LARGE = ("resnext-50", "inception-v3", "swin", "mbart", "alphafold2")
"""Families whose twins have hundreds of operators: planned for fewer meshes."""
FEW = ((4,), (2, 2), (16,), (3, 2))
GAP, TIGHT_GAP = 0.01, 0.05
"""Only what programs compute matters here; in little memory a proof takes longer."""
SPARSE = ("dlrm", "xdl")
"""Models with sparse gradients, which only SGD takes; the others are trained with AdamW."""


@cache
def graph(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return capture(module, inputs, batch=BATCH)


def cases(
    meshes: tuple[tuple[int, ...], ...], few: tuple[tuple[int, ...], ...], turns: int, first: int = 1
) -> list[Any]:
    """Every family with every `turns`-th mesh: each begins at another one than the family before it."""
    found = []
    for number, name in enumerate(TWINS, first):
        own = few if name.startswith(LARGE) else meshes
        found += [(name, mesh) for mesh in own[number % min(turns, len(own)) :: turns]]
    return [pytest.param(name, mesh, id=f"{name}-{'x'.join(map(str, mesh))}") for name, mesh in found]


def model(name: str) -> dict[str, Any]:
    return {"reference": name, "small": True, "sequence": None, "batch": BATCH}


def slow(mesh: tuple[int, ...]) -> Machine:
    """Devices so slow that it pays to split even small models; a level for every axis, the outer ones slower."""
    device = Machine.adhoc((1,)).device
    device = replace(
        device, peak=dict.fromkeys(device.peak, 1e11), memory_bandwidth=1e11, launch_ns=100, reserved_bytes=0
    )
    hierarchy = mesh if len(mesh) > 1 else (2, mesh[0] // 2) if mesh[0] > 2 else mesh
    levels = []
    for k, size in enumerate(hierarchy):
        out = len(hierarchy) - 1 - k
        levels.append(Level(f"level{k}", size, 8e10 / 3**out * math.prod(hierarchy[k + 1 :]), 100 * 2**out))
    return Machine("slow", tuple(levels), device)


def optimizer(name: str) -> str:
    return "sgd" if name in SPARSE else "adamw"


@cache
def planned(name: str, machine: Machine, mesh: tuple[int, ...], gap: float = GAP) -> Plan:
    return plan_graph(
        graph(name),
        machine,
        Training(BATCH, "float64", optimizer(name)),
        SearchSpace(mesh=mesh, stages=1),
        Budget(gap=gap),
        Context(model(name)),
    )


def tightened(name: str, free: Plan) -> Machine:
    """The same machine with a quarter of the memory between what `free` takes and the least that any plan takes."""
    pieces = 1 if graph(name).of("moments") else BATCH  # statistics of a batch are those of all of it
    problem = PlanningProblem(
        graph(name),
        free.machine,
        Training(BATCH, "float64", optimizer(name)),
        (free.placement,),
        (pieces,),
        SearchSpace(recompute="none"),
    )
    network = problem.encoding(free.placement, pieces).network
    capacity = free.machine.device.capacity_bytes
    least = least_use(network) + capacity - network.capacities[0]
    return replace(
        free.machine,
        device=replace(free.machine.device, memory_bytes=least + (free.report["memory_bytes"] - least) // 4),
    )


def judged(plan: Plan) -> None:
    """What is predicted holds together, and the program computes what the module computes."""
    report = plan.report
    found = stage_price(plan)
    assert (found.objective_ns, found.memory_bytes) == (report["objective_ns"], report["memory_bytes"])
    assert report["bound_ns"] <= report["objective_ns"]
    assert report["memory_bytes"] <= plan.machine.device.capacity_bytes
    same(plan)


def same(plan: Plan) -> None:
    verdict = verify(plan)
    assert verdict["ok"], f"{verdict['failure']}\n{plan}"
    assert verdict["tolerance"] == 1e-9


# From the third mesh, as mixtral's search on three axes takes minutes and 10 GB of memory.
@pytest.mark.parametrize(("name", "mesh"), some(cases(MESHES, FEW, turns=8, first=3), 6))
def test_the_optimum(name: str, mesh: tuple[int, ...]) -> None:
    judged(planned(name, slow(mesh), mesh))


@cache
def tight_pair(name: str, mesh: tuple[int, ...]) -> tuple[Plan, Plan]:
    """Plans with memory to spare and with little."""
    free = planned(name, slow(mesh), mesh)
    return free, planned(name, tightened(name, free), mesh, gap=TIGHT_GAP)


def tight_cases() -> list[Any]:
    """As `cases`, but one axis of 6 for the families that take most of a minute on two, and without alphafold2."""
    found = [case.values for case in cases(TIGHT, ((3, 2),), turns=4) if not case.id.startswith("alphafold2")]
    one = [(name, (6,) if name.startswith(("swin", "mbart")) else mesh) for name, mesh in found]
    return [pytest.param(name, mesh, id=f"{name}-{'x'.join(map(str, mesh))}") for name, mesh in one]


@pytest.mark.parametrize(("name", "mesh"), some(tight_cases(), 6))
def test_the_optimum_in_little_memory(name: str, mesh: tuple[int, ...]) -> None:
    free, tight = tight_pair(name, mesh)
    assert tight.report["memory_bytes"] < free.report["memory_bytes"]
    assert tight.report["objective_ns"] >= free.report["bound_ns"]
    judged(tight)


@pytest.mark.parametrize(
    ("name", "mesh"),
    some([case for case in cases(NOBODY, ((2, 3),), turns=3) if not str(case.id).startswith("alphafold2")], 4),
)
def test_a_plan_that_nobody_would_choose(name: str, mesh: tuple[int, ...], force: Callable[..., Plan]) -> None:
    """Any strategy of every node, at random; axes of 5 and 3 split nothing evenly."""
    plan = force(graph(name), mesh, random.Random(f"{name} {mesh}"), optimizer=optimizer(name))
    same(replace(plan, model=model(name)))


@exhaustive
def test_the_plans_are_of_all_kinds() -> None:
    """What the optima above use, so that nothing passes for want of a case."""
    plans = [plan for mesh in ((2,), (8,), (3, 2)) for plan in tight_pair("gpt2", mesh)]
    used = {
        kind
        for plan in plans
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
        for kind, there in {
            "weights split": node.op == "parameter" and any(map(is_split, choice.output)),
            "weights gathered": node.op == "parameter" and choice.regather,
            "states sharded": choice.sharded_states,
            "addends": P in choice.output,
            "converted for all": choice.shared is not None and choice.shared != choice.output,
            "mixed": len(set(choice.output)) == 2 and all(map(is_split, choice.output)),
            "micro-batches": plan.micro_batches > 1,
            "one atom twice": len(choice.output) == 2 and is_split(choice.output[0]) and len(set(choice.output)) == 1,
            "uneven": any(
                is_split(x) and atoms(plan.graph)[i].sizes[atom_of(x)] % size
                for i, layout in zip(node.inputs, choice.inputs, strict=True)
                for x, size in zip(layout, plan.placement.sizes, strict=True)
            ),
        }.items()
        if there
    }
    assert len(used) == 9, used
