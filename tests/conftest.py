"""What tests of several folders share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from partita.cli import main

# The same examples every time; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("fixed", derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

Run = Callable[..., tuple[int, str, str]]


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
