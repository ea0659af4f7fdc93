"""What was answered before, kept in memory and on disk, so that equal parts and searches begun again are quick.

Nothing that is kept is trusted: a record carries a digest of what it says and of what it is kept under.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from ...model.errors import PartitaError
from .database import Database

LIMIT_BYTES = 1 << 30
"""Of the database."""
MEMORY_BYTES = 1 << 26
"""Of what is kept in memory."""
FILE = "answers.sqlite"
WITHOUT = "none"
"""In the place of a folder: keep nothing."""

Record: TypeAlias = Mapping[str, Any]
_CHECK = 16  # bytes


class Store:
    """Records (of numbers, texts, lists and dicts) by key and part: the memory's, and those of `folder`'s database.

    Without a folder, or where its database cannot be used, the memory alone. Threads may share a store; a process that
    it is sent to has a memory of its own, and is silent.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        limit_bytes: int = LIMIT_BYTES,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.limit_bytes = None if folder is None else Path(folder), limit_bytes
        self._disk = None if self.folder is None else Database(self.folder / FILE, limit_bytes, tell or _warn)
        self._memory: OrderedDict[bytes, dict[str, bytes]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, (self.folder, self.limit_bytes)

    def read(self, key: bytes) -> dict[str, Record]:
        """What is kept under a key, by part; what is damaged is not, and forgotten."""
        found = {} if self._disk is None else self._disk.read(key)
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                found = found | self._memory[key]
        records = {part: _opened(key, part, value) for part, value in found.items()}
        intact = {part: record for part, record in records.items() if record is not None}
        if len(intact) < len(records):
            self.forget(key)
        return intact

    def write(self, key: bytes, part: str, record: Record) -> None:
        """Keep a record in the place of what was there."""
        value = _sealed(key, part, record)
        with self._lock:
            here = self._memory.setdefault(key, {})
            self._size += len(value) - len(here.get(part, b""))
            here[part] = value
            self._memory.move_to_end(key)
            while self._size > MEMORY_BYTES:
                _, gone = self._memory.popitem(last=False)
                self._size -= sum(map(len, gone.values()))
        if self._disk is not None:
            self._disk.write(key, part, value)

    def forget(self, key: bytes) -> None:
        """Drop what is kept under a key."""
        with self._lock:
            self._size -= sum(map(len, self._memory.pop(key, {}).values()))
        if self._disk is not None:
            self._disk.forget(key)

    def close(self) -> None:
        """Let the database go; the next use opens it again."""
        if self._disk is not None:
            self._disk.close()


def store_in(cache: Store | Path | str | None) -> Store | None:
    """The store that a user means: a folder, "none", or None for the usual place. PartitaError for an empty path."""
    if isinstance(cache, Store):
        return cache
    named = os.environ.get("PARTITA_CACHE") if cache is None else str(cache)
    if named == WITHOUT:
        return None
    if cache is not None and not str(cache):
        raise PartitaError('the path of the cache is empty; "none" means without')
    return Store(Path(named) if named else usual_folder(), _limit())


def usual_folder() -> Path | None:
    """Where programs keep what they can make again; None where nothing says."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    places = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return places.get(sys.platform, named if named.is_absolute() else home / ".cache") / "partita"


def _limit() -> int:
    text = os.environ.get("PARTITA_CACHE_LIMIT", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise PartitaError(f"PARTITA_CACHE_LIMIT {text!r}: a number of bytes is needed")
    return int(text)


def _elsewhere(folder: Path | None, limit_bytes: int) -> Store:
    return Store(folder, limit_bytes, tell=lambda words: None)


def _warn(words: str) -> None:
    print(f"partita: {words}", file=sys.stderr)


def _sealed(key: bytes, part: str, record: Record) -> bytes:
    said = zlib.compress(json.dumps(record).encode(), 1)
    return _check(key, part, said) + said


def _opened(key: bytes, part: str, value: bytes) -> Record | None:
    """What was sealed under this key and part; None if it was not."""
    check, said = value[:_CHECK], value[_CHECK:]
    if check != _check(key, part, said):
        return None
    record: Record = json.loads(zlib.decompress(said))
    return record


def _check(key: bytes, part: str, said: bytes) -> bytes:
    return blake2b(b"".join((key, part.encode(), b"\0", said)), digest_size=_CHECK).digest()
