"""The placement program: its solutions are the matrices, and its optimum is the best of all of them."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest

from partita.formulation.placement.placement import arrangements, groups, of_rows
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.program import Reduction
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine
from partita.solvers.protocol import Limits, Status
from partita.solvers.reduction.joint_placement import (
    Demand,
    best_placement,
    by_enumeration,
    enumerate_matrices,
    merged,
)

MIB = 2**20


def random_axes(rng: random.Random, devices: int, count: int) -> tuple[int, ...]:
    """Sizes of axes that multiply to the devices, primes shared out at random; some may be 1."""
    sizes = [1] * count
    p = 2
    while devices > 1:
        while devices % p == 0:
            sizes[rng.randrange(count)] *= p
            devices //= p
        p += 1
    return tuple(sizes)


# Enumeration


@pytest.mark.parametrize("seed", range(40))
def test_solutions_are_the_recursively_enumerated_matrices(seed: int) -> None:
    rng = random.Random(seed)
    hierarchy = tuple(rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 16)) for _ in range(rng.randint(1, 4)))
    axes = random_axes(rng, math.prod(hierarchy), rng.randint(1, 4))
    assert enumerate_matrices(hierarchy, axes) == arrangements(hierarchy, axes)


def test_every_prime_is_a_transportation_problem_of_its_own() -> None:
    # 2s: (1,1) onto (1,1) in 2 ways; 3s: likewise; every combination is a matrix
    assert len(enumerate_matrices((2, 2), (2, 2))) == 2
    assert len(enumerate_matrices((3, 3), (3, 3))) == 2
    assert len(enumerate_matrices((6, 6), (6, 6))) == 4


def test_sizes_without_a_matrix_are_refused() -> None:
    with pytest.raises(PartitaError, match="axes 2x3 multiply to 6, but hierarchy 2x2 has 4 devices"):
        enumerate_matrices((2, 2), (2, 3))


# The best placement


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_the_best_of_all_matrices(seed: int) -> None:
    rng = random.Random(seed)
    machine = rng.choice(
        [
            Machine.adhoc(tuple(rng.choice((2, 3, 4, 6, 8)) for _ in range(rng.randint(1, 3)))),
            Machine.load("gcp-a100", nodes=4),
            Machine.load("gcp-v100", nodes=2),  # prices depend on where in the ring a group lies
            Machine.load("summit", nodes=4),
        ]
    )
    axes = random_axes(rng, machine.devices, rng.randint(1, 4))
    wide = [axis for axis, size in enumerate(axes) if size > 1]
    demands = [
        Demand(
            tuple(rng.sample(wide, rng.randint(1, len(wide)))), rng.choice((0, 4096, MIB, 512 * MIB)), rng.randint(1, 9)
        )
        for _ in range(rng.randint(1, 3))
    ]
    profile = rng.choice((None, "nccl-ring", "nccl-tree", "gloo"))
    found, expected = best_placement(machine, axes, demands, profile), by_enumeration(machine, axes, demands, profile)
    assert (found.status, found.ns, found.bound_ns) == (Status.OPTIMAL, expected.ns, expected.ns)
    assert found.placement is not None and found.placement.sizes == axes
    total = 0
    for demand, program in zip(demands, found.programs, strict=True):
        reduction = Reduction(found.placement, tuple(sorted(demand.axes)))
        total += demand.weight * program_price(machine, reduction, program, profile).ns(demand.size_bytes)
    assert total == found.ns


def test_the_larger_reduction_gets_the_fast_links() -> None:
    machine = Machine.load("gcp-a100", nodes=4)  # a slow network between nodes of 16
    for large, matrix in ((0, ((1, 4), (4, 4))), (1, ((4, 1), (1, 16)))):
        demands = [Demand((large,), 1024 * MIB), Demand((1 - large,), MIB)]
        assert best_placement(machine, (4, 16), demands).placement == of_rows(matrix)


def test_weights_decide() -> None:
    machine = Machine.load("gcp-a100", nodes=4)
    for often, matrix in ((0, ((1, 4), (4, 4))), (1, ((4, 1), (1, 16)))):
        demands = [Demand((axis,), 64 * MIB, 100 if axis == often else 1) for axis in (0, 1)]
        assert best_placement(machine, (4, 16), demands).placement == of_rows(matrix)


def test_65_matrices_of_1024_devices_take_no_time() -> None:
    machine = Machine.adhoc((8, 8, 16))
    assert len(arrangements(machine.hierarchy, (16, 8, 8))) == 65
    demands = [Demand((0, 2), 1024 * MIB), Demand((1,), MIB, 50)]
    best_placement(machine, (4, 8, 32), demands)  # imports
    start = time.process_time()
    found = best_placement(machine, (16, 8, 8), demands)
    assert time.process_time() - start < 2  # 0.06 s on an idle core
    assert found.ns == by_enumeration(machine, (16, 8, 8), demands).ns


def test_one_device_and_no_reduction() -> None:
    machine = replace(Machine.load("cpu"), name="one").with_nodes(1)
    found = best_placement(machine, (1, 1), [])
    assert (found.placement, found.programs, found.ns) == (of_rows([(1,), (1,)]), (), 0)


def test_without_time_nothing_is_found() -> None:
    found = best_placement(Machine.adhoc((8, 8, 16)), (16, 8, 8), [Demand((0,), MIB)], limits=Limits(0.0))
    assert (found.status, found.placement, found.ns, found.bound_ns) == (Status.UNKNOWN, None, None, 0)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (Demand((), 1), "the reduction is empty"),
        (Demand((2,), 1), "no axis 2"),
        (Demand((1, 1), 1), "twice"),
        (Demand((0,), -1), "a reduction of -1 bytes"),
        (Demand((0,), 1, 0), "weight 0"),
        (Demand((0,), 1, 0.5), "weight 0.5"),  # type: ignore[arg-type]
        (Demand((0,), 2**60), "the reductions take up to"),
        (Demand((0,), 10**400), "a reduction of more than"),
    ],
)
def test_demands_that_are_none(demand: Demand, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        best_placement(Machine.adhoc((2, 4)), (2, 4), [demand])


# Merging


def test_merged_runs() -> None:
    assert merged((4, 2, 8), (1,)) == (((0,), (1,), (2,)), (1,))
    assert merged((4, 2, 8), (1, 2)) == (((0,), (1, 2)), (1,))
    assert merged((4, 2, 8), (0, 2)) == (((0,), (1,), (2,)), (0, 2))
    assert merged((4, 1, 8), (0, 2)) == (((0, 2),), (0,))  # an axis of size 1 separates nothing
    assert merged((1, 1), (0,)) == ((), ())


@pytest.mark.parametrize("reduced", [(0,), (1,), (0, 1), (1, 2), (0, 3), (1, 3), (0, 1, 3)])
def test_merging_keeps_the_groups(reduced: tuple[int, ...]) -> None:
    for placement in arrangements((4, 2, 8), (4, 2, 2, 4)):
        runs, over = merged(placement.sizes, reduced)
        rows = [tuple(math.prod(placement.matrix[a][level] for a in run) for level in range(3)) for run in runs]
        assert groups(of_rows(rows), over) == groups(placement, reduced)
