"""Kept records survive whatever happens to their file, and whatever happens to it is no failure."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partita.model.errors import PartitaError
from partita.model.files import usual_folder
from partita.solvers.cache import database, store
from partita.solvers.cache.digest import digest_of
from partita.solvers.cache.store import FILE, Store, store_in

Told = list[str]
KEYS = [digest_of("key", n) for n in range(40)]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def opened(tmp_path: Path, told: Told) -> Iterator[Callable[..., Store]]:
    """Stores in one folder, as of several processes."""
    stores: list[Store] = []

    def open_one(folder: Path = tmp_path, **settings: int) -> Store:
        stores.append(Store(folder, warn=told.append, **settings))
        return stores[-1]

    yield open_one
    for one in stores:
        one.close()


def filled(one: Store) -> None:
    for n, key in enumerate(KEYS):
        one.write(key, "a", {"n": n, "list": list(range(300))})
    one.close()


def test_what_one_process_keeps_another_reads(opened: Callable[..., Store]) -> None:
    key, mine, yours = KEYS[0], opened(), opened()
    mine.write(key, "a", {"n": 1, "none": None, "list": [1.5, "x", 1 << 70]})
    mine.write(key, "b", {"n": 2})
    mine.write(key, "b", {"n": 3})
    assert yours.read(key) == {"a": {"n": 1, "none": None, "list": [1.5, "x", 1 << 70]}, "b": {"n": 3}}
    sent = pickle.loads(pickle.dumps(mine))
    assert sent.read(key)["b"] == {"n": 3}
    mine.forget(key)
    assert mine.read(key) == yours.read(key) == sent.read(key) == {}
    sent.close()


def test_without_a_folder_the_memory_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Store()
    filled(alone)
    assert [alone.read(key)["a"]["n"] for key in KEYS] == list(range(40))
    monkeypatch.setattr(store, "MEMORY_BYTES", 1000)
    alone.write(KEYS[0], "a", {"n": 0})  # the last used stays
    assert alone.read(KEYS[0]) and not alone.read(KEYS[1])


# Damage


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(50_000))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def pages_lost(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4096:] = random.Random(1).randbytes(len(raw) - 4096)
    path.write_bytes(raw)


def no_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE entries")
    connection.close()


@pytest.mark.parametrize("damage", [garbage, truncated, pages_lost, no_tables])
def test_a_damaged_file_is_set_aside_once(
    damage: Callable[[Path], None], opened: Callable[..., Store], told: Told, tmp_path: Path
) -> None:
    filled(opened())
    damage(tmp_path / FILE)
    one, other = opened(), opened()
    for n, key in enumerate(KEYS):
        for either in (one, other):
            assert either.read(key).get("a") in (None, {"n": n, "list": list(range(300))})
            either.write(key, "b", {"n": n})
    assert [opened().read(key)["b"]["n"] for key in KEYS] == list(range(40))
    assert [words.rpartition("answers.sqlite ")[2] for words in told] == [
        "was damaged; moved to answers.sqlite.corrupt-1 and recreated"
    ]
    assert (tmp_path / f"{FILE}.corrupt-1").exists()


def test_few_damaged_files_are_kept(opened: Callable[..., Store], tmp_path: Path) -> None:
    for n in range(5):
        garbage(tmp_path / FILE)
        one = opened()
        one.write(KEYS[0], "a", {"n": n})
        reader = opened()
        assert reader.read(KEYS[0]) == {"a": {"n": n}}
        one.close()
        reader.close()
    assert len(list(tmp_path.glob("*.corrupt-*"))) == database.SET_ASIDE


@pytest.mark.parametrize("seed", range(8))
def test_no_wrong_record_is_read_from_spoilt_bytes(seed: int, opened: Callable[..., Store], tmp_path: Path) -> None:
    filled(opened())
    raw, draw = bytearray((tmp_path / FILE).read_bytes()), random.Random(seed)
    for _ in range(200):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    (tmp_path / FILE).write_bytes(raw)
    one = opened()
    for n, key in enumerate(KEYS):
        assert one.read(key) in ({}, {"a": {"n": n, "list": list(range(300))}})
        one.write(key, "b", {"n": n})
        assert one.read(key)["b"] == {"n": n}


def test_a_record_under_another_s_key_is_none(opened: Callable[..., Store], tmp_path: Path) -> None:
    filled(opened())
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("UPDATE entries SET part = 'b' WHERE key = ?", (KEYS[0],))
        connection.execute("UPDATE entries SET value = 'text' WHERE key = ?", (KEYS[1],))
    connection.close()
    one = opened()
    assert (one.read(KEYS[0]), one.read(KEYS[1]), one.read(KEYS[2])["a"]["n"]) == ({}, {}, 2)


def test_a_file_of_another_version_is_begun_anew(opened: Callable[..., Store], told: Told, tmp_path: Path) -> None:
    filled(opened())
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    connection.close()
    one = opened()
    assert one.read(KEYS[0]) == {}
    one.write(KEYS[0], "a", {"n": 1})
    assert opened().read(KEYS[0]) == {"a": {"n": 1}}
    assert told == [] and not list(tmp_path.glob("*.corrupt-*"))


# Files that cannot be used


def test_a_locked_file_is_gone_on_without(
    opened: Callable[..., Store], told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.05)
    filled(opened())
    one = opened()
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    for n in range(3):
        one.write(KEYS[0], "a", {"n": n})
    assert one.read(KEYS[0]) == {"a": {"n": 2}}  # by memory
    assert one.read(KEYS[1]) == {}
    assert [words.rpartition("answers.sqlite ")[2] for words in told] == [
        "is locked by another process; continuing without it"
    ]
    holder.close()
    monkeypatch.setattr(database.time, "monotonic", lambda: 1e12)  # some minutes later
    assert one.read(KEYS[1])["a"]["n"] == 1
    one.write(KEYS[0], "a", {"n": 3})
    assert opened().read(KEYS[0]) == {"a": {"n": 3}}


@contextmanager
def nobody() -> Iterator[None]:
    """Permissions mean nothing to the administrator."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("held", [True, False], ids=["with a file", "empty"])
def test_a_read_only_folder_is_gone_on_without(held: bool, opened: Callable[..., Store], told: Told) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if held:
            filled(opened(folder))
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555)
        with nobody():
            one = opened(folder)
            one.write(KEYS[0], "b", {"n": 1})
            assert one.read(KEYS[0])["b"] == {"n": 1}
        folder.chmod(0o755)
    assert len(told) == 1 and "continuing without it" in told[0]


@pytest.mark.parametrize("spoilt", ["a file above it", "a folder in its place", "no room"])
def test_where_nothing_can_be_written_memory_keeps(
    spoilt: str, opened: Callable[..., Store], told: Told, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    if spoilt == "a file above it":
        folder.write_text("")
    if spoilt == "a folder in its place":
        (folder / FILE).mkdir(parents=True)
    one = opened(folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if spoilt == "no room":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        for n, key in enumerate(KEYS):
            one.write(key, "a", {"n": n, "bytes": random.Random(n).randbytes(4000).hex()})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [one.read(key)["a"]["n"] for key in KEYS] == list(range(40))
    assert len(told) == 1 and "continuing without it" in told[0]
    if spoilt == "no room":  # and what there was room for is intact
        found = [opened(folder).read(key) for key in KEYS]
        assert {part: found[0][part]["n"] for part in found[0]} == {"a": 0} and not found[-1]


# Size


def test_the_least_recently_used_is_forgotten(
    opened: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_TOUCH_MS", -1)
    clock = iter(range(1_000_000))
    monkeypatch.setattr(database, "_now", lambda: next(clock))
    limit, draw = 1 << 18, random.Random(0)
    one = opened(limit_bytes=limit)
    for n in range(600):
        one.write(digest_of(n), "a", {"bytes": draw.randbytes(1000).hex()})
        one.read(digest_of(0))
    one.close()
    assert (tmp_path / FILE).stat().st_size <= 2 * limit
    again = opened(limit_bytes=limit)
    left = [n for n in range(600) if again.read(digest_of(n))]
    assert left[0] == 0 and left[1:] == list(range(left[1], 600)) and len(left) > 50
    assert (tmp_path / FILE).stat().st_size <= limit


# Several processes

WRITER = """
import sys
from pathlib import Path
from partita.solvers.cache.digest import digest_of
from partita.solvers.cache.store import Store
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = Store(folder)
for n in range(count):
    store.write(digest_of(n % 50), f"{name} {n}", {"n": n, "list": list(range(n % 500))})
    print(n, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("start", ["nothing", "garbage"])
def test_processes_share_a_file(start: str, opened: Callable[..., Store], tmp_path: Path) -> None:
    if start == "garbage":
        garbage(tmp_path / FILE)
    writers = [writer(tmp_path, f"w{k}", 200) for k in range(4)]
    said = [one.communicate(timeout=60) for one in writers]
    assert [one.returncode for one in writers] == [0] * 4
    assert "".join(error for _, error in said).count("moved to") == (start == "garbage")
    reader = opened()
    found = {(part, record["n"]) for n in range(50) for part, record in reader.read(digest_of(n)).items()}
    assert found == {(f"w{k} {n}", n) for k in range(4) for n in range(200)}


def test_a_killed_writer_leaves_what_it_had_written(opened: Callable[..., Store], tmp_path: Path) -> None:
    draw = random.Random(0)
    for round in range(4):
        one, until = writer(tmp_path, f"w{round}", 1_000_000), draw.randrange(50, 400)
        assert one.stdout is not None
        lines = iter(one.stdout)
        last = next(int(line) for line in lines if int(line) >= until)
        one.send_signal(signal.SIGKILL)
        last = max([last, *(int(line) for line in lines)])
        one.communicate()
        reader = opened()
        written = {part for n in range(50) for part in reader.read(digest_of(n))}
        assert {f"w{round} {n}" for n in range(last + 1)} <= written
        reader.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_forked_process_opens_the_file_for_itself(opened: Callable[..., Store]) -> None:
    one = opened()
    one.write(KEYS[0], "a", {"n": 0})
    child = os.fork()
    if not child:
        one.write(KEYS[1], "a", {"n": 1})
        os._exit(0 if one.read(KEYS[0]) == {"a": {"n": 0}} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert opened().read(KEYS[1]) == {"a": {"n": 1}}
    one.write(KEYS[2], "a", {"n": 2})
    assert opened().read(KEYS[2]) == {"a": {"n": 2}}


def test_threads_share_a_store(opened: Callable[..., Store]) -> None:
    one = opened()

    def work(name: int) -> None:
        for n, key in enumerate(KEYS):
            one.write(key, str(name), {"n": n})
            assert one.read(key)[str(name)] == {"n": n}

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(set(opened().read(key)) == set("0123") for key in KEYS)


# Where it is


def test_the_folder_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Store(tmp_path)
    assert store_in(one) is one and store_in("none") is None
    assert store_in(None) is None  # so that tests keep nothing
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "named"))
    found = store_in(None)
    assert found is not None and found.folder == tmp_path / "named"
    other = store_in(tmp_path)
    assert other is not None and (other.folder, other.limit_bytes) == (tmp_path, 1 << 30)
    monkeypatch.delenv("PARTITA_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert usual_folder() == tmp_path / "partita"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", "/home/someone")
    assert usual_folder() == Path("/home/someone/.cache/partita")
    monkeypatch.setenv("PARTITA_CACHE_LIMIT", "1000000")
    limited = store_in(tmp_path)
    assert limited is not None and limited.limit_bytes == 1_000_000
    monkeypatch.setenv("PARTITA_CACHE_LIMIT", "1 GiB")
    with pytest.raises(PartitaError, match="PARTITA_CACHE_LIMIT '1 GiB': a number of bytes"):
        store_in(tmp_path)
    with pytest.raises(PartitaError, match="path of the cache is empty"):
        store_in("")
