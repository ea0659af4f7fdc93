"""Registries of named entries: the package's own, and those of installed packages (entry points)."""

from importlib import import_module
from typing import Protocol, TypeVar

from .errors import PartitaError
from .wording import did_you_mean


class Named(Protocol):
    """An entry of a registry."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(dict[str, T]):
    """Entries of one `kind` by name, registered by the module `own` and by installed entry points of `group`."""

    def __init__(self, kind: str, group: str, own: str) -> None:
        super().__init__()
        self.kind, self.group, self.own, self.loaded = kind, group, own, False

    def add(self, entry: T) -> T:
        """Add an entry; ValueError if its name is taken."""
        if entry.name in self:
            raise ValueError(f"{self.kind} {entry.name!r} is registered already")
        self[entry.name] = entry
        return entry

    def load(self) -> None:
        """Import, once, all modules that register entries."""
        if not self.loaded:
            self.loaded = True
            import_module(self.own)
            from importlib.metadata import entry_points  # slow to load

            for point in entry_points(group=self.group):
                point.load()

    def find(self, name: str) -> T:
        """The entry of a name. Raises PartitaError that lists the known names."""
        self.load()
        if name not in self:
            known = sorted(self)
            raise PartitaError(f"unknown {self.kind} {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
        return self[name]

    def every(self) -> tuple[T, ...]:
        """All entries, sorted by name."""
        self.load()
        return tuple(self[name] for name in sorted(self))
