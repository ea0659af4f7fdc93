"""Placement and reduction programs as variables of one network (`--joint`), compared with enumerating placements.

Every case is planned by the search over placements, then by joint networks, one for every mesh and number of
micro-batches, with each of the named solvers. A joint plan that is not proved, or that takes another step, is an error
of ours, and its row says so. Of equally good placements any may be found: `same` says where both found the same one.
Scarce cases have a share of the memory that the best plan uses on the machine as it is.

`excluded`: of the meshes with several placements (`several`), those that one relaxed network proves slower than the
best plan, all placements at once: its tables are the least of all placements', entry by entry, without a memory limit.
That is what a search over placements could use.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..codegen.plan.plan import Plan
from ..codegen.planner.problem import problem_of
from ..formulation.network.network import Network, Table
from ..formulation.placement.placement import Placement
from ..formulation.search_space import JOINT, SearchSpace
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.machine_choice import MachineChoice
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.protocol import Limits, solver
from ..solvers.search.memory_limits import without_limit
from ..solvers.search.planning_problem import PlanningProblem
from .cases import Row, Tell, captured, each, plan_of_one_stage, seconds_of

SECONDS = 120.0
UNEQUAL = "error: not equal"


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a machine; the small twin on levels of one preset's devices, unless `full`."""

    model: str
    machine: str | None
    hierarchy: tuple[int, ...]
    share: float = 1.0
    full: bool = False
    solvers: tuple[str, ...] = ("auto", "cpsat")

    @property
    def name(self) -> str:
        levels = "x".join(map(str, self.hierarchy))
        scarce = f", {self.share:.0%} of the memory" if self.share < 1 else ""
        return f"{self.model}{'' if self.full else ' small'}, {self.machine or 'ad hoc'} {levels}{scarce}"


SUMMIT, A100 = ("summit", (2, 2, 3)), ("gcp-a100", (2, 4))
MODELS = ("mlp", "candle-uno", "dlrm", "xdl", "resnext-50", "unet", "gpt2", "bert-large", "llama-7b", "mixtral-8x7b")

CASES = (
    *(Case(model, *machine) for model in MODELS for machine in (SUMMIT, A100)),
    *(Case(model, "summit", (2, 2, 2), share) for model in ("mlp", "gpt2", "dlrm") for share in (0.8, 0.6)),
    *(Case(model, None, (2, 2, 2)) for model in ("mlp", "gpt2", "dlrm")),
    *(Case("bert-large", "summit", (nodes, 2, 3), full=True) for nodes in (4, 16)),
)
SMALL = (Case("mlp", None, (2, 2, 2)), Case("mlp", None, (2, 2, 2), 0.8, solvers=("auto",)))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every case; a row for each solver of joint networks. Seconds are those of the search alone."""
    return [row for case in each(SMALL if small else CASES, only, tell) for row in rows_of(case)]


def rows_of(case: Case) -> list[Row]:
    """The rows of a case."""
    machine = MachineChoice(machine=case.machine, hierarchy=case.hierarchy).load()
    graph, training = captured(case.model, machine, small=not case.full)
    training = training if case.full else replace(training, dtype="float32")
    apart = planned(graph, machine, training, "auto", ())
    if case.share < 1:
        room = int(apart.report["memory_bytes"] * case.share) + machine.device.reserved_bytes
        machine = replace(machine, device=replace(machine.device, memory_bytes=room))
        apart = planned(graph, machine, training, "auto", ())
    problem = problem_of(graph, machine, training, SearchSpace(stages=1))
    shared = excluded_at_once(problem, apart.report["objective_ns"])
    return [_row(case, name, apart, planned(graph, machine, training, name, JOINT)) | shared for name in case.solvers]


def excluded_at_once(problem: PlanningProblem, objective_ns: int) -> Row:
    """How many meshes of several placements one relaxed network each excludes, with one micro-batch."""
    meshes: defaultdict[tuple[int, ...], list[Placement]] = defaultdict(list)
    for placement in problem.placements:
        meshes[placement.sizes].append(placement)
    several = [places for places in meshes.values() if len(places) > 1]
    bounds = [relaxed_bound([problem.encoding(p, 1, fast=True).network for p in places]) for places in several]
    return {"several": len(several), "excluded": sum(bound >= objective_ns for bound in bounds)}


def relaxed_bound(networks: Sequence[Network]) -> int:
    """A bound on all of the networks, which differ in tables only."""
    known: dict[tuple[int, ...], Table] = {}

    def least(tables: Sequence[Table]) -> Table:
        return known.setdefault(tuple(map(id, tables)), np.minimum.reduce(tables))

    first = networks[0]
    costs = [least([n.variables[v].cost for n in networks]) for v in range(len(first.variables))]
    pairs = [least([n.edges[k].cost for n in networks]) for k in range(len(first.edges))]
    relaxed = replace(
        without_limit(first),
        variables=tuple(replace(x, cost=cost) for x, cost in zip(first.variables, costs, strict=True)),
        edges=tuple(replace(e, cost=cost) for e, cost in zip(first.edges, pairs, strict=True)),
        constant=min(n.constant for n in networks),
    )
    return solver("auto").solve(relaxed, Limits(SECONDS)).bound


def planned(graph: PCG, machine: Machine, training: Training, solver: str, joint: tuple[str, ...]) -> Plan:
    """The best plan without a pipeline."""
    space = SearchSpace(stages=1, joint=joint)
    return plan_of_one_stage(graph, machine, training, space, Budget(solver=solver, time_limit=SECONDS))


def _row(case: Case, solver: str, apart: Plan, joint: Plan) -> Row:
    """Both plans; the joint one is priced by the second pricer like any other."""
    one, other = apart.report, joint.report
    programs = other["space"]["joint"]["programs"]
    return {
        "case": case.name,
        "solver": solver,
        "verdict": verdict(apart, joint),
        "enumerated_ms": one["objective_ns"] / 1e6,
        "joint_ms": other["objective_ns"] / 1e6,
        "gap": other["gap"],
        "placements": one["space"]["placements"],
        "meshes": one["space"]["meshes"],
        "networks": one["space"]["networks_solved"],
        "joint_networks": other["space"]["networks_solved"],
        "programs": sum(";" in program["program"] for program in programs),
        **{f"enumerated_{name}": seconds for name, seconds in seconds_of(one, "formulate", "solve").items()},
        **seconds_of(other, "formulate", "solve"),
    }


def verdict(apart: Plan, joint: Plan) -> str:
    """Whether both proved one optimum, and at the same placement."""
    reports = apart.report, joint.report
    if any(report["status"] != "optimal" for report in reports) or len({r["objective_ns"] for r in reports}) > 1:
        return UNEQUAL
    return "equal, same placement" if apart.placement == joint.placement else "equal"


def totals(rows: Sequence[Row]) -> Row:
    """How many cases there are, and how many joint plans are not the enumerating search's optimum."""
    return {
        "cases": len({row["case"] for row in rows}),
        "rows": len(rows),
        "unequal": sum(row["verdict"] == UNEQUAL for row in rows),
    }
