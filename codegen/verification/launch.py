"""Run a program on local processes with torchrun, over the loopback interface, and leave no process behind."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...model.errors import PartitaError

_INHERITED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LaunchError(RuntimeError):
    """The program failed or took too long; `output` is everything that its ranks printed."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def torchrun(
    script: Path | str,
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    timeout: float = 300.0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The output of `ranks` processes that run `script` (a file, or `module:NAME` for `python -m NAME`), with stderr.

    The ranks run on this machine only, meet on a free port of 127.0.0.1, see no GPU and use one thread each. Raises
    LaunchError with the output of the first rank that fails, PartitaError if the script is missing.
    """
    module = str(script).removeprefix("module:")
    if module == str(script) and not Path(script).is_file():
        raise PartitaError(f"{script} is not a program file")
    program = [str(script)] if module == str(script) else ["-m", module]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(ranks), *program, *arguments),
    ]
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    if sys.platform == "linux":
        settings["GLOO_SOCKET_IFNAME"] = "lo"
    inherited = {k: v for k, v in os.environ.items() if k not in _INHERITED and not k.startswith("TORCHELASTIC")}
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open as long as any grandchild lives
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=inherited | settings | dict(environment or {}),
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            output.seek(0)
            text = output.read()  # before the ranks report that they were terminated
            _end(process)
    if code is None:
        raise LaunchError(f"{script} on {ranks} ranks did not finish in {timeout:g} s\n{_essence(text)}", text)
    if code:
        raise LaunchError(f"{script} on {ranks} ranks ended with exit code {code}\n{_essence(text)}", text)
    return text


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate torchrun, which ends its ranks (they have their own sessions), and kill what is left after 5 s."""
    family = _descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself


def _descendants(pid: int) -> list[int]:
    """The children of a process and their children (none if there is no /proc)."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in file.read_text().split()]
        except OSError:
            continue  # it has ended meanwhile
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _essence(text: str, lines: int = 40) -> str:
    """The last lines before torchrun's own report about the failure."""
    kept = []
    for line in text.splitlines():
        if "torch/distributed/elastic" in line or "torch.distributed.elastic" in line:
            break
        kept.append(line)
    return "\n".join((kept or text.splitlines())[-lines:])
