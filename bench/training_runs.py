"""Published training runs: what the planner predicts for them, beside what was measured and beside constant MFU.

A run is priced as a configuration: the best plan that its words admit (`formulation/parallelism.py`), whatever memory
it needs. `ratio` is predicted by measured seconds of a step. In the totals:

    spearman         rank correlation of seconds per sample and GPU
    group_spearman   the same within each model and number of nodes with four runs or more: their median
    top1_regret      how much slower the run predicted to be the fastest of such a group is than its fastest: the mean
    constant_regret  the same for a random run of the group, as constant MFU predicts the same step for all of them
    *_abs_error      |ratio - 1|
    memory_within_15 share of runs whose memory on the first rank is predicted within 15 %
    oom_caught       share of failed runs that are predicted not to fit (they may have failed for other reasons)
    oom_false        share of successful runs that are predicted not to fit
    held_out_*       errors of predictions by numbers that are fitted to the runs of all other models (`held_out`)

Constant MFU takes all devices to reach the same share of their peak, the one with the least median error; held out,
the one with the least median error of the other models.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from statistics import mean
from typing import Any

import numpy as np

from ..codegen.plan.plan import Plan
from ..codegen.planner.context import Context
from ..codegen.planner.plan_graph import plan_graph
from ..formulation.pipeline.configuration import rows as pipeline_rows
from ..formulation.search_space import SearchSpace
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine, stage_machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.cache.store import store_in
from ..solvers.executors import usable_cores
from .cases import GIB, Row, Tell, chosen
from .first_rank import first_rank_bytes
from .held_out import CHANGE, FITTED, Step, changed, held_out, step_of
from .published_runs import Decoder, Run

WITHIN = 0.15
LEAST_GROUP = 4
HELD_OUT = tuple(f"held_out_{kind}_abs_error" for kind in ("mean", "median", "p90", "max"))
DROPOUT = 0.1
"""Megatron-LM's default, of attention's shares and of what each layer adds."""


def predict(only: Sequence[str], tell: Tell, runs: Iterable[Run], hold_out: bool = False) -> list[Row]:
    """Predict runs, in as many processes as there are cores; `hold_out`: also by numbers fitted to other models."""
    cases = sorted(chosen(runs, only, what="run"), key=lambda case: case.model)
    rows, steps = list[Row](), list[Step | None]()
    with ProcessPoolExecutor(usable_cores()) as executor:
        made = executor.map(partial(predicted, hold_out=hold_out), cases, chunksize=4)
        for number, (row, step) in enumerate(made, 1):
            rows.append(row)
            steps.append(step)
            if number % 20 == 0 or number == len(cases):
                tell(f"{number} of {len(cases)} runs predicted")
    if hold_out:
        tell("fitting numbers to the runs of all models but one")
        for row, seconds in zip(rows, held_out(rows, steps), strict=True):
            others = [x for x in rows if x["model"] != row["model"] and x["measured_s"] is not None]
            row["held_out_s"] = seconds
            row["constant_mfu_s"] = row["flops"] / best_rate(others)[1] if others else None
    return rows


def predicted(case: Run, hold_out: bool = False) -> tuple[Row, Step | None]:
    """The row of a run, and if it is to be held out its step as a function of the fitted numbers."""
    plan, base = planned(case), Machine.load(case.machine)
    seconds, held = plan.report["objective_ns"] / 1e9, first_rank_bytes(case, plan)
    step = None
    if hold_out and case.seconds is not None:
        machines = (base, *(changed(base, name, CHANGE) for name in FITTED[case.machine]))
        step = step_of(plan, [machine_of(case, machine) for machine in machines])
    row = {
        "run": case.name,
        "model": case.model,
        "tier": case.tier,
        "gpus": case.devices,
        "samples": case.batch,
        "predicted_s": seconds,
        "measured_s": case.seconds,
        "ratio": None if case.seconds is None else seconds / case.seconds,
        "predicted_gib": held / GIB,
        "measured_gib": None if case.memory_bytes is None else case.memory_bytes / GIB,
        "fits": max(held, plan.report["memory_bytes"]) <= base.device.capacity_bytes,
        "flops": case.flops,
    }
    return row, step


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
            module = GPT(d.vocabulary, d.sequence, d.layers, d.width, d.heads, dropout=DROPOUT)
            for layer in module.layers:
                layer.attention.forward = partial(_unfused_attention, layer.attention)
        if d.tied:
            module.scores.weight = module.token_embedding.weight
        ids = torch.zeros(2, d.sequence, dtype=torch.long)
    return capture(module, (ids, ids), batch=2)


def _unfused_attention(attention: Any, x: Any) -> Any:
    """Attention that writes its scores, as of 2021: products, softmax and dropout are kernels of their own.

    Megatron-LM's softmax applies the causal mask while it reads the scores, so no kernel here does.
    """
    import torch

    q, k, v = (t.transpose(1, 2) for t in attention.qkv(x).unflatten(-1, (3, attention.heads, -1)).unbind(2))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    weights = torch.dropout(scores.softmax(-1), attention.dropout, train=True)
    return attention.output((weights @ v).transpose(1, 2).flatten(2))


def planned(case: Run) -> Plan:
    """The best plan of a run's configuration on its machine, whatever memory it needs."""
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
    machine = machine_of(case, Machine.load(case.machine))
    return plan_graph(captured(case.decoder), machine, training, space, budget, Context(emits=False))


def machine_of(case: Run, base: Machine) -> Machine:
    """As many nodes of a machine as a run has, whatever memory it needs."""
    whole = base.with_nodes(max(1, case.devices // prod(base.hierarchy[1:]))).without_memory_limit()
    return _of_stages(whole, len(case.stages) + case.empty, len(case.stages)) if case.empty else whole


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


# What all rows say together


def totals(rows: Sequence[Row]) -> Row:
    """See the top of this module; shares and errors as fractions, None where nothing says."""
    known = [row for row in rows if row["measured_s"] is not None]
    failed = [row for row in rows if row["measured_s"] is None]
    memory = [row for row in known if row["measured_gib"] is not None]
    groups = [own for own in _groups(known).values() if len(own) >= LEAST_GROUP]
    errors = [abs(row["ratio"] - 1) for row in known]
    fastest = [min(map(_of("measured_s"), own)) for own in groups]
    picked = [min(own, key=_of("predicted_s"))["measured_s"] for own in groups]
    at_random = [mean(map(_of("measured_s"), own)) for own in groups]
    return {
        "runs": len(known),
        "spearman": _rank_correlation(known),
        "group_spearman": _median(map(_rank_correlation, groups)),
        "top1_regret": _mean(pick / best - 1 for pick, best in zip(picked, fastest, strict=True)),
        "constant_regret": _mean(pick / best - 1 for pick, best in zip(at_random, fastest, strict=True)),
        "median_abs_error": _median(errors),
        "p90_abs_error": _p90(errors),
        "median_ratio": _median(row["ratio"] for row in known),
        "memory_within_15": _mean(abs(row["predicted_gib"] / row["measured_gib"] - 1) <= WITHIN for row in memory),
        "oom_caught": _mean(not row["fits"] for row in failed),
        "oom_false": _mean(not row["fits"] for row in known),
        "constant_mfu_median_abs_error": constant_mfu_error(known),
        **_held_out_errors(known),
    }


def _held_out_errors(rows: Sequence[Row]) -> Row:
    """Errors of the predictions by other models' runs, and of constant MFU chosen by these."""
    known = [row for row in rows if row.get("held_out_s") is not None]
    errors = [abs(row["held_out_s"] / row["measured_s"] - 1) for row in known]
    constant = [abs(row["constant_mfu_s"] / row["measured_s"] - 1) for row in known]
    named = {"held_out": errors, "held_out_constant_mfu": constant}
    return {
        f"{name}_{kind}_abs_error": of(own)
        for name, own in named.items()
        for kind, of in (("mean", _mean), ("median", _median), ("p90", _p90), ("max", max))
        if known
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """The totals of every tier and of every model."""
    known = [row for row in rows if row["measured_s"] is not None]
    parts: dict[str, list[Row]] = {}
    for row in known:
        for name in dict.fromkeys((f"tier {row['tier']}", f"model {row['model']}")):
            parts.setdefault(name, []).append(row)
    errors = ("median_abs_error", "p90_abs_error", "median_ratio")
    groups = ("group_spearman", "top1_regret", "constant_regret")
    memory = ("memory_within_15", "oom_false")
    keys = ("runs", *errors, *groups, *memory, "constant_mfu_median_abs_error", *HELD_OUT)
    found = {name: totals(own) for name, own in sorted(parts.items())}
    return [{"rows": name} | {key: own[key] for key in keys if key in own} for name, own in found.items()]


def constant_mfu_error(rows: Sequence[Row]) -> float | None:
    """The least median error of seconds that are proportional to the FLOPs of a device."""
    return best_rate(rows)[0] if rows else None


def best_rate(rows: Sequence[Row]) -> tuple[float, float]:
    """The least median error of seconds that are proportional to FLOPs, and the FLOP/s with it."""
    rates = np.array([row["flops"] / row["measured_s"] for row in rows])
    return min((float(np.median(np.abs(rates / rate - 1))), float(rate)) for rate in rates)


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


def _p90(values: Sequence[float]) -> float | None:
    return float(np.quantile(values, 0.9)) if values else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None
