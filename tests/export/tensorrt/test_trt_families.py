"""An engine of TensorRT for RTX of every family: built and audited, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.export.tensorrt.trt_support import build, rtx
from tests.exported import export
from tests.transformers_models import make_model, sampled, save_model


@pytest.mark.parametrize("family", sampled(["exaone4"]))
def test_an_engine_is_built_and_audited_unless_scores_are_capped(family: str, tmp_path: Path) -> None:
    rtx()
    save_model(make_model(family), tmp_path / "model")
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    export(checkpoint, tmp_path / "bundle", Precision.FP16)
    config = checkpoint.config
    if config.attn_logit_softcapping is not None:
        with pytest.raises(UsageError, match="softcap"):
            build(tmp_path / "bundle")
        return
    audit = build(tmp_path / "bundle").audit
    layers = range(config.num_hidden_layers)
    assert (audit.cache_updates, audit.attention_layers) == (2 * len(layers), len(layers))
    # q, k, v and o; gate, up and down; the head
    assert audit.matrix_products == {"float16": (4 + 2 + config.gated_mlp) * len(layers) + 1}
    assert sum(audit.rotary_embeddings.values()) == 2 * sum(config.has_rope(layer) for layer in layers)
