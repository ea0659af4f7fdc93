"""An emulated network: namespaces of this kernel as nodes, joined by bridges over links of a given rate.

    node ── link, shaped both ways ── bridge of a rack ── trunk, shaped both ways ── bridge of another rack

A node's ranks reach one another over its loopback. All bridges are in one more namespace, so that nothing outside is
touched, and all ends with the namespaces. Needs Linux, root, and `ip` and `tc` of iproute2.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..model.errors import PartitaError

PREFIX = "partita"
HUB = "hub"
PORT = "29500"
TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
"""Settings of every node: BBR probes for bandwidth, and so leaves up to a fifth of a shaped link unused."""

ETHERNET, TCP_IP = 14, 52
"""Bytes of a packet's headers. An acknowledgement is headers only; there is one for every two packets."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """`sizes`: (nodes, ranks of a node) or (racks, nodes, ranks); `rates`: of the links of each level but the last,
    in bit/s. `mtu`: bytes of a packet; larger ones leave more of the processors' time to the ranks.
    """

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    mtu: int = 1500

    @property
    def wire_bytes(self) -> float:
        """Bytes that the interfaces send, both ways together, for one byte of data."""
        return (self.mtu + ETHERNET + (TCP_IP + ETHERNET) / 2) / (self.mtu - TCP_IP)

    @property
    def nodes(self) -> int:
        racks, nodes, _ = (1, *self.sizes)[-3:]
        return racks * nodes

    @property
    def per_node(self) -> int:
        return self.sizes[-1]

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


def refusal() -> str | None:
    """Why no network can be emulated here; None where one can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 not found"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        _do(f"ip netns add {name}")
    except PartitaError as error:
        return str(error)
    _do(f"ip netns del {name}")
    return None


def _do(command: str, namespace: str | None = None) -> None:
    words = [*(["ip", "netns", "exec", namespace] if namespace else []), *command.split()]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise PartitaError(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.stdout.strip()}")


@contextmanager
def emulated(network: Emulation) -> Iterator[list[str]]:
    """The names of the nodes' namespaces, which are gone afterwards, whatever happens meanwhile.

    PartitaError: it cannot be made here.
    """
    why = refusal()
    if why is not None:
        raise PartitaError(f"no network can be emulated: {why}")
    _remove_stale()
    prefix = f"{PREFIX}-{os.getpid()}"
    made: list[str] = []

    def add(name: str) -> str:
        made.append(f"{prefix}-{name}")
        _do(f"ip netns add {made[-1]}")
        _do("ip link set lo up", made[-1])
        return made[-1]

    with _terminated_as_interrupt():
        try:
            yield _build(network, add(HUB), [add(str(n)) for n in range(network.nodes)])
        finally:
            for name in made:
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _build(network: Emulation, hub: str, nodes: list[str]) -> list[str]:
    racks, per_rack, _ = (1, *network.sizes)[-3:]
    mtu = f"mtu {network.mtu}"
    for rack in range(racks):
        _do(f"ip link add rack{rack} {mtu} type bridge", hub)
        _do(f"ip link set rack{rack} up", hub)
    for rack in range(racks if racks > 1 else 0):
        # All racks meet at one more bridge.
        if rack == 0:
            _do(f"ip link add core {mtu} type bridge", hub)
            _do("ip link set core up", hub)
        _do(f"ip link add up{rack} {mtu} type veth peer name down{rack} {mtu}", hub)
        for end, bridge in ((f"up{rack}", f"rack{rack}"), (f"down{rack}", "core")):
            _do(f"ip link set {end} master {bridge} up", hub)
            _shape(hub, end, network.rates[0], network.mtu)
    for number, node in enumerate(nodes):
        _do(f"ip link add eth0 netns {node} {mtu} type veth peer name port{number} netns {hub} {mtu}")
        _do(f"ip addr add {address(number)}/24 dev eth0", node)
        _do("ip link set eth0 up", node)
        _do(f"ip link set port{number} master rack{number // per_rack} up", hub)
        for where, end in ((node, "eth0"), (hub, f"port{number}")):
            _shape(where, end, network.rates[-1], network.mtu)
        for key, value in TCP.items():
            _do(f"sysctl -w net.ipv4.{key}={value}", node)
    return nodes


def _shape(namespace: str, device: str, rate: float, mtu: int) -> None:
    """Limit what leaves a device. After a pause a burst passes at once: no more than the link sends in 1 ms."""
    burst = max(mtu + ETHERNET, min(32_000, rate / 8 / 1000))
    _do(f"tc qdisc add dev {device} root tbf rate {rate:.0f}bit burst {burst:.0f} latency 400ms", namespace)


def address(node: int) -> str:
    """The node's own; nothing else is in its namespace, so it cannot clash."""
    return f"10.77.0.{node + 1}"


def _remove_stale() -> None:
    """Namespaces of a run that was killed, with what still runs in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        owner = name.split("-")[1] if name.startswith(f"{PREFIX}-") and name.count("-") == 2 else ""
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """A request to end raises, so that what was made is removed; signals come to the main thread only."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before: Any = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_ranks(network: Emulation, nodes: Sequence[str], arguments: Sequence[str], timeout: float) -> None:
    """Run `python ARGUMENTS` as every rank of the network, and wait; none is left behind.

    RuntimeError: a rank failed, or not all were done in `timeout` seconds; with the rank's last words.
    """
    with ExitStack() as stack:
        started: list[tuple[subprocess.Popen[bytes], Any]] = []
        stack.callback(_end, started)
        for rank in range(network.ranks):
            node, local = divmod(rank, network.per_node)
            output = stack.enter_context(tempfile.TemporaryFile())
            command = ["ip", "netns", "exec", nodes[node], sys.executable, *arguments]
            environment = os.environ | _environment(network, rank, local)
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            started.append((process, output))
        _wait(started, timeout)


def _environment(network: Emulation, rank: int, local: int) -> Mapping[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(network.ranks),
        "LOCAL_WORLD_SIZE": str(network.per_node),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _wait(started: Sequence[tuple[subprocess.Popen[bytes], Any]], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        codes = [process.poll() for process, _ in started]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            raise RuntimeError(f"rank {failed} ended with exit code {codes[failed]}\n{_words(started[failed][1])}")
        if None not in codes:
            return
        time.sleep(0.1)
    raise RuntimeError(f"the ranks were not done in {timeout:g} s\n{_words(started[0][1])}")


def _words(output: Any) -> str:
    output.seek(0)
    return str(output.read()[-2000:].decode(errors="replace"))


def _end(started: Sequence[tuple[subprocess.Popen[bytes], Any]]) -> None:
    for process, _ in started:
        if process.poll() is None:
            process.kill()
    for process, _ in started:
        process.wait()
