"""The context of one planning run besides its problem: the model, and where its news goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...model.initial_values import InitialValues
from ...solvers.gap import relative_gap
from ...solvers.protocol import Progress

if TYPE_CHECKING:
    from ...model.capture.objective import TrainedModule

Tell: TypeAlias = Callable[[str | Progress], None]


@dataclass(frozen=True)
class Context:
    """The model to plan, and where the news goes.

    `model` describes the model in plan and report, `module` is the module itself with example inputs and loss, and
    `initial` says how its weights begin. Seconds count from `start`. `save_network`: the file in which the first
    placement's cost network is kept. `emits`: each plan's program is emitted once, to be sure that it can be.
    `explains`: where nothing fits, it is searched whether anything does without the options that narrow the space.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    module: TrainedModule | None = None
    progress: Tell | None = None
    save_network: Path | None = None
    start: float = field(default_factory=time.monotonic)
    initial: InitialValues | None = None
    emits: bool = True
    explains: bool = True

    def tell(self, words: str) -> None:
        if self.progress is not None:
            self.progress(words)


def print_progress(news: str | Progress) -> None:
    """Print words, or the best plan so far, to standard error."""
    if isinstance(news, str):
        print(news, file=sys.stderr)
    elif news.incumbent is not None:
        share = relative_gap(news.incumbent, news.bound)
        print(f"{news.seconds:6.1f} s  best {news.incumbent / 1e6:.3f} ms  gap {share:.2%}", file=sys.stderr)
