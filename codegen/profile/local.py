"""The machine at hand: its devices, its name among other machines, and how its GPUs are joined."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ...model.errors import PartitaError
from ...solvers.executors import usable_cores

VERSION = 2
"""Of what is measured, and how: raised where that changes."""
TOPOLOGY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Local:
    """`device`: cpu or cuda; `name`: the processor's; `memory_bytes`: of a device, of a CPU all of its memory."""

    device: str
    name: str
    devices: int
    memory_bytes: int
    links: tuple[str, ...] = ()

    def key(self, ranks: int, threads: int) -> bytes:
        """Names this machine, used by so many ranks of so many threads, among measurements."""
        parts = (VERSION, self.device, self.name, self.devices, ranks, threads, version("torch"), usable_cores())
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def described(self, ranks: int) -> str:
        """One line: what was measured."""
        what = f"{usable_cores()} cores of {self.name}" if self.device == "cpu" else f"{self.devices} x {self.name}"
        return f"{what}, {ranks} ranks, torch {version('torch')}"


def local(device: str | None = None) -> Local:
    """Discover the machine; `device`: cpu, cuda, or None: cuda where there is a GPU. PartitaError: no such device."""
    import torch

    if device not in (None, "cpu", "cuda"):
        raise PartitaError(f"--device {device}: cpu or cuda is needed")
    if device == "cuda" and not torch.cuda.is_available():
        raise PartitaError("--device cuda: PyTorch finds no GPU on this machine")
    if device == "cpu" or not torch.cuda.is_available():
        return Local("cpu", processor(), usable_cores(), _memory_bytes())
    properties = torch.cuda.get_device_properties(0)
    return Local("cuda", properties.name, torch.cuda.device_count(), properties.total_memory, _topology())


def visible(here: Local, ranks: int) -> dict[str, str]:
    """What lets so many ranks on this machine see its GPUs: environment variables."""
    if here.device == "cpu":
        return {}
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(ranks)))}


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        raise PartitaError("this platform does not say how much memory it has") from None


def _topology() -> tuple[str, ...]:
    """The matrix of `nvidia-smi topo -m`, a line per GPU; empty without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        found = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=TOPOLOGY_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return ()
    return links_of(found.stdout)


def links_of(matrix: str) -> tuple[str, ...]:
    """How GPUs are joined, by `nvidia-smi topo -m`: for every GPU the kinds of its links to the others, in order.

    NV4: four NVLinks; PIX, PXB, PHB, NODE, SYS: over PCIe, ever further away.
    """
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", matrix).splitlines()]
    gpus = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]  # the header has no X
    return tuple(" ".join(row[1 : len(gpus) + 1]) for row in gpus)


def joined_alike(links: Sequence[str]) -> bool:
    """True if every two GPUs have the same kind of link, so that a switch describes them."""
    kinds = {kind for line in links for kind in line.split() if kind != "X"}
    return len(kinds) <= 1
