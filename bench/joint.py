"""Rewriting and parallelizing jointly, compared with sequentially (Unity, OSDI 2022, Figure 15b).

Three plans of each model by one cost model: of the graph as it was captured; of the graph whose rewriting is best on
one device with its share of the batch, as TASO (SOSP 2019) would choose it, however much memory that takes
(*sequential*); and of all rewritings together with how each is parallelized (*joint*). The last space contains the
other two, so a joint plan that is worse is an error of ours, and its row says so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..codegen.plan.plan import Plan
from ..codegen.planner.wide_rewriting import alone
from ..codegen.pricing.price_items import PARTS
from ..codegen.pricing.stage_price import stage_price
from ..formulation.rewriting.rules import planner_rules
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.graph.batch import with_batch
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..solvers.budget import Budget
from .cases import Row, Tell, captured, measured, plan_of_one_stage, seconds_of

MODELS = ("mlp", "xdl", "dlrm", "candle-uno", "bert-large", "resnext-50", "inception-v3")
SECONDS = 300.0
JOINT, SEQUENTIAL, PLAIN = "joint", "sequential", "plain"
WORSE = "error: joint is worse"


WIDTHS = (2048, 1024, 512)


class Tables(nn.Module):
    """Rows of tables of different widths, which cannot be one, side by side into a perceptron (Figure 16b)."""

    def __init__(self, rows: int = 200_000, widths: tuple[int, ...] = WIDTHS, hidden: int = 1024) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=True) for width in widths)
        self.top, self.score = nn.Linear(sum(widths), hidden), nn.Linear(hidden, 1)

    def forward(self, ids: Tensor, clicks: Tensor) -> Tensor:
        """A row of every table [batch, tables], clicks [batch]."""
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        return F.binary_cross_entropy_with_logits(self.score(torch.relu(self.top(x))).squeeze(1), clicks)


@dataclass(frozen=True, slots=True)
class Case:
    """A model on nodes of Summit, six GPUs each; `share`: samples a GPU, None for the model's own batch."""

    model: str
    nodes: int
    share: int | None = None
    small: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}, {6 * self.nodes} V100" + (f", {self.share} a GPU" if self.share else "")


CASES = (
    *(Case(model, nodes) for model in MODELS for nodes in (1, 4)),
    *(Case(model, nodes, 64) for model in ("dlrm", "tables") for nodes in (1, 4)),
)
SMALL = tuple(Case(model, 1, small=True) for model in ("mlp", "dlrm", "candle-uno"))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Plan every case three times; seconds are those of the joint plan, gaps fractions."""
    return measured(SMALL if small else CASES, only, tell, measure)


def measure(case: Case) -> Row:
    """The three plans of one case."""
    plans = planned(case)
    reports = {kind: made.report for kind, made in plans.items()}
    step = {kind: report["objective_ns"] for kind, report in reports.items()}
    return {
        "case": case.name,
        **{f"{kind}_ms": step[kind] / 1e6 for kind in (PLAIN, SEQUENTIAL, JOINT)},
        "best": verdict(step),
        "gain": 1 - step[JOINT] / step[SEQUENTIAL],
        "gap": reports[JOINT]["gap"],
        "gap_others": max(reports[kind]["gap"] for kind in (PLAIN, SEQUENTIAL)),
        **seconds_of(reports[JOINT], "rewrite", "formulate", "solve", "total"),
        "mesh": "x".join(map(str, plans[JOINT].placement.sizes)),
        "without": reports[JOINT]["space"]["rewritings"]["without"],
        "rewritten": counted(reports[JOINT]["rewritten"]),
        "rewritten first": counted(reports[SEQUENTIAL]["rewritten"]),
        "why": difference(plans[SEQUENTIAL], plans[JOINT]),
    }


def planned(case: Case) -> Mapping[str, Plan]:
    """The plans by their kind; `rewritten` of the sequential one's report says what was rewritten beforehand."""
    machine = Machine.load("summit", nodes=case.nodes)
    graph, training = workload(case, machine)
    batch, budget = training.batch, Budget(time_limit=SECONDS)
    plain, joined = SearchSpace(stages=1), SearchSpace(stages=1, rules=planner_rules())
    share = max(1, batch // machine.devices)
    small = replace(training, batch=share), replace(joined, micro_batches=1)
    one = plan_of_one_stage(graph, alone(machine), *small, budget)
    rewritten = with_batch(one.graph, graph.batch)
    plans = {
        PLAIN: plan_of_one_stage(graph, machine, training, plain, budget),
        SEQUENTIAL: plan_of_one_stage(rewritten, machine, training, plain, budget),
        JOINT: plan_of_one_stage(graph, machine, training, joined, budget),
    }
    plans[SEQUENTIAL].report["rewritten"] = one.report["rewritten"]
    return plans


def workload(case: Case, machine: Machine) -> tuple[PCG, Training]:
    """The graph of a case, and how it is trained."""
    if case.model == "tables":
        batch = (case.share or 64) * machine.devices
        with torch.device("meta"):
            inputs = torch.zeros(batch, len(WIDTHS), dtype=torch.long), torch.zeros(batch)
            graph = capture(Tables(), inputs, batch=batch)
        return graph, Training(batch, "float32", "sgd")
    given = case.share * machine.devices if case.share else None
    return captured(case.model, machine, small=case.small, batch=given)


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
    before, after = stage_price(first).ns, stage_price(second).ns
    moved = {part: (after[part] - before[part]) / 1e6 for part in PARTS if after[part] != before[part]}
    return ", ".join(f"{part} {ms:+.2g} ms" for part, ms in moved.items()) or "equal"
