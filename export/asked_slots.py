"""How many cache slots an export has: what was asked for, held against what the model can do right."""

from __future__ import annotations

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError

DEFAULT_SLOTS = 2048  # where the model's range is not smaller


def asked_slots(checkpoint: Checkpoint, slots: int | None, longest: int | None, *, beyond_trained_range: bool) -> int:
    """M: what was asked for; else the model's range, and no more than the tokens to which its files cut texts.

    Raises:
        UsageError: it is beyond that range, and that was not asked for too, or cannot be right.
    """
    config = checkpoint.config
    reach, bound = config.reach, config.bound
    if slots is not None and bound is not None and slots > reach:
        raise UsageError(f"--max-sequence-length {slots} is beyond the {reach} {bound[1]}. Choose at most {reach}")
    if slots is not None and slots > reach and not beyond_trained_range:
        origin = "the model was trained for"
        if not checkpoint.range_is_stated:
            origin = "that are the default of its family, as config.json does not state max_position_embeddings"
        raise UsageError(
            f"--max-sequence-length {slots} is beyond the {reach} positions {origin}: choose at most {reach}, or add "
            "--beyond-trained-range"
        )
    return min(DEFAULT_SLOTS, reach, longest or reach) if slots is None else slots
