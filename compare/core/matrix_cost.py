"""What quantising did to the values of each matrix, and by which kind of matrices the predictions lose most.

The error of a matrix is a sum over its values. What it does to the model is another matter: that is measured by
quantising one kind of matrices at a time, all others being the checkpoint's.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.figures import Figures
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.progress import Progress, silent
from blockexport.runtime.eager import EagerDecoder

MOST_TOKENS = 256  # that are run for each kind: enough to tell the dear ones from the cheap
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class MatrixError(Figures):
    """What quantising did to a matrix.

    Attributes:
        kind: such as `q_proj`.
        layer: None of what belongs to none.
        error: root mean square of the differences from the checkpoint's values, over that of the values.
    """

    kind: str
    layer: int | None
    error: float


@dataclass(frozen=True)
class KindCost(Figures):
    """All matrices of a kind.

    Attributes:
        kind: such as `q_proj`.
        kl_mean: the mean KL of the model with these alone quantised, in nats.
        errors: of each.
    """

    kind: str
    kl_mean: float
    errors: tuple[MatrixError, ...]

    @property
    def median(self) -> float:
        """Of the errors."""
        return statistics.median(one.error for one in self.errors)

    @property
    def worst(self) -> MatrixError:
        """That with the largest error."""
        return max(self.errors, key=lambda one: one.error)


def kind_costs(
    stored: Checkpoint, names: Sequence[str], decoder: EagerDecoder, ids_S: torch.Tensor, progress: Progress = silent
) -> tuple[KindCost, ...]:
    """Every kind of matrices that a file has quantised, in the order of the forward pass.

    Args:
        stored: gives the weights that the file has.
        names: of the matrices that it has quantised.
        decoder: the checkpoint's own model in float32; it is that again at the end.
        ids_S: int64, a text of which the first `MOST_TOKENS`, or what the cache holds, are run.
        progress: told of the kinds.
    """
    ids_S = ids_S[: min(MOST_TOKENS, decoder.max_sequence_length)]
    log_p_PV = _predictions(decoder, ids_S)
    found = []
    kinds = _by_kind(names)
    for done, (kind, names) in enumerate(kinds.items()):
        progress("cost of each kind of matrices", done, len(kinds))
        kept = {name: decoder.model.get_parameter(name).data for name in names}
        errors = []
        for name in names:
            widened = stored.read(name).to(kept[name].dtype)
            errors.append(MatrixError(kind, _layer(name), _relative(widened, kept[name])))
            decoder.model.get_parameter(name).data = widened
        log_q_PV = _predictions(decoder, ids_S)
        kl_P = (log_p_PV.exp() * (log_p_PV - log_q_PV)).sum(-1).clamp(min=0)  # rounding alone makes it less
        found.append(KindCost(kind, float(kl_P.mean()), tuple(errors)))
        for name, values in kept.items():
            decoder.model.get_parameter(name).data = values
    progress("cost of each kind of matrices", len(kinds), len(kinds))
    return tuple(found)


def _predictions(decoder: EagerDecoder, ids_S: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [P, V] of the next token, float32: a text of them is as much as a model of this size."""
    decoder.reset(1)
    return decoder.prefill(ids_S[None])[0].log_softmax(-1)


def _by_kind(names: Iterable[str]) -> Mapping[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name.removesuffix(".weight").rpartition(".")[2], []).append(name)
    return kinds


def _layer(name: str) -> int | None:
    found = _LAYER.match(name)
    return None if found is None else int(found[1])


def _relative(values: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float(torch.linalg.vector_norm(wanted, dtype=torch.float64))
    return float(torch.linalg.vector_norm(values - wanted, dtype=torch.float64)) / size if size else 0.0
