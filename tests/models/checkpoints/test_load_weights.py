"""Weights in the decoder: the right ones, in the right type, without waste."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from blockexport.models.block.cache import empty_cache
from blockexport.models.block.rope import rope_table
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from tests.small_models import Weights, small_config, small_weights, write_folder


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_parameter_is_the_checkpoints(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    config = small_config(family)
    weights = small_weights(config)
    model = load_model(open_checkpoint(str(write_folder(tmp_path, config, weights))), dtype, 64)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, parameter in parameters.items():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, weights[name].to(dtype)), name
        assert not parameter.requires_grad
    assert not model.training


def test_the_rope_table_is_real_float32_and_covers_the_models_range() -> None:
    config = small_config()
    model = load_model(RandomCheckpoint(config, 0, "x"), torch.float64, 64)
    cos, sin = rope_table(config, 512)
    assert torch.equal(model.cos, cos)
    assert torch.equal(model.sin, sin)
    assert load_model(RandomCheckpoint(config, 0, "x"), torch.float32, 600).cos.shape == (600, 5)


def test_a_headless_stack_has_neither_end() -> None:
    model = load_model(RandomCheckpoint(small_config(), 0, "x"), torch.float32, 64, ends=Ends.HIDDEN_STATES)
    assert model.ends.headless
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & dict(model.named_parameters()).keys()


def test_tied_embeddings_are_one_tensor() -> None:
    model = load_model(RandomCheckpoint(small_config(tie_word_embeddings=True), 0, "x"), torch.float32, 64)
    assert model.model.embed_tokens is not None
    assert model.output_weight is model.model.embed_tokens.weight


def test_the_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    """A parameter of the file's own type is the file's pages: bytes changed in the file show in the tensor."""
    config = small_config()
    folder = write_folder(tmp_path, config, small_weights(config))
    checkpoint = open_checkpoint(str(folder))
    model = load_model(checkpoint, torch.float32, 64)
    location = checkpoint.entries["model.norm.weight"].location
    assert location is not None
    with location.path.open("r+b") as file:
        file.seek(location.offset)
        file.write(torch.tensor([123.0]).numpy().tobytes())
    assert model.get_parameter("model.norm.weight")[0] == 123.0


def test_no_random_weights_are_drawn_that_a_checkpoint_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """And torch's own layers keep theirs: nothing is changed for the rest of the process."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("random weights were drawn")

    with monkeypatch.context() as patch:
        patch.setattr(nn.init, "kaiming_uniform_", refuse)
        patch.setattr(nn.init, "normal_", refuse)
        load_model(RandomCheckpoint(small_config(), 0, "x"), torch.float32, 64)
        with pytest.raises(AssertionError, match="random weights were drawn"):
            nn.Linear(4, 4)
    assert nn.Linear(4, 4).weight.std() > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    config = small_config()
    weights: Weights = small_weights(config)
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] = bad
    weights["model.layers.1.mlp.up_proj.weight"][79, 47] = bad
    checkpoint = open_checkpoint(str(write_folder(tmp_path, config, weights)))
    with pytest.raises(UsageError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds 2 .*\[5, 7\]"):
        load_model(checkpoint, torch.float32, 64)


def test_overflow_in_the_wanted_type_is_refused(tmp_path: Path) -> None:
    config = small_config()
    weights = small_weights(config)
    weights["model.norm.weight"][3] = 70_000.0
    checkpoint = open_checkpoint(str(write_folder(tmp_path, config, weights)))
    load_model(checkpoint, torch.bfloat16, 64)
    with pytest.raises(UsageError, match=r"float16 ends at 65504.*model\.norm\.weight .*70000.*--bf16"):
        load_model(checkpoint, torch.float16, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_value_that_only_float64_holds_is_refused_without_false_advice(tmp_path: Path, dtype: torch.dtype) -> None:
    config = small_config(dtype="float64")
    weights = small_weights(config)
    weights["model.norm.weight"][3] = 1e300
    checkpoint = open_checkpoint(str(write_folder(tmp_path, config, weights)))
    assert load_model(checkpoint, torch.float64, 64).get_parameter("model.norm.weight")[3] == 1e300
    with pytest.raises(UsageError, match=r"model\.norm\.weight .*1e\+300.*No precision of a bundle"):
        load_model(checkpoint, dtype, 64)


def test_progress_ends_at_its_total() -> None:
    heard: list[tuple[str, int, int]] = []
    config = small_config()
    load_model(RandomCheckpoint(config, 0, "x"), torch.float32, 64, progress=lambda *args: heard.append(args))
    assert [done for _, done, _ in heard] == list(range(1, heard[0][2] + 1))


def test_it_runs() -> None:
    config = small_config("qwen2")
    model = load_model(RandomCheckpoint(config, 0, "x"), torch.float64, 32)
    logits, _ = model(torch.arange(6)[None], torch.arange(6)[None], empty_cache(config, 1, 32, torch.float64))
    assert logits.isfinite().all()
