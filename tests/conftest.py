"""What tests of several folders share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from partita.cli import main

from .levels import SLOW, exhaustive

# Before torch and numpy load: the tests' tensors are small, and threads that wait for each other take others' cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a process that a test starts need not compile the package again
sys.dont_write_bytecode = False
os.environ["PARTITA_CACHE"] = "none"  # what one test solves is no other's answer; those of the cache name a folder

# The same examples every time; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None)  # a loaded machine is slow
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

Run = Callable[..., tuple[int, str, str]]

FIRST = (
    *("test_messages", "test_backends", "test_kernels"),  # these compile what others run within a time limit
    *("test_equality", "test_baseline", "test_operators", "test_solvers_bench", "test_reduction_program"),
    "test_verify",
    *("test_spacetime_plans", "test_spacetime_emit", "test_spacetime_conflict", "test_spacetime_materialize"),
    *("test_flat_portfolio", "test_random", "test_emit", "test_rewritten", "test_launch", "test_explicit"),
    *("test_flat_linear", "test_reduction", "test_zoo", "test_beside", "test_spread", "test_ring", "test_loops"),
    *("test_cli_pipelines", "test_outer", "test_pipeline_exhaustive", "test_pipeline_random", "test_whole"),
    *("test_rewriting", "test_plan_files", "test_backend_limits", "test_network", "test_repeat", "test_batch_norm"),
)
"""Modules that take long: with one of them at the end the other processes would wait for it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`FIRST` first; pyproject.toml lets xdist hand out modules in this order. Slow cases are marked."""
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))
    slow = set(SLOW.read_text().splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(exhaustive)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not go through it again and again, nor through so little new."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class _FailuresAtOnce:
    """Prints a line for every failure as it happens, so that an interrupted run still tells which tests failed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal = self.config.pluginmanager.getplugin("terminalreporter")
            message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "").partition("\n")[0]
            terminal.ensure_newline()
            terminal.write_line(
                f"{'FAILED' if report.when == 'call' else 'ERROR'} {report.nodeid} {message:.200}".rstrip()
            )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist has no terminal
        config.pluginmanager.register(_FailuresAtOnce(config))


@pytest.fixture
def partita(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line with these arguments: exit code, standard output, standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["partita", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Python's handler of the terminal's interrupt, which a process started in the background may lack."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
