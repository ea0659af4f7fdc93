"""Forced plans against the free search: no flag that fixes or adds a decision may find a plan that "optimal" excludes.

Random small modules on small random machines (`random_modules`), with ample or scarce memory. Each is planned freely,
with options that add decisions (rewriting, states on the host, every schedule), and then with random flags: strategies
of operators, meshes of every order and number of axes, placements of any order, micro-batches, recomputation, stages,
schedules, virtual stages, and several of them at once. Counted as errors:

- below: a forced plan is faster than the bound of the free search, whose report does not name what the plan has beyond
  its space (`outside`);
- worse: with a decision added, the optimum is slower than without.

Each error is told as a Python snippet that shows it again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from random import Random
from typing import Any, TypeAlias

from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.pipeline.configuration import rows
from ..formulation.placement.mappings import mappings, register
from ..formulation.placement.placement import of_rows, placements
from ..formulation.rewriting.rules import rules_for
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.strategy import row_names
from ..model.capture.capture import capture
from ..model.errors import NoPlanError, PartitaError
from ..model.graph.pcg import PCG, SOURCES
from ..model.machine.machine import Machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial
from .cases import Row, Tell
from .random_modules import Net, random_machine, random_mesh, random_module, with_memory

Flags: TypeAlias = Mapping[str, Any]
"""Fields of `SearchSpace`, besides `rewrite` and `rows` (of a placement)."""

COUNT, SMALL_COUNT = 1000, 40
PER_CASE = 8
SECONDS = 60.0
WIDE = 0.1
"""How often a mesh may have more than three axes: such networks take seconds."""

ADDED: tuple[Flags, ...] = ({"rewrite": True}, {"offload": True}, {"schedule": "all"})


@dataclass(frozen=True)
class Case:
    """A module, the machine, and the batch of a step, all of a seed."""

    seed: int
    module: Net
    graph: PCG
    batch: int
    ample: Machine
    share: float | None  # of the memory that the best plan takes

    @cached_property
    def machine(self) -> Machine:
        """The machine, with memory for a share of the plan that is best without a limit."""
        if self.share is None:
            return self.ample
        memory = self._planned(self.ample, {}).report["memory_bytes"]
        return with_memory(self.ample, max(1, int(memory * self.share)))

    @property
    def name(self) -> str:
        levels = "x".join(map(str, self.ample.hierarchy))
        blocks = "; ".join(" ".join(map(str, block)) for block in self.module.blocks)
        memory = "" if self.share is None else f", {self.share:.2f} of its memory"
        return f"{self.seed}: {blocks}; batch {self.batch} on {levels}{memory}"

    def plan(self, **flags: Any) -> Plan:
        """The plan of the space that these flags leave. PartitaError: there is none."""
        return self._planned(self.machine, flags)

    def _planned(self, machine: Machine, flags: Flags) -> Plan:
        budget = Budget(time_limit=SECONDS, executor=Serial())
        return plan_graph(self.graph, machine, Training(self.batch), space_of(**flags), budget)

    def snippet(self, flags: Flags, against: Flags) -> str:
        """Python that shows a forced plan and the one that should not be beaten."""
        return "\n".join((
            f"# {self.name}",
            "from partita.bench.forced import case",
            f"made, known = case({self.seed}).plan({_words(flags)}), case({self.seed}).plan({_words(against)})",
            'print(made.report["objective_ns"], known.report["bound_ns"], known.report["status"])',
        ))  # fmt: skip


def _words(flags: Flags) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in flags.items())


def space_of(rewrite: bool = False, rows: Sequence[Sequence[int]] | None = None, **fields: Any) -> SearchSpace:
    """A search space; `rows` fixes a placement."""
    if rows is not None:
        fields["mapping"] = "rows " + "/".join(",".join(map(str, row)) for row in rows)
        if fields["mapping"] not in mappings():
            register(fields["mapping"], of_rows(tuple(map(tuple, rows))))
    return SearchSpace(rules=rules_for(rewrite), **fields)


@cache
def case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    module, x = random_module(rng)
    graph = capture(module, (x,), batch=len(x))
    return Case(seed, module, graph, len(x), random_machine(rng), rng.uniform(0.3, 1.0) if rng.random() < 0.5 else None)


# Flags


def random_flags(rng: Random, made: Case) -> dict[str, Any]:
    """Flags that fix or add decisions, drawn for a case; some contradict each other, or the model."""
    kinds = ("mesh", "mesh", "rows", "micro_batches", "recompute", "fix", "fix", "stages", "stages", "schedule",
             "chunks", "rewrite", "offload")  # fmt: skip
    flags: dict[str, Any] = {}
    for kind in rng.sample(kinds, rng.choice((1, 1, 2, 2, 3))):
        flags |= _flag(kind, rng, made, flags)
    if "chunks" in flags or "schedule" in flags:
        flags.setdefault("stages", rng.choice(_stages(made.ample)))
    if "rows" in flags:
        flags.pop("mesh", None)
        flags.pop("fix", None)
    if "mesh" in flags and flags.setdefault("stages", 1) > 1:
        flags["mesh"] = random_mesh(rng, made.ample.devices // flags["stages"], 3)
    return flags


def _flag(kind: str, rng: Random, made: Case, flags: Flags) -> dict[str, Any]:
    devices, hierarchy = made.ample.devices, made.ample.hierarchy
    match kind:
        case "mesh":
            return {"mesh": random_mesh(rng, devices, 4 if rng.random() < WIDE else 3)}
        case "rows":
            matrix = rng.choice(placements(hierarchy)).matrix
            return {kind: tuple(rng.sample(matrix, len(matrix)))}
        case "micro_batches":
            return {kind: rng.choice([k for k in range(1, made.batch + 1) if made.batch % k == 0])}
        case "recompute":
            return {kind: rng.choice(("none", "full", "selective"))}
        case "stages":
            return {kind: rng.choice((1, *_stages(made.ample)))}
        case "schedule":
            return {kind: rng.choice(("gpipe", "1f1b", "zero-bubble", "all"))}
        case "chunks":
            return {kind: 2}
        case "fix":
            axes = len(flags["mesh"]) if "mesh" in flags else rng.choice((1, 1, 2))
            nodes = [i for i, node in enumerate(made.graph.nodes) if node.op not in SOURCES]
            named = ((made.graph.nodes[i].name, row_names(made.graph, i)) for i in rng.sample(nodes, 1 + (axes < 2)))
            return {"fix": tuple((name, ",".join(rng.choices(known, k=axes))) for name, known in named)}
        case _:
            return {kind: True}


def _stages(machine: Machine) -> list[int]:
    """Numbers of pipeline stages above 1 that the machine can be divided into."""
    return sorted({_product(row) for row in rows(machine.hierarchy)})


def _product(row: Sequence[int]) -> int:
    result = 1
    for factor in row:
        result *= factor
    return result


# Judgement


def named(plan: Plan, phrase: str) -> bool:
    """True if a plan has what a phrase of a report's `outside` names."""
    matrices = [stage.placement.matrix for stage in plan.stages]
    offloaded = any(choice.offloaded for stage in plan.stages for choice in stage.choices)
    order = plan.schedule.name if plan.chunks == 1 else f"{plan.schedule.name} with {plan.chunks} chunks"
    match phrase.split():
        case ["pipelines"]:
            return plan.size > 1
        case ["schedules", "other", "than", *known]:
            return plan.size > 1 and order not in " ".join(known).split(" and ")
        case ["meshes", "of", "more", "than", most, _]:
            return any(len(matrix) > int(most) for matrix in matrices)
        case ["other", "orders", *_]:
            return any(list(matrix) != sorted(matrix, reverse=True) for matrix in matrices)
        case ["rewriting"] | ["rewritings", *_]:
            return bool(plan.report.get("rewritten"))
        case ["offload"]:
            return offloaded
    return False


def excused(plan: Plan, known: Plan) -> bool:
    """True if the report of a search names something that a plan has as outside of its space."""
    return any(named(plan, phrase) for phrase in known.report["space"]["outside"])


def run(small: bool, only: Sequence[str], tell: Tell, count: int | None = None, seed: int = 0) -> list[Row]:
    """Force `count` plans, several for each case, from the case of `seed` on; one row for each case."""
    left, made = count or (SMALL_COUNT if small else COUNT), list[Row]()
    while left > 0:
        one = case(seed)
        seed += 1
        if only and not any(text in one.name for text in only):
            continue
        made.append(judged(one, min(left, PER_CASE), tell))
        case.cache_clear()
        left -= made[-1]["forced"] + made[-1]["refused"]
    return made


def judged(one: Case, count: int, tell: Tell) -> Row:
    """Force `count` plans of a case; refusals count too."""
    tell(one.name)
    numbers: Counter[str] = Counter()
    errors: list[str] = []
    known = dict(_known(one, numbers, errors, tell))
    rng, free = Random(f"flags {one.seed}"), known[0]
    for _ in range(count):
        flags = random_flags(rng, one)
        plan = _planned(one, flags)
        numbers["refused" if plan is None else "forced"] += 1
        if plan is None:
            continue
        for number, other in known.items():
            bound = None if other is None else other.report["bound_ns"]
            if bound is not None and plan.report["objective_ns"] >= bound:
                continue
            if other is not None and excused(plan, other):
                numbers["named"] += 1
                continue
            errors.append("below")
            words = one.snippet(flags, _against(number))
            tell(f"{plan.report['objective_ns']} ns is below the bound {bound}:\n{words}")
    return {
        "case": one.name,
        "step_us": None if free is None else free.report["objective_ns"] / 1e3,
        **{key: numbers[key] for key in ("forced", "refused", "named")},
        **{key: errors.count(key) for key in ("below", "worse")},
    }


def _against(number: int) -> Flags:
    return ADDED[number - 1] if number else {}


def _known(one: Case, numbers: Counter[str], errors: list[str], tell: Tell) -> Iterator[tuple[int, Plan | None]]:
    """The free plan (0) and those with one decision added; None: nothing fits."""
    free = _planned(one, {})
    yield 0, free
    for number in range(1, len(ADDED) + 1):
        wider = _planned(one, _against(number))
        yield number, wider
        if free is None or (wider is not None and wider.report["bound_ns"] <= free.report["objective_ns"]):
            continue
        errors.append("worse")
        tell(f"a decision more is worse:\n{one.snippet({}, _against(number))}")


def _planned(one: Case, flags: Flags) -> Plan | None:
    """The plan that these flags give; None if they are refused, or nothing fits. An interrupt ends the run."""
    try:
        return one.plan(**flags)
    except NoPlanError as none:
        if none.interrupted:
            raise KeyboardInterrupt from None
        return None
    except PartitaError:
        return None


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts over all cases."""
    return {"cases": len(rows)} | {key: sum(row[key] for row in rows) for key in [*rows[0]][2:]}
