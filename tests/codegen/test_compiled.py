"""Programs compiled definition by definition are the programs compiled whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from partita.codegen.verification.compiled import compiled

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def functions(codes: list[CodeType]) -> Iterator[Any]:
    """What all functions and classes use, and where tracebacks say that they are.

    Not their bytes: Python calls functions of modules in another way where it sees the import.
    """
    for code in codes:
        for each in (x for x in code.co_consts if isinstance(x, CodeType)):
            plain = tuple(x for x in each.co_consts if not isinstance(x, CodeType))
            lines = {line for _, _, line in each.co_lines()}
            yield each.co_qualname, each.co_filename, lines, each.co_varnames, each.co_names, plain
            yield from functions([each])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_emitted_programs_are_the_same_in_parts(path: Path) -> None:
    text = path.read_text()
    parts = compiled(text, "program.py")
    assert len(parts) > 20
    assert list(functions(parts)) == list(functions([compile(text, "program.py", "exec")]))


@pytest.mark.parametrize(
    "text",
    [
        'x = """a\n\n\nb"""\n',
        "x = (1,\n\n\n2)\n",
        "x = 1\nif x > 1:\n    x = 2\n\n\nelse:\n    x = 3\n",
        "from __future__ import annotations\n\n\ndef f(a: unknown): ...\n\n\nx = f.__annotations__\n",
    ],
)
def test_any_program_does_what_it_says(text: str) -> None:
    found, expected = dict[str, Any](), dict[str, Any]()
    for code in compiled(text, "program.py"):
        exec(code, found)
    exec(compile(text, "program.py", "exec", dont_inherit=True), expected)
    assert found["x"] == expected["x"]


def test_an_error_of_syntax_names_its_line() -> None:
    with pytest.raises(SyntaxError) as error:
        compiled("a = 1\n\n\nb = 2\n\n\ndef f(:\n    pass\n", "program.py")
    assert (error.value.lineno, error.value.filename) == (7, "program.py")
