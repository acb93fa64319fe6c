"""Checkpoints of every family with every option the loader knows, drawn from a seed and written as files."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from blockexport.models.config.model_config import LayerType, ModelConfig, RopeScaling
from blockexport.models.precision import Precision
from blockexport.models.quantisation import EMBEDDINGS, HEADS, Quantisation, quantisation_of
from tests.small_models import Weights, add_weights, close_gguf, gguf_writer, small_weights, write_folder

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Drawn:
    """A model and how it is to be exported."""

    config: ModelConfig
    in_gguf: bool
    shards: int
    precision: Precision
    slots: int
    headless: bool
    last_logits_only: bool
    sharpness: int = 1  # of the softmax: the queries' projection, or the gain of their norm, is multiplied by it

    def __str__(self) -> str:
        config = self.config
        rope = "plain" if config.rope_scaling is None else config.rope_scaling.rope_type
        said = [
            f"{config.model_type} {self.precision} from {config.dtype}",
            f"L{config.num_hidden_layers} D{config.hidden_size} F{config.intermediate_size}",
            f"N{config.num_attention_heads} K{config.num_key_value_heads} H{config.head_dim} V{config.vocab_size}",
            f"M{self.slots} {rope}",
        ]
        flags = {
            "gguf": self.in_gguf,
            "tied": config.tie_word_embeddings,
            "attention biases": config.qkv_bias,
            "MLP biases": config.mlp_bias,
            f"window {config.sliding_window}": config.sliding_window is not None,
            f"softmax {self.sharpness} times as sharp": self.sharpness > 1,
            "headless": self.headless,
            "last logits": self.last_logits_only,
        }
        return ", ".join(said + [name for name, there in flags.items() if there])


def draw(seed: int) -> Drawn:
    """Four seeds in a row are of four families, and eight of both precisions of each; the rest is chance."""
    chance = random.Random(seed)
    family = FAMILIES[seed % 4]
    in_gguf = chance.random() < 0.3 and family != "mistral"  # whose window a GGUF file cannot say
    heads, head_dim = chance.choice((1, 2, 3, 4, 6, 8)), chance.choice((4, 6, 8, 10, 16, 22))
    layers = chance.randint(1, 4)
    config = ModelConfig(
        family,
        vocab_size=chance.randint(50, 300),
        hidden_size=chance.randint(13, 90),
        intermediate_size=chance.randint(17, 150),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=chance.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        head_dim=head_dim,
        max_position_embeddings=chance.choice((256, 512)),
        rms_norm_eps=chance.choice((1e-5, 1e-6)),
        rope_theta=chance.choice((10_000.0, 100_000.0, 1_000_000.0)),
        rope_scaling=_scaling(chance, head_dim, family, in_gguf),
        qk_norm=family == "qwen3",
        tie_word_embeddings=chance.random() < 0.4,
        dtype="float32" if in_gguf else chance.choice(("float32", "float16", "bfloat16")),
        bos_token_id=1,
        eos_token_ids=(2,),
        **_family_options(chance, family, layers, in_gguf),
    )
    headless = chance.random() < 0.1
    return Drawn(
        config,
        in_gguf,
        shards=chance.choice((1, 1, 2)),
        precision=(Precision.FP32, Precision.FP16)[seed // 4 % 2],
        slots=chance.randint(*chance.choice(((24, 100), (128, 256)))),  # few positions to a stretch, or many
        headless=headless,
        last_logits_only=not headless and chance.random() < 0.1,
    )


SHARPNESS = (1, 3, 5, 10, 30, 100)


def draw_sharp(seed: int) -> Drawn:
    """As `draw`, in every precision, with two layers or twelve, and a softmax up to a hundred times as sharp.

    A trained head may look at one token alone; there two scores that tie decide about everything after them.
    """
    drawn, chance = draw(seed), random.Random(f"sharp {seed}")
    layers = chance.choice((2, 2, 2, 12))
    windowed = drawn.config.sliding_window is not None
    kinds: tuple[LayerType, ...] = ("full_attention", "sliding_attention")
    types = tuple(kinds[windowed and (i == 0 or chance.random() < 0.5)] for i in range(layers))
    return replace(
        drawn,
        config=replace(drawn.config, num_hidden_layers=layers, layer_types=types),
        precision=(Precision.FP32, Precision.BF16, Precision.FP16)[seed // 4 % 3],
        slots=min(drawn.slots, 96),
        sharpness=SHARPNESS[seed // 12 % len(SHARPNESS)],
        in_gguf=False,
    )


BLOCKS = (32, 64, 128)


def draw_quantised(seed: int) -> tuple[Drawn, Quantisation]:
    """As `draw`, in every precision, with layers of several blocks and of parts of one, a softmax up to five times as
    sharp, and each way of storing matrices."""
    drawn, chance = draw(seed), random.Random(f"quantised {seed}")
    config = replace(
        drawn.config,
        hidden_size=chance.choice((chance.randint(13, 90), 32 * chance.randint(1, 6), chance.randint(129, 300))),
        intermediate_size=chance.choice((chance.randint(17, 150), 64 * chance.randint(1, 5))),
    )
    quantisation = quantisation_of(
        ("int4", "int8")[seed // 4 % 2],
        BLOCKS[seed // 8 % 3],
        chance.choice(list(HEADS)),
        chance.choice(list(EMBEDDINGS)),
    )
    drawn = replace(
        drawn,
        config=config,
        precision=tuple(Precision)[seed % 3],
        sharpness=(1, 5)[seed // 2 % 2],
        slots=min(drawn.slots, 96),
        in_gguf=False,
        headless=False,
    )
    return drawn, quantisation


def _scaling(chance: random.Random, head_dim: int, family: str, in_gguf: bool) -> RopeScaling | None:
    linear = RopeScaling("linear", factor=chance.choice((2.0, 4.0)))
    if not in_gguf:
        return chance.choice((None, linear, RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_position_embeddings=32)))
    if family != "llama":
        return chance.choice((None, linear))
    factors = tuple(float(np.float32(chance.uniform(1, 8))) for _ in range(head_dim // 2))
    return chance.choice((None, linear, RopeScaling("freq_factors", freq_factors=factors)))


def _family_options(chance: random.Random, family: str, layers: int, in_gguf: bool) -> dict[str, Any]:
    """Biases and windows, as far as the family has them and the kind of file can say so."""
    biased = family == "qwen2" or (family in ("llama", "qwen3") and chance.random() < 0.5)
    options = {
        "qkv_bias": biased,
        "o_bias": biased and (family == "llama" or (family == "qwen3" and not in_gguf)),
        "mlp_bias": family == "llama" and chance.random() < 0.4,
    }
    if family == "llama" or in_gguf:
        return options
    kinds: tuple[LayerType, ...] = ("full_attention", "sliding_attention")
    types = tuple(chance.choice(kinds[family == "mistral" :]) for _ in range(layers))
    if "sliding_attention" not in types or chance.random() < 0.3:
        return options
    return {**options, "sliding_window": chance.randint(2, 30), "layer_types": types}


def weights_of(drawn: Drawn, seed: int) -> Weights:
    """Random weights, as sharp as they are to be."""
    sharp = "q_norm.weight" if drawn.config.qk_norm else "q_proj.weight"
    weights = small_weights(drawn.config, seed)
    return {name: values * drawn.sharpness if name.endswith(sharp) else values for name, values in weights.items()}


def write(drawn: Drawn, seed: int, folder: Path) -> Path:
    """The checkpoint as files; gives the path that `open_checkpoint` takes."""
    config = drawn.config
    weights = weights_of(drawn, seed)
    if not drawn.in_gguf:
        return write_folder(folder, config, weights, shards=drawn.shards)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf_writer(folder / "model.gguf", config)
    scaling = config.rope_scaling
    if scaling is not None and scaling.rope_type == "freq_factors":
        writer.add_tensor("rope_freqs.weight", np.array(scaling.freq_factors, np.float32))
    elif scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
    add_weights(writer, config, weights)
    close_gguf(writer)
    return folder / "model.gguf"
