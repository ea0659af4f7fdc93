"""Rewriting and parallelizing at once, beside one after the other (Unity, OSDI 2022, Figure 15b).

Three plans of each model by one cost model: of the graph as it was captured; of the graph whose rewriting is best on
one device with its share of the batch, as TASO (SOSP 2019) would choose it, however much memory that takes
(*sequential*); and of all rewritings together with how each is parallelized (*joint*). The last space contains the
other two, so a joint plan that is worse is an error of ours, and its row says so.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.items import PARTS
from ..codegen.plan import Plan
from ..codegen.price import priced
from ..codegen.run import Settings, plan_graph
from ..formulation.rewriting.rules import planner_rules
from ..model.batch import with_batch
from ..model.capture import capture
from ..model.machine import Machine
from ..model.zoo import build
from ..model.zoo.registry import entry
from .cases import chosen

MODELS = ("mlp", "xdl", "dlrm", "candle-uno", "bert-large", "resnext-50", "inception-v3")
AMPLE = 2**50
SECONDS = 300.0
JOINT, SEQUENTIAL, PLAIN = "joint", "sequential", "plain"
WORSE = "error: joint is worse"


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its own batch on nodes of Summit, six GPUs each."""

    model: str
    nodes: int
    small: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}, {6 * self.nodes} V100"


CASES = tuple(Case(model, nodes) for model in MODELS for nodes in (1, 4))
SMALL = tuple(Case(model, 1, small=True) for model in ("mlp", "dlrm", "candle-uno"))


def run(small: bool, only: Sequence[str], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Plan every case three times; seconds are those of the joint plan, gaps fractions."""
    cases = chosen(SMALL if small else CASES, only, lambda case: case.name)
    rows = []
    for number, case in enumerate(cases, 1):
        tell(f"{number} of {len(cases)}: {case.name}")
        rows.append(measure(case))
        gc.collect()
    return rows


def measure(case: Case) -> dict[str, Any]:
    """The three plans of one case."""
    plans = planned(case)
    reports = {kind: made.report for kind, made in plans.items()}
    step = {kind: report["objective_ns"] for kind, report in reports.items()}
    seconds, space = reports[JOINT]["seconds"], reports[JOINT]["space"]
    return {
        "case": case.name,
        **{f"{kind}_ms": step[kind] / 1e6 for kind in (PLAIN, SEQUENTIAL, JOINT)},
        "best": verdict(step),
        "gain": 1 - step[JOINT] / step[SEQUENTIAL],
        "gap": reports[JOINT]["gap"],
        "gap_others": max(reports[kind]["gap"] for kind in (PLAIN, SEQUENTIAL)),
        **{f"{part}_s": float(seconds[part]) for part in ("rewrite", "formulate", "solve", "total")},
        "mesh": "x".join(map(str, plans[JOINT].placement.sizes)),
        "without": space["rewritings"]["without"],
        "rewritten": counted(reports[JOINT]["rewritten"]),
        "rewritten first": counted(reports[SEQUENTIAL]["rewritten"]),
        "why": difference(plans[SEQUENTIAL], plans[JOINT]),
    }


def planned(case: Case) -> Mapping[str, Plan]:
    """The plans by their kind; `rewritten` of the sequential one's report says what was rewritten beforehand."""
    known, machine = entry(case.model), Machine.load("summit", nodes=case.nodes)
    batch = known.default_batch(case.small, machine.devices)
    module, inputs = build(case.model, small=case.small)
    start = time.monotonic()
    graph = capture(module, inputs, batch=max(batch, 2))
    settings = Settings(batch, known.dtype, known.optimizer, time_limit=SECONDS)
    joined = replace(settings, rules=planner_rules())
    model = {"reference": case.model, "batch": batch}
    share = max(1, batch // machine.devices)
    one = plan_graph(graph, alone(machine), replace(joined, batch=share, micro_batches=1), model | {"batch": share})
    rewritten = with_batch(one.graph, graph.batch)
    plans = {
        PLAIN: plan_graph(graph, machine, settings, model),
        SEQUENTIAL: plan_graph(rewritten, machine, settings, model),
        JOINT: plan_graph(graph, machine, joined, model),
    }
    plans[SEQUENTIAL].report["rewritten"] = one.report["rewritten"]
    return plans


def alone(machine: Machine) -> Machine:
    """One device of a machine, with memory for anything: what is best on it does not depend on what would fit."""
    levels = tuple(replace(level, size=1) for level in machine.levels)
    return replace(machine, levels=levels, device=replace(machine.device, memory_bytes=AMPLE))


def verdict(step: Mapping[str, int]) -> str:
    """Which plan is the best, all of them where several are."""
    least = min(step.values())
    if step[JOINT] > least:
        return WORSE
    return ", ".join(kind for kind in (JOINT, SEQUENTIAL, PLAIN) if step[kind] == least)


def counted(changes: Sequence[Mapping[str, str]]) -> str:
    """How many tensors are computed otherwise, by operator."""
    kinds = Counter(f"{change['was']} by {change['operator']}" for change in changes)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"


def difference(first: Plan, second: Plan) -> str:
    """What the second plan spends more, or less, than the first, in ms by part of a step."""
    before, after = priced(first).ns, priced(second).ns
    moved = {part: (after[part] - before[part]) / 1e6 for part in PARTS if after[part] != before[part]}
    return ", ".join(f"{part} {ms:+.2g} ms" for part, ms in moved.items()) or "equal"
