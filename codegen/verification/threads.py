"""Ranks as threads: an unchanged torch.distributed program runs in this process, one thread per rank.

Collectives meet in a `Hub`: every rank brings its part, and the last one to arrive computes for all, in rank order, so
that results do not depend on timing. Ranks take turns: one runs until it waits for a collective, or asks in vain
whether one is done. So the hub detects a deadlock as soon as no rank can run, and reports where each one stands.
"""

# mypy: disable-error-code="override"
# (torch's ProcessGroup has overloads, of which torch.distributed calls the one that is overridden here)

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._C._distributed_c10d import _set_thread_isolation_mode  # type: ignore[attr-defined]

from .meeting import Deadlock, Hub, Meeting, RankError, Stopped, ranks_text

__all__ = ["Deadlock", "RankError", "run_threads"]

BACKEND = "partita_threads"

T = TypeVar("T")


def run_threads(function: Callable[[int], T], ranks: int, *, timeout: float = 300.0, shuffled: bool = False) -> list[T]:
    """The results of `function(rank)` on `ranks` threads, in which torch.distributed is initialized.

    Meanwhile `init_process_group` and `destroy_process_group` do nothing, so a program may call them. A program must
    use its own random generators: threads share torch's global one. torch runs one thread: a pool for each rank would
    spin beside the others. A rank may wait for another one by collectives only. With `shuffled` ranks take turns in a
    random order: no result may depend on that.

    Raises RankError with the traceback of the first rank that fails, or if two ranks join collectives in different
    orders; Deadlock if the ranks wait for each other, or after `timeout` seconds for all of them together. A second
    caller waits for the first.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks cannot run")
    hub = Hub(ranks, shuffled)
    results: dict[int, T] = {}

    def body(rank: int) -> None:
        _local.hub, _local.rank = hub, rank
        try:
            hub.await_turn(rank)
            _initialize(store, rank, ranks)
            results[rank] = function(rank)
        except Stopped:
            return
        except BaseException as error:  # SystemExit too: a program raises it for a wrong number of ranks
            hub.fail(_rank_error(error, rank), error)
        finally:
            hub.leave(rank)

    with _threaded_distributed():
        store = dist.HashStore()  # type: ignore[attr-defined]
        threads = [threading.Thread(target=body, args=(r,), name=f"rank {r}", daemon=True) for r in range(ranks)]
        hub.threads = threads
        deadline = time.monotonic() + timeout
        try:
            for thread in threads:
                thread.start()
            hub.start()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            if any(thread.is_alive() for thread in threads):
                hub.fail(Deadlock(f"the ranks did not finish in {timeout:g} s\n{hub.report()}"))
        finally:
            hub.fail(Stopped())  # no effect after another failure, nor on ranks that are done
            deadline = time.monotonic() + 1.0
            for thread in threads:  # a thread that still computes is a daemon, and ends by itself
                thread.join(max(0.0, deadline - time.monotonic()))
    if hub.failure is not None and not isinstance(hub.failure, Stopped):
        raise hub.failure from hub.cause
    return [results[rank] for rank in range(ranks)]


def _rank_error(error: BaseException, rank: int) -> RankError:
    if isinstance(error, RankError):
        return error
    lines = "".join(traceback.format_exception(error)).rstrip()
    return RankError(f"rank {rank} raised {type(error).__name__}: {error}\n{lines}", rank)


# What the last rank to arrive computes; `parts` are in the order of the group's ranks.

_Tensors: TypeAlias = list[Tensor]

_OPS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def _same(tensors: _Tensors, what: str) -> None:
    kinds = [(tuple(t.shape), t.dtype) for t in tensors]
    if len(set(kinds)) > 1:
        raise ValueError(f"{what}, not {', '.join(f'{d} {list(s)}' for s, d in kinds)}")


def _fold(tensors: _Tensors, op: Any) -> Tensor:
    _same(tensors, "a reduction needs equal tensors on all ranks")
    total = reduce(_OPS[op], tensors[1:], tensors[0].clone())
    return total / len(tensors) if op == dist.ReduceOp.AVG else total


def _put(target: Tensor, value: Tensor) -> None:
    if target.shape != value.shape or target.dtype != value.dtype:
        raise ValueError(
            f"{value.dtype} {list(value.shape)} does not fit into {target.dtype} {list(target.shape)} of another rank"
        )
    target.detach().copy_(value)


def _all_reduce(parts: list[_Tensors], op: Any) -> None:
    for column in zip(*parts, strict=True):
        total = _fold(list(column), op)
        for tensor in column:
            _put(tensor, total)


def _reduce(parts: list[_Tensors], op: Any, root: int) -> None:
    for column in zip(*parts, strict=True):
        _put(column[root], _fold(list(column), op))


def _broadcast(parts: list[_Tensors], root: int) -> None:
    values = [tensor.clone() for tensor in parts[root]]
    for part in parts:
        for tensor, value in zip(part, values, strict=True):
            _put(tensor, value)


def _exchange(parts: list[tuple[_Tensors, _Tensors]]) -> None:
    """Part r is (what r receives from each rank, what r sends to each rank)."""
    sent = [[tensor.clone() for tensor in sends] for _, sends in parts]
    for r, (receives, _) in enumerate(parts):
        for s, target in enumerate(receives):
            _put(target, sent[s][r])


def _all_gather(parts: list[tuple[_Tensors, Tensor]]) -> None:
    """Part r is (what r receives from each rank, what r sends to all)."""
    sent = [value.clone() for _, value in parts]
    for receives, _ in parts:
        for target, value in zip(receives, sent, strict=True):
            _put(target, value)


def _reduce_scatter(parts: list[tuple[Tensor, _Tensors]], op: Any) -> None:
    totals = [_fold([pieces[r] for _, pieces in parts], op) for r in range(len(parts))]
    for (target, _), total in zip(parts, totals, strict=True):
        _put(target, total)


def _gather(parts: list[tuple[_Tensors, Tensor]], root: int) -> None:
    for target, (_, value) in zip(parts[root][0], parts, strict=True):
        _put(target, value)


def _scatter(parts: list[tuple[Tensor, _Tensors]], root: int) -> None:
    for (target, _), value in zip(parts, parts[root][1], strict=True):
        _put(target, value)


def _hand_over(parts: list[Tensor]) -> None:
    _put(parts[1], parts[0])


def _meet(parts: list[None]) -> None:
    """A barrier moves nothing."""


# torch.distributed's side.


class _Work(dist.Work):
    """A collective that this rank has joined."""

    def __init__(self, hub: Hub, meeting: Meeting, rank: int, what: str) -> None:
        super().__init__()
        self._hub, self._meeting, self._of, self._what = hub, meeting, rank, what

    def wait(self, timeout: Any = None) -> bool:
        self._hub.wait(self._meeting, self._of, self._what)
        return True

    def is_completed(self) -> bool:
        if not self._meeting.done:
            self._hub.pass_turn(self._of)  # who asks again and again lets others run
        return self._meeting.done


class _Group(dist.ProcessGroup):
    """One rank's view of a group; every method joins a meeting and returns at once with its `_Work`."""

    def __init__(self, rank: int, size: int, name: str, members: Sequence[int]) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._hub: Hub = _local.hub
        self._me, self._place, self._name = _local.rank, rank, name
        self._members = tuple(members) or tuple(range(size))
        self._count = 0
        self._messages: dict[tuple[int, int, int], int] = {}

    def getBackendName(self) -> str:
        return BACKEND

    def _join(self, kind: str, part: Any, work: Callable[[list[Any]], None]) -> _Work:
        self._count += 1
        what = f"{kind} (number {self._count} of group {self._name}: {ranks_text(self._members)})"
        meeting = Meeting(kind, self._members, len(self._members))
        key = self._name, self._count
        met = self._hub.join(key, meeting, self._me, self._place, part=part, work=work, ordered=what)
        return _Work(self._hub, met, self._me, what)

    def _message(self, tensor: Tensor, source: int, target: int, tag: int, place: int) -> _Work:
        link = (source, target, tag)
        number = self._messages.get((*link[:2], tag * 2 + place), 0)
        self._messages[(*link[:2], tag * 2 + place)] = number + 1
        ends = (self._members[source], self._members[target])
        what = f"{('send', 'recv')[place]} (number {number + 1} from rank {ends[0]} to {ends[1]}, tag {tag})"
        meeting = Meeting("send/recv", ends, 2)
        met = self._hub.join((self._name, link, number), meeting, self._me, place, tensor, _hand_over)
        return _Work(self._hub, met, self._me, what)

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> _Work:
        op = _op(opts)
        return self._join(f"all_reduce {_name(op)}", list(tensors), partial(_all_reduce, op=op))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: _Tensors, opts: Any) -> _Work:
        op = _op(opts)
        return self._join(f"reduce {_name(op)}", list(tensors), partial(_reduce, op=op, root=opts.rootRank))

    def broadcast(self, tensors: _Tensors, opts: Any) -> _Work:
        return self._join(f"broadcast from {opts.rootRank}", list(tensors), partial(_broadcast, root=opts.rootRank))

    def allgather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any = None) -> _Work:
        size = len(self._members)
        _same([*outputs[0], inputs[0]], "all_gather needs parts of equal shape (pad them)")
        return self._join("all_gather", (_count(outputs[0], size), inputs[0]), _all_gather)

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Work:
        size = len(self._members)
        _joined(output, value, size, "all_gather")
        return self._join("all_gather", (_pieces(output, None, size), value), _all_gather)

    def reduce_scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any = None) -> _Work:
        op, pieces = _op(opts), _count(inputs[0], len(self._members))
        return self._join(f"reduce_scatter {_name(op)}", (outputs[0], pieces), partial(_reduce_scatter, op=op))

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Work:
        size = len(self._members)
        _joined(value, output, size, "reduce_scatter")
        return self.reduce_scatter([output], [_pieces(value, None, size)], opts)

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> _Work:
        size = len(self._members)
        return self._join("all_to_all", (_count(outputs, size), _count(inputs, size)), _exchange)

    def all_to_all_single(
        self, output: Tensor, value: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> _Work:
        size = len(self._members)
        return self._join(
            "all_to_all", (_pieces(output, output_sizes, size), _pieces(value, input_sizes, size)), _exchange
        )

    # The names before torch 2.13.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def gather(self, outputs: list[_Tensors], inputs: _Tensors, opts: Any) -> _Work:
        part = (outputs[0] if outputs else [], inputs[0])
        return self._join(f"gather to {opts.rootRank}", part, partial(_gather, root=opts.rootRank))

    def scatter(self, outputs: _Tensors, inputs: list[_Tensors], opts: Any) -> _Work:
        part = (outputs[0], inputs[0] if inputs else [])
        return self._join(f"scatter from {opts.rootRank}", part, partial(_scatter, root=opts.rootRank))

    def barrier(self, opts: Any = None) -> _Work:
        return self._join("barrier", None, _meet)

    def send(self, tensors: _Tensors, target: int, tag: int = 0) -> _Work:
        return self._message(tensors[0], self._place, target, tag, 0)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> _Work:
        return self._message(tensors[0], source, self._place, tag, 1)


def _op(opts: Any) -> Any:
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    found = next((known for known in _OPS if op == known), None)
    if found is None:
        raise ValueError(f"reduction {op} is not supported by ranks that are threads")
    return found


def _name(op: Any) -> str:
    return str(op).rpartition(".")[2].lower()


def _count(tensors: _Tensors, size: int) -> _Tensors:
    if len(tensors) != size:
        raise ValueError(f"{len(tensors)} tensors for a group of {size} ranks")
    return list(tensors)


def _joined(whole: Tensor, part: Tensor, size: int, what: str) -> None:
    """Check that parts are joined along dim 0: gloo accepts no other shape, and programs must run there too."""
    if not part.dim() or list(whole.shape) != [size * part.shape[0], *part.shape[1:]]:
        raise ValueError(
            f"{what} joins {size} parts along dim 0: {list(whole.shape)} is not {size} times {list(part.shape)}"
        )


def _pieces(tensor: Tensor, sizes: list[int] | None, size: int) -> _Tensors:
    """Consecutive rows, one piece per rank of the group: of the given sizes, or of equal size."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of {list(tensor.shape)} must be contiguous to be sent or received in parts")
    if sizes:
        return list(torch.split(tensor, sizes))
    if tensor.dim() and tensor.shape[0] % size == 0:
        return list(torch.split(tensor, tensor.shape[0] // size)) if tensor.shape[0] else [tensor] * size
    raise ValueError(f"{list(tensor.shape)} does not divide into {size} parts of equal length")


# One world per thread.


class _World(threading.local):
    """The state of c10d's groups, separate for each thread: `threading.local` calls `__init__` in all of them."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, Any] = {}
        self.pg_group_ranks: dict[Any, Any] = {}
        self.pg_backend_config: dict[Any, Any] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, Any] = {}
        self.comms: list[Any] = []


class _Local(threading.local):
    hub: Hub
    rank: int


_local = _Local()
_one_at_a_time = threading.Lock()
_real_init = dist.init_process_group


def _initialize(store: Any, rank: int, ranks: int) -> None:
    _real_init(BACKEND, store=store, rank=rank, world_size=ranks)


def _create(options: Any, _: Any) -> _Group:
    return _Group(options.group_rank, options.group_size, options.group_id, options.global_ranks_in_group)


@contextmanager
def _threaded_distributed() -> Iterator[None]:
    """Give torch.distributed a world per thread, which `run_threads` initializes."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])

    def nothing(*_: Any, **__: Any) -> None:
        """Ranks are initialized before the program starts, one after the other, and end with their threads."""

    patches = [(m, f) for m in (dist, c10d) for f in ("init_process_group", "destroy_process_group")]
    patches.append((c10d, "_store_based_barrier"))  # would wait for ranks whose turn comes later
    with _one_at_a_time:
        kept = [getattr(module, name) for module, name in patches]
        hook, threads, world = sys.excepthook, torch.get_num_threads(), c10d._world
        try:
            for module, name in patches:
                setattr(module, name, nothing)
            c10d._world = _World()  # type: ignore[assignment]
            _set_thread_isolation_mode(True)
            torch.set_num_threads(1)
            yield
        finally:
            torch.set_num_threads(threads)
            _set_thread_isolation_mode(False)
            c10d._world, sys.excepthook = world, hook
            for (module, name), value in zip(patches, kept, strict=True):
                setattr(module, name, value)
