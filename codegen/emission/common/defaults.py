"""Default hyperparameters of emitted programs and of the reference."""

import math

SEED = 0
LEARNING_RATE = 1e-3
WEIGHT_DECAY = {"sgd": 0.0, "adam": 0.0, "adamw": 0.1}
"""Not for biases and other weights of one dim."""
BETAS = (0.9, 0.95)
EPS = 1e-8
CLIP_NORM = 1.0
WARMUP_STEPS = 10
TOTAL_STEPS = 1000
MIN_FACTOR = 0.1


def schedule(step: int) -> float:
    """The learning rate's factor: linear warm-up, then a cosine down to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = min(1.0, (step - WARMUP_STEPS) / (TOTAL_STEPS - WARMUP_STEPS))
    return MIN_FACTOR + (1 - MIN_FACTOR) * 0.5 * (1 + math.cos(math.pi * progress))
