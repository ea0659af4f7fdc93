"""The machine to plan for, as given on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import PartitaError
from ..options import MAX_DEVICES, check_count, check_sizes, option, parse_sizes

if TYPE_CHECKING:
    from .machine import Machine

MAX_LEVELS = 8


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """A preset or file, or several, with their own or other nodes or hierarchy; a hierarchy alone is an ad hoc machine.

    PartitaError: neither machine nor hierarchy, both nodes and hierarchy, or sizes that no machine has.
    """

    machine: str | None = field(
        default=None,
        metadata=option(str, "A machine's name, or its YAML file; of `plan` several, joined by commas: their worst."),
    )
    nodes: int | None = field(
        default=None, metadata=option(int, "Number of the machine's nodes; of `cpu` and `local`, ranks.")
    )
    hierarchy: tuple[int, ...] | None = field(
        default=None,
        metadata=option(
            str,
            "Levels of an ad hoc machine, outermost first: 2x4.",
            parse=lambda text: parse_sizes("--hierarchy", text),
        ),
    )

    def __post_init__(self) -> None:
        if self.machine is None and self.hierarchy is None:
            raise PartitaError("give --machine NAME or --hierarchy, such as --hierarchy 2x4")
        if self.nodes is not None and self.hierarchy is not None:
            raise PartitaError("--nodes and --hierarchy both say how many devices there are; give one of them")
        check_count("--nodes", self.nodes, MAX_DEVICES)
        if self.hierarchy is not None:
            check_sizes("--hierarchy", self.hierarchy, MAX_LEVELS)

    def load(self) -> Machine:
        """The only machine. PartitaError: an unknown name, a file or a hierarchy that does not fit, or several."""
        machines = self.load_all()
        if len(machines) > 1:
            raise PartitaError(f"--machine names {len(machines)} machines; only `partita plan` takes several")
        return machines[0]

    def load_all(self) -> tuple[Machine, ...]:
        """All machines that are named. PartitaError: see `load`."""
        from .machine import Machine  # reads YAML, which `--help` need not

        if self.machine is None:
            assert self.hierarchy is not None
            return (Machine.adhoc(self.hierarchy),)
        names = [name.strip() for name in self.machine.split(",")]
        if len(names) > 1 and not all(names):
            raise PartitaError(f"--machine {self.machine}: a name is empty; commas separate machines")
        return tuple(map(self._load, names))

    def _load(self, name: str) -> Machine:
        from .machine import Machine

        machine = Machine.load(name, nodes=self.nodes)
        if self.hierarchy is None:
            return machine
        if len(self.hierarchy) != len(machine.levels):
            raise PartitaError(
                f"--hierarchy has {len(self.hierarchy)} levels, machine {machine.name} has {len(machine.levels)}"
            )
        levels = tuple(replace(level, size=size) for level, size in zip(machine.levels, self.hierarchy, strict=True))
        return replace(machine, levels=levels)
