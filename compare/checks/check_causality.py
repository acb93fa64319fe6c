"""Nothing may depend on a later token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.tolerances import UNCHANGED
from blockexport.models.checkpoints.tensor_names import EMBEDDING

LENGTH = 64  # tokens of the prefill that is repeated
CANDIDATES = 16  # ids after a token's own, of which the one with the most different embedding takes its place
SEEN = 8  # units in the last place by which eager's last output must move before the artifact's has to


def _cannot(context: CheckContext) -> str | None:
    if context.plan.prefill < 2:
        return "a prefill of one token has no earlier position"
    if context.config.vocab_size < 2:
        return "a vocabulary of one token has no other to put in its place"
    if context.decoder.one_a_row and context.config.num_hidden_layers < 2:
        return "with the outputs of last tokens only, nothing that one layer's earlier queries give leaves the file"
    return None


@dataclass(frozen=True)
class Change:
    """How far outputs and slots before the first changed token moved (`from_position`), and the last output after."""

    from_position: int
    outputs: float
    cache: float
    effect: float


@dataclass(frozen=True)
class CausalityFigures(Figures):
    """The prompt's length, by how much outputs and slots may move, and each change of tokens."""

    length: int
    limit: float
    cache_limit: float
    changes: list[Change]

    def to_json(self) -> dict[str, Any]:
        """`from_position` is called `from`, which is no name in Python."""
        changes = [{"from": change.pop("from_position"), **change} for change in map(asdict, self.changes)]
        return {**asdict(self), "changes": changes}


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    within = (
        "against eager the same prompt stays within the floor: what a later token changes is smaller than that, or "
        "shows only with other tokens"
    )
    return prompt_and_steps(context.ids_S, min(LENGTH, context.plan.prefill), "the prompt alone", within)


@partial(Check, "causality", Kind.BEHAVIOUR, inapplicable=_cannot, calls=_calls)
def causality(context: CheckContext) -> Outcome:
    """Repeat a prefill with other tokens from some position on: what lies before must not move, what follows must.

    Outputs and, since an artifact may give only the last position's, the caches of all layers are compared. What
    follows must move where eager's does: two tokens of an untrained part of a vocabulary can be all but the same.
    """
    length = min(LENGTH, context.plan.prefill)
    ids_1S = context.ids_S[None, :length]
    others_1S = _others(context, ids_1S)
    base_outputs, base_cache = _prefill(context, ids_1S)
    unit = UNCHANGED.value * torch.finfo(context.decoder.dtype).eps
    limit_outputs, limit_cache = unit * _size(base_outputs), unit * _size(base_cache)
    changes: list[Change] = []
    complaints = []
    for changed in sorted({1, length // 2, length - 1} - {0}):
        other_1S = ids_1S.clone()
        other_1S[:, changed:] = others_1S[:, changed:]
        outputs, cache = _prefill(context, other_1S)
        before = length - outputs.shape[0]  # with last logits only, the outputs start at the last position
        leak = _difference(outputs[: max(changed - before, 0)], base_outputs[: max(changed - before, 0)])
        cache_leak = _difference(cache[:, :, :changed], base_cache[:, :, :changed])
        effect = _difference(outputs[-1:], base_outputs[-1:])
        changes.append(Change(changed, leak, cache_leak, effect))
        if not (leak <= limit_outputs and cache_leak <= limit_cache):
            complaints.append(
                f"tokens from {changed} on change earlier outputs by {leak:.3g}, slots by {cache_leak:.3g}"
            )
        elif not effect > limit_outputs and _eagers_effect(context, ids_1S, other_1S) > SEEN * limit_outputs:
            complaints.append(f"tokens from {changed} on change nothing at the last position")
    what = f"prefill of {length} tokens, later ones changed"
    return Outcome(
        f"{what}: earlier outputs unmoved",
        len(changes),
        [f"{what}: {'; '.join(complaints)}"] if complaints else (),
        [] if any(change.effect > limit_outputs for change in changes) else [f"{what}: that changes nothing at all"],
        CausalityFigures(length, limit_outputs, limit_cache, changes),
    )


def _others(context: CheckContext, ids_1S: torch.Tensor) -> torch.Tensor:
    """For each token another one, with an embedding as different as a few candidates allow."""
    table_VD = context.checkpoint.read(EMBEDDING)
    shifts = torch.arange(1, min(CANDIDATES, context.config.vocab_size - 1) + 1)
    candidates_SC = (ids_1S[0][:, None] + shifts) % context.config.vocab_size
    distance_SC = (table_VD[candidates_SC].float() - table_VD[ids_1S[0]][:, None].float()).norm(dim=-1)
    return candidates_SC.gather(1, distance_SC.argmax(1, keepdim=True)).T


def _eagers_effect(context: CheckContext, ids_1S: torch.Tensor, other_1S: torch.Tensor) -> float:
    """By how much eager's last output differs between the two prefills."""
    eager, outputs = context.eager, []
    for given_1S in (ids_1S, other_1S):
        eager.reset(1)
        outputs.append(eager.prefill(context.inputs(eager, given_1S))[0, -1].clone())
    return _difference(*outputs)


def _prefill(context: CheckContext, ids_1S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [S, V], and the filled slots of all caches [2L, K, S, H]."""
    decoder = context.decoder
    decoder.reset(1)
    outputs = decoder.prefill(context.inputs(decoder, ids_1S))[0]
    length = ids_1S.shape[1]
    layers = [tensor[0, :, :length] for i in range(context.config.num_hidden_layers) for tensor in decoder.cache(i)]
    return outputs, torch.stack(layers)


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def _size(x: torch.Tensor) -> float:
    return float(x.double().abs().max())
