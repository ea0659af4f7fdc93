"""Z3 in a thread of its own, stopped by a deadline, an interrupt or the caller.

Z3's own timer and signal handler are global to the process and outlive the call; here Python's stay in charge.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

_POLL = 0.05  # seconds


def checked(solver: Any, until: float = math.inf, enough: Callable[[], bool] = lambda: False) -> str:
    """The result of `solver.check()`: sat, unsat, or unknown if stopped.

    Stopped at `until` (of `time.perf_counter`), once `enough()` is true, or by an exception in this thread, such as
    KeyboardInterrupt; the solver's context must not be used afterwards.
    """
    import z3

    solver.set("ctrl_c", False)
    ended = False
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.check)
        try:
            while not running.done() and not (ended := time.perf_counter() >= until or enough()):
                wait([running], _POLL)
        finally:
            while not running.done():  # repeatedly: it may not have begun
                solver.ctx.interrupt()
                wait([running], _POLL)
    try:
        return str(running.result())
    except z3.Z3Exception:
        if not ended:
            raise
        return "unknown"
