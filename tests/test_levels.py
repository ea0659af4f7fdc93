"""Which cases are slow."""

from __future__ import annotations

from pathlib import Path

from .levels import ALWAYS, SLOW, slow_cases

REPORT = """\
=== slowest durations ===
9.10s call     tests/test_a.py::test_all[x y-1]
3.40s call     tests/test_a.py::test_all[2]
1.00s setup    tests/test_a.py::test_one
3.10s call     tests/test_a.py::test_one
0.70s call     tests/test_a.py::test_two[0]
1.60s call     tests/test_a.py::test_two[1]
"""


def test_slow_cases() -> None:
    """Set-up counts, and the quickest case of a test may take longer than the others."""
    always = f"99.00s call     {ALWAYS[0]}\n"
    slow = ["tests/test_a.py::test_all[x y-1]", "tests/test_a.py::test_one", "tests/test_a.py::test_two[1]"]
    assert slow_cases(REPORT + always) == slow


def test_listed_cases_are_of_tests_that_exist() -> None:
    root, lines = Path(__file__).parent.parent, SLOW.read_text().splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, test = line.partition("[")[0].partition("::")
        assert f"def {test}(" in (root / file).read_text(), line
