"""Statements of loops from few micro-batches are those of all."""

from __future__ import annotations

import numpy as np
import pytest

import partita
from partita import in_order, micro_batches, one_f_one_b, op_assign, op_trans, split_backward, stages, zero_bubble
from partita.codegen.emission.common.rolled_lines import Line, Number, Piece, lines, restored, rolled
from partita.codegen.emission.spacetime import loop_statements
from partita.codegen.emission.spacetime.short_loops import Run, Short, shortened
from partita.codegen.plan.spacetime_plan import SpaceTimePlan
from partita.formulation.spacetime.repetition import Numbers
from partita.model.zoo import build

MICROS = 36


def pipelined(name: str) -> SpaceTimePlan:
    graph = partita.graph(*build("gpt3-1.3b", small=True, sizes={"layers": 2}), batch=MICROS)
    for op in graph.forward:
        op_trans(op, micro_batches(MICROS))
    if name == "zero bubble":
        split_backward(graph.forward)
    parts = stages(graph, 1 if name == "accumulation" else 2)
    for device, ops in enumerate(parts):
        op_assign(ops, device)
    orders = {"1F1B": one_f_one_b, "zero bubble": zero_bubble}
    if name in orders:
        in_order(orders[name](2, MICROS), parts)
    return partita.space_time(graph)


@pytest.mark.parametrize("name", ["1F1B", "zero bubble", "accumulation"])
def test_the_program_is_as_from_all_micro_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, late = pipelined(name), list[int]()

    def noted(own: Numbers, micros: Numbers, count: int, repeated: Numbers) -> Short:
        made = shortened(own, micros, count, repeated)
        late.append(made.late)
        return made

    monkeypatch.setattr(loop_statements, "shortened", noted)
    text = plan.source()
    monkeypatch.setattr(loop_statements, "shortened", lambda own, micros, count, _: Short(own, micros, count))
    assert plan.source() == text
    assert max(late) > MICROS / 3


def order(count: int) -> tuple[Numbers, Numbers]:
    """Instruction 0 of the first micro-batch, then 1 of those between in turn with 2 of the one before, then 3."""
    found = [(0, 0), (1, 1)]
    for micro in range(2, count - 1):
        found += [(1, micro), (2, micro - 1)]
    own, micros = np.array([*found, (2, count - 2), (3, count - 1)]).T
    return own, micros


def test_short_orders_are_orders_of_fewer_micro_batches() -> None:
    between = np.array([False, True, True, False])
    few = shortened(*order(40), 40, between)
    assert few.count < 14 and few.late == 40 - few.count
    own, micros = order(few.count)
    assert few.own.tolist() == own.tolist() and few.micros.tolist() == micros.tolist()
    assert few.since[3] == few.count - 1 and few.since[1] == few.since[2] + 2  # between (1, m + 1) and (2, m)

    assert shortened(*order(8), 8, between).late == 0  # too few
    assert shortened(*order(40), 40, np.ones(4, dtype=bool)).late == 0  # 0 and 3 do not repeat


def test_repetitions_are_proved_by_two_clean_places() -> None:
    short = Short(np.arange(0), np.arange(0), 0, runs=[Run(2, 14, 3)])
    assert short.proved([2, 5]) and short.proved([11, 14])
    assert not short.proved([2, 4]) and not short.proved([12, 15])


def called(number: int, late: int = 0) -> Line:
    return Line(("f(", ")"), (Number("m", number, late=late),))


def test_loops_get_the_turns_that_were_left_out() -> None:
    pieces: list[Piece] = [called(0), called(1), called(2, 10), called(3, 10)]
    found = restored(rolled(pieces, names=False))
    assert found is not None and sum(map(lines, found)) == 14

    unlike: list[Piece] = [called(0), called(1), called(2, 10), called(9, 10)]
    after = restored(rolled(unlike, names=False))  # what comes after a loop is later by as much
    assert after is not None and after[-1] == called(19) and sum(map(lines, after)) == 14

    pair = [Line(("f(", ", ", ")"), (Number("m", at, late=10 * (at > 1)), Number("m", at))) for at in range(4)]
    assert restored(rolled(pair, names=False)) is None  # one of two numbers jumps
