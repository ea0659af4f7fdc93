"""Programs compiled definition by definition: what several programs share is compiled once in a process."""

import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

_DEFINITIONS = re.compile(r"\n\n\n(?=\S)")
"""Between definitions, where emitted programs have two blank lines."""


def compiled(text: str, file: str) -> list[CodeType]:
    """Code objects that do what `text` does, one after the other, with the lines of `file` in their tracebacks.

    A text that cannot be cut at its blank lines is compiled whole. Raises SyntaxError.
    """
    if "__future__" not in text:  # which holds for the definitions below it
        try:
            return list(_definitions(text, file))
        except SyntaxError:
            pass  # two blank lines within a statement; else the error that follows names the right line
    return [compile(text, file, "exec", dont_inherit=True)]


def _definitions(text: str, file: str) -> Iterator[CodeType]:
    line = 0
    for definition in _DEFINITIONS.split(text):
        yield _placed(_definition(definition), file, line)
        line += definition.count("\n") + 3


@lru_cache(maxsize=2048)
def _definition(text: str) -> CodeType:
    return compile(text, "", "exec", dont_inherit=True)


def _placed(code: CodeType, file: str, line: int) -> CodeType:
    """The code as if so many lines of the file were above it."""
    constants = tuple(_placed(x, file, line) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_filename=file, co_firstlineno=code.co_firstlineno + line, co_consts=constants)
