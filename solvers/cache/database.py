"""A small database in one file that many processes share, and that may fail at any time without harm.

SQLite with a write-ahead log: a process killed in the middle of a write leaves what was there before. What cannot be
read is set aside and begun anew; what cannot be used now is gone on without. Only time is lost.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

VERSION = 1
"""Of the file's format; a file of another one is begun anew."""
PATIENCE = 2.0
"""Seconds to wait for another process's lock."""
REST = 60.0
"""Seconds to go on without a database that was locked."""
SET_ASIDE = 3
"""Damaged files that are kept."""

_TOUCH_MS = 3_600_000  # a use is noted where the last one noted is so long ago
_LOOK = 128  # writes between looks at the size
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH})
_FORKED: list[sqlite3.Connection | None] = []  # a parent's connections, which must be neither used nor closed here
_TABLES = """
CREATE TABLE entries (key BLOB, part TEXT, value BLOB, used INTEGER, PRIMARY KEY (key, part));
CREATE INDEX entries_by_use ON entries (used);
"""


class _OtherFormatError(Exception):
    """The file is of another version."""


class Database:
    """Bytes by key (bytes) and part (text), the least recently used forgotten beyond `limit_bytes`.

    No method raises for what is wrong with the file: `tell` hears it once. Threads may share one; a forked process
    opens the file for itself.
    """

    def __init__(self, path: Path, limit_bytes: int, tell: Callable[[str], None]) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._tell = tell
        self._told: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None  # its inode
        self._rest_until = -1.0
        self._writes = 0

    def read(self, key: bytes) -> dict[str, bytes]:
        """What is kept under a key, by part."""

        def action(connection: sqlite3.Connection) -> dict[str, bytes]:
            now = _now()
            rows = connection.execute(
                "SELECT part, value, used < ? FROM entries WHERE key = ?", (now - _TOUCH_MS, key)
            ).fetchall()
            if any(long_ago for _, _, long_ago in rows):
                connection.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
            return {part: value for part, value, _ in rows if isinstance(part, str) and isinstance(value, bytes)}

        return self._do(action, {})

    def write(self, key: bytes, part: str, value: bytes) -> None:
        """Keep a value in the place of what was there."""

        def action(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, part, value, _now()))
            self._writes += 1
            if self._writes % _LOOK == 0:
                self._shrink(connection)

        self._do(action, None)

    def forget(self, key: bytes) -> None:
        """Drop what is kept under a key."""
        self._do(lambda connection: connection.execute("DELETE FROM entries WHERE key = ?", (key,)), None)

    def close(self) -> None:
        """Let the file go; the next use opens it again."""
        with self._lock:
            self._let_go()

    def _do(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """What the action returns; `otherwise` where the file does not allow it."""
        if self._process != os.getpid():
            _FORKED.append(self._connection)
            self._begin()
        with self._lock:
            if time.monotonic() < self._rest_until:
                return otherwise
            for _ in range(2):  # once more with a new file
                try:
                    if self._connection is None:
                        self._connection = self._open()
                    return action(self._connection)
                except TimeoutError:
                    self._pause()
                    break
                except _OtherFormatError:
                    self._replace(keep=False)
                except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last from words on a damaged file
                    if not self._mended(error):
                        break
            return otherwise

    def _mended(self, error: Exception) -> bool:
        """Handle an error; True if the operation should be tried again."""
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code in _BUSY:
            self._pause()
            return False
        if self._connection is not None and self._inode() != self._file:  # another process replaced it
            self._let_go()
            return True
        if code in _DAMAGED or isinstance(error, UnicodeDecodeError):
            return self._replace(keep=True)
        self._rest_until = float("inf")
        self._say(f"cannot be used ({error}); going on without it")
        self._let_go()
        return False

    def _pause(self) -> None:
        self._rest_until = time.monotonic() + REST
        self._say("is locked by another process; going on without it")

    def _say(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self._tell(f"the cache {self.path} {words}")

    # The file

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            connection = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            try:
                self._file = self._inode()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if version != VERSION and (version or tables):
                    raise _OtherFormatError
                if not version:
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                if not version:
                    connection.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {VERSION};COMMIT;")
                self._shrink(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else opens or replaces the file meanwhile; TimeoutError where another process does for long."""
        try:
            import fcntl
        except ImportError:  # Windows, where a file in use cannot be moved anyway
            yield
            return
        until = time.monotonic() + PATIENCE
        with self.path.with_name(self.path.name + ".lock").open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise TimeoutError from None
                    time.sleep(0.01)
            yield

    def _replace(self, keep: bool) -> bool:
        """Set the file aside, or delete it, unless another process did so; whether that was possible."""
        self._let_go()
        try:
            with self._alone():
                if self._file is not None and self._inode() == self._file:
                    aside = self._aside()
                    for suffix in ("-wal", "-shm", ""):  # the log first: a new file must never meet it
                        part = self.path.with_name(self.path.name + suffix)
                        if part.exists():
                            part.replace(aside.with_name(aside.name + suffix)) if keep else part.unlink()
                    if keep:
                        self._say(f"was damaged: set aside as {aside.name}, begun anew")
        except TimeoutError:
            self._pause()
            return False
        except OSError as error:
            return self._mended(error)
        return True

    def _inode(self) -> int | None:
        """Which file is there now."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _aside(self) -> Path:
        """The name for a damaged file: a free one, else the oldest."""
        names = [self.path.with_name(f"{self.path.name}.corrupt-{n}") for n in range(1, SET_ASIDE + 1)]
        return min(names, key=lambda name: name.stat().st_mtime if name.exists() else 0.0)

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Forget a tenth at a time of what was not used for longest, until the file is below its limit."""
        while _bytes(connection) > self.limit_bytes:
            (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
            if not count:
                return
            connection.execute(
                "DELETE FROM entries WHERE rowid IN (SELECT rowid FROM entries ORDER BY used LIMIT ?)",
                (max(1, count // 10),),
            )
            connection.execute("PRAGMA incremental_vacuum").fetchall()


def _bytes(connection: sqlite3.Connection) -> int:
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


def _now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
