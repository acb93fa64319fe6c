"""`genai_config.json`: lets onnxruntime-genai run a bundle unchanged, in any of its languages.

There is no `attention_mask` entry: the graph makes its mask from `position_ids`. Past and present share a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig


def genai_config(config: ModelConfig, max_sequence_length: int, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """The file's contents, greedy by default, for a graph with `max_sequence_length` cache slots."""
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": ONNX_FILE,
        "head_size": config.head_dim,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "inputs": {
            "input_ids": io_names.INPUT_IDS,
            "position_ids": io_names.POSITION_IDS,
            "past_key_names": f"{io_names.PAST}%d.key",
            "past_value_names": f"{io_names.PAST}%d.value",
        },
        "outputs": {
            "logits": io_names.LOGITS,
            "present_key_names": f"{io_names.PRESENT}%d.key",
            "present_value_names": f"{io_names.PRESENT}%d.value",
        },
    }
    model: dict[str, Any] = {
        "type": "decoder",  # every family's graph is of this form; the names of some mean another one to it
        "vocab_size": config.vocab_size,
        "context_length": max_sequence_length,
        "decoder": decoder,
    }
    if eos_token_ids:
        model["eos_token_id"] = eos_token_ids[0] if len(eos_token_ids) == 1 else list(eos_token_ids)
        model["pad_token_id"] = eos_token_ids[0]
    if config.bos_token_id is not None:
        model["bos_token_id"] = config.bos_token_id
    search = {"do_sample": False, "max_length": max_sequence_length, "past_present_share_buffer": True, "top_k": 1}
    return {"model": model, "search": search}
