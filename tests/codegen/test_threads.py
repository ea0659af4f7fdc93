"""Ranks as threads: every collective against values worked out by hand, and what is said when ranks do not agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from partita.codegen.verification.meeting import Hub
from partita.codegen.verification.threads import Deadlock, RankError, run_threads


def group_of(rank: int, *groups: list[int]) -> Any:
    """This rank's group; all ranks make all groups, in the same order."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    return next(group for ranks, group in made if rank in ranks)


def ones(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def all_reduce(rank: int) -> list[float]:
    x = ones(rank, 10.0 * rank)
    dist.all_reduce(x)
    return x.tolist()


def largest(rank: int) -> list[float]:
    x = ones(rank, -rank)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x.tolist()


def all_gather(rank: int) -> list[list[float]]:
    parts = [torch.empty(2, dtype=torch.float64) for _ in range(3)]
    dist.all_gather(parts, ones(rank, 10.0 * rank))
    return [part.tolist() for part in parts]


def all_gather_rows(rank: int) -> list[float]:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    whole = torch.empty(6, dtype=torch.float64)
    gather(whole, ones(rank, rank + 0.5))
    return whole.tolist()


def reduce_scatter(rank: int) -> list[float]:
    mine = torch.empty(1, dtype=torch.float64)
    dist.reduce_scatter(mine, [ones(rank + 10 * part) for part in range(3)])
    return mine.tolist()


def reduce_scatter_rows(rank: int) -> list[float]:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    mine = torch.empty(1, dtype=torch.float64)
    scatter(mine, ones(rank, rank + 10, rank + 20))
    return mine.tolist()


def all_to_all(rank: int) -> list[list[float]]:
    received = [torch.empty(1, dtype=torch.float64) for _ in range(3)]
    dist.all_to_all(received, [ones(10 * rank + target) for target in range(3)])
    return [x.tolist() for x in received]


def all_to_all_uneven(rank: int) -> list[float]:
    """Rank r sends t + 1 copies of r to rank t."""
    received = torch.empty(3 * (rank + 1), dtype=torch.float64)
    dist.all_to_all_single(received, torch.full((6,), float(rank)).double(), [rank + 1] * 3, [1, 2, 3])
    return received.tolist()


def broadcast(rank: int) -> list[float]:
    x = ones(rank)
    dist.broadcast(x, src=2)
    return x.tolist()


def ring(rank: int) -> list[float]:
    received = torch.empty(1, dtype=torch.float64)
    sends = dist.P2POp(dist.isend, ones(rank), (rank + 1) % 3)
    receives = dist.P2POp(dist.irecv, received, (rank - 1) % 3)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    return received.tolist()


def relay(rank: int) -> list[float]:
    x = ones(rank + 1)
    if rank:
        dist.recv(x, rank - 1)
        x += rank + 1
    if rank < 2:
        dist.send(x, rank + 1)
    return x.tolist()


def uneven_groups(rank: int) -> list[float]:
    x = ones(rank + 1)
    dist.all_reduce(x, group=group_of(rank, [0, 2], [1]))
    return x.tolist()


def late_wait(rank: int) -> list[float]:
    x, y = ones(1), ones(rank)
    first, second = dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)
    second.wait()
    first.wait()
    return [*x.tolist(), *y.tolist()]


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (all_reduce, [[3, 30]] * 3),
        (largest, [[2, 0]] * 3),
        (all_gather, [[[0, 0], [1, 10], [2, 20]]] * 3),
        (all_gather_rows, [[0, 0.5, 1, 1.5, 2, 2.5]] * 3),
        (reduce_scatter, [[3], [33], [63]]),
        (reduce_scatter_rows, [[3], [33], [63]]),
        (all_to_all, [[[0], [10], [20]], [[1], [11], [21]], [[2], [12], [22]]]),
        (all_to_all_uneven, [[0, 1, 2], [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2]]),
        (broadcast, [[2]] * 3),
        (ring, [[2], [0], [1]]),
        (relay, [[1], [3], [6]]),
        (uneven_groups, [[4], [2], [4]]),
        (late_wait, [[3, 3]] * 3),
    ],
)
def test_collective(collective: Callable[[int], Any], expected: Any) -> None:
    assert run_threads(collective, 3) == expected


def test_sums_are_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """1e16 + 1 - 1e16 is 0 in this order and 1 in another; the last rank to come does not change that."""
    addends = (1e16, 1.0, -1e16)

    def turned(ranks: int, _: bool) -> Hub:
        hub = Hub(ranks)
        hub.ready = [(rank + shift) % ranks for rank in range(ranks)]
        return hub

    def body(rank: int) -> float:
        order.append(rank)
        x = ones(addends[rank])
        dist.all_reduce(x)
        return x.item()

    monkeypatch.setattr("partita.codegen.verification.threads.Hub", turned)
    for shift in range(3):
        order: list[int] = []
        assert run_threads(body, 3) == [0.0] * 3
        assert order == [(rank + shift) % 3 for rank in range(3)]


def test_a_program_may_initialize_and_end_by_itself() -> None:
    def body(_: int) -> tuple[int, int]:
        dist.init_process_group("gloo")
        seen = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        return seen

    assert run_threads(body, 2) == [(0, 2), (1, 2)]
    assert not dist.is_initialized()


def test_backward_runs_collectives() -> None:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            grad = grad.clone()
            dist.all_reduce(grad)
            return grad

    def body(rank: int) -> float:
        x = torch.ones((), requires_grad=True)
        (Sum.apply(x) * (rank + 1)).backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad.item()

    assert run_threads(body, 3) == [6.0] * 3


def test_one_rank_raises() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise KeyError("lost")
        dist.barrier()

    with pytest.raises(RankError, match=r"rank 1 raised KeyError: 'lost'(.|\n)*in body") as caught:
        run_threads(body, 4)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_refusal_to_run_is_an_error() -> None:
    def body(rank: int) -> None:
        raise SystemExit("planned for 4 ranks")

    with pytest.raises(RankError, match="SystemExit: planned for 4 ranks"):
        run_threads(body, 2)


def test_deadlock_says_where_each_rank_stands() -> None:
    def body(rank: int) -> None:
        dist.barrier()
        group = group_of(rank, [0, 1], [2])
        if rank == 0:
            dist.all_reduce(ones(1))
        elif rank == 1:
            dist.all_reduce(ones(1), group=group)

    start = time.perf_counter()
    with pytest.raises(Deadlock) as caught:
        run_threads(body, 3, timeout=60)
    assert time.perf_counter() - start < 5
    lines = str(caught.value).splitlines()
    assert lines[0] == "deadlock: no rank can go on"
    assert "rank 0: waits in all_reduce sum (number 2 of group 0: ranks 0, 1, 2) for ranks 1, 2; joined 2" in lines[1]
    assert "rank 1: waits in all_reduce sum (number 1 of group 1: ranks 0, 1) for rank 0" in lines[2]
    assert "in body" in lines[1]
    assert "test_threads.py" in lines[1]
    assert "rank 2: has finished" in lines[3]


def test_all_send_first_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="rank 1: waits in send"):
        run_threads(lambda rank: dist.send(ones(1), 1 - rank), 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            lambda r: dist.all_reduce(ones(1)) if r else dist.barrier(),
            "calls (barrier|all_reduce sum) of ranks 0, 1 where",
        ),
        (lambda r: dist.all_reduce(torch.ones(r + 1)), "a reduction needs equal tensors on all ranks, not"),
        (lambda r: dist.broadcast(ones(1), src=r), "broadcast from 0 of ranks 0, 1"),
    ],
)
def test_ranks_that_disagree(body: Callable[[int], Any], words: str) -> None:
    with pytest.raises(RankError, match=words):
        run_threads(body, 2)


def gather_uneven(rank: int) -> None:
    dist.all_gather([torch.empty(n + 1) for n in range(2)], torch.ones(rank + 1))


def gather_stacked(rank: int) -> None:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(torch.empty(2, 3), torch.ones(3))


def scatter_stacked(rank: int) -> None:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(torch.empty(3), torch.ones(2, 3))


def exchange_strided(rank: int) -> None:
    dist.all_to_all_single(torch.empty(2, 3), torch.ones(3, 2).T)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gather_uneven, "parts of equal shape"),
        (gather_stacked, r"\[2, 3\] is not 2 times \[3\]"),
        (scatter_stacked, r"\[2, 3\] is not 2 times \[3\]"),
        (exchange_strided, "must be contiguous"),
    ],
)
def test_what_gloo_refuses_is_refused(body: Callable[[int], None], words: str) -> None:
    with pytest.raises(RankError, match=words):
        run_threads(body, 2)


def test_time_limit() -> None:
    with pytest.raises(Deadlock, match=r"did not finish in 0\.2 s(.|\n)*rank 1: runs"):
        run_threads(lambda rank: time.sleep(0.6 * rank), 2, timeout=0.2)


def test_the_report_says_which_rank_runs() -> None:
    with pytest.raises(Deadlock, match=r"rank 0: runs(.|\n)*rank 1: is ready"):
        run_threads(lambda rank: time.sleep(0.6), 2, timeout=0.2)


def test_many_ranks_start_quickly() -> None:
    run_threads(all_reduce, 8)
    start = time.perf_counter()
    total = run_threads(all_reduce, 64)
    assert total == [[2016, 20160]] * 64
    assert time.perf_counter() - start < 10  # 0.2 s on an idle machine


def test_no_ranks() -> None:
    with pytest.raises(ValueError, match="0 ranks"):
        run_threads(all_reduce, 0)


def crossed(rank: int) -> None:
    """Two groups of the same ranks, used by rank 1 the other way round: gloo does not mind, NCCL does."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x = [ones(1.0), ones(1.0)]
    works = [dist.all_reduce(x[k], group=groups[k], async_op=True) for k in ((0, 1), (1, 0))[rank]]
    for work in works:
        work.wait()


def test_different_orders_of_collectives() -> None:
    with pytest.raises(RankError, match="call collectives in different orders: all_reduce sum"):
        run_threads(crossed, 2)


def test_a_random_order_of_turns_changes_no_result() -> None:
    def body(rank: int) -> list[list[float]]:
        works = [(x := ones(rank, k), dist.all_reduce(x, async_op=True)) for k in range(3)]
        for _, work in works:
            work.wait()
        return [x.tolist() for x, _ in works]

    assert run_threads(body, 3, shuffled=True) == [[[3.0, 3.0 * k] for k in range(3)]] * 3


def test_one_rank_runs_at_a_time_and_shuffled_ones_in_another_order() -> None:
    def body(rank: int) -> None:
        for _ in range(5):
            running.append(rank)
            time.sleep(0.001)
            assert running.pop() == rank and not running
            order.append(rank)
            dist.barrier()

    orders, running = [], list[int]()
    for shuffled in (False, True):
        order: list[int] = []
        run_threads(body, 3, shuffled=shuffled)
        orders.append(order)
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def test_asking_whether_a_collective_is_done_lets_others_run() -> None:
    def body(rank: int) -> int:
        asked, x = 0, ones(1)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            asked += 1
        return asked

    assert sum(run_threads(body, 3)) < 10
