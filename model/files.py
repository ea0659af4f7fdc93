"""Atomic writing of files, and reading with errors that name the file."""

import gzip
import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import PartitaError
from .garbage_collection import without_collection


def write_atomically(path: Path | str, data: str | bytes) -> None:
    """Write `data` (text as UTF-8) to a temporary sibling, then rename it to `path`.

    Links are followed; what is not a plain file (`/dev/stdout`) is written directly. Raises PartitaError if the file
    cannot be written; an existing file is then unchanged.
    """
    target = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        target = target.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(raw)
            return
        temporary = _sibling(target)
        try:
            temporary.write_bytes(raw)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise PartitaError(f"cannot write {path}: {_reason(error)}") from error


def write_directory(path: Path | str, files: Mapping[str, str | bytes | Callable[[Path], object]]) -> None:
    """Write all `files` next to the folder `path`, then move them into it one by one.

    `files`: plain names to contents, or to what writes a file. Other files of an existing folder stay. Raises
    PartitaError if the folder cannot be written.
    """
    target = Path(path)
    for name in files:
        if not name or name != Path(name).name:
            raise ValueError(f"{name!r} is not a plain file name")
    try:
        target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _sibling(target)
        temporary.mkdir()
        try:
            for name, data in files.items():
                if callable(data):
                    data(temporary / name)
                else:
                    (temporary / name).write_bytes(data.encode() if isinstance(data, str) else data)
            if not target.exists():
                temporary.rename(target)
                return
            for name in files:
                (temporary / name).replace(target / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise PartitaError(f"cannot write {path}: {_reason(error)}") from error


def make_folder(path: Path | str) -> None:
    """Create the folder `path` and its parents if they do not exist. Raises PartitaError if that fails."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PartitaError(f"cannot write {path}: {_reason(error)}") from error


def check_writable(path: Path | str) -> None:
    """Raise PartitaError now if `write_directory(path)` would fail after a long search."""
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise PartitaError(f"cannot write {path}: it is not a folder")
    nearest = next(folder for folder in (target, *target.parents) if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise PartitaError(f"cannot write {path}: {nearest} is not a folder that you may write to")


def check_file_writable(path: Path | str) -> None:
    """Raise PartitaError now if `write_atomically(path)` would fail after a long search."""
    target = Path(path).resolve()
    if target.is_dir():
        raise PartitaError(f"cannot write {path}: it is a folder")
    place = target if target.exists() and not target.is_file() else target.parent
    if not os.access(place, os.W_OK) or (place == target.parent and not place.is_dir()):
        raise PartitaError(f"cannot write {path}: {place} is not a folder that you may write to")


def read_json(path: Path | str) -> Any:
    """The value in a JSON file, decompressed if its name ends in `.gz`; PartitaError says what is wrong."""
    source = Path(path)
    try:
        raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
        with without_collection():
            return json.loads(raw, parse_constant=_no_constant)
    except (OSError, EOFError, zlib.error) as error:
        raise PartitaError(f"cannot read {path}: {_reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise PartitaError(f"{path} is not JSON: {error}") from error


def usual_folder() -> Path | None:
    """The platform's cache folder for Partita; None without a home folder."""
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


def kept_folder() -> Path:
    """The folder for what is kept between runs: PARTITA_CACHE or the usual one. PartitaError: there is none."""
    named = os.environ.get("PARTITA_CACHE")
    folder = usual_folder() if named is None else Path(named)
    if folder is None or named in ("", "none"):
        raise PartitaError("there is no folder to keep measurements in: set PARTITA_CACHE to one")
    return folder


def _sibling(target: Path) -> Path:
    return target.with_name(f"{target.name}.tmp-{secrets.token_hex(4)}")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
