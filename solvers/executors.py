"""Parallel execution of independent tasks, by worker processes or any `concurrent.futures` executor.

`in_order` submits tasks and yields results in one order, whichever finishes first, so that a search whose next task
depends on earlier results behaves the same with every executor.
"""

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
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_executor(workers: int | None = None) -> Executor:
    """`workers` processes (default: usable cores), or this process itself for one worker.

    Use it as a context manager: leaving it by an interrupt or another error kills the processes at once.
    """
    count = usable_cores() if workers is None else workers
    return Processes(count) if count > 1 else Serial()


def in_order(executor: Executor, function: Callable[[A], T], tasks: Iterable[A], ahead: int) -> Iterator[T]:
    """Yield `function(task)` in the order of the tasks, with up to `ahead` of them submitted at a time.

    The next task is drawn after a result has been consumed, so task n may depend on results up to n - `ahead`. Closing
    the iterator cancels pending tasks.
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
    """Runs each task immediately, in this thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the task; a KeyboardInterrupt reaches the caller."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class DelayedProcesses(Executor):
    """Runs tasks in this thread for the first seconds, then in `workers` processes, so that short work starts none.

    Use it as a context manager: leaving it kills the processes at once.
    """

    def __init__(self, workers: int, seconds: float = 3.0) -> None:
        self._workers, self._until = workers, time.monotonic() + seconds
        self._now: Executor = Serial()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the task in this thread, or in a process if the first seconds have passed."""
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
    """Single-threaded worker processes that die with this process, however it ends.

    They are spawned, not forked from a process with threads, and do not import the user's main module: only functions
    of importable modules can be submitted.
    """

    def __init__(self, workers: int) -> None:
        context = _Context()
        alive, self._alive = context.Pipe(duplex=False)
        super().__init__(workers, context, _prepare, (alive,))

    def end(self) -> None:
        """Kill the processes at once."""
        self.shutdown(wait=False, cancel_futures=True)
        if not self._alive.closed:
            self._alive.send_bytes(b"end")  # never read, so every worker sees it
            self._alive.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            self.end()
        return super().__exit__(kind, error, at)


def _prepare(alive: Connection) -> None:
    """Initialize a worker: ignore the terminal's interrupt, which the parent handles, and die with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive: Connection) -> None:
    alive.poll(None)  # until `end`, or the parent's death closes the pipe
    os._exit(1)


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _STARTING, _as_library():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    """Spawn without importing the main module, which would start processes again if it lacks a `__main__` guard."""

    Process = _Process


@contextmanager
def _as_library() -> Iterator[None]:
    """Hide the main module from processes started meanwhile, and give them one thread per library."""
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
