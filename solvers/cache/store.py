"""A store of records in memory and on disk, which speeds up equal parts and repeated searches.

Records are not trusted: each carries a digest of its contents and key.
"""

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
from ...model.files import usual_folder
from .database import Database

LIMIT_BYTES = 1 << 30
"""Default size of the database."""
MEMORY_BYTES = 1 << 26
"""Size of the records in memory."""
FILE = "answers.sqlite"
WITHOUT = "none"
"""In place of a folder: no store."""

Record: TypeAlias = Mapping[str, Any]
_CHECK = 16  # bytes


class Store:
    """JSON records by key and part, in memory and in a database in `folder`.

    Without a folder, or if its database is unusable, in memory only. Threads may share a store; an unpickled one
    has its own memory and reports no problems.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        limit_bytes: int = LIMIT_BYTES,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.folder, self.limit_bytes = None if folder is None else Path(folder), limit_bytes
        self._disk = None if self.folder is None else Database(self.folder / FILE, limit_bytes, warn or _warn)
        self._memory: OrderedDict[bytes, dict[str, bytes]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.folder, self.limit_bytes)

    def read(self, key: bytes) -> dict[str, Record]:
        """The records of a key, by part; a key with damaged records is deleted."""
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
        """Store a record, replacing any before."""
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
        """Delete a key."""
        with self._lock:
            self._size -= sum(map(len, self._memory.pop(key, {}).values()))
        if self._disk is not None:
            self._disk.forget(key)

    def close(self) -> None:
        """Close the database; the next use reopens it."""
        if self._disk is not None:
            self._disk.close()


def store_in(cache: Store | Path | str | None) -> Store | None:
    """The store of a `--cache` value: a folder, "none", or None for the default folder. PartitaError if empty."""
    if isinstance(cache, Store):
        return cache
    named = os.environ.get("PARTITA_CACHE") if cache is None else str(cache)
    if named == WITHOUT:
        return None
    if cache is not None and not str(cache):
        raise PartitaError('the path of the cache is empty; for no cache use "none"')
    return Store(Path(named) if named else usual_folder(), _limit())


def _limit() -> int:
    text = os.environ.get("PARTITA_CACHE_LIMIT", str(LIMIT_BYTES))
    if not text.isdecimal():
        raise PartitaError(f"PARTITA_CACHE_LIMIT {text!r}: a number of bytes is needed")
    return int(text)


def _unpickled(folder: Path | None, limit_bytes: int) -> Store:
    return Store(folder, limit_bytes, warn=lambda words: None)


def _warn(words: str) -> None:
    print(f"partita: {words}", file=sys.stderr)


def _sealed(key: bytes, part: str, record: Record) -> bytes:
    body = zlib.compress(json.dumps(record).encode(), 1)
    return _check(key, part, body) + body


def _opened(key: bytes, part: str, value: bytes) -> Record | None:
    """The record sealed under this key and part; None if the digest differs."""
    check, body = value[:_CHECK], value[_CHECK:]
    if check != _check(key, part, body):
        return None
    record: Record = json.loads(zlib.decompress(body))
    return record


def _check(key: bytes, part: str, body: bytes) -> bytes:
    return blake2b(b"".join((key, part.encode(), b"\0", body)), digest_size=_CHECK).digest()
