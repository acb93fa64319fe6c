"""Rotary position embedding: pairs of a head's dimensions are turned by an angle that grows with the position.

Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864. Of a head's dimensions the first R are turned, all or some
of them (GPT-NeoX, https://arxiv.org/abs/2204.06745). The pairing is that of the family's Hugging Face checkpoints:
dimension i turns with i + R/2, or with its neighbour in those that say so. Readers of files that pair otherwise permute
q_proj and k_proj on the way in.
"""

from __future__ import annotations

import math

import torch

from blockexport.models.block.multipliers import scaled
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position of each pair, float32 [R/2], scaling applied.

    Computed in float32 in the order transformers does it: a float64 table would be more exact and differ from what
    the model was trained and is served with.
    """
    scaling, theta = config.rope_scaling, config.rope_theta
    if scaling is not None and scaling.rope_type == "ntk_alpha":
        theta, scaling = theta * scaling.factor ** (config.turned_dims / (config.turned_dims - 2)), None
    exponents = torch.arange(0, config.turned_dims, 2, dtype=torch.int64).to(torch.float32) / config.turned_dims
    inv_freq = 1.0 / (theta**exponents)
    if scaling is not None and scaling.rope_type == "yarn":
        return _yarn(config, scaling)
    if scaling is not None and scaling.rope_type == "longrope":
        return 1.0 / (torch.tensor(scaling.freq_factors, dtype=torch.float32) * theta**exponents)
    return inv_freq if scaling is None else _scaled(inv_freq, scaling)


def _scaled(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.rope_type == "dynamic":
        return inv_freq
    if scaling.rope_type == "linear":
        return inv_freq / scaling.factor
    if scaling.rope_type == "freq_factors":
        return inv_freq / torch.tensor(scaling.freq_factors, dtype=torch.float32)
    return _llama3_scaled(inv_freq, scaling)


def _llama3_scaled(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: wavelengths beyond the old context are divided by `factor`, short ones kept, a ramp between.

    Source: apply_scaling in meta-llama/llama-models, models/llama3/model.py.
    """
    old_context = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    smooth = (old_context / wavelength - low) / (high - low)
    ramp = (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq
    stretched = torch.where(wavelength > old_context / low, inv_freq / scaling.factor, inv_freq)
    between = (wavelength >= old_context / high) & (wavelength <= old_context / low)
    return torch.where(between, ramp, stretched)


def _yarn(config: ModelConfig, scaling: RopeScaling) -> torch.Tensor:
    """YaRN: Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2, in the order transformers computes it."""
    size, base = config.turned_dims, config.rope_theta
    old_context = scaling.original_max_position_embeddings

    def pair_of(turns: float) -> float:
        """The pair, as a dimension, that turns so many times over the old context."""
        return size * math.log(old_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    span = high - low or 0.001
    wavelengths = base ** (torch.arange(0, size, 2).to(torch.float32) / size)
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def rope_table(config: ModelConfig, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position's angles, float32 [rows, R/2] each, times the scaling's `attention_factor`."""
    positions = torch.arange(rows, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(config)[None, :]
    factor = 1.0 if config.rope_scaling is None else config.rope_scaling.attention_factor
    return scaled(angles.cos(), factor), scaled(angles.sin(), factor)


TABLES = (("cos", "sin"), ("cos_sliding", "sin_sliding"))
"""What cosines and sines are called where they are kept: of all layers, or of those that are not named after."""

Tables = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [rows, H/2] each."""


def rope_tables(config: ModelConfig, rows: int) -> list[Tables]:
    """The table of each layer in turn; layers of one kind share theirs."""
    ropes = [config.rope_of(layer) for layer in range(config.num_hidden_layers)]
    made = {rope: rope_table(rope, rows) for rope in dict.fromkeys(ropes)}
    return [made[rope] for rope in ropes]


def table_names(config: ModelConfig, layer: int) -> tuple[str, str]:
    """What a layer's cosines and sines are called where they are kept."""
    sliding = config.sliding_rope_theta is not None and config.window_of(layer) is not None
    return TABLES[sliding]


def named_tables(config: ModelConfig, rows: int) -> dict[tuple[str, str], Tables]:
    """Every table of a model, by its names; that of the full layers comes first, whether there are any or not."""
    found = {TABLES[0]: rope_table(config, rows)}
    for layer, tables in enumerate(rope_tables(config, rows) if config.sliding_rope_theta is not None else ()):
        found.setdefault(table_names(config, layer), tables)
    return found


def rope_table_rows(config: ModelConfig, max_sequence_length: int) -> int:
    """Rows a table needs so that M can later be re-declared anywhere in the model's own range.

    Raises:
        UsageError: M is beyond the most that there can be.
    """
    if config.bound is not None:
        require_table_rows(max_sequence_length, config.reach, config)
    return max(max_sequence_length, config.reach)


def require_table_rows(max_sequence_length: int, rows: int, config: ModelConfig, *, least: int = 1) -> None:
    """Refuse an M that a file's table of positions has no rows for.

    Args:
        max_sequence_length: M.
        rows: of the table, at least as many as the model's own range has positions.
        config: of the model.
        least: the smallest M that the file runs with.

    Raises:
        UsageError: M is less than `least`, or beyond the table.
    """
    if least <= max_sequence_length <= rows:
        return
    table = "rows of this file's RoPE table" if config.bound is None else config.bound[1]
    said = f"max_sequence_length {max_sequence_length} is outside {least}..{rows}, the {table}"
    if max_sequence_length < least:
        raise UsageError(f"{said}: choose at least {least}")
    if config.bound is not None:
        raise UsageError(f"{said}. Choose at most {rows}")
    raise UsageError(
        f"{said}: choose at most {rows}, or export again with --max-sequence-length {max_sequence_length} "
        f"--beyond-trained-range (the model's own range is {config.max_position_embeddings} positions)"
    )


def _rotary_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position_ids_BS: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    pairs = cos.shape[-1]
    cos_B1SR, sin_B1SR = cos[position_ids_BS].unsqueeze(1), sin[position_ids_BS].unsqueeze(1)
    # In half precision the turn is done in the table's float32; in float64 the table is widened.
    turning = x[..., : 2 * pairs]
    first, second = (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, dim=-1)
    both = (first * cos_B1SR - second * sin_B1SR, second * cos_B1SR + first * sin_B1SR)
    turned = (torch.stack(both, dim=-1).flatten(-2) if interleaved else torch.cat(both, dim=-1)).to(x.dtype)
    return turned if 2 * pairs == x.shape[-1] else torch.cat((turned, x[..., 2 * pairs :]), dim=-1)


# An operator of its own with a body of plain aten: torch.export keeps it as one node, which becomes one ONNX
# RotaryEmbedding, and run_decompositions() opens it for the .pt2.
_library = torch.library.Library("blockexport", "FRAGMENT")
_library.define("rotary_embedding(Tensor x, Tensor cos, Tensor sin, Tensor position_ids, bool interleaved) -> Tensor")
_library.impl("rotary_embedding", _rotary_embedding, "CompositeImplicitAutograd")


def rotary_embedding(
    x_BNSH: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids_BS: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """Turn the heads [B, heads, S, H] by the table's rows at `position_ids` [B, S] int64; type is kept.

    The table's width says how many dimensions are turned: the first R, in pairs of neighbours where `interleaved`.
    """
    out: torch.Tensor = torch.ops.blockexport.rotary_embedding(x_BNSH, cos, sin, position_ids_BS, interleaved)
    return out
