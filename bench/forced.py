"""Forced plans against the free search: no flag that fixes or adds a decision may find a plan that "optimal" excludes.

Random small modules on small random machines (`random_modules`), with ample or scarce memory. Each is planned freely,
with options that add decisions (rewriting, states on the host, every schedule), and then with random flags: strategies
of operators, meshes of every order and number of axes, placements of any order, micro-batches, recomputation, stages,
schedules, virtual stages, and several of them at once. Each forced plan is counted once, as one of `VERDICTS`:

- below (an error): faster than the bound of a free search, whose report does not name what the plan has beyond its
  space (`outside`);
- named: faster, and named;
- better: faster than the free plan, which is not proved optimal;
- equal: as fast as the free plan; above: slower.

`worse` (an error too): with a decision added, the optimum is slower than without. Flags that give no plan are refused
(they contradict each other or the model, or nothing fits) or timed out. `unproved` counts the free searches that the
time ended: their bounds are weaker. Errors are told as Python snippets that show them again, refusals by their words.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from random import Random
from typing import Any, TypeAlias

from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.network.network import INFINITE
from ..formulation.pipeline.configuration import rows
from ..formulation.placement.mappings import mappings, register
from ..formulation.placement.placement import of_rows, placements
from ..formulation.rewriting.rules import rules_for
from ..formulation.search_space import SearchSpace
from ..formulation.strategies.strategy import row_names, rows_taken
from ..model.capture.capture import capture
from ..model.errors import NoPlanError, PartitaError
from ..model.graph.pcg import PCG, SOURCES
from ..model.graph.stages import boundaries
from ..model.machine.machine import Machine
from ..model.training import PROJECTION, Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial
from .cases import Row, Tell
from .random_modules import Net, random_machine, random_mesh, random_module, with_memory

Flags: TypeAlias = Mapping[str, Any]
"""Fields of `SearchSpace`, besides `rewrite` and `rows` (of a placement)."""

COUNT, SMALL_COUNT = 1000, 40
PER_CASE = 12
SECONDS = 120.0
"""Limit on one search."""
WIDE = 0.1
"""How often a mesh may have more than three axes: such networks take seconds."""

ADDED: tuple[Flags, ...] = ({"rewrite": True}, {"schedule": "all"})
"""Decisions added to a free search; a case tries one of them."""
VERDICTS = ("below", "named", "better", "equal", "above")
"""Verdicts on a forced plan; of several searches that it is compared with, the first in this list counts."""


@dataclass(frozen=True)
class Answer:
    """What flags gave: a plan, or the words of a refusal; `timed_out` if the time ended before any plan was found.

    No plan of the space is faster than `bound` ns, except for what is named in `outside`.
    """

    flags: Flags
    plan: Plan | None
    bound: int
    outside: tuple[str, ...] = ()
    words: str = ""
    timed_out: bool = False

    @property
    def step(self) -> int:
        """ns of the plan; INFINITE without one."""
        return INFINITE if self.plan is None else int(self.plan.report["objective_ns"])

    @property
    def proved(self) -> bool:
        """True if the plan is the fastest of its space, or there is none."""
        return not self.timed_out and self.bound >= self.step


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

    def answer(self, flags: Flags) -> Answer:
        """What these flags give; an interrupt ends the run."""
        try:
            report = (plan := self.plan(**flags)).report
        except NoPlanError as none:
            if none.interrupted:
                raise KeyboardInterrupt from None
            summary = none.summary
            return Answer(flags, None, summary["bound_ns"] or 0, (*summary["space"]["outside"],), str(none), True)
        except PartitaError as refusal:
            return Answer(flags, None, INFINITE, words=str(refusal))
        return Answer(flags, plan, report["bound_ns"], (*report["space"]["outside"],))

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
    graph = capture(module, (x,), batch=len(x), loss=PROJECTION)
    return Case(seed, module, graph, len(x), random_machine(rng), rng.uniform(0.3, 1.0) if rng.random() < 0.5 else None)


# Flags


KINDS = ("stages", "stages", "chunks", "schedule", "mesh", "mesh", "rows", "fix", "fix", "micro_batches", "recompute",
         "rewrite", "offload")  # fmt: skip
"""Kinds of flags, as often as they may be drawn; of those drawn, later ones fit themselves to earlier ones."""


def random_flags(rng: Random, made: Case) -> dict[str, Any]:
    """Flags that fix or add decisions, drawn for a case; some contradict each other, or the model."""
    flags: dict[str, Any] = {}
    for kind in sorted(rng.sample(KINDS, rng.choice((1, 1, 2, 2, 3))), key=KINDS.index):
        flags |= _flag(kind, rng, made, flags)
    return flags or random_flags(rng, made)


def _flag(kind: str, rng: Random, made: Case, flags: Flags) -> dict[str, Any]:
    match kind:
        case "stages":
            return {kind: rng.choice((1, *_stages(made)))}
        case "chunks" | "schedule":
            stages = [n for n in _stages(made) if kind == "schedule" or 2 * n <= _cuts(made)]
            if not stages or flags.get("stages", 2) == 1 or "chunks" in flags:
                return {}
            value = 2 if kind == "chunks" else rng.choice(("gpipe", "1f1b", "zero-bubble", "all"))
            return {kind: value, "stages": rng.choice(stages)}
        case "mesh":
            return {"stages": 1, **flags, kind: _mesh(rng, made, flags, 4 if rng.random() < WIDE else 3)}
        case "rows":
            matrix = rng.choice(placements(made.ample.hierarchy)).matrix
            pipelined = flags.get("stages", 1) > 1
            return {} if "mesh" in flags or pipelined else {kind: tuple(rng.sample(matrix, len(matrix)))}
        case "fix":
            mesh = flags.get("mesh") or flags.get("rows") or _mesh(rng, made, flags, 2)
            nodes = [i for i, node in enumerate(made.graph.nodes) if node.op not in SOURCES]
            named = (
                (made.graph.nodes[i].name, row_names(made.graph, i)) for i in rng.sample(nodes, rng.choice((1, 2)))
            )
            fixed = tuple((name, ",".join(rng.choices(known, k=len(mesh)))) for name, known in named)
            return {kind: fixed} if "rows" in flags else {"stages": 1, **flags, "mesh": mesh, kind: fixed}
        case "micro_batches":
            return {kind: rng.choice([k for k in range(1, made.batch + 1) if made.batch % k == 0])}
        case "recompute":
            return {kind: rng.choice(("none", "full", "selective"))}
        case _:
            return {kind: True}


def _mesh(rng: Random, made: Case, flags: Flags, most_axes: int) -> tuple[int, ...]:
    """A mesh of a stage."""
    return random_mesh(rng, made.ample.devices // flags.get("stages", 1), most_axes)


def _cuts(made: Case) -> int:
    """The most stages that the model can be cut into."""
    return len(boundaries(made.graph)) - 1


def _stages(made: Case) -> list[int]:
    """Numbers of pipeline stages above 1 that the machine can be divided into, and the model cut."""
    return sorted(n for n in {prod(row) for row in rows(made.ample.hierarchy)} if n <= _cuts(made))


# Judgement


def named(plan: Plan, phrase: str) -> bool:
    """True if a plan has what a phrase of a report's `outside` names."""
    matrices = [stage.placement.matrix for stage in plan.stages]
    most = max(map(len, matrices))
    offloaded = any(choice.offloaded for stage in plan.stages for choice in stage.choices)
    order = plan.schedule.name if plan.chunks == 1 else f"{plan.schedule.name} with {plan.chunks} chunks"
    match phrase.split():
        case ["pipelines"]:
            return plan.size > 1
        case ["schedules", "other", "than", *known]:
            return plan.size > 1 and order not in " ".join(known).split(" and ")
        case ["meshes", "of", "more", "than", axes, _]:
            return most > int(axes)
        case ["other", "orders", *_]:
            return any(list(matrix) != sorted(matrix, reverse=True) for matrix in matrices)
        case ["rewritings", "on", "meshes", "of", axes, *_]:
            return bool(plan.report.get("rewritten")) and most >= int(axes)
        case ["rewriting"] | ["rewritings", *_]:
            return bool(plan.report.get("rewritten"))
        case ["some", "parallel", "branches", *_]:
            return bool(plan.report.get("rewritten")) and "bundles" in plan.report
        case ["offload"]:
            return offloaded
        case ["recomputation", "of", "rewritten", *_]:
            return bool(plan.report.get("rewritten")) and any(stage.recompute for stage in plan.stages)
        case [strategy, "where", *_]:
            return strategy.removesuffix("s") in _specials(plan)
    return False


def _specials(plan: Plan) -> set[str]:
    """The special strategies of a plan."""
    return {
        row.special
        for stage in plan.stages
        for node, choice in enumerate(stage.choices)
        if stage.graph.nodes[node].op not in SOURCES
        for row in rows_taken(stage.graph, node, choice.inputs, choice.output)
        if row is not None
    }


def excused(plan: Plan, known: Answer) -> bool:
    """True if the report of a search names something that a plan has as outside of its space."""
    return any(named(plan, phrase) for phrase in known.outside)


def run(small: bool, only: Sequence[str], tell: Tell, count: int | None = None, seed: int = 0) -> list[Row]:
    """Force `count` plans, several for each case, from the case of `seed` on; one row for each case.

    PartitaError: none of the first `count` cases has a text of `only` in its name.
    """
    left = count or (SMALL_COUNT if small else COUNT)
    made: list[Row] = []
    for one in map(case, range(seed, seed + left)):
        if not only or any(text in one.name for text in only):
            made.append(judged(one, min(left, PER_CASE), tell))
            left -= made[-1]["forced"]
        case.cache_clear()
        if left <= 0:
            break
    if not made:
        raise PartitaError(f"no case has {' or '.join(only)} in its name")
    return made


def judged(one: Case, count: int, tell: Tell) -> Row:
    """Draw flags for a case `count` times and judge the plans that they force."""
    tell(one.name)
    rng, numbers = Random(f"flags {one.seed}"), Counter[str]()
    free, wider = known = one.answer({}), one.answer(rng.choice(ADDED))
    numbers["unproved"] = sum(not answer.proved for answer in known)
    for answer in known:
        _tell_refusal(answer, tell)
    if wider.bound > free.step:
        numbers["worse"] += 1
        tell(f"worse with a decision more:\n{one.snippet({}, wider.flags)}")
    for _ in range(count):
        forced = one.answer(random_flags(rng, one))
        _tell_refusal(forced, tell)
        if forced.plan is None:
            numbers["timed_out" if forced.timed_out else "refused"] += 1
            continue
        verdicts = {_verdict(forced.plan, answer): answer for answer in (wider, free)}
        verdict = min(verdicts, key=VERDICTS.index)
        numbers["forced"] += 1
        numbers[verdict] += 1
        if verdict in ("below", "named"):
            against = verdicts[verdict]
            tell(f"{verdict}: {forced.step} ns, bound {against.bound}:\n{one.snippet(forced.flags, against.flags)}")
    return {
        "case": one.name,
        "step_us": None if free.plan is None else free.step / 1e3,
        **{key: numbers[key] for key in ("forced", *VERDICTS, "worse", "refused", "timed_out", "unproved")},
    }


def _verdict(plan: Plan, known: Answer) -> str:
    step = int(plan.report["objective_ns"])
    if step < known.bound:
        return "named" if excused(plan, known) else "below"
    return "better" if step < known.step else "equal" if step == known.step else "above"


def _tell_refusal(answer: Answer, tell: Tell) -> None:
    if answer.plan is None:
        tell(f"{'timed out' if answer.timed_out else 'refused'}: {_words(answer.flags)}: {answer.words}")


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts over all cases."""
    return {"cases": len(rows)} | {key: sum(row[key] for row in rows) for key in [*rows[0]][2:]}
