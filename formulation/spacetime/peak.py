"""What is alive on a device at its peak, in words: equal layers and micro-batches are told once, with a count."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...model.sizes import bytes_text
from ...model.wording import runs
from .lifetimes import Span
from .looped import Looped
from .mask import GRADIENT, RECOMPUTED, SAVED, STATES, VALUE
from .materialized import Collective, Instruction, Run
from .names import pattern
from .op import Op, Phase
from .predict import Held, Prediction

MOST_SHOWN = 12

Label: TypeAlias = tuple[str, int]
"""A transformation's label, and its occurrence among an operator's cuts."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Bytes of equal things that are alive together: `count` tensors of kind `kind` (`MEMORY`)."""

    size_bytes: int
    kind: str
    text: str
    count: int


def alive(found: Prediction, device: int) -> tuple[Alive, ...]:
    """What is alive on a device at its peak, the largest first; the bytes add up to the peak."""
    nodes, own = found.program.tasks.graph.pcg.nodes, found.program.devices[device]
    several = micro_batches(found.program.tasks.graph.forward, device)
    lines = list(_lasting(found, device))
    gradients: list[tuple[str, int]] = []
    together: dict[tuple[str, str], list[Held]] = defaultdict(list)
    for held in found.alive(device):
        span = held.span
        name = nodes[span.tensor.node].name
        if span.kind == "gradients":
            gradients.append((name, span.size_bytes))
        else:
            together[span.kind, _what(span, own, name)].append(held)
    lines += _of_parameters("gradients", gradients, sum(size for _, size in gradients))
    for (kind, what), equal in together.items():
        layers = len({nodes[held.span.tensor.node].name for held in equal})
        cuts = [labels for held in equal if (labels := _labels(held, own, found.looped))]
        counts = [f"{layers} layers"] if layers > 1 else []
        for label, count in several.items():
            numbers = {labels[label] for labels in cuts if label in labels}
            counts += [f"{label[0]} {_ranges(numbers)} of {count}"] if numbers else []
        text = f"{what} ({'; '.join(counts)})" if counts else what
        lines.append(Alive(sum(held.span.size_bytes for held in equal), kind, text, len(equal)))
    return tuple(sorted(lines, key=lambda line: (-line.size_bytes, line.text)))


def shown_lines(lines: Sequence[Alive]) -> list[str]:
    """At most `MOST_SHOWN` lines of text; the last sums up what is left."""
    kept = lines if len(lines) <= MOST_SHOWN else lines[: MOST_SHOWN - 1]
    shown = [(line.size_bytes, line.text) for line in kept]
    rest = lines[len(kept) :]
    if rest:
        shown.append((sum(line.size_bytes for line in rest), f"{sum(line.count for line in rest)} other tensors"))
    return [f"{bytes_text(size):>8}  {text}" for size, text in shown]


def micro_batches(ops: Iterable[Op], device: int) -> dict[Label, int]:
    """The transformations that all forward operators of a device have, and of which it runs several parts.

    In their order among the cuts, with the number of parts that the device runs, of a template in the plan.
    """
    own = [op for op in ops if op.device == device]
    numbers: dict[Label, set[int]] = defaultdict(set)
    having: dict[Label, int] = defaultdict(int)
    loops: dict[Label, int] = {}
    for op in own:
        for label, cut in op.labels.items():
            numbers[label].add(cut.number)
            having[label] += 1
            if cut.of:
                loops[label] = cut.of
    return {
        label: loops.get(label, len(found))
        for label, found in numbers.items()
        if len(found) > 1 and having[label] == len(own)
    }


def _lasting(found: Prediction, device: int) -> Iterator[Alive]:
    """What takes memory for the whole step."""
    graph, always = found.program.tasks.graph, found.living[device].always
    runs = [x.op for x in found.program.devices[device] if isinstance(x, Run)]
    for kind, phase in (("weights", Phase.STORE), ("states", Phase.UPDATE)):
        lasting = [op for op in runs if op.phase is phase and (phase is Phase.STORE or op.swapped is None)]
        numels = [(op.of.name, op.mask(None).numel) for op in lasting]
        of = "parameters and buffers" if any(op.of.op == "buffer" for op in runs if op.phase is phase) else "parameters"
        yield from _of_parameters(kind, numels, always[kind], of)
    if always["inputs"]:
        yield Alive(always["inputs"], "inputs", "inputs: the whole batch, and buffers", len(graph.given))


def _of_parameters(
    kind: str, shares: Sequence[tuple[str, int]], size_bytes: int, of: str = "parameters"
) -> Iterator[Alive]:
    """One line for what is held of all parameters; `shares`: name and share of each, to name the largest."""
    if not size_bytes:
        return
    by_name: dict[str, int] = defaultdict(int)
    for name, share in shares:
        by_name[pattern(name)] += share
    largest = max(by_name, key=lambda name: (by_name[name], name))
    count, what = len({name for name, _ in shares}), "optimizer states" if kind == "states" else kind
    part = f", {by_name[largest] / sum(by_name.values()):.0%} of it for {largest}"
    yield Alive(size_bytes, kind, f"{what} of {count} {of}{part}" if count > 1 else f"{what} of {largest}", count)


def _what(span: Span, own: Sequence[Instruction], name: str) -> str:
    """What lies in an allocation."""
    words = {VALUE: "{}", RECOMPUTED: "{}, recomputed", SAVED: "what {} keeps besides", GRADIENT: "the gradient of {}"}
    words[STATES] = "optimizer states of {}, for its update"
    text = words.get(span.tensor.kind, span.tensor.kind + " {}").format(pattern(name))
    first = own[span.touched[0]]
    if span.staging and isinstance(first, Collective):
        text += f", a copy for its {first.kind.replace('_', '-')}"
    return text + (", for backward" if span.kind == "activations" else "")


def _labels(held: Held, own: Sequence[Instruction], looped: Looped) -> dict[Label, int]:
    """The parts of the first task that makes or reads it, with the numbers that they have in the plan."""
    task = next((x.op for x in (own[at] for at in held.span.touched) if isinstance(x, Run)), None)
    numbers: dict[Label, int] = {}
    for label, cut in task.labels.items() if task else ():
        if cut.of and looped.loop is not None:
            numbers[label] = looped.loop.shown[cut.number] if held.micro is None else held.micro
        else:
            numbers[label] = cut.number
    return numbers


def _ranges(numbers: Iterable[int]) -> str:
    """`1 to 3, 5`, counted from 1."""
    ends = [(first + 1, last + 1) for first, last in runs(numbers)]
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ends)
