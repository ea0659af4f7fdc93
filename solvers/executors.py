"""Independent problems beside each other: by processes, or by any executor of `concurrent.futures`.

`in_order` hands out tasks and hears results in one order, whatever finishes first, so that a search which looks at its
results before it asks more does the same with every executor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")

_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
_STARTING = threading.Lock()


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_executor(workers: int | None = None) -> Executor:
    """As many processes as `workers` (default: usable cores); for one, this process itself.

    Use it as a context: leaving it by an interrupt or any other error ends the processes at once.
    """
    count = usable_cores() if workers is None else workers
    return Processes(count) if count > 1 else Serial()


def in_order(executor: Executor, function: Callable[[A], T], tasks: Iterable[A], ahead: int) -> Iterator[T]:
    """`function` of each task, in the order of the tasks; `ahead` of them are under way before the first is heard.

    The next task is drawn when a result has been taken: what it depends on is the results before, `ahead` less.
    Those that wait are cancelled where no more are wanted.
    """
    waiting: deque[Future[T]] = deque()
    coming = iter(tasks)
    try:
        while True:
            while len(waiting) < ahead:
                try:
                    waiting.append(executor.submit(function, next(coming)))
                except StopIteration:
                    break
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class Serial(Executor):
    """Runs each task at once, in this thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future that is done; an interrupt goes to the caller."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class DelayedProcesses(Executor):
    """This thread for the first seconds, then as many processes as `workers`: what is done soon needs none.

    For one worker this thread only. Use it as a context: leaving it ends the processes at once.
    """

    def __init__(self, workers: int, seconds: float = 3.0) -> None:
        self._workers, self._until = workers, time.monotonic() + seconds
        self._now: Executor = Serial()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future, which is done where this thread does it."""
        if isinstance(self._now, Serial) and self._workers > 1 and time.monotonic() > self._until:
            self._now = Processes(self._workers)
        return self._now.submit(fn, *args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        if isinstance(self._now, Processes):
            self._now.end()
        return self._now.__exit__(kind, error, at)


class Processes(ProcessPoolExecutor):
    """New processes of one thread each, which end with this one, however it ends.

    They start from nothing, not as copies of a process with threads, and do not import the user's program again: only
    functions of modules can be sent.
    """

    def __init__(self, workers: int) -> None:
        context = _Context()
        alive, self._alive = context.Pipe(duplex=False)
        super().__init__(workers, context, _prepare, (alive,))

    def end(self) -> None:
        """End the processes at once, whatever they do."""
        self.shutdown(wait=False, cancel_futures=True)
        if not self._alive.closed:
            self._alive.send_bytes(b"end")  # nobody takes it away: all see it
            self._alive.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            self.end()
        return super().__exit__(kind, error, at)


def _prepare(alive: Connection) -> None:
    """What a process does first: leave the terminal's interrupt to the one that asks, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    alive.poll(None)  # until there is a word, or nobody any more who could say one
    os._exit(1)


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _STARTING, _as_library():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    """Spawn, but for what it does with the main module: a program without a guard would start processes in each."""

    Process = _Process


@contextmanager
def _as_library() -> Iterator[None]:
    """What starts meanwhile sees no main module to import, and one thread for each library."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    main.__spec__ = None
    if "__file__" in hidden:
        del main.__file__
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
        for name, was in before.items():
            if was is None:
                del os.environ[name]
            else:
                os.environ[name] = was
