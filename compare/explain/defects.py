"""The catalogue: every defect that Diagnose tries."""

from __future__ import annotations

from blockexport.compare.core.defect import Defect
from blockexport.compare.explain.defects_attention import attention_defects, is_scale, scaled_by
from blockexport.compare.explain.defects_block import (
    head_defects,
    mlp_defects,
    norm_defects,
    one_norm_defects,
    order_defects,
    residual_defects,
)
from blockexport.compare.explain.defects_position import cache_defects, mask_defects, rope_defects
from blockexport.models.config.model_config import ModelConfig

DROPOUT = "dropout"
DROPOUT_CAUSE = "dropout is left on: two runs on the same tokens differ"
"""The one defect that no eager run can reproduce; it is recognised by its randomness."""


def catalogue(
    config: ModelConfig,
    *,
    position: int | None = None,
    mapping: tuple[int, ...] | None = None,
    site: str | None = None,
    times: float | None = None,
) -> list[Defect]:
    """Every defect that a model of `config` can have. Exchanged caches are not among them: they are seen, and not
    guessed at.

    Args:
        config: defects of options it lacks (biases, QK-norm, a window, grouped heads) are left out.
        position: where the artifact first goes wrong, for the stale slot.
        mapping: whose weights each layer was seen to use; the orders worth guessing at when None.
        site: where the artifact was seen to differ first; a norm there is also tried with a wrong epsilon by itself.
        times: the factor between what the artifact has at `site` and what it should have, where there is one.
    """
    return [
        *rope_defects(config),
        *mask_defects(config),
        *cache_defects(config, position),
        *attention_defects(config),
        *([scaled_by(times)] if times is not None and site == "query" and not is_scale(config, times) else []),
        *norm_defects(config),
        *one_norm_defects(config, site),
        *mlp_defects(),
        *residual_defects(),
        *head_defects(config),
        *order_defects(config, mapping),
    ]
