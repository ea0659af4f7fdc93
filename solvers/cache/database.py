"""A fault-tolerant database in one file, shared by processes.

SQLite with a write-ahead log: a process killed during a write leaves the previous contents. A damaged file is set aside
and recreated; an unusable one is ignored. A failure only costs time.
"""

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
"""Of the file format; files of other versions are recreated."""
PATIENCE = 2.0
"""Seconds to wait for another process's lock."""
REST = 60.0
"""Seconds to ignore a database that was locked."""
SET_ASIDE = 3
"""Number of damaged files kept."""

_TOUCH_MS = 3_600_000  # least time between updates of an entry's last use
_CHECK_EVERY = 128  # writes between checks of the size
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH})
_FORKED: list[sqlite3.Connection | None] = []  # a parent process's connections: must be neither used nor closed here
_TABLES = """
CREATE TABLE entries (key BLOB, part TEXT, value BLOB, used INTEGER, PRIMARY KEY (key, part));
CREATE INDEX entries_by_use ON entries (used);
"""


class _OtherFormatError(Exception):
    """The file has another version."""


class Database:
    """Bytes by key (bytes) and part (text); beyond `limit_bytes` the least recently used are evicted.

    No method raises for problems with the file: each is reported to `warn` once. Threads may share one; a forked
    process opens its own connection.
    """

    def __init__(self, path: Path, limit_bytes: int, warn: Callable[[str], None]) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._warn = warn
        self._reported: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None  # its inode
        self._rest_until = -1.0
        self._writes = 0

    def read(self, key: bytes) -> dict[str, bytes]:
        """The values of a key, by part."""

        def action(connection: sqlite3.Connection) -> dict[str, bytes]:
            now = _now()
            rows = connection.execute(
                "SELECT part, value, used < ? FROM entries WHERE key = ?", (now - _TOUCH_MS, key)
            ).fetchall()
            if any(long_ago for _, _, long_ago in rows):
                connection.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
            return {part: value for part, value, _ in rows if isinstance(part, str) and isinstance(value, bytes)}

        return self._run(action, {})

    def write(self, key: bytes, part: str, value: bytes) -> None:
        """Store a value, replacing any before."""

        def action(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, part, value, _now()))
            self._writes += 1
            if self._writes % _CHECK_EVERY == 0:
                self._shrink(connection)

        self._run(action, None)

    def forget(self, key: bytes) -> None:
        """Delete a key."""
        self._run(lambda connection: connection.execute("DELETE FROM entries WHERE key = ?", (key,)), None)

    def close(self) -> None:
        """Close the file; the next use reopens it."""
        with self._lock:
            self._disconnect()

    def _run(self, action: Callable[[sqlite3.Connection], T], default: T) -> T:
        """The result of the action, or `default` if the file is unusable."""
        if self._process != os.getpid():
            _FORKED.append(self._connection)
            self._reset()
        with self._lock:
            if time.monotonic() < self._rest_until:
                return default
            for _ in range(2):  # retry once with a new file
                try:
                    if self._connection is None:
                        self._connection = self._open()
                    return action(self._connection)
                except TimeoutError:
                    self._pause()
                    break
                except _OtherFormatError:
                    self._replace(keep=False)
                except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last from text in a damaged file
                    if not self._handle(error):
                        break
            return default

    def _handle(self, error: Exception) -> bool:
        """Handle an error; True if the operation should be retried."""
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code in _BUSY:
            self._pause()
            return False
        if self._connection is not None and self._inode() != self._file:  # another process replaced it
            self._disconnect()
            return True
        if code in _DAMAGED or isinstance(error, UnicodeDecodeError):
            return self._replace(keep=True)
        self._rest_until = float("inf")
        self._report(f"cannot be used ({error}); continuing without it")
        self._disconnect()
        return False

    def _pause(self) -> None:
        self._rest_until = time.monotonic() + REST
        self._report("is locked by another process; continuing without it")

    def _report(self, words: str) -> None:
        if words not in self._reported:
            self._reported.add(words)
            self._warn(f"the cache {self.path} {words}")

    # The file

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
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
    def _locked(self) -> Iterator[None]:
        """Lock the opening and replacing of the file; TimeoutError if another process holds the lock."""
        try:
            import fcntl
        except ImportError:  # Windows, which cannot move a file in use anyway
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
        """Set the file aside, or delete it, unless another process did; True if the operation should be retried."""
        self._disconnect()
        try:
            with self._locked():
                if self._file is not None and self._inode() == self._file:
                    aside = self._aside()
                    for suffix in ("-wal", "-shm", ""):  # the log first: it must never be applied to a new file
                        part = self.path.with_name(self.path.name + suffix)
                        if part.exists():
                            part.replace(aside.with_name(aside.name + suffix)) if keep else part.unlink()
                    if keep:
                        self._report(f"was damaged; moved to {aside.name} and recreated")
        except TimeoutError:
            self._pause()
            return False
        except OSError as error:
            return self._handle(error)
        return True

    def _inode(self) -> int | None:
        """The inode of the file, if it exists."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _aside(self) -> Path:
        """The path to set a damaged file aside: a free one, else the oldest."""
        names = [self.path.with_name(f"{self.path.name}.corrupt-{n}") for n in range(1, SET_ASIDE + 1)]
        return min(names, key=lambda name: name.stat().st_mtime if name.exists() else 0.0)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Evict the least recently used tenth at a time, until the file is below its limit."""
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
