"""Published training runs: what the planner predicts for them, beside what was measured and beside constant MFU.

A run is priced as a configuration: the best plan that its words admit (`formulation/parallelism.py`), whatever memory
it needs. `ratio` is predicted by measured seconds of a step. In the totals:

    spearman         rank correlation of seconds per sample and GPU
    group_spearman   the same within each model and number of nodes with four runs or more: their median
    top1_regret      how much slower the run predicted to be the fastest of such a group is than its fastest: the mean
    *_abs_error      |ratio - 1|
    memory_within_15 share of runs whose memory on the first rank is predicted within 15 %
    oom_caught       share of failed runs that are predicted not to fit (they may have failed for other reasons)
    oom_false        share of successful runs that are predicted not to fit

Constant MFU takes all devices to reach the same share of their peak, the one with the least median error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.parallelism import Parallelism
from ..formulation.pipeline.configuration import rows as pipeline_rows
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.files import read_json
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine, stage_machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in
from ..solvers.executors import usable_cores
from .cases import GIB, Row, Tell, chosen

WITHIN = 0.15
LEAST_GROUP = 4


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder: with gated perceptrons and rotary positions (`gated`), or GPT's with unfused attention."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied: bool
    gated: bool = True

    @property
    def weights(self) -> int:
        """Elements of the matrices."""
        key_width = self.width // self.heads * self.key_heads
        attention = 2 * self.width * (self.width + key_width)
        layer = attention + (3 if self.gated else 2) * self.width * self.inner
        return self.layers * layer + self.width * self.vocabulary

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, attention as if it were not causal (Narayanan et al., SC'21, appendix)."""
        return 6.0 * self.weights + 12.0 * self.layers * self.width * self.sequence


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its model, parallelism, and what was measured.

    `stages`: layers of every stage in order; the head is in the last one, alone if that has none. Further `empty`
    stages of a pipeline have nothing. `memory_bytes`: the most that the first rank had allocated, None if unknown;
    `seconds` None: it failed.
    """

    name: str
    decoder: Decoder
    machine: str
    devices: int
    parallelism: Parallelism
    batch: int
    dtype: str
    recompute: str
    stages: tuple[int, ...]
    empty: int = 0
    chunks: int = 1
    overlap: bool = True
    seconds: float | None = None
    memory_bytes: float | None = None
    model: str = ""
    tier: str = ""

    @property
    def flops(self) -> float:
        """Of a step on one device."""
        return self.decoder.flops_per_token * self.decoder.sequence * self.batch / self.devices


def predict(only: Sequence[str], tell: Tell, runs: Iterable[Run]) -> list[Row]:
    """Predict runs, in as many processes as there are cores."""
    cases = sorted(chosen(runs, only, what="run"), key=lambda case: case.model)
    rows: list[Row] = []
    with ProcessPoolExecutor(usable_cores()) as executor:
        for number, row in enumerate(executor.map(predicted, cases, chunksize=4), 1):
            rows.append(row)
            if number % 20 == 0 or number == len(cases):
                tell(f"{number} of {len(cases)} runs predicted")
    return rows


def predicted(case: Run) -> Row:
    """The row of a run."""
    plan = planned(case)
    seconds = plan.report["objective_ns"] / 1e9
    return {
        "run": case.name,
        "model": case.model,
        "tier": case.tier,
        "gpus": case.devices,
        "samples": case.batch,
        "predicted_s": seconds,
        "measured_s": case.seconds,
        "ratio": None if case.seconds is None else seconds / case.seconds,
        "predicted_gib": plan.parts[0].report["memory_bytes"] / GIB,
        "measured_gib": None if case.memory_bytes is None else case.memory_bytes / GIB,
        "fits": plan.report["memory_bytes"] <= Machine.load(case.machine).device.capacity_bytes,
        "flops": case.flops,
    }


# The plan of a run


@lru_cache(maxsize=1)
def captured(decoder: Decoder) -> PCG:
    """The graph of a decoder at a batch of 2."""
    import torch

    from ..model.capture.capture import capture
    from ..model.zoo.gpt import GPT
    from ..model.zoo.llama import Llama

    d = decoder
    with torch.device("meta"):
        if d.gated:
            module: Any = Llama(d.vocabulary, d.layers, d.width, d.heads, d.key_heads, d.inner)
        else:
            module = GPT(d.vocabulary, d.sequence, d.layers, d.width, d.heads, dropout=0.0)
            for layer in module.layers:
                layer.attention.forward = partial(_unfused_attention, layer.attention)
        if d.tied:
            module.scores.weight = module.token_embedding.weight
        ids = torch.zeros(2, d.sequence, dtype=torch.long)
    return capture(module, (ids, ids), batch=2)


def _unfused_attention(attention: Any, x: Any) -> Any:
    """Attention that writes its scores, as of 2021: products, mask and softmax are kernels of their own."""
    import torch

    q, k, v = (t.transpose(1, 2) for t in attention.qkv(x).unflatten(-1, (3, attention.heads, -1)).unbind(2))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return attention.output((weights @ v).transpose(1, 2).flatten(2))


def planned(case: Run) -> Plan:
    """The best plan of a run's configuration on its machine, whatever memory it needs."""
    base = Machine.load(case.machine)
    whole = base.with_nodes(max(1, case.devices // prod(base.hierarchy[1:]))).without_memory_limit()
    if case.empty:
        whole = _of_stages(whole, len(case.stages) + case.empty, len(case.stages))
    space = SearchSpace(
        offload=False,
        stages=len(case.stages) // case.chunks,
        chunks=case.chunks,
        stages_at=tuple(_begins(case)),
        recompute=case.recompute,
        compile=True,
        overlap=case.overlap,
        parallelism=case.parallelism,
    )
    budget = Budget(workers=1, store=store_in("none"))
    training = Training(case.batch, case.dtype, "adamw")
    return plan_graph(captured(case.decoder), whole, training, space, budget, Context(emits=False))


def _begins(case: Run) -> Iterator[str]:
    """Where the stages after the first begin."""
    layer = 0
    for count in case.stages[:-1]:
        layer += count
        yield f"layers.{layer}" if layer < case.decoder.layers else "scores"


def _of_stages(machine: Machine, stages: int, used: int) -> Machine:
    """A machine of `used` of the `stages` equal parts of a machine: the other stages of a pipeline are empty."""
    row = max(pipeline_rows(machine.hierarchy, stages))
    outer = machine.levels[next(level for level, factor in enumerate(row) if factor > 1)]
    inner = stage_machine(machine, row)
    return replace(inner, levels=(replace(outer, name="stage", size=used, wiring=None), *inner.levels))


# Files of runs


def sweep(file: Path) -> list[Run]:
    """The runs of a file with `ultrascale_sweep`: models, runs and failed ones. PartitaError: it is none."""
    return _read(file, "ultrascale_sweep", _sweep)


def megatron(file: Path) -> list[Run]:
    """The runs of a file with `megatron_table1`. PartitaError: it is none."""
    return _read(file, "megatron_table1", _megatron)


def _read(file: Path, key: str, runs: Callable[[Mapping[str, Any]], Iterator[Run]]) -> list[Run]:
    data = read_json(file)
    if not isinstance(data, dict) or not isinstance(data.get(key), dict):
        raise PartitaError(f"{file}: has no {key!r}")
    try:
        found = list(runs(data[key]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise PartitaError(f"{file}: {key}: {what}") from None
    if not found:
        raise PartitaError(f"{file}: {key}: has no runs")
    return found


def _sweep(data: Mapping[str, Any]) -> Iterator[Run]:
    sequence, batch = data["about"]["common"]["seq_len"], data["about"]["common"]["gbs_seqs"]
    decoders = {
        name: Decoder(
            layers=m["layers"],
            width=m["hidden"],
            heads=m["heads"],
            key_heads=m["kv_heads"],
            inner=m["intermediate"],
            vocabulary=m["vocab"],
            sequence=sequence,
            tied=m["tied"],
        )
        for name, m in data["models"].items()
    }
    for given in (*data["runs"], *data.get("failed", ())):
        model, pp, tp = given["model"], given["pp"], given["tp"]
        decoder = decoders[model]
        layers, head = [decoder.layers], 0
        if pp > 1:
            derived = data["models"][model].get("pp_layers_per_stage_derived", {}).get(str(pp))
            layers, head = _evenly(decoder.layers, pp)
            if derived is not None:
                layers, head = derived["decoder_layers"], derived["lm_head_stage"][0]
        full = tuple(count for stage, count in enumerate(layers) if count or stage == head)
        yield Run(
            name=f"{model} dp{given['dp']} tp{tp} pp{pp} mbs{given['mbs']} zero{given['zero_stage']}",
            decoder=decoder,
            machine="p5-h100",
            devices=given["gpus"],
            parallelism=Parallelism(
                dp=given["dp"],
                tp=tp,
                zero=given["zero_stage"],
                micro_batch=given["mbs"],
                sequence_parallel=True if tp > 1 else None,
            ),
            batch=given.get("gbs_seqs", batch),
            dtype="mixed-bfloat16-fp32grad",
            recompute="none",
            stages=full,
            empty=len(layers) - len(full),
            seconds=given.get("step_time_s"),
            memory_bytes=given["gpu_mem_GB"] * GIB if given.get("gpu_mem_GB") else None,
            model=model,
            tier=given.get("tier", "failed"),
        )


def _evenly(layers: int, stages: int) -> tuple[list[int], int]:
    """Layers of every stage as even as can be, the first with more, and the stage with the head."""
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return counts, min(layers, stages - 1)


def _megatron(data: Mapping[str, Any]) -> Iterator[Run]:
    for given in data["rows"]:
        layers, width, pp = given["layers"], given["hidden"], given["pp"]
        chunks = given.get("virtual_stages") or 1
        decoder = Decoder(
            layers=layers,
            width=width,
            heads=given["heads"],
            key_heads=given["heads"],
            inner=4 * width,
            vocabulary=data["vocab"],
            sequence=data["seq_len"],
            tied=True,
            gated=False,
        )
        yield Run(
            name=f"{given['model']} dp{given['dp']} tp{given['tp']} pp{pp} mbs{given['mbs']}",
            decoder=decoder,
            machine="dgx-a100",
            devices=given["gpus"],
            parallelism=Parallelism(
                dp=given["dp"],
                tp=given["tp"],
                zero=0,
                micro_batch=given["mbs"],
                sequence_parallel=False if given["tp"] > 1 else None,
            ),
            batch=given["gbs_seqs"],
            dtype="mixed-bfloat16-bf16grad",
            recompute="full",
            stages=(layers // (pp * chunks),) * (pp * chunks),
            chunks=chunks,
            overlap=False,
            seconds=given["iter_time_s_derived"],
            model=given["model"],
            tier="megatron",
        )


# What all rows say together


def totals(rows: Sequence[Row]) -> Row:
    """See the top of this module; shares and errors as fractions, None where nothing says."""
    known = [row for row in rows if row["measured_s"] is not None]
    failed = [row for row in rows if row["measured_s"] is None]
    memory = [row for row in known if row["measured_gib"] is not None]
    groups = [own for own in _groups(known).values() if len(own) >= LEAST_GROUP]
    errors = [abs(row["ratio"] - 1) for row in known]
    regrets = [min(own, key=_of("predicted_s"))["measured_s"] / min(map(_of("measured_s"), own)) - 1 for own in groups]
    return {
        "runs": len(known),
        "spearman": _rank_correlation(known),
        "group_spearman": _median(map(_rank_correlation, groups)),
        "top1_regret": _mean(regrets),
        "median_abs_error": _median(errors),
        "p90_abs_error": float(np.quantile(errors, 0.9)) if errors else None,
        "median_ratio": _median(row["ratio"] for row in known),
        "memory_within_15": _mean(abs(row["predicted_gib"] / row["measured_gib"] - 1) <= WITHIN for row in memory),
        "oom_caught": _mean(not row["fits"] for row in failed),
        "oom_false": _mean(not row["fits"] for row in known),
        "constant_mfu_median_abs_error": constant_mfu_error(known),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """The totals of every tier and of every model."""
    known = [row for row in rows if row["measured_s"] is not None]
    parts: dict[str, list[Row]] = {}
    for row in known:
        for name in dict.fromkeys((f"tier {row['tier']}", f"model {row['model']}")):
            parts.setdefault(name, []).append(row)
    short = ("runs", "median_abs_error", "p90_abs_error", "median_ratio", "group_spearman", "top1_regret")
    keys = (*short, "memory_within_15", "oom_false", "constant_mfu_median_abs_error")
    found = {name: totals(own) for name, own in sorted(parts.items())}
    return [{"rows": name} | {key: own[key] for key in keys} for name, own in found.items()]


def constant_mfu_error(rows: Sequence[Row]) -> float | None:
    """The least median error of seconds that are proportional to the FLOPs of a device."""
    if not rows:
        return None
    ratios = np.array([row["flops"] / row["measured_s"] for row in rows])
    return float(min(np.median(np.abs(ratios / scale - 1)) for scale in ratios))


def _groups(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["gpus"]), []).append(row)
    return found


def _rank_correlation(rows: Sequence[Row]) -> float | None:
    """Spearman's, of device seconds per sample; None where one of both is the same for all rows."""
    from scipy.stats import spearmanr

    times = [[row[key] * row["gpus"] / row["samples"] for row in rows] for key in ("predicted_s", "measured_s")]
    return float(spearmanr(times[0], times[1]).statistic) if min(len({*own}) for own in times) > 1 else None


def _of(key: str) -> Callable[[Row], Any]:
    return lambda row: row[key]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None
