"""The names of a decoder's inputs and outputs, in the one order that every artifact uses.

They follow Hugging Face's and onnxruntime-genai's conventions, so that other runtimes can take the file unchanged.
"""

from __future__ import annotations

INPUT_IDS = "input_ids"
INPUTS_EMBEDS = "inputs_embeds"
POSITION_IDS = "position_ids"
LOGITS = "logits"
HIDDEN_STATES = "hidden_states"
EMBEDDINGS = "embeddings"  # of whole rows
HIDDEN_STATES_IN = "hidden_states_in"  # of a stage: no graph may have an input and an output of one name
PAST, PRESENT = "past_key_values.", "present."
"""What the names of cache inputs and of cache outputs begin with; the layer and `.key` or `.value` follow."""

BATCH_AXIS = "batch_size"
SEQUENCE_AXIS = "sequence_length"


def past_names(num_hidden_layers: int) -> list[str]:
    """The cache inputs: key and value of layer 0, key and value of layer 1, ..."""
    return [f"{PAST}{i}.{kind}" for i in range(num_hidden_layers) for kind in ("key", "value")]


def present_names(num_hidden_layers: int) -> list[str]:
    """The cache outputs, in the order of `past_names`; output i aliases input i."""
    return [f"{PRESENT}{i}.{kind}" for i in range(num_hidden_layers) for kind in ("key", "value")]


def past_of(name: str) -> str | None:
    """The cache input that an output may share its buffer with; None for a name that is no cache output."""
    return PAST + name.removeprefix(PRESENT) if name.startswith(PRESENT) else None
