"""The plans of `examples/plans`: what each sends and in which order, and that it computes what the model computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partita
from partita import op_assign, op_trans, split
from partita.codegen.plan.spacetime_plan import SpaceTimePlan, space_time
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.verify import Trial, run, trial
from partita.codegen.verification.worker import load_program, train
from partita.formulation.pipeline.orders import Orders, Slot
from partita.formulation.spacetime.graph import Graph
from partita.formulation.spacetime.materialized import Collective
from partita.formulation.spacetime.op import Op, Phase
from partita.formulation.spacetime.order import PlanConflict
from partita.formulation.spacetime.stages import evenly, layers, passes, stages
from partita.formulation.spacetime.tasks import tasks
from partita.model.capture.load import import_file
from partita.model.capture.objective import TrainedModule
from partita.model.graph.batch import with_batch
from partita.model.graph.pcg import PCG
from partita.model.zoo import build
from partita.solvers.spacetime.validate import validate

from ..levels import exhaustive, some

FOLDER = Path(__file__).parents[2] / "examples" / "plans"
FILES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "unsupported")
GPT, MBART, ALPHAFOLD = "gpt3-1.3b", "mbart-4.7b", "alphafold2-87m"
STEPS = 2

LESS: dict[str, dict[str, int]] = {
    "co_shard": {"shards": 2},
    "gradient_accumulation": {"micros": 2},
    "pipeline_tensor_data": {"micros": 2},
    "three_f_one_b": {"micros": 2},
}
"""Of the plans with many operators fewer micro-batches or shards than the files say, for time."""

FEWER = {"dap": 2}
"""And fewer devices: without data parallelism."""


@cache
def module_of(name: str) -> ModuleType:
    return import_file(FOLDER / f"{name}.py")


@cache
def captured(model: str) -> tuple[nn.Module, Any, PCG]:
    module, inputs = build(model, small=True, device="cpu")
    return module, inputs, partita.capture(module, inputs)


def empty(model: str, batch: int = 8) -> Graph:
    return Graph(with_batch(captured(model)[2], batch))


def written(name: str, model: str = "", devices: int = 0) -> Graph:
    """The graph as a plan leaves it."""
    module = module_of(name)
    graph = empty(model or module.MODEL, module.BATCH)
    module.plan(graph, list(range(devices or FEWER.get(name, module.DEVICES))), **LESS.get(name, {}))
    return graph


@cache
def planned(name: str, model: str = "", devices: int = 0, dtype: str = "float32") -> SpaceTimePlan:
    return space_time(written(name, model, devices), dtype=dtype, optimizer="adamw")


# Programs


_TRUTHS: dict[tuple[str, int], Trial] = {}


def judged(name: str, folder: Path, model: str = "", devices: int = 0, dtype: str = "float32") -> Trial:
    """The trial of a plan's program; what the module does is found once for each model and batch."""
    plan = planned(name, model, devices, dtype)
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}_{model}_{devices}_{dtype}.py"
    plan.emit(path)
    key = model or module_of(name).MODEL, plan.pcg.batch
    if key not in _TRUTHS:
        module, inputs, _ = captured(key[0])
        model_of = TrainedModule(module, inputs)
        batch, optimizer = plan.pcg.batch, plan.optimizer
        _TRUTHS[key] = trial(path, plan.pcg, model_of, plan.ranks, batch, optimizer=optimizer, steps=STEPS)
    return replace(_TRUTHS[key], path=path, ranks=plan.ranks)


def holds(verdict: dict[str, Any]) -> None:
    assert verdict["ok"], verdict
    assert verdict["tolerance"] == 1e-9
    assert max(verdict[f"{what}_error"] for what in ("loss", "gradient", "weight")) <= 1e-9


@pytest.mark.parametrize("name", some(FILES))
def test_every_plan_computes_what_its_model_computes(name: str, tmp_path: Path) -> None:
    holds(run([judged(name, tmp_path)])[0])


@pytest.mark.parametrize("name", some(sorted(FILES, key=lambda name: (name != "tables_apart", name)), 40))
def test_every_plan_computes_it_in_mixed_precision(name: str, tmp_path: Path) -> None:
    """In float64 to the last places, in bfloat16 up to what is rounded there."""
    made = judged(name, tmp_path, dtype="mixed-bfloat16")
    holds(run([made])[0])
    program = load_program(made.path)
    state = {name: x.float() if x.is_floating_point() else x for name, x in made.state.items()}
    found = run_threads(lambda _: train(program, state, made.batches, state, program.DTYPE), made.ranks)[0]
    assert found is not None and found.losses == pytest.approx(made.truth.losses, rel=0.01)
    norm = max(value.norm() for value in made.truth.gradients.values())
    for weight, value in made.truth.gradients.items():
        off = (found.gradients[weight].double() - value).norm() if weight in found.gradients else value.norm()
        assert off <= 0.15 * value.norm() + 1e-3 * norm, weight


@pytest.mark.parametrize("devices", some([4, 8], 2))
@pytest.mark.parametrize("model", [GPT, MBART])
@pytest.mark.parametrize("name", ["data_parallel", "interlaced"])
def test_algorithms_1_and_2_on_gpt_and_mbart_on_4_and_8_ranks(
    name: str, model: str, devices: int, tmp_path: Path
) -> None:
    holds(run([judged(name, tmp_path, model, devices)])[0])


@exhaustive
def test_plans_on_processes(tmp_path: Path) -> None:
    names = ("chimera", "zero3")
    for verdict in run([judged(name, tmp_path) for name in names], "pool"):
        holds(verdict)


def test_programs_are_the_same_every_time() -> None:
    assert space_time(written("chimera"), optimizer="adamw").source() == planned("chimera").source()


def test_attention_alone_is_recomputed() -> None:
    graph = written("selective_recompute")
    again = {op.of.name.partition("attention.")[2] for op in graph.forward if op.recomputed is not None}
    assert {"query", "key", "value", "output"}.isdisjoint(again) and "mul" in again
    assert all(op.recomputed is not None for op in graph.forward if op.of.op == "attention")


@pytest.mark.parametrize(
    ("name", "weights", "devices"),
    [("tables_apart", ["token_embedding.weight"], 4), ("expert_devices", ["gate.weight", "up.weight"], 4)],
)
def test_weights_lie_on_devices_of_their_own(name: str, weights: list[str], devices: int) -> None:
    kept: dict[bool, set[int | None]] = {True: set(), False: set()}
    for op in planned(name).program.tasks.ops:
        if op.phase is Phase.STORE and not op.of.name.endswith("down.weight"):
            kept[op.of.name.endswith(tuple(weights))].add(op.device)
    assert len(kept[True]) == devices and len(kept[False]) == 2 and kept[True].isdisjoint(kept[False])


def test_a_stage_has_as_many_devices_as_the_plan_says() -> None:
    found = {op.of.name: {part.device for part in op.graph.parts(op.node)} for op in written("unlike_stages").forward}
    assert [len(found[name]) for name in ("token_embedding", "layers.0.down", "scores")] == [1, 4, 2]


# What is sent


def sent(name: str) -> Counter[str]:
    """Collectives by kind, sends, and how many there are of each, over all devices' groups once."""
    found: Counter[str] = Counter()
    for rank, device in enumerate(planned(name).program.devices):
        for instruction in device:
            if isinstance(instruction, Collective):
                found[instruction.kind] += instruction.group[0] == rank
            elif type(instruction).__name__ == "Send":
                found["send"] += 1
    return +found


PARAMETERS = 52  # of the small GPT
LAYERS = 4

SENT = {
    "data_parallel": {"all_reduce": PARAMETERS},
    "allreduce_overlap": {"all_reduce": PARAMETERS},
    "gradient_accumulation": {"all_reduce": PARAMETERS},  # one for all micro-batches
    "recompute": {"all_reduce": PARAMETERS},
    "chain_recompute": {"all_reduce": PARAMETERS},
    "swap": {"all_reduce": PARAMETERS},
    "zero1": {"reduce_scatter": PARAMETERS, "all_gather": PARAMETERS},
    "zero2": {"reduce_scatter": PARAMETERS, "all_gather": PARAMETERS},
    "one_f_one_b": {"send": 2 * 3 * 4, "all_reduce": 1},  # the tied table lies on the first and the last device
    "gpipe": {"send": 2 * 3 * 4, "all_reduce": 1},
    "zero_bubble": {"send": 2 * 3 * 4, "all_reduce": 1},
    "interleaved_1f1b": {"send": 2 * 7 * 4, "all_reduce": 1},
    "chimera": {"send": 2 * 3 * 4, "all_reduce": PARAMETERS},  # both directions have all weights
}


@pytest.mark.parametrize("name", some(SENT))
def test_what_is_sent(name: str) -> None:
    assert sent(name) == SENT[name]


def test_tensor_parallelism_sends_two_all_reduces_a_layer_each_way() -> None:
    """And one for the table of tokens each way, one for the loss; sequence parallelism halves of them instead."""
    assert sent("transformer_parallel")["all_reduce"] == 2 * 2 * LAYERS + 2
    found = sent("sequence_parallel")
    assert found["all_gather"] == found["reduce_scatter"] == 2 * 2 * LAYERS


def test_zero_3_gathers_for_every_use() -> None:
    """A parameter for forward, a matrix again for backward; the table of tokens is the matrix of the scores too."""
    matrices = 4 * LAYERS + 1
    assert sent("zero3") == {"reduce_scatter": PARAMETERS + 1, "all_gather": PARAMETERS + 1 + matrices}


def test_co_shard_sends_gradients_only() -> None:
    assert set(sent("co_shard")) == {"all_reduce"}
    assert all(
        instruction.source is not None and instruction.source.tensor.kind == "gradient"
        for device in planned("co_shard").program.devices
        for instruction in device
        if isinstance(instruction, Collective)
    )


# In which order


def slots_of(graph: Graph, groups: list[list[Op]]) -> list[list[Slot]]:
    """The slots that every device runs, by the first operator of each, in the order that validation completed."""
    stage = {op: number for number, ops in enumerate(groups) for op in ops}
    kinds = {Phase.FORWARD: "F", Phase.RECOMPUTE: "R", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}
    found: dict[int, dict[Slot, None]] = {}
    for op in validate(tasks(graph)).order:
        forward = op if op.phase is Phase.FORWARD else op.forward
        if op.phase in kinds and forward in stage and op.device is not None:
            slot = Slot(kinds[op.phase], stage[forward], forward.coordinate("micro"))
            found.setdefault(op.device, {})[slot] = None
    return [list(found[device]) for device in sorted(found)]


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        ("one_f_one_b", partita.one_f_one_b(4, 4)),
        ("gpipe", partita.gpipe(4, 4, recompute=True)),
        ("chimera", partita.chimera(4, 4)),
        ("zero_bubble", partita.zero_bubble(4, 4)),
        ("interleaved_1f1b", partita.interleaved(4, 4, 2)),
    ],
)
def test_devices_run_the_slots_of_the_schedule(name: str, orders: Orders) -> None:
    graph = written(name)
    groups = stages(graph, 1 + max(slot.stage for order in orders for slot in order))
    assert slots_of(graph, groups) == [list(order) for order in orders]


def test_3f1b_keeps_nothing_of_the_first_two_passes() -> None:
    graph = written("three_f_one_b")
    number = passes(graph)
    assert max(number) == 2
    backward = [op for op in graph.forward if op.backward is not None and op.layer]
    assert backward and all(number[op.node] == 2 for op in backward)


def test_co_shard_computes_one_shard_at_a_time() -> None:
    """Forward and recomputation of a block of heads on a device: shard after shard, the last one first in backward."""
    found = validate(planned("co_shard").program.tasks).order
    shards = [
        (op.phase, op.coordinate("shard"))
        for op in found
        if op.device == 0 and op.of.name == "layers.1.attention" and op.phase is not Phase.WEIGHT
    ]
    forward = [(Phase.FORWARD, shard) for shard in (0, 1)]
    backward = [(phase, shard) for shard in (1, 0) for phase in (Phase.RECOMPUTE, Phase.BACKWARD)]
    assert shards == forward + backward


def test_all_reduces_have_a_layer_s_backward_to_run_beside() -> None:
    """The update of layer 2 comes after the backward of layer 1, and before that of layer 0."""
    order = validate(planned("allreduce_overlap").program.tasks).order
    at: dict[tuple[Phase, str], list[int]] = {}
    for place, op in enumerate(order):
        at.setdefault((op.phase, op.layer), []).append(place)
    updates = at[Phase.UPDATE, "layers.2"]
    assert max(at[Phase.BACKWARD, "layers.1"]) < min(updates)
    assert max(updates) < min(at[Phase.BACKWARD, "layers.0"])


# What cannot be said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipedream", r"token_embedding.weight update ends the step .*asynchronous pipelines"),
        ("bytescheduler", r"layers.0.attention_norm.weight update ends the step .* ByteScheduler"),
    ],
)
def test_what_reaches_beyond_a_step_is_refused(name: str, said: str) -> None:
    with pytest.raises(partita.PartitaError, match=said):
        getattr(module_of("unsupported"), name)(empty(GPT), [0, 1, 2, 3])


def test_slices_of_tokens_in_a_pipeline_are_refused_with_the_keys_that_attention_lacks() -> None:
    graph = empty(GPT)
    module_of("unsupported").terapipe(graph, [0, 1, 2, 3])
    with pytest.raises(PlanConflict) as refused:
        validate(tasks(graph))
    order, need = refused.value.conflicts
    assert "unsupported.py:" in order and "layers.0.attention forward (slice 1/4) before" in order
    assert "layers.0.attention forward (slice 1/4) needs layers.0.attention.permute_2" in need


# Stages


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("model", [GPT, MBART, ALPHAFOLD])
def test_stages_are_all_operators_in_consecutive_groups(model: str, count: int) -> None:
    graph = empty(model)
    groups = stages(graph, count)
    assert len(groups) == count and all(groups)
    assert sorted(op.number for ops in groups for op in ops) == [op.number for op in graph.forward]
    stage = {op.node: number for number, ops in enumerate(groups) for op in ops}
    number = passes(graph)
    for op in graph.forward:  # within a pass no tensor goes back
        assert all(stage[i] <= stage[op.node] for i in op.of.inputs if i in stage and number[i] == number[op.node])


def test_stages_of_a_gpt_are_its_layers_and_of_twice_as_many_their_halves() -> None:
    graph = empty(GPT)
    assert [ops[-1].of.name for ops in stages(graph, 4)] == [*(f"layers.{k}.add_2" for k in range(3)), "cross_entropy"]
    assert [ops[-1].of.name for ops in stages(graph, 8)][:2] == ["layers.0.add", "layers.0.add_2"]


def test_stages_of_some_operators() -> None:
    graph = empty(GPT)
    some = [op for op in graph.forward if op.layer in ("layers.1", "layers.2")]
    assert stages(graph, 2, some) == [[op for op in some if op.layer == f"layers.{k}"] for k in (1, 2)]


def test_more_stages_than_operators_are_refused() -> None:
    graph = empty(GPT)
    with pytest.raises(partita.PartitaError, match="cannot split 2 operators into 3 stages"):
        stages(graph, 3, graph.forward[:2])


def test_repetitions_of_a_layer_are_in_its_stage() -> None:
    graph = empty(ALPHAFOLD)
    for ops in stages(graph, 4):
        assert len({passes(graph)[op.node] for op in ops if op.layer}) == 3


def test_layers_are_runs() -> None:
    assert [run[0].layer for run in layers(empty(GPT))] == ["", *(f"layers.{k}" for k in range(LAYERS)), ""]
    assert [run[0].layer for run in layers(empty(ALPHAFOLD))] == [*("", "layers.0", "layers.1") * 3, ""]


# Dimensions


def test_a_list_of_dimensions_is_split_along_the_first_that_an_operator_has() -> None:
    graph = empty(GPT)
    heads, hidden, tokens = ("layers.*.attention.qkv.weight", 0, 1), ("layers.*.up.weight", 0), ("ids", 1)
    op = {op.of.name: op for op in graph.forward}
    assert op["layers.2.attention"].has(heads) and not op["layers.2.attention"].has(hidden)
    shapes = {
        name: op_trans(op[name], split([heads, hidden, tokens], 4))[0].mask(None).sizes
        for name in ("layers.2.attention", "layers.3.up", "layers.3.norm")
    }
    # [samples, heads, tokens, width], [samples, tokens, hidden units], [samples, tokens, width]
    assert shapes == {
        "layers.2.attention": (8, 1, 8, 16),
        "layers.3.up": (8, 8, 64),
        "layers.3.norm": (8, 2, 64),
    }


def test_of_dimensions_that_are_alike_the_first_of_the_result_is_split() -> None:
    """Pairs have residues twice; the transpose of pairs is split by its own rows, which are columns before."""
    graph = empty(ALPHAFOLD)
    op = next(op for op in graph.forward if op.of.op == "permute" and op.of.path == "layers.0.ending")
    part = op_trans(op, split(("alignment", 2), 4))[0]
    assert (part.mask(0).sizes, part.mask(None).sizes) == ((8, 8, 2, 16), (8, 2, 8, 16))


@pytest.mark.parametrize("name", ["no.such.weight", "layers.*.no"])
def test_names_of_no_tensor_are_refused(name: str) -> None:
    with pytest.raises(partita.PartitaError, match="no tensor"):
        op_trans(empty(GPT).forward[0], split((name, 0), 2))


class TwoLosses(nn.Module):
    """As AlphaFold, which scales and adds its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.linear(x)
        return 2.0 * F.mse_loss(found, y) + 0.3 * F.mse_loss(found, x)


def test_what_follows_from_a_sum_over_samples_is_computed_of_its_addends() -> None:
    """Backward of one micro-batch does not wait for the loss of another."""
    graph = Graph(partita.capture(TwoLosses(), (torch.zeros(4, 3), torch.zeros(4, 3))))
    for op in graph.forward:
        op_assign(op_trans(op, split("batch", 2, "micro")), 0)
    found = tasks(graph)
    needs: dict[Op, list[set[Op]]] = {op: [] for op in found.ops}
    for need in found.needs:
        needs[need.task].append(set(need.producers))
    own = [op for op in found.ops if op.phase is Phase.STORE or (op.cuts and op.coordinate("micro") == 0)]
    done: set[Op] = set()
    while ready := [op for op in own if op not in done and all(done & producers for producers in needs[op])]:
        done.update(ready)
    assert len(own) > 10 and set(own) == done


@pytest.mark.parametrize("parts", [4, 8])
def test_every_parameter_of_a_gpt_can_be_cut_evenly(parts: int) -> None:
    for op in empty(GPT).optimizer:
        assert len({part.mask(None).box for part in op_trans(op, evenly(op, parts))}) == parts


def test_a_module_is_given_with_its_inputs() -> None:
    """A captured graph alone does not know its module."""
    module, inputs = build("mlp", small=True)
    graph = partita.graph(partita.graph(module, inputs, batch=4).pcg)
    op_assign(graph.forward, 0)
    assert space_time(graph, module=(module, inputs)).verify(steps=1)["ok"]
