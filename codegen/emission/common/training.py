"""Parts of the training loop that all emitted programs have: hyperparameters, random numbers, data, `main`."""

from ....model.graph.pcg import PCG
from ..templates import counter_functions
from . import defaults
from .conversions import Used
from .data import counted_by_step, padding, sample_lines, shape_lines, synthetic_lines
from .features import Context

OPTIMIZERS = {
    "sgd": ("SGD", "torch.optim.SGD(groups, lr{})"),
    "adam": ("Adam", f"torch.optim.Adam(groups, lr, betas={defaults.BETAS}, eps={defaults.EPS}{{}})"),
    "adamw": ("AdamW", f"torch.optim.AdamW(groups, lr, betas={defaults.BETAS}, eps={defaults.EPS}{{}})"),
}
"""Names of optimizers as PyTorch writes them, and the calls that make them, with a place for further arguments."""

TIMEOUT = ("TIMEOUT = timedelta(minutes=10)  # for which a collective waits for the other ranks",)
MAIN_IMPORTS = ("import argparse", "import time", "from datetime import timedelta")
PIECE = ("PIECE = 1 << 24  # elements of a tensor that are saved, sent or read at a time",)
CHECKPOINT_IMPORTS = ("import hashlib", "import shutil", "import torch.distributed.checkpoint as dcp")
CHECKPOINTS: Context = {
    "inner": "optimizer.inner",  # an optimizer of torch, or the variable of a loop over `inners`
    "inners": "",
    "schedule": "optimizer.schedule",
    "schedules": "",
    "offloaded": False,  # True if states of some weights are on the host
    "publishes": False,  # True if weights are copies of what the optimizer updates
    "loss_scale": False,
    "frozen": False,  # True if some weights are not trained
    "stale": False,  # True if there are two versions of the weights
    "kept": False,  # True if ranks keep weights that they do not update
    "masters": False,  # ... and update copies of the others, in another dtype
    "copies": False,  # True if several stages of a rank have the same buffers
    "overlapping": False,  # True if ranks update overlapping parts
}
"""What the template of checkpoints knows of a program, where its emitter says nothing else."""
SEED_AND_STEPS = f"SEED, STEPS = {defaults.SEED}, 10"


def learning_rate() -> Context:
    """The schedule of the learning rate."""
    return {"min_factor": defaults.MIN_FACTOR}


def optimizer_call(optimizer: str, *, fused: bool) -> str:
    """The call that makes an optimizer of torch; fused kernels update no sparse gradients, nor states on a host."""
    return OPTIMIZERS[optimizer][1].format(", fused=True" if fused else "")


def make_optimizer(optimizer: str) -> Context:
    """Hyperparameters as default arguments."""
    values = {
        "lr": defaults.LEARNING_RATE,
        "weight_decay": defaults.WEIGHT_DECAY[optimizer],
        "clip": defaults.CLIP_NORM,
        "warmup": defaults.WARMUP_STEPS,
        "steps": defaults.TOTAL_STEPS,
    }
    return {"options": ", ".join(f"{name}={value}" for name, value in values.items())}


def helpers(
    used: Used, *, modes: bool = False, sparse: bool = False, selective: bool = False, compiles: bool = False
) -> Context:
    """Functions that the lines of operators call; with `modes` they know whether the model trains."""
    return {
        "helpers": used.helpers,
        "random_bits": counter_functions("mix", "mix_", "random_bits"),
        "dropped": counter_functions("dropped"),
        "uniform_numbers": counter_functions("uniform_numbers"),
        "integer_numbers": counter_functions("integer_numbers"),
        "normal_numbers": counter_functions("normal_numbers"),
        "modes": modes,
        "sparse": sparse,
        "selective": selective,
        "compiles": compiles,
    }


def library_imports(used: Used) -> list[str]:
    """Imports of the modules that register operators which are called as they are."""
    return [f"import {name}  # registers operators" for name in used.libraries]


def data(graph: PCG, batch: int, used: Used, *, reading: bool = False) -> Context:
    """Batches: their shapes, random ones, and the next samples of a data set; `reading`: ranks may read parts."""
    return {
        "reading": reading,
        "shapes": shape_lines(graph),
        "padding": padding(graph),
        "synthetic": synthetic_lines(graph, batch, used),
        "samples": sample_lines(graph, batch),
    }


def rate(graph: PCG, batch: int) -> Context:
    """What the log counts by the second."""
    count, what = counted_by_step(graph, batch)
    return {"rate": count, "rate_of": what}
