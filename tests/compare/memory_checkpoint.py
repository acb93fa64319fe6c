"""Small models with every dimension different."""

from __future__ import annotations

import torch

from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint, Source, TensorEntry
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends

TINY = ModelConfig(
    "qwen3",
    vocab_size=101,
    hidden_size=24,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=96,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    qk_norm=True,
    qkv_bias=True,
    tie_word_embeddings=False,
    sliding_window=9,
    layer_types=("full_attention", "sliding_attention", "full_attention"),
)

STORIES_CONFIG = ModelConfig(
    "llama",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=172,
    num_hidden_layers=5,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    tie_word_embeddings=True,
)


class MemoryCheckpoint(Checkpoint):
    """Tensors that are already in memory."""

    def __init__(self, config: ModelConfig, tensors: dict[str, torch.Tensor]) -> None:
        self.config = config
        self.source = Source("random", "tests")
        self.tensors = tensors
        kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
        self.entries = {k: TensorEntry(k, kinds[v.dtype], tuple(v.shape)) for k, v in tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self.tensors[name].clone()


def random_checkpoint(config: ModelConfig, seed: int = 0) -> MemoryCheckpoint:
    """Weights of standard deviation 0.2, gains between 0.25 and 1.75."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in DecoderModel(config, 8).state_dict().items()}
    for name, shape in shapes.items():
        if "norm" in name:
            tensors[name] = torch.rand(shape, generator=generator) * 1.5 + 0.25
        else:
            tensors[name] = torch.randn(shape, generator=generator) * 0.2
    return MemoryCheckpoint(config, tensors)


def eager_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype = torch.float32,
    kind: type[DecoderModel] = DecoderModel,
    *,
    headless: bool = False,
    last_logits_only: bool = False,
    ends: Ends | None = None,
) -> DecoderModel:
    """The project's eager model, or a subclass of it, on a checkpoint's weights."""
    rows = checkpoint.config.max_position_embeddings
    model = kind(checkpoint.config, rows, ends or Ends.of(headless=headless, last_logits_only=last_logits_only))
    wanted = model.state_dict().keys()
    model.load_state_dict({name: checkpoint.read(name).to(dtype) for name in wanted}, assign=True)
    return model
