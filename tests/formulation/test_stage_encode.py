"""Networks of stages: they price what plans of stages cost, and together what the whole graph costs."""

import random
from dataclasses import replace
from functools import cache
from itertools import cycle, pairwise

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.shared_tables import SharedTables
from partita.formulation.network.network import INFINITE, evaluate
from partita.formulation.network.network_file import network_json
from partita.formulation.pipeline.stage_transfers import transfer_price
from partita.formulation.placement.placement import of_rows
from partita.formulation.strategies.transitions import space
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.atoms import atoms
from partita.model.graph.batch import with_batch
from partita.model.graph.folded import folded, passes
from partita.model.graph.layout import B, P, R
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES
from partita.model.graph.stages import boundaries, stage, stage_kind
from partita.model.machine.collective_price import FREE, CollectivePrice
from partita.model.machine.machine import Machine, stage_machine

from ..levels import some
from .encodings import encoded_with

WHOLE = Machine.adhoc((2, 4))
ROW = (2, 1)
MACHINE, TRANSFER = stage_machine(WHOLE, ROW), transfer_price(WHOLE, ROW)
PLACEMENT = of_rows(((1, 2), (1, 2)))


@cache
def graph(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return with_batch(capture(module, inputs, batch=8), 4)


def encoded(pcg: PCG, machine: Machine = MACHINE, **options: object) -> Encoding:
    given = {"micro_batches": 2, "dtype": "mixed-float16", "optimizer": "adamw", "transfer": TRANSFER} | options
    return encoded_with(pcg, machine, PLACEMENT, **given)


def drawn(encoding: Encoding, source: random.Random) -> list[int]:
    return [source.randrange(len(v.cost)) for v in encoding.network.variables]


@pytest.mark.parametrize(
    ("name", "every"),
    some([("gpt2", 1), ("llama-70b", 1), ("mbart-4.7b", 1), ("inception-v3", 3), ("swin-1.8b", 3)], 2),
)
def test_plans_of_stages_cost_what_their_network_says(name: str, every: int) -> None:
    """To the nanosecond and the byte, for random assignments, with segments that are computed again.

    Messages are waited for, occupy their sender, or pass between slots; or do not hide, though the program overlaps.
    """
    pcg, source, shared, compared = graph(name), random.Random(name), SharedTables(), 0
    busy = replace(MACHINE, hidden_share=0.37)
    forms = cycle([(MACHINE, True, False), (busy, True, True), (MACHINE, False, False), (MACHINE, True, True)])
    for first in range(0, len(boundaries(pcg)) - every, every):
        part, (machine, overlap, delays) = stage(pcg, first, first + every).graph, next(forms)
        form = {"in_flight": 2, "overlap": overlap, "delays_messages": delays}
        found = encoded(part, machine, shared=shared, recompute=MODES, **form)
        reserve = MACHINE.device.capacity_bytes - found.network.capacities[0]
        for assignment in (found.settled(drawn(found, source)) for _ in range(4)):
            result = evaluate(found.network, assignment)
            if result.cost < INFINITE:
                plan = Plan(
                    part, machine, PLACEMENT, 2, choices(found, assignment), "mixed-float16", in_flight=2,
                    transfer=TRANSFER, recompute=found.recomputed(assignment), overlap=overlap, together=found.together,
                )  # fmt: skip
                price = stage_price(plan, delays_messages=delays)
                assert (price.objective_ns, price.memory_bytes) == (result.cost, result.use[0] + reserve)
                compared += 1
    assert compared > 2
    assert Plan.from_json(plan.to_json()) == plan


def test_layers_that_read_what_another_list_computed_are_copies_of_a_chain() -> None:
    network = encoded(graph("mbart-4.7b"), transfer=None).network
    name = [v.name for v in network.variables]
    ((chain, reads),) = ((chain, [name[v] for v in chain.reads]) for chain in network.chains if chain.reads)
    assert reads == ["encoder_norm shared"] and len(chain) == 2
    assert [name[b] for b in chain.boundaries[1:]] == ["decoder.0.add_3 shared", "decoder.1.add_3 shared"]


@pytest.mark.parametrize("name", ["gpt2", "mbart-4.7b", "alphafold2-87m"])
def test_tables_of_other_stages_change_nothing(name: str) -> None:
    """Nor do those of other layers of all passes."""
    pcg, shared = graph(name), SharedTables()
    pcg = folded(pcg).graph if passes(pcg) > 1 else pcg
    count = len(boundaries(pcg)) - 1
    for first, last in [(0, count), (0, 2), (1, 3), (2, 3), (1, count)]:
        part = stage(pcg, first, last).graph
        for n, modes, versions in ((1, ("none",), 0), (2, ("none",), 2), (2, MODES, 0), (2, ("none",), 0)):
            options = {"in_flight": n, "recompute": modes, "weight_versions": versions, "dtype": "float32"}
            options["between_passes"] = n
            alone, found = (encoded(part, shared=x, **options).network for x in (None, shared))
            assert network_json(found) == network_json(alone)


def test_stages_together_cost_what_the_whole_costs() -> None:
    """Where each tensor that crosses has the layout to which the whole graph converts it, and transfers are free.

    Without overlap: the first layer of every stage hides nothing.
    """
    pcg, source = graph("llama-70b"), random.Random(0)
    bounds = boundaries(pcg)
    crossing = {pcg.nodes[i].name: i for b in bounds for i in b.crossing}
    whole = encoded(pcg, transfer=None, overlap=False)
    assignment = drawn(whole, source)
    taken: dict[str, int] = {v.name: o for v, o in zip(whole.network.variables, assignment, strict=True)}
    at = {}
    for name, index in crossing.items():
        hub, table = whole.hubs[index]
        letters = space(PLACEMENT.sizes, atoms(pcg)[index].sizes).letters[table.codes]
        plain = [n for n, layout in enumerate(letters) if P not in layout]
        taken[f"{name} shared"] = assignment[hub] = source.choice(plain)
        at[name] = int(table.codes[assignment[hub]])
    total = 0
    for first, last in pairwise(range(len(bounds))):
        part = encoded(stage(pcg, first, last).graph, transfer=None, overlap=False)
        moved = {f"{name} {way}": name for name in crossing for way in ("received", "sent")}
        options = []
        for number, variable in enumerate(part.network.variables):
            name = variable.name.removesuffix(" shared")
            if name in moved and variable.name == name:
                domain = next(d for v, d in part.operators.values() if v == number)
                options.append([int(code) for code in domain.output].index(at[moved[name]]))
            elif name in moved:
                options.append(taken[f"{moved[name]} shared"])
            else:
                options.append(taken[variable.name])
        total += evaluate(part.network, options).cost - part.network.constant  # each stage has positions of its own
    assert total == evaluate(whole.network, assignment).cost - whole.network.constant


def test_micro_batches_in_flight_multiply_what_is_kept() -> None:
    part = stage(graph("gpt2"), 2, 5).graph
    assignment = drawn(encoded(part), random.Random(1))
    one, two, five = (evaluate(encoded(part, in_flight=n).network, assignment).use[0] for n in (1, 2, 5))
    assert five - one == 4 * (two - one) > 0


@pytest.mark.parametrize(
    ("overlap", "delays", "received", "sent"), [(False, False, 4, 4), (True, False, 2, 2), (True, True, 1, 0)]
)
def test_handing_on_costs_a_transfer_each_way(overlap: bool, delays: bool, received: int, sent: int) -> None:
    """Of both ends in both micro-batches, of the sender, or of the first one."""
    part, lines = stage(graph("gpt2"), 1, 2).graph, (FREE, CollectivePrice(7.0, 0.5))
    free, paid = (encoded(part, transfer=line, overlap=overlap, delays_messages=delays) for line in lines)
    for index in (*part.of("receive"), *part.sends):
        variable, domain = paid.operators[index]
        more = paid.network.variables[variable].cost - free.network.variables[variable].cost
        sizes, count = domain.output_space.numel[domain.output] * 2, sent if index in part.sends else received
        assert more.tolist() == [count * lines[1].ns(int(size)) for size in sizes]


def test_no_addends_are_handed_on() -> None:
    part = stage(graph("gpt2"), 1, 2).graph
    found = encoded(part)
    for index in (*part.of("receive"), *part.sends):
        _, domain = found.operators[index]
        letters = domain.output_space.letters[domain.output]
        assert P not in letters and {R, B} < {*letters.ravel().tolist()}


def test_a_tied_weight_costs_an_exchange_and_has_whole_states() -> None:
    pcg = graph("gpt2")
    part = stage(pcg, 0, 1).graph
    name = "token_embedding.weight"
    index = next(i for i, n in enumerate(part.nodes) if n.name == name)
    free, paid = (encoded(part, transfer=line) for line in (None, CollectivePrice(7.0, 0.5)))
    variable, stored = paid.weights[index]
    more = paid.network.variables[variable].cost - free.network.variables[variable].cost
    assert not stored.sharded.any()
    assert more.tolist() == [CollectivePrice(7.0, 0.5).ns(4 * int(n)) for n in stored.numel]


def test_storage_of_a_parameter_can_be_fixed() -> None:
    pcg = graph("gpt2")
    part = stage(pcg, 0, 1).graph
    name = "token_embedding.weight"
    index = next(i for i, n in enumerate(part.nodes) if n.name == name)
    _, stored = encoded(part, stored={name: (B, R)}).weights[index]
    assert {stored.space.layout(int(code)) for code in stored.codes} == {(B, R)}
    with pytest.raises(PartitaError, match="cannot be stored"):
        encoded(part, stored={name: (P, P)})
    with pytest.raises(PartitaError, match="no node is named"):
        encoded(part, stored={"no.weight": (B, R)})


def test_alike_stages_are_of_one_kind() -> None:
    """And their networks are equal."""
    pcg = graph("gpt2")
    assert stage_kind(pcg, 1, 2) == stage_kind(pcg, 2, 3) != stage_kind(pcg, 1, 3)
    assert stage_kind(pcg, 0, 1) != stage_kind(pcg, 1, 2)
    swin = graph("swin-1.8b")
    parts = [(a, b) for b in range(len(boundaries(swin))) for a in range(b)]
    known: dict[object, list[list[int]]] = {}
    for first, last in parts:
        tables = [v.cost.tolist() for v in encoded(stage(swin, first, last).graph).network.variables]
        assert known.setdefault(stage_kind(swin, first, last), tables) == tables
    assert len(known) < len(parts)


def test_a_transfer_takes_the_outermost_level_of_the_pipeline() -> None:
    """All devices of a node at once: each has its share of the node's link."""
    assert transfer_price(WHOLE, (1, 1)) == FREE
    across, inside = transfer_price(WHOLE, (2, 1)), transfer_price(WHOLE, (1, 2))
    launch = WHOLE.device.launch_ns
    assert across == CollectivePrice(launch + WHOLE.latency_ns(0), 1e9 / WHOLE.per_device_bandwidth(0))
    assert inside == CollectivePrice(launch + WHOLE.latency_ns(1), 1e9 / WHOLE.levels[1].bandwidth)
