"""Rendezvous of ranks that are threads: which one runs, which wait for which, and the report of a deadlock."""

import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

REDRAWN = 0.25
"""How often a rank of a shuffled run gets another priority where it could give up its turn."""


class RankError(RuntimeError):
    """A rank raised, or the ranks call different collectives; `rank` is the first one that did."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class Deadlock(RuntimeError):  # noqa: N818 (its name in the field)
    """All remaining ranks wait for each other, or time is up; the message says where each one stands."""


class Stopped(BaseException):
    """Stops a rank because another one failed; never reaches the caller."""


@dataclass(slots=True)
class Meeting:
    """One collective: `parts` fill up to `size`, then `work(parts in order)` runs once.

    `numbers`: of two ranks, which one of their common collectives this is to the one that joined first.
    """

    kind: str
    members: tuple[int, ...]
    size: int
    parts: dict[int, Any] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    done: bool = False


class Hub:
    """The rank whose turn it is, those that are ready for one, and the waiting ones.

    One rank runs at a time, until it waits or ends: threads that compete for Python's lock waste a quarter of a
    verification on switching. `shuffled`: the turn goes to the rank of the highest priority, which is drawn at random,
    now and then anew, before each collective and each wait.

    Any two ranks must join the collectives that they have in common in one order, also those of different groups: on
    GPUs, where each waits for those before it, they would otherwise wait for each other forever.
    """

    def __init__(self, ranks: int, shuffled: bool = False) -> None:
        self.lock = threading.Lock()
        self.meetings: dict[tuple[Any, ...], Meeting] = {}
        self.ready = list(range(ranks))
        self.drawn = random.Random(0) if shuffled else None
        self.priorities = [self.drawn.random() for _ in range(ranks)] if self.drawn else []
        self.waits: dict[int, tuple[Meeting, str]] = {}
        self.finished: set[int] = set()
        self.joined = [0] * ranks
        self.joined_with = [[0] * ranks for _ in range(ranks)]  # how many a rank has joined that another one is in
        self.gates = [threading.Semaphore(0) for _ in range(ranks)]
        self.threads: list[threading.Thread] = []
        self.failure: BaseException | None = None
        self.cause: BaseException | None = None

    def start(self) -> None:
        """Give the first turn."""
        with self.lock:
            self._give_turn()

    def await_turn(self, rank: int) -> None:
        """Wait for the turn of a rank that is ready, or will be; raises Stopped if another one fails meanwhile."""
        self.gates[rank].acquire()
        if self.failure is not None:
            raise Stopped

    def pass_turn(self, rank: int) -> None:
        """Let other ranks that are ready run first."""
        with self.lock:
            if self.failure is not None:
                raise Stopped
            if self.drawn and self.drawn.random() < REDRAWN:
                self.priorities[rank] = self.drawn.random()
            self.ready.append(rank)
            self._give_turn()
        self.await_turn(rank)

    def join(
        self,
        key: tuple[Any, ...],
        meeting: Meeting,
        rank: int,
        place: int,
        part: Any,
        work: Callable[[list[Any]], None],
        ordered: str = "",
    ) -> Meeting:
        """Bring `part` to the meeting at `key`; the rank that completes it does the work and wakes the others.

        `ordered`: what the ranks that meet must join in the same order as all else that they do together.
        """
        if self.drawn is not None:
            self.pass_turn(rank)
        with self.lock:
            if self.failure is not None:
                raise Stopped
            found = self.meetings.setdefault(key, meeting)
            if (found.kind, found.members) != (meeting.kind, meeting.members):
                others = ", ".join(str(found.members[p]) for p in found.parts)
                raise RankError(
                    f"rank {rank} calls {_describe(meeting)} where rank {others} calls {_describe(found)}"
                    f"\n{self._report()}",
                    rank,
                )
            if ordered:
                self._check_order(found, rank, ordered)
            found.parts[place] = part
            self.joined[rank] += 1
            if len(found.parts) < found.size:
                return found
            del self.meetings[key]
        try:
            with torch.no_grad(), _disable_current_modes():  # modes of the rank's own program
                work([found.parts[p] for p in range(found.size)])
        except ValueError as error:  # the parts do not fit together
            raise RankError(f"{_describe(found)}: {error}\n{self.report()}", rank) from error
        with self.lock:
            found.done = True
            found.parts.clear()
            self.ready += found.waiting
        return found

    def _check_order(self, meeting: Meeting, rank: int, what: str) -> None:
        for other in meeting.members:
            if other == rank:
                continue
            self.joined_with[rank][other] += 1
            mine = self.joined_with[rank][other]
            theirs = meeting.numbers.setdefault((min(rank, other), max(rank, other)), mine)
            if mine != theirs:
                raise RankError(
                    f"ranks {rank} and {other} call collectives in different orders: {what} is number {mine} of those "
                    f"that they have in common on rank {rank}, number {theirs} on rank {other}\n{self._report()}",
                    rank,
                )

    def wait(self, meeting: Meeting, rank: int, what: str) -> None:
        if self.drawn is not None:
            self.pass_turn(rank)
        with self.lock:
            if meeting.done:
                return
            if self.failure is not None:
                raise Stopped
            meeting.waiting.append(rank)
            self.waits[rank] = (meeting, what)
            self._give_turn()
        self.await_turn(rank)
        with self.lock:
            del self.waits[rank]

    def leave(self, rank: int) -> None:
        with self.lock:
            self.finished.add(rank)
            self._give_turn()

    def fail(self, failure: BaseException, cause: BaseException | None = None) -> None:
        """Stop all ranks; only the first failure counts."""
        with self.lock:
            self._fail(failure, cause)

    def report(self) -> str:
        with self.lock:
            return self._report()

    def _give_turn(self) -> None:
        if self.failure is not None:
            return
        if self.ready:
            place = max(range(len(self.ready)), key=lambda n: self.priorities[self.ready[n]]) if self.drawn else 0
            self.gates[self.ready.pop(place)].release()
        elif self.waits:
            self._fail(Deadlock(f"deadlock: no rank can go on\n{self._report()}"))

    def _fail(self, failure: BaseException, cause: BaseException | None = None) -> None:
        if self.failure is None:
            self.failure, self.cause = failure, cause
            for gate in self.gates:
                gate.release()  # whoever waits for a turn stops

    def _report(self) -> str:
        frames = sys._current_frames()
        lines = []
        for rank, count in enumerate(self.joined):
            if rank in self.finished:
                state = "has finished"
            elif rank in self.waits and not self.waits[rank][0].done:
                meeting, what = self.waits[rank]
                missing = [m for place, m in enumerate(meeting.members) if place not in meeting.parts]
                state = f"waits in {what}" + (f" for {ranks_text(missing)}" if missing else ", which failed")
            elif rank in self.ready or rank in self.waits:
                state = "is ready"
            else:
                state = "runs"
            place = _user_line(frames.get(self.threads[rank].ident or -1)) if rank not in self.finished else ""
            lines.append(f"  rank {rank}: {state}; joined {count} collectives{place}")
        return "\n".join(lines)


def _describe(meeting: Meeting) -> str:
    return f"{meeting.kind} of {ranks_text(meeting.members)}"


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


_TORCH = Path(torch.__file__).parent
_HERE = (Path(__file__).parent, Path(threading.__file__).parent)


def _user_line(frame: Any) -> str:
    """The innermost frame of the program, outside torch, the standard library and this folder."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(_TORCH) and path.parent not in _HERE:
            return f"; {path.name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
