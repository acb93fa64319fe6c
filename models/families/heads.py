"""How wide heads are in families that have no key for it."""

from __future__ import annotations

from blockexport.models.config.config_fields import RawFields


def check_derived_width(fields: RawFields) -> None:
    """Refuse a `head_dim` of which transformers would make nothing, or RoPE alone. Raises UsageError."""
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    why = f"this family's heads are {fields.said('hidden_size')} / {fields.said('num_attention_heads')} wide"
    fields.only("head_dim", (None, hidden_size // heads), why)
