"""Qwen2 and Qwen2.5: biases on q, k and v."""

from __future__ import annotations

from blockexport.models.families.family import Family, GgufForm
from blockexport.models.families.windows import switched_window_keys, windows_of_late_layers

QWEN2 = Family(
    model_type="qwen2",
    class_name="Qwen2ForCausalLM",
    max_position_embeddings=32_768,
    num_key_value_heads=32,
    qkv_bias=True,
    read_layers=windows_of_late_layers,
    write_layers=switched_window_keys,
    gguf=GgufForm("qwen2"),
)
