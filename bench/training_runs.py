"""Published training runs: decoders with known sizes, parallelism and seconds, and what the planner predicts for them.

Each run is priced as `partita price` prices a configuration: the best plan among those that its words admit.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.parallelism import Parallelism
from ..formulation.pipeline.configuration import rows as pipeline_rows
from ..formulation.search_space import SearchSpace
from ..model.graph.pcg import PCG
from ..model.machine.machine import Level, Machine, stage_machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder: with gated perceptrons and rotary positions (`gated`), or GPT's."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied: bool
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its model, parallelism, and what was measured.

    `stages`: layers of every stage; one without layers holds the head. `memory_bytes`: the most that the first rank
    had allocated, None if unknown; `seconds` None: it failed.
    """

    name: str
    decoder: Decoder
    devices: int
    parallelism: Parallelism
    batch: int
    dtype: str
    recompute: str
    stages: tuple[int, ...]
    chunks: int
    seconds: float | None
    memory_bytes: float | None
    group: tuple[Any, ...] = ()
    tier: str = ""


@lru_cache(maxsize=1)
def captured(decoder: Decoder) -> PCG:
    """The graph of a decoder, captured at a batch of 2."""
    import torch

    from ..codegen.planner.named_model import captured_module
    from ..model.zoo.gpt import GPT
    from ..model.zoo.llama import Llama

    d = decoder
    with torch.device("meta"):
        if d.gated:
            module: Any = Llama(d.vocabulary, d.layers, d.width, d.heads, d.key_heads, d.inner)
        else:
            module = GPT(d.vocabulary, d.layers, d.width, d.heads, d.sequence)
        if d.tied:
            module.scores.weight = module.token_embedding.weight
        ids = torch.zeros(2, d.sequence, dtype=torch.long)
    return captured_module(
        module,
        (ids, ids),
        batch=2,
        allow_unknown=False,
        statistics="batch",
        dropout="torch",
        loss=None,
        batch_dim=None,
    )[0]


def planned(run: Run, base: Machine) -> Plan:
    """The best plan of a run's configuration, whatever memory it needs."""
    nodes = max(1, run.devices // prod(base.hierarchy[1:]))
    whole = base.with_nodes(nodes)
    roomy = replace(whole, device=replace(whole.device, memory_bytes=1 << 50))
    begins = [sum(run.stages[:s]) for s in range(1, len(run.stages))]
    at = tuple("scores" if begin == run.decoder.layers else f"layers.{begin}" for begin in dict.fromkeys(begins))
    machine, used = roomy, len(at) + 1
    if used < len(run.stages):
        machine = _of_stages(roomy, len(run.stages), used)
    space = SearchSpace(
        offload=False,
        stages=used,
        stages_at=at,
        recompute=run.recompute,
        parallelism=run.parallelism,
    )
    training = Training(run.batch, run.dtype, "adamw")
    return plan_graph(captured(run.decoder), machine, training, space, Budget(workers=1, store=store_in("none")))


def _of_stages(machine: Machine, stages: int, used: int) -> Machine:
    """A machine of `used` of the `stages` equal parts of a machine: the other stages of a pipeline are empty."""
    row = max(pipeline_rows(machine.hierarchy, stages))
    outer = machine.levels[next(level for level, factor in enumerate(row) if factor > 1)]
    inner = stage_machine(machine, row)
    level = Level("stage", used, outer.bandwidth, outer.latency_ns)
    return replace(inner, levels=(level, *inner.levels))
