"""Two levels of tests: `pytest` leaves out slow cases, `EXHAUSTIVE=1 pytest` runs every case.

Left out are the cases that `slow.txt` lists, those marked `exhaustive`, and a share of similar cases (`some`,
`example_count`). The list is made from measured durations; these commands make it again:

    EXHAUSTIVE=1 python -m pytest -q -n 2 --dist loadfile --durations=0 --durations-min=0 > report.txt
    python -m tests.levels report.txt
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "") not in ("", "0")
exhaustive = pytest.mark.skipif(not EXHAUSTIVE, reason="only with EXHAUSTIVE=1")
"""Marks a long test whose subject shorter tests cover."""

SLOW = Path(__file__).with_name("slow.txt")
SECONDS, ALONE = 0.8, 3.5
"""A case that takes longer is slow; the quickest case of a test is slow only if it takes longer than `ALONE`."""

ALWAYS = (
    "tests/codegen/test_checkpoints.py::test_the_losses_of_the_run_without_the_stop[adamw-path0]",
    "tests/codegen/test_golden.py::test_golden[llama-7b]",  # a whole program, line by line
    "tests/codegen/test_launch.py::test_runs",  # real processes
    "tests/codegen/test_offload.py::test_updated_shares_travel_as_weights_are_stored[mixed-bfloat16-float32]",
    "tests/codegen/test_pipeline_stale.py::test_any_choices[gpt2-3-mesh1-3]",
    "tests/codegen/test_reduction_program.py::test_torchrun",
    "tests/test_structure.py::test_no_import_circle_is_larger_than_three_files",
)
"""Cases that are not slow, however long they take."""


def some(cases: Iterable[T], every: int = 3) -> list[T]:
    """One in `every` cases, from the first; all of them at the exhaustive level. For cases of one kind only."""
    return list(cases)[:: 1 if EXHAUSTIVE else every]


def example_count(count: int, every: int = 3) -> int:
    """The number of random examples: `count` at the exhaustive level, else `count / every`, rounded up."""
    return count if EXHAUSTIVE else -(-count // every)


def slow_cases(report: str) -> list[str]:
    """The slow cases among those whose durations pytest reports, set-up and teardown included."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    for duration, case in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(.+?)$", report, re.MULTILINE):
        cases = seconds[case.partition("[")[0]]
        cases[case] = cases.get(case, 0.0) + float(duration)
    return sorted(
        case
        for cases in seconds.values()
        for case, duration in cases.items()
        if case not in ALWAYS and duration > (ALONE if case == min(cases, key=lambda each: cases[each]) else SECONDS)
    )


if __name__ == "__main__":
    SLOW.write_text("".join(f"{case}\n" for case in slow_cases(Path(sys.argv[1]).read_text())))
