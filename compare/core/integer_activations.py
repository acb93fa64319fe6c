"""What a product by quantised weights sees of its inputs where they are rounded to 8 bits, worked out in PyTorch.

A rule of its own, which shares nothing with a runtime: each row of inputs has a scale for every block of the weight,
which makes the largest of them 127, and the nearest whole number stands for each. ONNX Runtime computes so at accuracy
level 4 of MatMulNBits, https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md, with the sums of a
block in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.nn import functional as F

from blockexport.compare.core.defect import LayerBlock, output_tensor
from blockexport.compare.core.embeddings import embeddings_at
from blockexport.compare.core.logit_distance import Distances
from blockexport.compare.core.noise import Floor, floor_of
from blockexport.compare.core.nudge import Looks, Nudges, run_distances
from blockexport.compare.core.reference import Reference
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.interface import Ends
from blockexport.models.progress import Progress, silent

HIGHEST = 127  # the code of the largest value of a block

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Of the inputs [T, K] of a layer."""


def in_8_bits(x_TK: torch.Tensor, block: int, order_K: torch.Tensor | None = None) -> torch.Tensor:
    """The inputs [T, K] of a layer as codes of 8 bits stand for them, in their type.

    Args:
        x_TK: the inputs.
        block: how many of them share a scale with each other; the last block of a row may be shorter.
        order_K: the input at each place along the blocks; None: its own.
    """
    placed_TK = x_TK if order_K is None else x_TK[:, order_K]
    blocks_TGB = F.pad(placed_TK, (0, -x_TK.shape[1] % block)).unflatten(1, (-1, block))
    scales_TG1 = blocks_TGB.abs().amax(-1, keepdim=True) / HIGHEST
    codes_TGB = torch.where(scales_TG1 > 0, blocks_TGB / scales_TG1, 0).round()
    rounded_TK: torch.Tensor = (codes_TGB * scales_TG1).flatten(1)[:, : x_TK.shape[1]]
    return rounded_TK if order_K is None else rounded_TK[:, order_K.argsort()]


class IntegerReference(Reference):
    """A checkpoint run whole, with the inputs of some layers rounded.

    Args:
        checkpoint: where the weights are read from.
        dtype: type of the arithmetic.
        ends: as of `Reference`.
        rounding: what is done to the inputs of a layer, by the name of its weight.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, ends: Ends, rounding: Mapping[str, Rounding]
    ) -> None:
        super().__init__(checkpoint, dtype, ends=ends)
        self.ends, self.rounding = ends, rounding

    def floors(
        self, ids_S: torch.Tensor, at: Distances, expected_PV: torch.Tensor, progress: Progress = silent
    ) -> Iterator[Floor]:
        """The floor at the positions of `at`, against the outputs `expected_PV` there; then a firmer one."""
        positions, starts = at.positions_P.tolist(), at.starts_P.tolist()
        is_pooled = self.ends.pooling is not None

        def look(nudges: Nudges) -> list[Distances]:
            runs = self.runs([ids_S], [range(len(ids_S)) if is_pooled else positions], nudges, progress)
            if is_pooled:
                runs = ([embeddings_at(states_SD, positions, starts, self.ends)] for (states_SD,) in runs)
            return [one for (one,) in run_distances(nudges, runs, [expected_PV], [positions])]

        return (floor_of(runs, self.dtype) for runs in Looks(look))

    def _block(self, layer: int) -> LayerBlock:
        block = super()._block(layer)
        for name, module in block.named_modules():
            rounding = self.rounding.get(f"model.layers.{layer}.{name}.weight")
            if rounding is not None:
                module.register_forward_pre_hook(_before(rounding))
        return block

    def _project(self, normed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        rounding = self.rounding.get(output_tensor(self.config))
        return super()._project(normed if rounding is None else [rounding(x_TD) for x_TD in normed])


def _before(rounding: Rounding) -> Callable[..., torch.Tensor]:
    """A hook that rounds what a layer is given."""
    return lambda module, inputs: rounding(inputs[0])
