"""Training one small model on bytes, on the very block that is exported.

AdamW: Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101. Everything random comes from the seed: weights by
tensor name, so that two models begin alike where they are alike, and the order of the data, which is the same for all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from blockexport.models.block.block import Block
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.block.rope import table_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import NotJudgedError
from blockexport.models.wording import plural

CONTEXT = 128  # bytes that a model sees at most
ROWS = 8  # windows of a step
STRETCH = 32  # bytes whose losses are averaged before they are compared: neighbours are not independent
HELD_OUT_SHARE = 5  # of a text one in so many bytes, its last ones
MOST_WINDOWS = 64  # of held-out bytes
LEAST_BYTES = 2048  # of a text
LOOKS = 20  # at the held-out bytes

LEARNING_RATE, FLOOR = 2e-3, 0.1  # the share that the rate falls to
WARM_UP, DECAY, CLIP, BETAS = 0.1, 0.1, 1.0, (0.9, 0.95)
TABLE_STD = 0.02
RECIPE = (
    f"AdamW at {LEARNING_RATE:g}, warmed up over {WARM_UP:.0%} of the steps and lowered to {FLOOR:.0%} of that along a "
    f"cosine, weight decay {DECAY:g} on matrices, gradients clipped at {CLIP:g}; {ROWS} windows of "
    f"{plural(CONTEXT, 'byte')} a step"
)


@dataclass(frozen=True)
class SplitText:
    """Bytes to train on, uint8 [T], and windows of held-out ones with the byte after each, int64 [W, CONTEXT + 1]."""

    trained_T: torch.Tensor
    held_out_WC: torch.Tensor


def split_text(texts: list[bytes]) -> SplitText:
    """The last fifth of each text is held out. Together they have at least LEAST_BYTES."""
    cuts = [len(text) - len(text) // HELD_OUT_SHARE for text in texts]
    trained = b"".join(text[:cut] for text, cut in zip(texts, cuts, strict=True))
    held = b"".join(text[cut:] for text, cut in zip(texts, cuts, strict=True))
    windows = _bytes(held).unfold(0, CONTEXT + 1, CONTEXT)
    every = max(1, math.ceil(len(windows) / MOST_WINDOWS))  # of many windows, some from everywhere
    return SplitText(_bytes(trained), windows[::every].long())


def _bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@dataclass(frozen=True)
class Look:
    """Bits per byte after some steps: of the bytes trained on since the last look, and of the held-out ones."""

    step: int
    trained: float
    held_out: float


@dataclass(frozen=True)
class Trained:
    """A model at its best look.

    Attributes:
        looks: in order, the first before any training.
        best: the step of the lowest held-out loss.
        stretches: bits per byte of each stretch of the held-out bytes there.
        weights: there, by name.
    """

    looks: tuple[Look, ...]
    best: int
    stretches: tuple[float, ...]
    weights: dict[str, torch.Tensor]


def initial_model(config: ModelConfig, seed: int) -> DecoderModel:
    """Tables of a standard deviation of 0.02, matrices of 1/sqrt(3 columns) (those that write to the stream less, by
    the root of how many there are: Radford et al. 2019, GPT-2), norms that change nothing, no biases."""
    model = DecoderModel(config, CONTEXT)
    writers = math.sqrt(2 * config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(0.0 if name.endswith("bias") or config.norm_gain_offset else 1.0)
                continue
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            spread = (3 * weight.shape[1]) ** -0.5 / (writers if into_stream else 1.0)
            is_table = not name.startswith("model.layers")
            weight.normal_(0.0, TABLE_STD if is_table else spread, generator=generator)
    return model


def logits_without_cache(model: DecoderModel, ids_BS: torch.Tensor) -> torch.Tensor:
    """Logits [B, S, V] of whole rows int64 [B, S] that begin at position 0: what the cached path gives, and its
    gradients."""
    length = ids_BS.shape[1]
    positions_BS = torch.arange(length).expand(ids_BS.shape)
    x_TD, _, masks = model.enter(ids_BS, positions_BS, torch.empty(1, 1, length, 1))
    for i, layer in enumerate(model.model.layers):
        assert isinstance(layer, Block)
        cos, sin = (model.get_buffer(name) for name in table_names(model.config, i))
        attention = layer.self_attn
        q, k, v = attention.project(layer.normed("attention_in", x_TD), positions_BS, cos, sin)
        mask = masks[model.windows.index(model.config.window_of(i))]
        x_TD = layer.finish(x_TD, attention.o_proj(attention.attend(q, k, v, mask)))
    return model.leave(x_TD, positions_BS)


def bits(model: DecoderModel, windows_BC: torch.Tensor) -> torch.Tensor:
    """What each byte after the first of a window costs, [B, C - 1] bits."""
    logits_BSV = logits_without_cache(model, windows_BC[:, :-1])
    nats = F.cross_entropy(logits_BSV.flatten(0, 1), windows_BC[:, 1:].flatten(), reduction="none")
    return nats.view(len(windows_BC), -1) / math.log(2)


def train(
    config: ModelConfig, text: SplitText, seed: int, steps: int, stepped: Callable[[], None] = lambda: None
) -> Trained:
    """Train a model for some steps, and keep it as it was at the best of its looks.

    Args:
        config: of the model, whose positions reach CONTEXT.
        text: what it learns and what it is measured on.
        seed: of the weights and the order of the data.
        steps: at least one.
        stepped: called after each.

    Raises:
        NotJudgedError: the losses are no longer finite.
    """
    model = initial_model(config, seed)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    order = torch.Generator().manual_seed(seed)
    windows = text.trained_T.unfold(0, CONTEXT + 1, 1)
    looks, since, best = list[Look](), list[float](), None
    every = max(1, steps // LOOKS)
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            best = _look(model, text, step, since, looks, best)
        if step < steps:
            loss = bits(model, windows[torch.randint(len(windows), (ROWS,), generator=order)].long()).mean()
            optimizer.zero_grad()
            (loss * math.log(2)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            since.append(loss.item())
            stepped()
    assert best is not None
    return best


def _look(
    model: DecoderModel, text: SplitText, step: int, since: list[float], looks: list[Look], best: Trained | None
) -> Trained:
    """Measure, note it in `looks`, and give what is best so far."""
    with torch.no_grad():
        costs_WC = bits(model, text.held_out_WC)
    held_out = costs_WC.mean().item()
    if not math.isfinite(held_out):
        raise NotJudgedError(
            f"after step {step} of a model {model.config.hidden_size} wide its loss is {held_out}: a rate of "
            f"{LEARNING_RATE:g} is too high for it. Choose a smaller --size"
        )
    lowest = min((look.held_out for look in looks), default=math.inf)
    looks.append(Look(step, sum(since) / len(since) if since else held_out, held_out))
    since.clear()
    if best is not None and not held_out < lowest:
        return Trained(tuple(looks), best.best, best.stretches, best.weights)
    stretches = costs_WC.view(-1, STRETCH).mean(1).tolist()
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return Trained(tuple(looks), step, tuple(stretches), weights)


def _rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
