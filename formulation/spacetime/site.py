"""Calls in the user's program, which messages name by file, line and text: `plan.py:12: op_trans(op, how)`."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType

_MOST_TEXT = 72  # characters of a call
_PACKAGE = Path(__file__).parents[2]
_FLOORS = tuple(f"{_PACKAGE / floor}{os.sep}" for floor in ("model", "formulation", "solvers", "codegen"))
_INSTALLED = tuple(sysconfig.get_paths()[kind] + os.sep for kind in ("stdlib", "purelib", "platlib"))
"""Folders of code that is not the user's; plans among the package's examples and tests are, also where installed."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call in the user's program: `file` is the name of its file; `code` and `at` say which instruction it is."""

    file: str
    line: int
    code: CodeType | None = field(default=None, compare=False, repr=False)
    at: int = field(default=-1, compare=False, repr=False)

    def __str__(self) -> str:
        text = self.text
        return f"{self.file}:{self.line}" + (f": {text}" if text else "")

    @property
    def text(self) -> str:
        """The call as it is written, in one line and shortened; empty without source."""
        if self.code is None:
            return ""
        span = next(islice(self.code.co_positions(), self.at // 2, None), (None,) * 4)
        first, last, start, stop = span
        if first is None or last is None or start is None or stop is None:
            return ""
        lines = [linecache.getline(self.code.co_filename, number).encode() for number in range(first, last + 1)]
        lines[-1] = lines[-1][:stop]
        lines[0] = lines[0][start:]
        text = " ".join(b" ".join(lines).decode(errors="replace").split())
        text = re.sub(r",? (?=[)\]])|(?<=[(\[]) ", "", text)
        return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."


def caller() -> Site | None:
    """The innermost call of the user's that is running; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None and _own(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else _site(frame.f_code, frame.f_lineno, frame.f_lasti)


def raised_at(error: BaseException) -> Site | None:
    """The innermost call of the user's in an error's traceback; None if there is none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if not _own(trace.tb_frame.f_code):
            found = _site(trace.tb_frame.f_code, trace.tb_lineno, trace.tb_lasti)
        trace = trace.tb_next
    return found


def told(site: Site | None, message: str) -> str:
    """A message that begins with the call that it is about, if it is known."""
    return message if site is None else f"{site}: {message}"


def _own(code: CodeType) -> bool:
    return _is_own(code.co_filename)


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    if file.startswith(f"{_PACKAGE}{os.sep}"):
        return file.startswith(_FLOORS)
    return file.startswith((*_INSTALLED, "<frozen "))


def _site(code: CodeType, line: int, at: int) -> Site:
    return Site(os.path.basename(code.co_filename), line, code, at)  # noqa: PTH119
