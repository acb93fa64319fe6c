"""The text part of multimodal models, as transformers builds and saves them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from blockexport.cli.main import main
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.transformers_models import FAMILIES, some_ids

LENGTH = 60


def _gemma3() -> Any:
    vision = transformers.SiglipVisionConfig(
        hidden_size=24, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = FAMILIES["gemma3"]()
    text.final_logit_softcapping = None
    return transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    )


def _mistral3(text: str) -> Any:
    vision = transformers.PixtralVisionConfig(
        hidden_size=24, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = transformers.Mistral3Config(text_config=FAMILIES[text](), vision_config=vision, tie_word_embeddings=False)
    return transformers.Mistral3ForConditionalGeneration(config)


@pytest.fixture(
    params=[_gemma3, partial(_mistral3, "ministral3"), partial(_mistral3, "mistral-window")],
    ids=["gemma3", "ministral3 in mistral3", "mistral in mistral3"],
)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A folder, and the model that is in it."""
    model = request.param().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        scale = 0.2 if parameter.ndim > 1 else 0.1
        parameter.add_(torch.randn(parameter.shape, generator=generator) * scale * (1 + name.count("norm")))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def test_the_logits_of_the_text_part(saved: tuple[Path, Any]) -> None:
    folder, theirs = saved
    with pytest.raises(UsageError, match="exported by itself with --text-only"):
        open_checkpoint(str(folder))
    checkpoint = open_checkpoint(str(folder), text_only=True)
    assert "tensors of the model's other parts are left out: " in checkpoint.notes[0]
    ids_BS = some_ids(LENGTH)
    past = empty_cache(checkpoint.config, len(ids_BS), LENGTH, torch.float32)
    logits = load_model(checkpoint, torch.float32, LENGTH)(ids_BS, torch.arange(LENGTH).expand(ids_BS.shape), past)[0]
    expected = theirs(input_ids=ids_BS).logits
    assert expected.std() > 1, "a model whose logits are all alike proves nothing"
    torch.testing.assert_close(logits, expected)


def test_a_bundle_of_it_is_judged_and_judged_again(saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved[0]
    bundle = str(folder.parent / "bundle")
    assert main(["onnx", str(folder), "-o", bundle, "-M", "40"]) == 2
    assert "--text-only" in capsys.readouterr().err
    assert main(["onnx", str(folder), "-o", bundle, "-M", "40", "--text-only"]) == 0
    assert "other parts are left out" in capsys.readouterr().err
    assert main(["compare", bundle, "--check", "decode"]) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"something": 3}, "unknown beside text_config: something = 3"),
        ({"text_config": {"model_type": "gemma3_text", "final_logit_softcapping": 5.0}}, "caps no logits"),
        ({"text_config": 3}, "text_config is 3; it must be an object"),
        (
            {"text_config": {"model_type": "mixtral"}},
            'part "mixtral" is not implemented: mixtures of experts',
        ),
    ],
)
def test_what_is_beside_the_text_part_is_understood_or_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}, **changes}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=said):
        open_checkpoint(str(tmp_path), text_only=True)
