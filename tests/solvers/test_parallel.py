"""The same answers with any executor, and no process is left behind, however the one that started them ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from partita.formulation.network.network import Network
from partita.solvers.backends.auto import Auto
from partita.solvers.cache.cached_solver import Cached
from partita.solvers.cache.store import Store
from partita.solvers.executors import DelayedProcesses, Processes, Serial, default_executor, in_order, usable_cores


@contextmanager
def dask() -> Iterator[Executor]:
    from distributed import Client

    with Client(processes=True, n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client.get_executor()


EXECUTORS = {
    "serial": Serial,
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": lambda: Processes(2),
    "dask": dask,
}


@pytest.mark.parametrize("name", EXECUTORS)
def test_the_answers_are_the_same_with_any_executor(
    name: str, make_network: Callable[[int], Network], tmp_path: Path
) -> None:
    networks = [network for network in map(make_network, range(24)) if Auto().accepts(network)]
    alone = [Auto().solve(network) for network in networks]
    with EXECUTORS[name]() as executor:
        found = list(in_order(executor, Cached(Auto(), Store(tmp_path)).solve, networks, ahead=4))
    assert [(x.status, x.assignment, x.bound) for x in found] == [(x.status, x.assignment, x.bound) for x in alone]
    again = Cached(Auto(), Store(tmp_path))  # what the workers kept
    assert [again.solve(network).objective for network in networks] == [x.objective for x in alone]
    assert again.kept == len(networks)


@pytest.mark.parametrize("name", ["serial", "threads", "processes"])
def test_tasks_are_drawn_as_results_are_taken(name: str) -> None:
    """So each is drawn in the knowledge of the same results, whatever finishes first."""
    events: list[str] = []

    def tasks() -> Iterator[float]:
        for seconds in (0.2, 0.0, 0.1, 0.0, 0.0):
            events.append("draw")
            yield seconds

    with EXECUTORS[name]() as executor:
        for _ in in_order(executor, time.sleep, tasks(), ahead=2):
            events.append("take")
    assert events == ["draw", "draw", "take", "draw", "take", "draw", "take", "draw", "take", "take"]


def test_what_waits_is_cancelled_where_no_more_is_wanted() -> None:
    futures: list[Future[None]] = []

    class Kept(ThreadPoolExecutor):
        def submit(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
            futures.append(super().submit(*arguments, **keywords))
            return futures[-1]

    with Kept(1) as executor, pytest.raises(ZeroDivisionError):
        for _ in in_order(executor, time.sleep, (0.0, 0.3, 0.3, 0.3), ahead=4):
            raise ZeroDivisionError
    assert not futures[0].cancelled() and all(future.cancelled() for future in futures[2:])  # one may have begun


def test_errors_come_where_their_results_would() -> None:
    for make in (Serial, lambda: Processes(2)):
        with make() as executor:
            found = in_order(executor, math.sqrt, (4.0, -1.0, 9.0), ahead=3)
            assert next(found) == 2.0
            with pytest.raises(ValueError, match="math domain"):
                next(found)


def test_the_default_is_a_process_a_core_and_none_for_one() -> None:
    assert isinstance(default_executor(1), Serial) and usable_cores() >= 1
    with default_executor(2) as executor:
        assert isinstance(executor, Processes)
        assert executor.submit(os.getpid).result() != os.getpid()
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert executor.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN


def test_what_goes_on_later_ends_when_it_is_left() -> None:
    began = time.monotonic()
    with DelayedProcesses(2, seconds=0.0) as executor:
        assert executor.submit(os.getpid).result() != os.getpid()
        executor.submit(time.sleep, 60.0)
        left = time.monotonic()
    assert time.monotonic() - left < 10.0 and left - began < 50.0


# A program without a guard; it says which processes it started.
PROGRAM = """
import os, sys, time
from partita.solvers.executors import Processes
with Processes(2) as executor:
    print(os.getpid(), *{executor.submit(os.getpid).result() for _ in range(1)}, flush=True)
    futures = [executor.submit(time.sleep, 60) for _ in range(2)]
    time.sleep(0.5)
    print(*executor._processes, flush=True)
    futures[0].result()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program whose two workers are busy for a minute, and their ids."""
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    yield process, workers
    process.kill()
    process.communicate()


def ended(pids: list[int], seconds: float) -> bool:
    """Whether the processes are gone, within so many seconds."""
    until = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("end", ["interrupt", "kill"])
def test_no_process_is_left_behind(program: tuple[subprocess.Popen[str], list[int]], end: str) -> None:
    process, workers = program
    assert not ended(workers, 0)
    if end == "interrupt":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, words = process.communicate(timeout=5)
        assert "KeyboardInterrupt" in words and words.count("Traceback") == 1
    else:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert ended(workers, 5)
