"""The times of a device's instructions in a simulated step."""

from dataclasses import dataclass

from .repetition import Numbers


@dataclass(frozen=True, slots=True)
class Times:
    """The instructions of a device in order: places in the program, micro-batches; when reached, started, ended."""

    places: Numbers
    micros: Numbers
    reached: Numbers
    starts: Numbers
    ends: Numbers
