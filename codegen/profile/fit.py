"""The numbers of a machine, from what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from ...formulation.placement.placement import of_rows
from ...formulation.reduction.cost import exchange_price, step_price
from ...formulation.reduction.program import Collective, Reduction, Step
from ...model.errors import PartitaError
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.kernel_times import KernelTimes
from ...model.machine.machine import Device, Level, Machine
from ...model.machine.measured_kernels import ratios_of
from ...model.machine.precision import precision
from .local import Local, joined_alike

Record = Mapping[str, Any]

BESIDE = "reduced", "products", "beside", "in turn"
LEAST_HIDDEN = 0.01
"""The least share that hides: a measured one may be below 0."""
EXCHANGES = ("all_to_all", "send")
RESERVED_CPU = 0.1
"""Of a CPU's memory, left to the system."""


def machine_of(here: Local, ranks: int, records: Iterable[Record]) -> Machine:
    """The machine that was measured. PartitaError: measurements are missing."""
    by_what: dict[str, list[Record]] = {}
    for record in records:
        if record["times"]:
            by_what.setdefault(record["case"]["what"], []).append(record)
    of_gpus = ("host_copy", "host") if here.device != "cpu" else ()
    needed = ("product", "update", "launch", "step", "resting", *of_gpus)
    missing = [what for what in needed if what not in by_what]
    if missing:
        raise PartitaError(f"the profile is not complete: {', '.join(missing)} are not measured; run it again")
    device = _device(here, ranks, by_what)
    collectives = "gloo" if here.device == "cpu" else "nccl"
    level = Level("rank" if here.device == "cpu" else "gpu", ranks, 1e9, 1e5)
    machine = Machine(f"local-{ranks}", (level,), device, collectives)
    level = _links(machine, by_what.get("collective", ()))
    found = {record["case"]["group"]: beside(record) for record in by_what.get("beside", ())}
    hidden, _ = found.get(ranks, (1.0, 0.0))
    further = sum((group - 1) ** 2 for group in found)
    waits = sum((group - 1) * waited for group, (_, waited) in found.items()) / max(further, 1)  # least squares
    return replace(machine, levels=(replace(level, wait_ns=waits),), hidden_share=hidden)


def beside(record: Record) -> tuple[float, float]:
    """How much of the shorter of an all-reduce and the products beside it hides, a share; ns that it waits for ranks.

    Ranks come late to a collective after products, which take unequally long on each.
    """
    reduced, products, both, turn = (record["times"][name][0] for name in BESIDE)
    hidden = (reduced + products - both) / min(reduced, products)
    return min(max(hidden, LEAST_HIDDEN), 1.0), max(turn - reduced - products, 0.0)


def _device(here: Local, ranks: int, by_what: Mapping[str, Sequence[Record]]) -> Device:
    peak: dict[str, float] = {}
    for record in by_what["product"]:
        rates = [2 * int(size) ** 3 / ns * 1e9 for size, (ns, _) in record["times"].items()]
        peak[record["case"]["dtype"]] = max(rates)
    traffic = precision("float32").update_traffic(2)
    update = max(by_what["update"], key=lambda record: record["case"]["elements"])
    copy = next(iter(by_what.get("host_copy", ())), None)
    shared = ranks if here.device == "cpu" else 1
    memory = here.memory_bytes // shared
    resting = int(_ns(by_what["resting"][0])) + (int(RESERVED_CPU * memory) if here.device == "cpu" else 0)
    return Device(
        name=here.name,
        memory_bytes=memory,
        reserved_bytes=min(resting, memory - 1),
        memory_bandwidth=traffic * update["case"]["elements"] / _ns(update) * 1e9,
        peak=peak,
        matmul_efficiency=1.0,
        launch_ns=min(map(_ns, by_what["launch"])),
        step_ns=round(_ns(by_what["step"][0])),
        host_bandwidth=None if copy is None else copy["case"]["bytes"] / _ns(copy) * 1e9,
        host_ns=max((round(_ns(record)) for record in by_what.get("host", ())), default=0),
        kernels=_kernels(by_what.get("operator", ())),
    )


def _ns(record: Record) -> float:
    return float(record["times"]["call"][0])


def _kernels(records: Iterable[Record]) -> tuple[KernelTimes, ...]:
    """Operators by dtype and phase; the median of those for which the model counts the same."""
    found: dict[tuple[str, str, str], dict[tuple[float, ...], list[float]]] = {}
    for record in records:
        case = record["case"]
        for phase, (ns, _) in record["times"].items():
            counted = case["counted"][phase]
            if counted is not None and ns > 0:
                table = found.setdefault((case["op"], case["dtype"], phase), {})
                table.setdefault(tuple(map(float, counted)), []).append(ns)
    return tuple(
        KernelTimes(*of, tuple((a, b, c, median(ns)) for (a, b, c), ns in sorted(table.items())))
        for of, table in sorted(found.items())
    )


def _links(machine: Machine, records: Sequence[Record]) -> Level:
    """The level with bandwidth, latency and share of scatters with which its collectives are predicted best."""
    (level,) = machine.levels
    if not records:
        return level
    records = [record for record in records if _ns(record) > 0]
    times = np.array([_ns(record) for record in records])

    def errors(numbers: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
        bandwidth, latency, share = np.exp(numbers)
        fitted = replace(
            level, bandwidth=float(bandwidth), latency_ns=float(latency), scatter_share=float(min(share, 1))
        )
        on = replace(machine, levels=(fitted,))
        return np.log([collective_ns(on, record["case"]) for record in records] / times)

    bounds = np.log([1e3, 1.0, 0.01]), np.log([1e15, 1e12, 1.0])
    found = least_squares(errors, np.log([1e9, 5e4, 0.9]), loss="soft_l1", bounds=bounds)
    bandwidth, latency, share = map(float, np.exp(found.x))
    return replace(level, bandwidth=bandwidth, latency_ns=latency, scatter_share=min(share, 1.0))


def collective_ns(machine: Machine, case: Mapping[str, Any]) -> float:
    """What the cost model says of a measured collective."""
    ranks, size, kind = machine.devices, case["group"], case["kind"]
    rows = [(size,)] if size == ranks else [(ranks // size,), (size,)]
    reduction = Reduction(of_rows(rows), (len(rows) - 1,))
    on = machine.carrying(kind)
    price: CollectivePrice
    if kind in EXCHANGES:
        price = exchange_price(on, reduction, kind)
    else:
        price = step_price(on, reduction, Step(Collective(kind), 0, 0), 1.0)
    return price.latency_ns + price.ns_per_byte * float(case["bytes"])


# How far off


def kernel_errors(machine: Machine) -> dict[str, tuple[int, float | None]]:
    """For every operator, dtype and phase: points, and the median error of interpolating one from the others."""
    found: dict[str, tuple[int, float | None]] = {}
    for times in machine.device.kernels:
        ratios = ratios_of(machine.device, times.op, times.dtype, times.phase)
        assert ratios is not None
        errors = np.abs(ratios.leave_one_out() - 1)
        error = float(np.median(errors)) if len(errors) else None
        found[f"{times.op} {times.dtype} {times.phase}"] = len(times.points), error
    return found


def collective_errors(machine: Machine, records: Iterable[Record]) -> dict[str, float]:
    """The median error of predicted collectives, by kind."""
    errors: dict[str, list[float]] = {}
    for record in records:
        case = record["case"]
        if case["what"] == "collective" and record["times"]:
            errors.setdefault(case["kind"], []).append(abs(collective_ns(machine, case) / _ns(record) - 1))
    return {kind: median(found) for kind, found in errors.items()}


# The file


def machine_yaml(machine: Machine, records: Iterable[Record], what: str, links: Sequence[str] = ()) -> str:
    """The machine file, with errors of its numbers.

    `records`: what it was fitted to; `what`: the machine and the date, for sources; `links`: how its GPUs are joined.
    """
    known = list(records)
    spread = _share(median([time[1] for record in known for time in record["times"].values()]))
    fitted = _share(max(collective_errors(machine, known).values(), default=spread))

    def given(value: float, source: str, error: float | None = None) -> dict[str, Any]:
        stated = {} if error is None else {"error": error}
        return {"value": value, "source": f"{source}; {what}", **stated}

    (level,), device = machine.levels, machine.device
    links_from = "fitted to measured collectives" if level.size > 1 else "not used by one rank"
    document: dict[str, Any] = {
        "name": machine.name,
        "collectives": machine.collectives,
        "hidden_share": given(
            round(machine.hidden_share, 4), "measured: an all-reduce beside products" if level.size > 1 else links_from
        ),
        "levels": [
            {
                "name": level.name,
                "size": given(level.size, "ranks of the profile"),
                "bandwidth": given(round(level.bandwidth), links_from, fitted),
                "latency_ns": given(round(level.latency_ns), links_from, fitted),
                "scatter_share": given(round(level.scatter_share, 4), links_from, fitted),
                "wait_ns": given(round(level.wait_ns), "measured: an all-reduce after products", spread),
            }
        ],
        "device": {
            "name": device.name,
            "memory_bytes": given(device.memory_bytes, "read; a rank's share"),
            "reserved_bytes": given(
                device.reserved_bytes,
                "a rank without a model, measured"
                + (", and a tenth for the system" if machine.collectives == "gloo" else ""),
            ),
            "memory_bandwidth": given(round(device.memory_bandwidth), "measured: an update of AdamW", spread),
            "peak": {
                dtype: given(round(rate), "measured: the fastest square product", spread)
                for dtype, rate in device.peak.items()
            },
            "matmul_efficiency": given(device.matmul_efficiency, "peaks are measured"),
            "launch_ns": given(round(device.launch_ns), "measured: an addition to one element", spread),
            "step_ns": given(device.step_ns, "measured: three sums of a number, and an update of one", spread),
        },
    }
    if device.host_bandwidth is not None:
        document["device"]["host_bandwidth"] = given(round(device.host_bandwidth), "measured: a copy", spread)
    if device.host_ns:
        document["device"]["host_ns"] = given(device.host_ns, "measured: layers of tiny tensors", spread)
    errors = kernel_errors(machine)
    if device.kernels:
        document["device"]["kernels"] = [
            {
                "op": times.op,
                "dtype": times.dtype,
                "phase": times.phase,
                "source": f"measured; {_said(*errors[f'{times.op} {times.dtype} {times.phase}'])}; {what}",
                "points": [" ".join(f"{x:.10g}" for x in (*point[:3], round(point[3]))) for point in times.points],
            }
            for times in device.kernels
        ]
    head = f"# Measured by `partita profile`: {what}.\n# Points of kernels: FLOPs, bytes, kernels, ns.\n"
    if links:
        head += "# GPUs are joined by (nvidia-smi topo -m):\n" + "".join(f"#   {line}\n" for line in links)
        head += "" if joined_alike(links) else "# Not all alike: describe the links by `wiring`.\n"
    text: str = yaml.safe_dump(document, sort_keys=False, width=4096, allow_unicode=True)
    return head + text


def _share(error: float) -> float:
    """An error that a machine file takes."""
    return round(min(max(float(error), 0.01), 0.9), 3)


def _said(points: int, error: float | None) -> str:
    if error is None:
        return "one shape, whose ratio to the roofline others take"
    return f"{points} shapes, each interpolated from the others with a median error of {error:.0%}"
