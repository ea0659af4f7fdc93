"""The order in which one device of a pipeline works, for every named schedule.

A function lists the slots of a device: (kind, stage, micro-batch), all counted from 0. It reads nothing but its
arguments, since its source is copied into emitted programs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def one_f_one_b(device, devices, micro_batches):
    """1F1B: a device runs as many forwards ahead as there are devices from it on, then one backward, one forward."""
    ahead = min(devices - device, micro_batches)
    slots = [("forward", device, m) for m in range(ahead)]
    for m in range(micro_batches):
        slots.append(("backward", device, m))
        if m + ahead < micro_batches:
            slots.append(("forward", device, m + ahead))
    return slots


def eager_one_f_one_b(device, devices, micro_batches):
    """Eager 1F1B: nearly twice as many forwards ahead as 1F1B, so that messages have a slot's time to travel."""
    ahead = min(2 * (devices - device) - 1, micro_batches)
    slots = [("forward", device, m) for m in range(ahead)]
    for m in range(micro_batches):
        slots.append(("backward", device, m))
        if m + ahead < micro_batches:
            slots.append(("forward", device, m + ahead))
    return slots


def gpipe(device, devices, micro_batches):
    """GPipe: all forwards, then all backwards."""
    return [(kind, device, m) for kind in ("forward", "backward") for m in range(micro_batches)]


def interleaved(device, devices, micro_batches, chunks):
    """Interleaved 1F1B: a device runs its stages in turn, each for as many micro-batches as there are devices."""
    total = micro_batches * chunks

    def slot(kind, k):
        chunk = k // devices % chunks
        chunk = chunk if kind == "forward" else chunks - 1 - chunk
        return kind, chunk * devices + device, k // (devices * chunks) * devices + k % devices

    ahead = min(2 * (devices - device - 1) + (chunks - 1) * devices, total)
    slots = [slot("forward", k) for k in range(ahead)]
    for k in range(total):
        if k + ahead < total:
            slots.append(slot("forward", k + ahead))
        slots.append(slot("backward", k))
    return slots


def zero_bubble(device, devices, micro_batches):
    """Zero-bubble (ZB-H1): 1F1B whose backwards lead to the stage before alone; weights get their gradients later."""
    ahead = min(devices - device, micro_batches)
    slots = [("forward", device, m) for m in range(ahead)]
    for m in range(micro_batches):
        slots.append(("backward", device, m))
        if m >= device:
            slots.append(("weights", device, m - device))
        if m + ahead < micro_batches:
            slots.append(("forward", device, m + ahead))
    return slots + [("weights", device, m) for m in range(max(0, micro_batches - device), micro_batches)]


def pipedream_2bw(device, devices, micro_batches, steps):
    """1F1B through all steps without a pause; their micro-batches are numbered on.

    A step's update comes when all devices have its gradients: those further back in the pipeline go on meanwhile.
    """
    total = steps * micro_batches
    ahead = min(devices - device, total)
    for m in range(ahead):
        yield "forward", device, m
    for m in range(total + device // 2):
        if m < total:
            yield "backward", device, m
        if m >= device // 2 and (m - device // 2) % micro_batches == micro_batches - 1:
            yield "update", device, (m - device // 2) // micro_batches
        if m + ahead < total:
            yield "forward", device, m + ahead
