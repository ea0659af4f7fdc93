"""Published training runs as configurations: models, parallelism, and what was measured, from files of two formats."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..formulation.parallelism import Parallelism
from ..model.errors import PartitaError
from ..model.files import read_json
from .cases import GIB


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder: with gated perceptrons and rotary positions (`gated`), or GPT's with unfused attention."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied: bool
    gated: bool = True

    @property
    def weights(self) -> int:
        """Elements of the matrices that tokens are multiplied by."""
        return self.layers * self.layer_weights + self.width * self.vocabulary

    @property
    def layer_weights(self) -> int:
        """Elements of a layer's matrices."""
        key_width = self.width // self.heads * self.key_heads
        attention = 2 * self.width * (self.width + key_width)
        return attention + (3 if self.gated else 2) * self.width * self.inner

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, attention as if it were not causal (Narayanan et al., SC'21, appendix)."""
        return 6.0 * self.weights + 12.0 * self.layers * self.width * self.sequence


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its model, parallelism, and what was measured.

    `stages`: layers of every stage in order; the head is in the last one, alone if that has none. Further `empty`
    stages of a pipeline have nothing. `memory_bytes`: the most that the first rank had allocated, None if unknown;
    `seconds` None: it failed. `program`: what ran it, "nanotron" or "megatron".
    """

    name: str
    decoder: Decoder
    machine: str
    devices: int
    parallelism: Parallelism
    batch: int
    dtype: str
    recompute: str
    stages: tuple[int, ...]
    empty: int = 0
    chunks: int = 1
    overlap: bool = True
    seconds: float | None = None
    memory_bytes: float | None = None
    model: str = ""
    tier: str = ""
    program: str = ""

    @property
    def flops(self) -> float:
        """Of a step on one device."""
        return self.decoder.flops_per_token * self.decoder.sequence * self.batch / self.devices


def sweep(file: Path) -> list[Run]:
    """The runs of a file with `ultrascale_sweep`: models, runs and failed ones. PartitaError: it is none."""
    return _read(file, "ultrascale_sweep", _sweep)


def megatron(file: Path) -> list[Run]:
    """The runs of a file with `megatron_table1`. PartitaError: it is none."""
    return _read(file, "megatron_table1", _megatron)


def _read(file: Path, key: str, runs: Callable[[Mapping[str, Any]], Iterator[Run]]) -> list[Run]:
    data = read_json(file)
    if not isinstance(data, dict) or not isinstance(data.get(key), dict):
        raise PartitaError(f"{file}: has no {key!r}")
    try:
        found = list(runs(data[key]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise PartitaError(f"{file}: {key}: {what}") from None
    if not found:
        raise PartitaError(f"{file}: {key}: has no runs")
    return found


def _sweep(data: Mapping[str, Any]) -> Iterator[Run]:
    sequence, batch = data["about"]["common"]["seq_len"], data["about"]["common"]["gbs_seqs"]
    decoders = {
        name: Decoder(
            layers=m["layers"],
            width=m["hidden"],
            heads=m["heads"],
            key_heads=m["kv_heads"],
            inner=m["intermediate"],
            vocabulary=m["vocab"],
            sequence=sequence,
            tied=m["tied"],
        )
        for name, m in data["models"].items()
    }
    for given in (*data["runs"], *data.get("failed", ())):
        model, pp, tp = given["model"], given["pp"], given["tp"]
        decoder = decoders[model]
        layers, head = [decoder.layers], 0
        if pp > 1:
            derived = data["models"][model].get("pp_layers_per_stage_derived", {}).get(str(pp))
            layers, head = _evenly(decoder.layers, pp)
            if derived is not None:
                layers, head = derived["decoder_layers"], derived["lm_head_stage"][0]
        full = tuple(count for stage, count in enumerate(layers) if count or stage == head)
        yield Run(
            name=f"{model} dp{given['dp']} tp{tp} pp{pp} mbs{given['mbs']} zero{given['zero_stage']}",
            decoder=decoder,
            machine="p5-h100",
            devices=given["gpus"],
            parallelism=Parallelism(
                dp=given["dp"],
                tp=tp,
                zero=given["zero_stage"],
                micro_batch=given["mbs"],
                sequence_parallel=True if tp > 1 else None,
            ),
            batch=given.get("gbs_seqs", batch),
            dtype="mixed-bfloat16-fp32grad",
            recompute="none",
            stages=full,
            empty=len(layers) - len(full),
            seconds=given.get("step_time_s"),
            memory_bytes=given["gpu_mem_GB"] * GIB if given.get("gpu_mem_GB") else None,
            model=model,
            tier=given.get("tier", "failed"),
            program="nanotron",
        )


def _evenly(layers: int, stages: int) -> tuple[list[int], int]:
    """Layers of every stage as even as can be, the first with more, and the stage with the head."""
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return counts, min(layers, stages - 1)


def _megatron(data: Mapping[str, Any]) -> Iterator[Run]:
    for given in data["rows"]:
        layers, width, pp = given["layers"], given["hidden"], given["pp"]
        chunks = given.get("virtual_stages") or 1
        decoder = Decoder(
            layers=layers,
            width=width,
            heads=given["heads"],
            key_heads=given["heads"],
            inner=4 * width,
            vocabulary=data["vocab"],
            sequence=data["seq_len"],
            tied=True,
            gated=False,
        )
        yield Run(
            name=f"{given['model']} dp{given['dp']} tp{given['tp']} pp{pp} mbs{given['mbs']}",
            decoder=decoder,
            machine="dgx-a100",
            devices=given["gpus"],
            parallelism=Parallelism(
                dp=given["dp"],
                tp=given["tp"],
                zero=0,
                micro_batch=given["mbs"],
                sequence_parallel=False if given["tp"] > 1 else None,
            ),
            batch=given["gbs_seqs"],
            dtype="mixed-bfloat16-bf16grad",
            recompute="full",
            stages=(layers // (pp * chunks),) * (pp * chunks),
            chunks=chunks,
            overlap=False,
            seconds=given["iter_time_s_derived"],
            model=given["model"],
            tier="megatron",
            program="megatron",
        )
