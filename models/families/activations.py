"""The activation of the MLP, by the names that transformers' ACT2FN has for it."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import HiddenAct

ACT_NAMES: dict[str, HiddenAct] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
    "relu2": "relu2",
}


def stated_act(fields: RawFields, key: str, default: HiddenAct) -> HiddenAct:
    """The activation under a key. Raises UsageError for one that is not implemented."""
    act = fields.text(key, default)
    if act not in ACT_NAMES:
        raise fields.error(f"{key} {act!r} is not implemented; supported are {', '.join(ACT_NAMES)}")
    return ACT_NAMES[act]
