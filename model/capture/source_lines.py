"""Which line of the user's files an operator or an error comes from."""

import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from torch import fx, nn

Frame: TypeAlias = tuple[str, int, str]
"""A file, a line of it, and what is written there."""

_HERE = Path(__file__).parent
_CALLERS = tuple(str(_HERE / name) for name in ("inputs.py", "objective.py"))
"""Modules that call what the user wrote: the frames further in are the user's, and what these call."""
_LIBRARIES = tuple(
    {f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def source_line(node: fx.Node) -> str:
    """The user's line that created this node: `file.py:12: code`."""
    found = re.findall(r'File "(.+?)", line (\d+), in .*\n\s*(.*)', node.stack_trace or "")
    return user_line([(file, int(line), code) for file, line, code in found])


def user_line(frames: Sequence[Frame]) -> str:
    """The innermost of the frames (outermost first) outside installed packages, else outside torch."""
    called = max((place + 1 for place, frame in enumerate(frames) if frame[0] in _CALLERS), default=0)
    inner = [frame for frame in frames[called:] if not frame[0].startswith((f"{_HERE}/", "<"))]
    own = [frame for frame in inner if not _installed(frame[0])]
    chosen = own or [frame for frame in inner if "/torch/" not in frame[0]] or inner
    return "{}:{}: {}".format(*chosen[-1]) if chosen else "an unknown line"


def is_users(file: str) -> bool:
    """True for a file that is neither torch's nor one of capture."""
    return "/torch/" not in file and not file.startswith((f"{_HERE}/", "<"))


def _installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file or file.startswith(_LIBRARIES)


def error_line(error: BaseException) -> str:
    """The user's line that raised an error: `file.py:12: code`."""
    frames = [(f.filename, f.lineno or 0, f.line or "") for f in traceback.extract_tb(error.__traceback__)]
    return user_line(frames)


def place_of(error: BaseException, module: nn.Module) -> str:
    """Where in the user's code `module` raised the error: `in module 'blocks.0', at file.py:12: code`."""
    names = {id(part): name for name, part in module.named_modules()}
    frames: list[Frame] = []
    path = ""
    for trace in _traces(error.__traceback__):
        code = trace.tb_frame.f_code
        frames += [(f.filename, f.lineno or 0, f.line or "") for f in traceback.extract_tb(trace, limit=1)]
        part: Any = trace.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None  # self
        if code.co_name == "forward" and id(part) in names:
            path = names[id(part)]
    return f"in module {path or '(the top)'!r}, at {user_line(frames)}"


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
