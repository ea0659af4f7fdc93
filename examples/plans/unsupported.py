"""Plans that the primitives cannot express: the unsupported rows of SuperScaler's Table 1.

Each function writes the plan in the obvious way and raises an error with the reason.
"""

from partita import in_order, one_f_one_b, op_assign, op_order, op_trans, split, stages

MODEL, DEVICES, BATCH = "gpt3-1.3b", 4, 8
MICROS = 4


def pipedream(graph, devices, micros=MICROS):
    """Asynchronous 1F1B (Narayanan et al., SOSP'19): every micro-batch updates the weights, with stale gradients.

    A plan preserves the model's results: all micro-batches use the same weights.
    """
    for op in graph.forward:
        op_trans(op, split("batch", micros, "micro"))
    for ops, device in zip(stages(graph, len(devices)), devices):
        op_assign(ops, device)
        names = {graph.pcg.nodes[i].name for op in ops for i in op.of.inputs}
        updates = [op for op in graph.optimizer if op.of.name in names]
        op_order(updates, [op for op in ops if op.coordinate("micro") == micros - 1])


def bytescheduler(graph, devices):
    """ByteScheduler (Peng et al., SOSP'19): the next step's first layers overlap with gradient transfers.

    A plan covers one step; the training loop orders the steps.
    """
    for op in graph.forward:
        for part, device in zip(op_trans(op, split("batch", len(devices))), devices):
            op_assign(part, device)
    early = [op for op in graph.optimizer if op.layer == "layers.0"]
    op_order(early, [op for op in graph.forward if op.layer == "layers.0"])


def terapipe(graph, devices, slices=MICROS):
    """TeraPipe (Li et al., ICML'21): a pipeline over slices of tokens, since tokens do not depend on later ones.

    That follows from the values of the attention mask; a plan sees shapes only, so attention needs all keys.
    """
    for op in graph.forward:
        op_trans(op, split(("ids", 1), slices, "slice"))
    parts = stages(graph, len(devices))
    for ops, device in zip(parts, devices):
        op_assign(ops, device)
    in_order(one_f_one_b(len(devices), slices), parts, label="slice")
