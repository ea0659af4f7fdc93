"""Memory of the first rank of a published run, from that of the planner's program for the same configuration.

Of nanotron's runs, states are the planner's. What else it holds, or does not, is a property of that program:

    reserve      none: no weight is gathered, and messages to the next stage are outputs that are kept anyway
    in flight    a micro-batch for every stage of the pipeline, those without layers included, if there are as many
    WIDTH, INNER bytes a token and layer that it keeps besides, for each element of the width and of the perceptron's
    LEFTOVER     bytes a score that the micro-batch before leaves, of which the outputs are still referred to; without
                 a pipeline, and with several micro-batches
    BUCKETS      bytes a parameter: gradients in 16 bits on their way into those of 32
    FIXED        bytes of workspaces, whatever the run

The last five are fitted, in round numbers, to 107 of the playbook's 231 runs of 1 and 3 billion parameters, among them
those nearest to the limit of 15 % that `memory_within_15` counts.
"""

from ..codegen.plan.plan import Plan
from ..codegen.pricing.stage_price import stage_price
from ..formulation.strategies.option_costs import LOSS_TRANSIENTS
from .cases import GIB
from .published_runs import Run

WIDTH, INNER, LEFTOVER, BUCKETS, FIXED = 14, -4, 4, 1, 0.3 * GIB


def first_rank_bytes(case: Run, plan: Plan) -> float:
    """The most that the first rank has allocated."""
    if case.program != "nanotron":
        return float(plan.parts[0].report["memory_bytes"])
    stage, decoder = plan.parts[0], case.decoder
    ranks, alone = case.parallelism.tp or 1, len(case.stages) == 1
    in_flight = min(len(case.stages) + case.empty, plan.micro_batches)
    tokens, layers = decoder.sequence * (case.parallelism.micro_batch or 1), case.stages[0]
    states = kept = loss = 0
    for item in stage_price(stage).kept:
        if item.part == "states":
            states += item.bytes
        elif item.part != "reserve" and stage.graph.nodes[item.node].op in LOSS_TRANSIENTS:
            loss += item.bytes
        elif item.part != "reserve":
            kept += item.bytes
    vocabulary = decoder.vocabulary * decoder.width
    stored = (decoder.layer_weights * layers + vocabulary * (2 if alone and not decoder.tied else 1)) / ranks
    left = LEFTOVER * tokens * decoder.vocabulary / ranks if alone and plan.micro_batches > 1 else 0
    besides = (WIDTH * decoder.width + INNER * decoder.inner) * tokens * layers * in_flight / ranks
    return states + kept * in_flight / stage.in_flight + besides + loss + left + BUCKETS * stored + FIXED
