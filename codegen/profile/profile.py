"""`partita profile`: what is measured, where it is kept, and the machine file that it makes."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from ...model.errors import PartitaError
from ...model.files import check_file_writable, check_writable, kept_folder, make_folder, write_atomically
from ...model.machine.machine import Machine, local_file
from ...solvers.cache.store import Record, Store
from ...solvers.executors import usable_cores
from ..plan.plan import Plan
from ..planner.context import Tell
from ..verification.launch import LaunchError, torchrun
from . import fit
from .cases import HOST, ROUNDS, device_cases, operator_case, part_of, rounds_of
from .host import host_calls
from .kernels import distinct, kernels_of
from .local import Local, local, visible
from .plans import asked_plans
from .rank import record_of
from .request import ProfileRequest
from .timing import Timing

FOLDER = "profile"
SECONDS_EACH = 0.7
TIMEOUT = 3600.0


def profile(request: ProfileRequest, output: Path | None = None, tell: Tell | None = None) -> dict[str, Any]:
    """Measure what is not known yet, and write the machine file; by default the one that `--machine local` reads.

    PartitaError: no such device, a model without a plan on it, or a measurement that failed.
    """
    tell = tell or (lambda words: None)
    here = local(request.device)
    ranks = request.ranks or here.devices
    if here.device == "cuda" and ranks > here.devices:
        raise PartitaError(f"--ranks {ranks}: this machine has {here.devices} GPUs")
    path = output or local_file(ranks, missing=True)
    make_folder(path.parent)
    check_file_writable(path)
    plans: Iterable[Plan] = ()
    if request.model is not None:
        tell(f"planning {request.model} on {ranks} ranks in several ways")
        plans = asked_plans(request, ranks)
    threads = usable_cores() if ranks == 1 and here.device == "cpu" else 1
    records, measured = measure(here, ranks, plans, threads=threads, again=request.again, tell=tell)
    machine = fit.machine_of(here, ranks, records.values())
    what = f"{here.described(ranks)}, {datetime.date.today().isoformat()}"
    text = fit.machine_yaml(machine, records.values(), what, here.links[:ranks])
    with tempfile.TemporaryDirectory(prefix="partita-profile-") as scratch:
        trial = Path(scratch) / "machine.yaml"
        trial.write_text(text)
        Machine.load(trial)  # a file that is refused replaces no other
    write_atomically(path, text)
    return _result(machine, path, records, measured)


def measure(
    here: Local,
    ranks: int,
    plans: Iterable[Plan],
    *,
    threads: int = 1,
    rounds: int = ROUNDS,
    again: bool = False,
    tell: Tell,
) -> tuple[Mapping[str, Record], int]:
    """Measure the machine and the kernels of plans for it: all that is known of it, and how much of that is new.

    `threads`: of a rank on a CPU, as torchrun sets them: 1 unless it is alone. `rounds`: cases are measured
    until each has so many.
    """
    folder, key = kept_folder() / FOLDER, here.key(ranks, threads)
    make_folder(folder)
    check_writable(folder)
    cases = {part_of(case): case for case in device_cases(ranks, here.device)}
    kernels = distinct(kernel for plan in plans for kernel in kernels_of(plan))
    cases |= {part_of(case): case for case in map(operator_case, kernels)}
    store = Store(folder)
    known = {} if again else store.read(key)
    done = {part: _rounds(known.get(part), case) for part, case in cases.items()}
    wanted = [(part, case, done[part]) for part, case in cases.items() if done[part] < min(rounds_of(case), rounds)]
    about = f"{len(wanted)} of {len(cases)} measurements to make on {here.described(ranks)}"
    left = sum((min(rounds_of(case), rounds) - of_it) / rounds_of(case) for _, case, of_it in wanted)
    tell(f"{about}, about {ceil(SECONDS_EACH * left) + 10} s" if wanted else about)
    if of_ranks := [each for each in wanted if each[1] != HOST]:
        _run({"rounds": rounds, "cases": of_ranks}, here, ranks, folder, (key, threads))
    if len(of_ranks) < len(wanted):  # by this process, whose memory on a GPU no rank's measurement has seen
        found = {"call": Timing((float(host_calls(here.device)["host_ns"]),))}
        store.write(key, part_of(HOST), record_of(HOST, found, rounds_of(HOST)))
    records = store.read(key)
    store.close()
    # What the cost model counts for a kernel today, not when it was measured.
    return {part: {**record, "case": cases.get(part, record["case"])} for part, record in records.items()}, len(wanted)


def _rounds(record: Record | None, case: Mapping[str, Any]) -> int:
    """The rounds of a case that are done; an operator that cannot be run by itself needs none."""
    if record is None:
        return 0
    if record["times"]:
        return int(record.get("rounds", 0))
    return rounds_of(case) if case["what"] == "operator" else 0


def _result(machine: Machine, path: Path, records: Mapping[str, Record], measured: int) -> dict[str, Any]:
    (level,), device = machine.levels, machine.device
    failed = [r["case"]["op"] for r in records.values() if r["failed"] and r["case"]["what"] == "operator"]
    spreads = [spread for r in records.values() for _, spread in r["times"].values()]
    return {
        "machine": machine.name,
        "file": str(path),
        "measured": measured,
        "known": len(records),
        "not_measured": sorted(set(failed)),
        "spread": float(median(spreads)) if spreads else None,
        "peak": dict(device.peak),
        "memory_bandwidth": device.memory_bandwidth,
        "launch_ns": device.launch_ns,
        "bandwidth": level.bandwidth,
        "latency_ns": level.latency_ns,
        "kernels": {of: {"points": n, "error": error} for of, (n, error) in fit.kernel_errors(machine).items()},
        "collectives": fit.collective_errors(machine, records.values()),
    }


# Measuring


def _run(wanted: Mapping[str, Any], here: Local, ranks: int, folder: Path, at: tuple[bytes, int]) -> None:
    """Run the ranks; `at`: the key of their results, and threads of each. PartitaError: one failed; its last words."""
    key, threads = at
    job = {"device": here.device, "store": str(folder), "key": key.hex(), **wanted}
    environment = {"OMP_NUM_THREADS": str(threads), **visible(here, ranks)}
    with tempfile.TemporaryDirectory(prefix="partita-profile-") as scratch:
        path = Path(scratch) / "job.json"
        path.write_text(json.dumps(job))
        try:
            torchrun(
                "module:partita.codegen.profile.rank", ranks, [str(path)], timeout=TIMEOUT, environment=environment
            )
        except LaunchError as error:
            raise PartitaError(f"the profile stopped; what was measured is kept: {error}") from None
