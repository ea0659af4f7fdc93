"""Programs of random plans, trained beside their modules by ranks that take turns in a random order.

Random small modules on two to eight devices (`random_modules`, `forced`), some with dropout, planned with random flags.
Then is drawn how each weight is stored, whether its states and gradients are sharded, whether it is gathered again, and
the dtype. The program trains twice, every rank a thread: the second time ranks take turns in a random order.
Losses, gradients and weights must be those of the module, both times the same to the last bit.
Flags that give no plan are `refused`, and others drawn. Failures are told with a Python snippet that shows them again.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from ..codegen.plan.choice import Choice
from ..codegen.plan.plan import PipelinePlan, Plan
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.verification.graph_module import trial_of
from ..codegen.verification.verify import run as verdicts
from ..formulation.pipeline.schedule import schedule_named, schedule_names
from ..formulation.strategies.strategy import rows
from ..model.capture.capture import capture
from ..model.errors import PartitaError
from ..model.graph.atoms import atoms
from ..model.graph.layout import B, Layout, P, atom_of, is_split, splittable
from ..model.graph.sparse_tables import sparse_tables
from ..model.machine.machine import Machine
from ..model.training import PROJECTION, Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial
from .cases import Row, Tell, measured
from .forced import Case, Flags, random_flags, space_of
from .random_modules import Net, random_machine, random_module, with_memory

COUNT, SMALL_COUNT = 200, 4
MOST_RANKS = 8
STEPS = 2
DRAWS = 4
"""Flags drawn for a case at most; then it has none."""
SECONDS, GAP = 8.0, 0.5
"""Limits of a search: any plan will do."""
TIMEOUT = 120.0
"""Seconds for a program to train."""
RECOMPUTED = 0.3
"""How often layers must be recomputed."""
DTYPES = ("float32", "mixed-float16", "mixed-bfloat16", "mixed-bfloat16-fp32grad", "mixed-bfloat16-bf16grad")
ERRORS = ("loss_error", "gradient_error", "weight_error")


@dataclass(frozen=True)
class Program:
    """The program of a seed."""

    seed: int

    @cached_property
    def case(self) -> Case:
        """The module and the machine."""
        rng = Random(f"module {self.seed}")
        module, x = random_module(rng)
        dropped = [(block, ("dropout", 0.1)) if rng.random() < 0.2 else (block,) for block in module.blocks]
        module = Net(*(block for blocks in dropped for block in blocks))
        machine = random_machine(rng)
        while machine.devices > MOST_RANKS:
            machine = random_machine(rng)
        peak = dict.fromkeys(("float32", "float16", "bfloat16"), machine.device.peak["float32"])
        machine = replace(machine, device=replace(machine.device, peak=peak))
        graph = capture(module, (x,), batch=len(x), loss=PROJECTION)
        return Case(self.seed, module, graph, len(x), machine, rng.uniform(0.3, 1.0) if rng.random() < 0.5 else None)

    @property
    def name(self) -> str:
        return self.case.name

    def planned(self) -> tuple[Plan, int]:
        """The plan, and how many flags were refused before."""
        rng, case, refused = Random(f"plan {self.seed}"), self.case, 0
        for _ in range(DRAWS):
            flags = random_flags(rng, case)
            if "schedule" in flags:
                names = [name for name in schedule_names() if not schedule_named(name).by_operators]
                flags["schedule"] = rng.choice(names)
            if rng.random() < RECOMPUTED:
                flags["recompute"] = rng.choice(("full", "selective"))
            try:
                plan = self._plan(flags, case.ample)
                break
            except PartitaError:
                refused += 1
        else:
            plan = self._plan({"stages": 1, "micro_batches": 1}, case.ample, None)
        if case.share is not None:
            with suppress(PartitaError):  # so little memory that nothing fits
                memory = max(1, int(plan.report["memory_bytes"] * case.share))
                plan = self._plan(flags, with_memory(case.ample, memory))
        return redrawn(plan, rng), refused

    def _plan(self, flags: Flags, machine: Machine, seconds: float | None = SECONDS) -> Plan:
        budget = Budget(time_limit=seconds, gap=GAP, executor=Serial())
        return plan_graph(self.case.graph, machine, Training(self.case.batch), space_of(**flags), budget)

    def verdicts(self, plan: Plan) -> list[dict[str, Any]]:
        """What `verify` says, and then with ranks that take turns in a random order."""
        with tempfile.TemporaryDirectory(prefix="partita-programs-") as folder:
            trial = trial_of(plan, Path(folder) / "program.py", STEPS, self.case.graph)
            return [verdicts([trial], timeout=TIMEOUT, shuffled=shuffled)[0] for shuffled in (False, True)]


def redrawn(plan: Plan, rng: Random) -> Plan:
    """The plan with another dtype, and its weights stored in other ways; in schedule 2bw neither may differ."""
    if plan.schedule.double_buffered:
        return plan
    dtype = rng.choice(DTYPES)
    stages = tuple(
        replace(stage, dtype=dtype, choices=tuple(_stored(stage, i, rng) for i in range(len(stage.choices))))
        for stage in plan.stages
    )
    return replace(plan, stages=stages) if isinstance(plan, PipelinePlan) else stages[0]


def _stored(plan: Plan, index: int, rng: Random) -> Choice:
    """A choice; of a weight that is dense and in one place only, perhaps another one."""
    node, choice = plan.graph.nodes[index], plan.choices[index]
    fixed = choice.beside or choice.at or index in sparse_tables(plan.graph) or node.get("stages", 1) > 1
    if node.op != "parameter" or fixed or rng.random() < 0.4:
        return choice
    letters = {row.output for row in rows(plan.graph, index)} - {P}
    layout = tuple(rng.choice(sorted(letters)) for _ in plan.placement.sizes)
    if rng.random() < 0.5 and _divides(plan, index, layout):
        choice = replace(choice, output=layout)
    sharded = node.gradient and B in choice.output and rng.random() < 0.6
    return replace(
        choice,
        regather=rng.random() < 0.5,
        sharded_states=sharded,
        sharded_gradients=sharded and rng.random() < 0.4,
        offloaded=choice.offloaded and node.gradient,
    )


def _divides(plan: Plan, index: int, layout: Layout) -> bool:
    """True if no rank is left empty by a layout that splits no dim twice."""
    sizes = plan.placement.sizes
    split = [letter for letter in layout if is_split(letter)]
    known = atoms(plan.graph)[index].sizes
    return len({*split}) == len(split) and all(
        splittable(known[atom_of(letter)], (size,))
        for letter, size in zip(layout, sizes, strict=True)
        if is_split(letter)
    )


def run(small: bool, only: Sequence[str], tell: Tell, count: int | None = None, seed: int = 0) -> list[Row]:
    """A row for each program of `count`, from that of `seed` on."""
    made = (Program(seed + k) for k in range(count or (SMALL_COUNT if small else COUNT)))
    return measured(made, only, tell, lambda program: measure(program, tell))


def measure(program: Program, tell: Tell) -> Row:
    """What a program has, and why it is wrong, if it is."""
    plan, refused = program.planned()
    first, second = program.verdicts(plan)
    failure = next((each["failure"] for each in (first, second) if not each["ok"]), "")
    if not failure and any(first[error] != second[error] for error in ERRORS):
        failure = "the order of turns changes the result"
    if failure:
        tell(f"WRONG: {failure}\n{_snippet(program)}")
    return {"case": program.name, **traits(plan), "refused": refused, "why": failure}


def _snippet(program: Program) -> str:
    return "\n".join((
        "from partita.bench.programs import Program",
        f"program = Program({program.seed})",
        "plan, _ = program.planned()",
        "print(plan, plan.emit(), *program.verdicts(plan))",
    ))  # fmt: skip


def traits(plan: Plan) -> Row:
    """What a plan has, as columns."""
    choices = [choice for stage in plan.stages for choice in stage.choices]
    return {
        "ranks": plan.ranks,
        "stages": len(plan.stages),
        "schedule": plan.schedule.name if plan.size > 1 else "",
        "micro_batches": plan.stages[0].micro_batches,
        "dtype": plan.dtype,
        "zero": 2 if any(c.sharded_gradients for c in choices) else int(any(c.sharded_states for c in choices)),
        "ahead": "Gathering(" in (text := plan.emit()),
        "behind": "class Reductions" in text,
        "in_steps": "class Steps" in text,
        "recomputed": any(stage.recompute for stage in plan.stages),
        "dropout": any(node.op == "dropout" for stage in plan.stages for node in stage.graph.nodes),
        "branches": any(choice.joins for choice in choices),
    }


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """Programs, those that failed, and how many have what."""
    return {"cases": len(rows), "failed": sum(bool(row["why"]) for row in rows)} | {
        "pipelines": sum(row["stages"] > 1 for row in rows),
        **{key: sum(bool(row[key]) for row in rows) for key in ("zero", "ahead", "behind", "in_steps")},
        **{key: sum(row[key] for row in rows) for key in ("recomputed", "dropout", "branches")},
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """How often each dtype and schedule was drawn."""
    counts = Counter(row["dtype"] for row in rows) + Counter(row["schedule"] or "no pipeline" for row in rows)
    return [{"drawn": name, "programs": number} for name, number in sorted(counts.items())]
