"""Profiles: what is listed of plans, measured on ranks, kept, fitted, and predicted with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.planner.planner import optimize
from partita.codegen.pricing.on_machine import on_machine
from partita.codegen.pricing.plan_price import plan_price
from partita.codegen.profile import cases as listed
from partita.codegen.profile import fit, profile, rank, timing
from partita.codegen.profile.kernels import distinct, kernels_of
from partita.codegen.profile.local import Local, joined_alike, links_of
from partita.codegen.report.facts import facts
from partita.codegen.verification.launch import LaunchError
from partita.formulation.parallelism import Parallelism
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.machine.kernel_times import KernelTimes
from partita.model.machine.machine import Level, Machine
from partita.model.machine.machine_numbers import uncertain
from partita.model.training import Training
from partita.model.zoo.gpt import GPT
from partita.solvers.cache.store import Store

from ..levels import exhaustive

Run = Callable[..., tuple[int, str, str]]
HERE = Local("cpu", "a processor", 2, 8 << 30)


def planned(machine: Machine, **options: Any) -> Plan:
    ids = torch.zeros(8, 16, dtype=torch.int64)
    return optimize(GPT(64, 16, 2, 32, 4, 0.0), {"ids": ids, "labels": ids}, machine, cache="none", **options)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(Machine.load("cpu", nodes=2), mesh=(2,), micro_batches=1, stages=1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process, and short measurements."""
    monkeypatch.setattr(timing, "WINDOW_S", 1e-4)
    monkeypatch.setattr(timing, "WINDOWS", 3)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# What is listed


def test_kernels_have_local_shapes_and_what_the_model_counts(plan: Plan) -> None:
    kernels = list(kernels_of(plan))
    linear = next(k for k in kernels if k.node.op == "linear")
    samples, positions, width = linear.sources[0].shape
    assert (samples, positions, width) == (4, 16, 32)  # of 8 samples on two ranks
    product = 2 * samples * positions * width * linear.node.shape[-1]
    assert product <= linear.forward[0] <= 1.05 * product  # and the addition of a bias
    assert linear.backward is not None and linear.backward[0] == 2 * linear.forward[0]
    assert len(distinct(kernels)) < len(kernels)  # layers are alike


def test_operators_are_run_as_the_program_runs_them(plan: Plan, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the reference computes them, which writes attention out."""
    called: list[str] = []
    for name in ("scaled_dot_product_attention", "embedding"):
        own = getattr(torch.nn.functional, name)
        monkeypatch.setattr(
            torch.nn.functional, name, lambda *a, own=own, name=name, **k: (called.append(name), own(*a, **k))[1]
        )
    for kernel in distinct(kernels_of(plan)):
        if kernel.node.op in ("attention", "embedding"):
            case = json.loads(json.dumps(kernel.case()))
            called.clear()
            rank.MEASURES["operator"](case, "cpu", {})
            assert called, kernel.node.op


def test_an_operator_that_cannot_run_is_told(alone: None) -> None:
    tensor = {"shape": [2, 3], "dtype": "float32", "gradient": True}
    case = {
        "op": "matmul",
        "attributes": [],
        "inputs": [tensor, tensor],
        "output": tensor,
        "dtype": "float32",
        "rows": 1,
    }
    assert "RuntimeError" in rank._failure(case, "cpu")
    case["inputs"] = [tensor, {**tensor, "shape": [3, 3]}]
    assert rank._failure(case, "cpu") == ""


def test_all_that_is_listed_is_timed(plan: Plan, alone: None) -> None:
    for kernel in distinct(kernels_of(plan)):
        case = json.loads(json.dumps(kernel.case()))
        found = rank.MEASURES["operator"](case, "cpu", {})
        assert {"forward"} <= {*found} and ("backward" in found) == (kernel.backward is not None), kernel.node.op
        assert all(time.ns > 0 and time.spread >= 0 for time in found.values())


def test_messages_are_timed_beside_products_and_after_them(alone: None) -> None:
    found = rank.MEASURES["beside"]({"group": 1, "bytes": 1 << 12}, "cpu", {1: dist.group.WORLD})
    assert [*found] == ["reduced", "products", "beside", "in turn"] == list(fit.BESIDE)
    assert all(time.ns > 0 for time in found.values())


@pytest.mark.parametrize("what", ["update", "launch", "step", "host_copy", "resting", "product"])
def test_the_device_is_timed(what: str, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "SIZES", (8, 16))
    found = rank.MEASURES[what]({"elements": 64, "bytes": 64, "dtype": "float32"}, "cpu", {})
    assert [*found] == (["8", "16"] if what == "product" else ["call"])
    assert all(time.ns > 0 for time in found.values())


# What is fitted


def records(machine: Machine, ranks: int, spread: float = 0.0) -> list[dict[str, Any]]:
    """What a machine would measure of itself, if the cost model were right but for noise of collectives."""

    def time(case: dict[str, Any]) -> dict[str, list[float]]:
        device = machine.device
        match case["what"]:
            case "product":
                return {"512": [2 * 512**3 / device.peak[case["dtype"]] * 1e9, 0.0]}
            case "update":
                return {"call": [28 * case["elements"] / device.memory_bandwidth * 1e9, 0.0]}
            case "launch":
                return {"call": [device.launch_ns, 0.0]}
            case "step":
                return {"call": [4e5, 0.0]}
            case "host_copy":
                return {"call": [case["bytes"] / (device.host_bandwidth or 1) * 1e9, 0.0]}
            case "resting":
                return {"call": [float(device.reserved_bytes), 0.0]}
            case "beside":  # of 1 ms of messages half a ms hides behind 2 ms of products; 0.3 ms late
                took = {"reduced": 1e6, "products": 2e6, "beside": 2.6e6, "in turn": 3.3e6}
                return {name: [ns, 0.0] for name, ns in took.items()}
        return {"call": [fit.collective_ns(machine, case) * noise.uniform(1 - spread, 1 + spread), spread]}

    noise = random.Random(0)
    return [
        {"case": case, "times": time(case), "rounds": listed.ROUNDS, "failed": ""}
        for case in listed.device_cases(ranks, "cpu")
    ]


def test_the_fit_recovers_the_machine_that_was_measured() -> None:
    device = replace(Machine.load("cpu").device, launch_ns=4e3, matmul_efficiency=1.0)
    machine = Machine("m", (Level("rank", 4, 3e9, 2e4, scatter_share=0.6),), device, "gloo")
    found = fit.machine_of(HERE, 4, records(machine, 4))
    (level,) = found.levels
    assert level.bandwidth == pytest.approx(3e9, rel=0.02)
    assert level.latency_ns == pytest.approx(2e4, rel=0.05)
    assert level.scatter_share == pytest.approx(0.6, rel=0.02)
    assert level.wait_ns == pytest.approx((0.3e6 + 3 * 0.3e6) / (1 + 3**2)) and found.hidden_share == pytest.approx(0.4)
    assert dict(found.device.peak) == pytest.approx(dict(device.peak))
    assert found.device.memory_bandwidth == pytest.approx(device.memory_bandwidth) and found.device.step_ns == 400_000
    assert found.device.memory_bytes == (8 << 30) // 4
    assert max(fit.collective_errors(found, records(machine, 4)).values()) < 0.02


def test_what_is_missing_is_named() -> None:
    left = [r for r in records(Machine.load("cpu"), 1) if r["case"]["what"] != "launch"]
    with pytest.raises(PartitaError, match="launch are not measured; run it again"):
        fit.machine_of(HERE, 1, left)


def test_a_plan_is_priced_by_what_was_measured_of_its_kernels(plan: Plan, tmp_path: Path) -> None:
    """The step is that of the measured kernels, and the file gives the same machine."""
    kernels = distinct(kernels_of(plan))
    cases = [listed.operator_case(kernel) for kernel in kernels]
    times = [
        {phase: [7000.0 + 10 * n, 0.0] for phase in ("forward", "backward") if case["counted"][phase] is not None}
        for n, case in enumerate(cases)
    ]
    measured = [{"case": c, "times": t, "failed": ""} for c, t in zip(cases, times, strict=True)]
    known = [*records(Machine.load("cpu", nodes=2), 2, spread=0.2), *measured]
    machine = fit.machine_of(HERE, 2, known)
    (tmp_path / "own.yaml").write_text(fit.machine_yaml(machine, known, "a test"))
    read = Machine.load(tmp_path / "own.yaml")
    assert 0.01 < uncertain(read)["levels.0.bandwidth"] < 0.2  # stated; of kernels there is none
    assert not any("kernels" in path for path in uncertain(read))
    assert read.device.kernels == machine.device.kernels and read.collectives == "gloo"

    again = planned(read, mesh=(2,), micro_batches=1, stages=1)
    assert plan_price(again).objective_ns == again.report["objective_ns"] >= again.report["bound_ns"]
    assert any("measured kernels" in line for line in facts(again).optimum)
    assert any("roofline and" in line for line in facts(plan).optimum)
    wanted = {(k.node.op, k.forward): t["forward"][0] for k, t in zip(kernels, times, strict=True)}
    priced = {
        item.ns
        for item in plan_price(replace(plan, machine=read)).stages[0].items
        if item.phase == "forward" and item.kind == "linear"
    }
    assert priced == {round(ns) for (op, _), ns in wanted.items() if op == "linear"}


@pytest.mark.parametrize("stages", [1, 2])
def test_both_prices_agree_on_measured_kernels(stages: int) -> None:
    """`optimize` refuses a plan whose independent price differs; bounds stay below."""
    points = ((1e5, 1e4, 1.0, 4e5), (1e6, 3e4, 1.0, 2e4), (1e7, 1e6, 1.0, 9e6))
    ops = ("linear", "attention", "layer_norm", "add", "gelu", "cross_entropy", "embedding")
    tables = tuple(KernelTimes(op, "float32", phase, points) for op in ops for phase in ("forward", "backward"))
    base = Machine.load("cpu", nodes=4)
    found = planned(replace(base, device=replace(base.device, kernels=tables)), stages=stages, gap=0.02)
    assert found.report["bound_ns"] <= found.report["objective_ns"] == plan_price(found).objective_ns


@pytest.mark.parametrize(("stages", "share"), [(1, 0.37), (2, 0.37), (1, 0.01)])
def test_less_hides_where_messages_take_the_cores(stages: int, share: float) -> None:
    base = replace(Machine.load("cpu", nodes=4), hidden_share=1.0)
    ids = torch.zeros(8, 16, dtype=torch.int64)
    graph = capture(GPT(64, 16, 2, 32, 4, 0.0), {"ids": ids, "labels": ids}, batch=8)
    zero = Parallelism(dp=4 // stages, tp=1, zero=3)
    space = SearchSpace(stages=stages, parallelism=zero, micro_batches=2, recompute="none", offload=False)
    found = plan_graph(graph, replace(base, hidden_share=share), Training(8), space)
    price, report = plan_price(found), found.report
    assert report["bound_ns"] <= report["objective_ns"] == price.objective_ns
    hidden, all_of_it = (
        sum(stage.hidden_ns for stage in of.stages) for of in (price, plan_price(on_machine(found, base)))
    )
    traffic = sum(overlap.traffic_ns for stage in price.stages for overlap in stage.overlaps)
    assert 0 < hidden <= min(all_of_it, share * traffic + 1000)  # rounded message by message


# What is kept


def test_a_disturbed_round_does_not_count() -> None:
    """Windows of three rounds, one of which found the machine three times as slow; a product was quick enough once."""
    case = {"what": "product", "dtype": "float32"}
    turns = ([10.0, 11.0, 10.0], [30.0, 31.0, 33.0], [10.0, 10.5, 11.5])
    record = None
    for number, turn in enumerate(turns):
        found = {"128": timing.Timing(tuple(turn))} | ({"256": timing.Timing((80.0,))} if number == 2 else {})
        record = rank.record_of(case, found, number + 1, record)
    assert record is not None and record["rounds"] == 3 and len(record["windows"]["128"]) == 9
    assert record["times"] == {"128": [11.0, 1.0 / 11.0], "256": [80.0, 0.0]}
    assert rank.record_of(case, {}, 4, record)["times"] == record["times"]


def test_rounds_that_were_run_are_not_run_again() -> None:
    one, host = {"what": "launch"}, {"what": "resting"}
    assert (listed.rounds_of(one), listed.rounds_of(host)) == (listed.ROUNDS, 1)
    kept = rank.record_of(one, {"call": timing.Timing((1.0,))}, 2)
    assert profile._rounds(None, one) == 0 and profile._rounds(kept, one) == 2
    failed = rank.record_of({"what": "operator"}, {}, 1, failed="RuntimeError")
    assert profile._rounds(failed, {"what": "operator"}) == listed.ROUNDS and profile._rounds(failed, one) == 0


def test_what_is_known_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, partita: Run) -> None:
    """A stopped profile goes on; its file is `--machine local`."""
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path))
    measured = {json.dumps(r["case"]): r for r in records(Machine.load("cpu", nodes=2), 2)}
    asked: list[int] = []

    def torchrun(script: str, ranks: int, arguments: list[str], **_: Any) -> str:
        job = json.loads(Path(arguments[0]).read_text())
        asked.append(len(job["cases"]))
        done = job["cases"][: 7 if len(asked) == 1 else None]
        store = Store(Path(job["store"]))
        if len(asked) == 1:  # a failure of the machine is not kept as a result
            part, case, _ = job["cases"][7]
            store.write(bytes.fromhex(job["key"]), part, {"case": case, "times": {}, "failed": "Connection reset"})
        for part, case, _ in done:
            store.write(bytes.fromhex(job["key"]), part, measured[json.dumps(case)])
        if len(asked) == 1:
            raise LaunchError("stopped", "")
        return ""

    monkeypatch.setattr(profile, "torchrun", torchrun)
    code, _, err = partita("profile", "--ranks", "2", "--device", "cpu")
    assert code == 2 and "what was measured is kept" in err
    code, out, _ = partita("profile", "--ranks", "2", "--device", "cpu", "--json")
    assert code == 0 and json.loads(out)["measured"] == asked[1] == asked[0] - 7
    code, out, _ = partita("profile", "--ranks", "2", "--device", "cpu")
    assert code == 0 and len(asked) == 2 and out.startswith("0 measurements made")
    assert Machine.load("local").devices == Machine.load("local", nodes=2).devices == 2
    code, _, err = partita("plan", "mlp", "--small", "--machine", "local", "--nodes", "3")
    assert code == 2 and "run partita profile --ranks 3" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ranks", "0"), "--ranks 0"),
        (("--device", "tpu"), "cpu or cuda"),
        (("nothing-such",), "nothing-such"),
        (("-o", "/proc/none/x.yaml"), "/proc/none"),
        (("-o", "/tmp"), "it is a folder"),
    ],
)
def test_bad_requests(
    arguments: tuple[str, ...], words: str, partita: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path))
    code, out, err = partita("profile", *arguments)
    assert code == 2 and words in err and not out and "Traceback" not in err


def test_a_profile_needs_a_folder(partita: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_CACHE", "none")
    code, _, err = partita("profile", "--device", "cpu")
    assert code == 2 and "set PARTITA_CACHE" in err
    code, _, err = partita("plan", "mlp", "--small", "--machine", "local")
    assert code == 2 and "set PARTITA_CACHE" in err
    monkeypatch.setenv("PARTITA_CACHE", "/dev/null/x")
    code, _, err = partita("profile", "--device", "cpu")
    assert code == 2 and "/dev/null" in err and "Traceback" not in err


@exhaustive
def test_this_machine(partita: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks, from the command line to a plan."""
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path))
    code, out, _ = partita("profile", "mlp", "--small", "--ranks", "2", "--json")
    found = json.loads(out)
    assert code == 0 and not found["not_measured"] and found["kernels"]["linear float32 forward"]["points"] > 1
    code, out, _ = partita("plan", "mlp", "--small", "--machine", "local", "--json")
    assert code == 0 and json.loads(out)["status"] == "optimal"


# Links of GPUs

TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tPHB\t0-31\t0
GPU1\tNV4\t X \tPHB\t0-31\t0
GPU2\tPHB\tPHB\t X \t0-31\t0

Legend:
  X    = Self
"""


def test_links_are_read_from_nvidia_smi() -> None:
    assert links_of(TOPOLOGY) == ("X NV4 PHB", "NV4 X PHB", "PHB PHB X")
    assert not joined_alike(links_of(TOPOLOGY))
    assert joined_alike(links_of(TOPOLOGY.replace("PHB", "NV4")))
    assert links_of("no GPU here") == ()
    assert links_of("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-15\nNIC0\tPIX\t X \n") == ("X",)
