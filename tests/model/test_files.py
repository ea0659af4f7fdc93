"""Files appear wholly or not at all."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from partita import PartitaError
from partita.model.files import check_file_writable, check_writable, read_json, write_atomically, write_directory


@pytest.mark.parametrize("data", ["größer\n", b"\x00\xff", ""])
def test_write_replaces_and_leaves_nothing_else(tmp_path: Path, data: str | bytes) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PartitaError, match="No space left"):
        write_atomically(path, "new")
    with pytest.raises(PartitaError, match="No space left"):
        write_directory(tmp_path / "folder", {"a": "new"})
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_links_are_followed_and_devices_kept(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"
    write_atomically("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


def test_write_directory_creates_then_updates(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "plan"
    write_directory(folder, {"a": "1", "b": b"2"})
    (folder / "mine").write_text("kept")
    write_directory(folder, {"b": "3"})
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "1", "b": "3", "mine": "kept"}
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["../a", "b/a", "", ".", "/a"])
def test_write_directory_refuses_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        write_directory(tmp_path / "plan", {name: ""})
    assert not any(tmp_path.iterdir())


def test_check_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_writable(tmp_path)
    check_writable(tmp_path / "new" / "plan")
    for wrong in (tmp_path / "file", tmp_path / "file" / "plan"):
        with pytest.raises(PartitaError, match="cannot write"):
            check_writable(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_check_file_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for fine in (tmp_path / "file", tmp_path / "new", "/dev/null"):
        check_file_writable(fine)
    for wrong in (tmp_path, tmp_path / "no" / "file", tmp_path / "file" / "file"):
        with pytest.raises(PartitaError, match="cannot write"):
            check_file_writable(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_read_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1]}')
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"a": [1]}'))
    assert read_json(tmp_path / "a.json") == read_json(tmp_path / "a.json.gz") == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a.json", b"{"),
        ("a.json", b""),
        ("a.json", b"\xff\xfe\x00"),
        ("a.json", b"[NaN]"),
        ("a.json", b"[-Infinity]"),
        ("a.json", b"[" * 100_000),
        ("a.json", b"9" * 10_000),
        ("a.json.gz", b"{}"),
        ("a.json.gz", gzip.compress(b"{}" * 1000, mtime=0)[:-9]),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:12] + b"junkjunkjunk"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 20),
    ],
)
def test_read_json_says_what_is_wrong(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(PartitaError, match=re.escape(str(tmp_path / name))):
        read_json(tmp_path / name)


@pytest.mark.parametrize("name", ["missing.json", "missing.json.gz", "."])
def test_read_json_of_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(PartitaError, match="cannot read"):
        read_json(tmp_path / name)
