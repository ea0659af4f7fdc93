"""Z3 in a thread of its own, which the time's end, an interrupt or the caller's word ends.

Z3 has a clock and a handler of the terminal's signal itself; both are the process's, and whoever comes after finds them
as Z3 left them. Python's own stay in charge here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

_MOMENT = 0.05  # seconds between two looks at whether it shall end


def checked(solver: Any, until: float = math.inf, enough: Callable[[], bool] = lambda: False) -> str:
    """What `solver.check()` says: sat, unsat, or unknown where it was ended.

    It is ended at `until` (of `time.perf_counter`), when `enough` says so, and by an exception of this thread, as the
    terminal's interrupt; its context is not to be used for anything more then.
    """
    import z3

    def over() -> bool:
        return time.perf_counter() >= until or enough()

    solver.set("ctrl_c", False)
    ended = False
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.check)
        try:
            while not running.done() and not (ended := over()):
                wait([running], _MOMENT)
        finally:
            while not running.done():  # once is not enough: it may not have begun
                solver.ctx.interrupt()
                wait([running], _MOMENT)
    try:
        return str(running.result())
    except z3.Z3Exception:
        if not ended:
            raise
        return "unknown"
