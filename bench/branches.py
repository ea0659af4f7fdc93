"""Parallel branches: the step of the best plan with them and without, for models that have branches.

Models of the zoo on four nodes of Summit (24 GPUs), from the batch of Unity's evaluation to one sample a GPU and less.
Then towers of equal and unequal depth, which meet in a sum or in a `cat`, on six A100 that take 30 us for a launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import entry
from ..solvers.budget import Budget
from .cases import Row, Tell, captured, each, plan_of_one_stage, seconds_of

if TYPE_CHECKING:
    from torch import nn

NODES, SECONDS = 4, 240.0
WIDTH, SAMPLES, LAUNCH_NS = 1024, 1536, 30_000.0  # of the towers; a host that launches many small kernels


@dataclass(frozen=True)
class Case:
    """A model of the zoo, or towers of linear layers: the depth of each, and how they are joined."""

    model: str
    batch: int
    depths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        depths = f" of {'+'.join(map(str, self.depths))} layers" if self.depths else ""
        return f"{self.model}{depths}, batch {self.batch}"

    def graph(self, small: bool) -> tuple[PCG, Machine, Training]:
        """What is planned."""
        if not self.depths:
            machine = Machine.load(entry(self.model).machine, nodes=NODES)
            graph, training = captured(self.model, machine, small=small, batch=self.batch)
            return graph, machine, training
        import torch

        module = towers(self.depths, self.model.rpartition(" ")[2], WIDTH)
        graph = capture(module, (torch.zeros(self.batch, WIDTH),), batch=self.batch)
        machine = Machine.adhoc((6,))
        slow = replace(machine, device=replace(machine.device, launch_ns=LAUNCH_NS))
        return graph, slow, Training(self.batch)


ZOO = tuple(Case(name, batch) for name in ("inception-v3", "candle-uno") for batch in (1536, 96, 24, 12))
TOWERS = tuple(
    Case(f"towers, {join}", SAMPLES, depths)
    for depths in ((2, 2), (4, 2), (6, 2), (3, 2, 1))
    for join in ("cat", "add")
)
SMALL = (Case("inception-v3", 24), Case("candle-uno", 24), *TOWERS[2:4])


def towers(depths: Sequence[int], join: str, width: int) -> "nn.Module":
    """Towers over one tensor that meet in an `add` or a `cat`."""
    import torch
    from torch import nn

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [[part for _ in range(n) for part in (nn.Linear(width, width), nn.Tanh())] for n in depths]
            self.towers = nn.ModuleList(nn.Sequential(*each_of) for each_of in layers)
            self.head = nn.Linear(width * (len(depths) if join == "cat" else 1), 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = [tower(x) for tower in self.towers]
            joined = torch.cat(found, 1) if join == "cat" else sum(found[1:], found[0])
            return torch.as_tensor(self.head(joined).square().mean())

    return Towers()


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every model and batch; `gain` is the share of the step saved, gaps are fractions."""
    return [measure(case, small) for case in each(SMALL if small else (*ZOO, *TOWERS), only, tell)]


def measure(case: Case, small: bool) -> Row:
    """Plan one model for one batch, and again without parallel branches where there are some."""
    graph, machine, training = case.graph(small)
    report = plan_of_one_stage(graph, machine, training, SearchSpace(stages=1), Budget(time_limit=SECONDS)).report
    step, without = report["objective_ns"], report.get("without_bundles") or {}
    other = without.get("objective_ns") if "bundles" in report else step
    bound = without.get("bound_ns") if "bundles" in report else report["bound_ns"]
    found = report.get("bundles", ())
    return {
        "model": case.name,
        "gpus": machine.devices,
        "bundles": len(found),
        "shares": " ".join("+".join(map(str, b.get("shares") or (1,) * len(b["places"]))) for b in found[:1]),
        "step_ms": step / 1e6,
        "without_ms": other and other / 1e6,
        "gain": other and 1 - step / other,
        "gap": report["gap"],
        "gap_without": 1 - bound / other if other and bound else None,
        **seconds_of(report, "total"),
    }
