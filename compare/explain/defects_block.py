"""Defects of norms, MLP and residual stream, and of what comes before and after the blocks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from blockexport.compare.audits.sites_by_name import NORMS_AT
from blockexport.compare.core.defect import Defect, LayerBlock
from blockexport.models.block.block import Block
from blockexport.models.block.mlp import ACTIVATIONS
from blockexport.models.block.norm import Norm
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.config.model_config import HiddenAct, ModelConfig, NormPlace
from blockexport.models.wording import listed

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-2)
"""Values of rms_norm_eps in use, and two that are not, which files of other tools have had."""

GUESSED = 7  # layers whose order is guessed at, three defects each


def norm_defects(config: ModelConfig) -> list[Defect]:
    """Wrong statistics, epsilon or gain, in every norm."""
    found = [
        _in_every_norm("norm_half", "norm statistics are taken in half precision", HalfNorm, coarse=True),
        Defect("final_norm_dropped", "the final norm is dropped", norm=lambda norm: nn.Identity()),
    ]
    if config.norm_gain_offset:
        cause = "norms multiply by w where 1 + w belongs"
        found.append(_in_every_norm("gain_offset_dropped", cause, _without_offset))
    elif config.norm_weight:
        found.append(_in_every_norm("gain_plus_one", "norms multiply by 1 + w where w belongs", _gain_plus_one))
    if config.norm == "layer_norm":
        found.append(_in_every_norm("norm_mean_kept", "the mean is not subtracted in LayerNorm", _MeanKept))
    if config.norm_bias:
        found.append(_in_every_norm("norm_bias_dropped", "the biases of the norms are dropped", _without_bias))
    for eps in EPSILONS:
        if eps != config.rms_norm_eps:
            cause = f"wrong epsilon: norms add {eps:g} and should add {config.rms_norm_eps:g}"
            found.append(_in_every_norm(f"eps_{eps:g}", cause, _with_epsilon(eps)))
    return found


def site_norms(config: ModelConfig) -> dict[str, str]:
    """Sites of a layer that are the output of a norm, and that norm in the block."""
    found = {site: config.layer_norms[place] for site, place in NORMS_AT.items() if place in config.layer_norms}
    kind = "norm" if config.qk_norm_after_rope else "heads"
    return found | ({f"{x}_{kind}": f"self_attn.{x}_norm" for x in "qk"} if config.qk_norm else {})


def one_norm_defects(config: ModelConfig, site: str | None) -> list[Defect]:
    """A wrong epsilon in the norm at `site` alone, which is to be tried where something differs there."""
    path = site_norms(config).get(site or "")
    if path is None and site != "final_norm":
        return []
    found = []
    for eps in EPSILONS:
        if eps != config.rms_norm_eps:
            name = f"eps_{eps:g}_in_{path or 'the final norm'}"
            cause = f"wrong epsilon in one norm, {path or 'the final norm'}: it adds {eps:g}"
            cause += f" and should add {config.rms_norm_eps:g}"
            change = _with_epsilon(eps)
            final = Defect(name, cause, norm=change)
            found.append(final if path is None else Defect(name, cause, edit=_edit_norms(change, path)))
    return found


Change = Callable[[Norm], nn.Module]


def _in_every_norm(name: str, cause: str, change: Change, *, coarse: bool = False) -> Defect:
    return Defect(name, cause, edit=_edit_norms(change), norm=change, coarse=coarse)


def _edit_norms(change: Change, path: str = "") -> Callable[[Block], None]:
    """Every norm of a block changed, or the one at `path`."""

    def edit(block: Block) -> None:
        for name, module in list(block.named_modules()):
            if isinstance(module, Norm) and path in ("", name):
                block.set_submodule(name, change(module))

    return edit


class HalfNorm(nn.Module):
    """A norm whose mean of squares is taken in float16."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `Norm.forward`."""
        norm, half = self.norm, x.half()
        if norm.is_layer_norm:
            centre = half.float().mean(-1, keepdim=True).half()
            half, x = half - centre, x - centre
        mean = (half * half).float().mean(-1, keepdim=True).half()
        out = x / (mean.to(x.dtype) + norm.eps).sqrt()
        out = out if norm.weight is None else out * (norm.weight + 1 if norm.gain_offset else norm.weight)
        return out if norm.bias is None else out + norm.bias


class _MeanKept(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = F.rms_norm(x, self.norm.shape, self.norm.weight, self.norm.eps)
        return normed if self.norm.bias is None else normed + self.norm.bias


def _without_bias(norm: Norm) -> Norm:
    made = deepcopy(norm)
    made.bias = None
    return made


def _gain_plus_one(norm: Norm) -> Norm:
    made = deepcopy(norm)
    assert made.weight is not None
    made.weight = nn.Parameter(made.weight + 1, requires_grad=False)
    return made


def _without_offset(norm: Norm) -> Norm:
    made = deepcopy(norm)
    made.gain_offset = False
    return made


def _with_epsilon(eps: float) -> Change:
    def change(norm: Norm) -> Norm:
        made = deepcopy(norm)
        made.eps = eps
        return made

    return change


def placement_defects(config: ModelConfig) -> list[Defect]:
    """Norms after the sublayers that are left out, or stand before them."""
    if "attention_out" not in config.layer_norms:
        return []
    found = [
        Defect("attention_out_norm_dropped", "the norm after attention is dropped", _without("attention_out")),
        Defect("mlp_out_norm_dropped", "the norm after the MLP is dropped", _without("mlp_out")),
    ]
    if config.norm_placement == "post":
        cause = "norms stand before attention and MLP and belong after them"
        found.append(Defect("norms_before", cause, _NormsBefore))
    return found


def _without(dropped: NormPlace) -> type[LayerBlock]:
    class WithoutNorm(LayerBlock):
        def normed(self, place: NormPlace, x_TD: torch.Tensor) -> torch.Tensor:
            return x_TD if place == dropped else super().normed(place, x_TD)

    return WithoutNorm


class _NormsBefore(LayerBlock):
    def normed(self, place: NormPlace, x_TD: torch.Tensor) -> torch.Tensor:
        belongs: dict[NormPlace, NormPlace] = {"attention_in": "attention_out", "mlp_in": "mlp_out"}
        return super().normed(belongs[place], x_TD) if place in belongs else x_TD


_ACTIVATIONS: dict[HiddenAct, tuple[str, str]] = {
    "gelu": ("gelu", "GELU"),
    "gelu_pytorch_tanh": ("gelu_tanh", "GELU (by tanh)"),
    "silu": ("silu", "SiLU"),
    "relu2": ("relu2", "squared ReLU"),
}
"""Each one's defect where another belongs, and its name for people."""


def mlp_defects(config: ModelConfig) -> list[Defect]:
    """Another activation, or the two halves swapped."""
    kind, own = _ACTIVATIONS[config.hidden_act]
    missing = f"{kind.partition('_')[0]}_missing"
    found = [
        Defect(name, f"{said} stands for {own} in the MLP", edit=_activated(ACTIVATIONS[act]))
        for act, (name, said) in _ACTIVATIONS.items()
        if act not in (config.hidden_act, "relu2")
    ]
    cause = f"{own} is missing in the MLP: {'the gate' if config.gated_mlp else 'its input'} stays as it is"
    found.append(Defect(missing, cause, edit=_activated(lambda x: x)))
    if config.hidden_act == "relu2":
        found.append(Defect("square_missing", "ReLU in the MLP is not squared", edit=_activated(F.relu)))
    if config.gated_mlp:
        found.append(Defect("gate_up_swapped", "gate_proj and up_proj are swapped", edit=_swap_gate_up))
    return found


def _activated(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Block], None]:
    def edit(block: Block) -> None:
        block.mlp.act = act

    return edit


def _swap_gate_up(block: Block) -> None:
    block.mlp.gate_proj, block.mlp.up_proj = block.mlp.up_proj, block.mlp.gate_proj


def residual_defects(config: ModelConfig) -> list[Defect]:
    """A branch that replaces the stream instead of adding to it, or one that waits for the other."""
    found = [
        Defect("attention_residual_dropped", "the residual around attention is dropped", _NoAttentionResidual),
        Defect("mlp_residual_dropped", "the residual around the MLP is dropped", _NoMLPResidual),
    ]
    if config.residual != "serial":
        cause = "attention and MLP come one after the other, and should read the same stream"
        found.append(Defect("residual_serial", cause, _Serial))
    if config.residual == "parallel":
        cause = "the MLP reads what attention reads, and has a norm of its own"
        found.append(Defect("norm_shared", cause, _SharedNorm))
    return found


class _Serial(LayerBlock):
    def mlp_input(self, x_TD: torch.Tensor, h_TD: torch.Tensor) -> torch.Tensor:
        return super().mlp_input(h_TD, h_TD)


class _SharedNorm(LayerBlock):
    def mlp_input(self, x_TD: torch.Tensor, h_TD: torch.Tensor) -> torch.Tensor:
        return self.normed("attention_in", x_TD)


class _NoAttentionResidual(LayerBlock):
    def add_attention(self, x_TD: torch.Tensor, attended_TD: torch.Tensor) -> torch.Tensor:
        return attended_TD


class _NoMLPResidual(LayerBlock):
    def add_mlp(self, h_TD: torch.Tensor, made_TD: torch.Tensor) -> torch.Tensor:
        return made_TD


def multiplier_defects(config: ModelConfig) -> list[Defect]:
    """The constants by which embedding, residuals and logits are scaled, and the cap on the logits, left out."""
    said = {
        "embedding_multiplier": (1.0, "the embedding is not multiplied by {:g}"),
        "logits_multiplier": (1.0, "the logits are not multiplied by {:g}"),
        "final_logit_softcapping": (None, "the logits are not capped at {:g}"),
    }
    found = []
    for name, (neutral, cause) in said.items():
        if getattr(config, name) != neutral:
            ends = partial(replace, **{name: neutral})
            found.append(Defect(f"{name}_dropped", cause.format(getattr(config, name)), ends=ends))
    if config.residual_multiplier != 1.0:
        cause = f"what is added to the stream is not multiplied by {config.residual_multiplier:g}"
        found.append(Defect("residual_multiplier_dropped", cause, edit=_drop_multiplier))
    return found


def _drop_multiplier(block: Block) -> None:
    block.residual_multiplier = 1.0


def head_defects(config: ModelConfig) -> list[Defect]:
    """The head without its bias, or reading another matrix than its own; a tied head has no other."""
    dropped = Defect("head_bias_dropped", "the bias of the head is dropped", ends=partial(replace, head_bias=False))
    found = [dropped] if config.head_bias else []
    if config.tie_word_embeddings:
        return found
    cause = "the head is tied to the embedding, and the checkpoint has a matrix of its own for it (lm_head)"
    return [*found, Defect("head_tied", cause, output=lambda config: EMBEDDING)]


def order_defects(config: ModelConfig, mapping: tuple[int, ...] | None = None) -> list[Defect]:
    """Layers computing with other layers' weights: all reversed, two neighbours swapped, a neighbour's used twice; or
    only the `mapping` that was found by looking inside (layer i uses the weights of layer mapping[i]).

    Without it, and in a deep model, only the first few layers are guessed at.
    """
    layers = config.num_hidden_layers
    own = list(range(layers))
    if mapping is not None:
        return [] if list(mapping) == own else [_ordered(mapping)]
    mappings: list[list[int]] = [own[::-1]] if layers > 2 else []
    for i in range(min(layers - 1, GUESSED)):
        mappings.append([*own[:i], i + 1, i, *own[i + 2 :]])
        mappings.append([*own[:i], i, i, *own[i + 2 :]])
        mappings.append([*own[:i], i + 1, i + 1, *own[i + 2 :]])
    return [_ordered(tuple(order)) for order in mappings]


def _ordered(mapping: tuple[int, ...]) -> Defect:
    wrong = [f"{i} uses those of {j}" for i, j in enumerate(mapping) if i != j]
    told = listed(wrong, 4)
    if len(set(mapping)) == len(mapping):
        name, cause = "layers_permuted", f"layers are in the wrong order: layer {told}"
    else:
        name, cause = "layer_duplicated", f"one layer's weights are used twice: layer {told}"
    return Defect(name, cause, weights_of=lambda layer: mapping[layer])
