"""IQuest-Coder: a Llama."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.families.family import Options
from blockexport.models.families.llama import LLAMA
from blockexport.models.families.windows import full_attention


def _read_options(fields: RawFields) -> Options:
    fields.only("clip_qkv", (None,), "clipped projections are not implemented")
    return {}


IQUEST_CODER = replace(
    LLAMA,
    model_type="iquestcoder",
    max_position_embeddings=131_072,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    read_layers=full_attention("iquestcoder"),
    read_options=_read_options,
    written_as="llama",
    gguf=None,
    presets={},
)
