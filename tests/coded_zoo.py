"""The bug zoo for quantisation: mistakes that a file may make with a matrix in codes, built from the weight itself.

Nothing here uses what `compare/` knows of them: the two are written independently, so that each proves the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from blockexport.export.weights.block_quantiser import quantise
from blockexport.models.quantised_matrix import QuantisationScheme


class Coded(NamedTuple):
    """Codes int8 [K, N] and scales [G, N] of a matrix, and zero points where codes were made with any."""

    codes_KN: torch.Tensor
    scales_GN: torch.Tensor
    zeros_GN: torch.Tensor | None = None


class Making(NamedTuple):
    """How a matrix is stored: `bytes_along_inputs` says whether the two codes in a byte are of neighbouring inputs, and
    not of neighbouring outputs."""

    scheme: QuantisationScheme
    scales: torch.dtype
    bytes_along_inputs: bool = False


Build = Callable[[torch.Tensor, Making], Coded]


@dataclass(frozen=True)
class CodedExhibit:
    """A mistake to build.

    Attributes:
        mistake: its name in the catalogue.
        build: makes the spoilt matrix of a weight [N, K].
        label: tells exhibits of one mistake apart.
        bits: of the codes with which it can be made.
        fits: of which shapes (N, K) it can be made without anybody noticing, in blocks of a size.
        sound: makes the matrix that the mistake is made with.
        in_layers: not in embedding and head: tokens that were never trained are too much alike to tell them apart.
    """

    mistake: str
    build: Build
    label: str = ""
    bits: tuple[int, ...] = (4, 8)
    fits: Callable[[int, int, int], bool] = lambda outputs, inputs, block: True
    sound: Build | None = None
    in_layers: bool = False

    def __str__(self) -> str:
        return f"{self.mistake}{'-' if self.label else ''}{self.label}"


def sound(weight_NK: torch.Tensor, making: Making) -> Coded:
    """What the exporter writes."""
    matrix, _ = quantise("sound", weight_NK, making.scheme, making.scales)
    return Coded(matrix.codes_KN, matrix.scales_GN)


def _nibbles(weight_NK: torch.Tensor, making: Making) -> Coded:
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    flat = (codes_KN.T if making.bytes_along_inputs else codes_KN).reshape(-1).tolist()
    for i in range(0, len(flat) - 1, 2):
        flat[i], flat[i + 1] = flat[i + 1], flat[i]
    codes = torch.tensor(flat, dtype=torch.int8)
    swapped = codes.view(codes_KN.T.shape).T if making.bytes_along_inputs else codes.view(codes_KN.shape)
    return Coded(swapped, scales_GN)


def _sign(weight_NK: torch.Tensor, making: Making) -> Coded:
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    half = -making.scheme.lowest
    written = codes_KN.int() + half  # 0 and up
    read = torch.where(written >= half, written - 2 * half, written)  # as two's complement
    return Coded(read.to(torch.int8), scales_GN)


def _axis(weight_NK: torch.Tensor, making: Making) -> Coded:
    """Blocks along the outputs; as many scales as along the inputs, if sizes are multiples of a block."""
    turned = sound(weight_NK.T.contiguous(), making)
    scales, blocks = turned.scales_GN, making.scheme.blocks(weight_NK.shape[1])
    taken = scales.reshape(-1, blocks).T if making.bytes_along_inputs else scales.reshape(blocks, -1)
    return Coded(turned.codes_KN.T.contiguous(), taken.contiguous())


def _neighbour(weight_NK: torch.Tensor, making: Making, step: int, around: bool) -> Coded:
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    moved = scales_GN.roll(step, 0)
    if not around:
        edge = 0 if step > 0 else -1
        moved[edge] = scales_GN[edge]
    return Coded(codes_KN, moved)


def _table_turned(weight_NK: torch.Tensor, making: Making) -> Coded:
    """Scales written by rows and read by columns."""
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    return Coded(codes_KN, scales_GN.T.reshape(scales_GN.shape).contiguous())


def _outputs_moved(weight_NK: torch.Tensor, making: Making, with_scales: bool) -> Coded:
    """The outputs of each eight in AWQ's order."""
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    outputs = len(weight_NK)
    eights = torch.arange(outputs // 8 * 8).view(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    order = torch.cat([eights, torch.arange(len(eights), outputs)])
    return Coded(codes_KN[:, order].contiguous(), scales_GN[:, order].contiguous() if with_scales else scales_GN)


def _other_output(weight_NK: torch.Tensor, making: Making) -> Coded:
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    return Coded(codes_KN, scales_GN.roll(1, 1))


def _halved(weight_NK: torch.Tensor, making: Making) -> Coded:
    """The scale of one block, the last whole one of an output in the middle."""
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    scales_GN[max(weight_NK.shape[1] // making.scheme.block_size - 1, 0), weight_NK.shape[0] // 2] /= 2
    return Coded(codes_KN, scales_GN)


def _end_mistaken(weight_NK: torch.Tensor, making: Making) -> Coded:
    """Scales for codes up to 128 beside codes up to 127."""
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    high = making.scheme.highest
    return Coded(codes_KN, (scales_GN.float() * (high / (high + 1))).to(scales_GN.dtype))


def to_the_last_code(weight_NK: torch.Tensor, making: Making) -> Coded:
    """The largest value of a block at -128, or where it is positive at 127: sound, and good with the smallest code."""
    scheme = making.scheme
    blocks = torch.nn.functional.pad(weight_NK.float(), (0, -weight_NK.shape[1] % scheme.block_size))
    blocks_NGB = blocks.view(weight_NK.shape[0], -1, scheme.block_size)
    low, high = -blocks_NGB.amin(2) / -scheme.lowest, blocks_NGB.amax(2) / scheme.highest
    scales_NG = torch.maximum(low, high).to(making.scales)
    steps = blocks_NGB / scales_NG.float().unsqueeze(2)
    codes_NK = steps.round().clamp(scheme.lowest, scheme.highest).view(weight_NK.shape[0], -1)
    return Coded(codes_NK[:, : weight_NK.shape[1]].T.to(torch.int8).contiguous(), scales_NG.T.contiguous())


def _clipped(weight_NK: torch.Tensor, making: Making) -> Coded:
    codes_KN, scales_GN, _ = to_the_last_code(weight_NK, making)
    assert bool((codes_KN == making.scheme.lowest).any()), "nothing to clip"
    return Coded(codes_KN.clamp(min=making.scheme.lowest + 1), scales_GN)


def order_of(inputs: int) -> torch.Tensor:
    """Some order of the inputs, as that of their activations may be."""
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))


def _order_dropped(weight_NK: torch.Tensor, making: Making) -> Coded:
    return sound(weight_NK[:, order_of(weight_NK.shape[1])], making)


def _groups_dropped(weight_NK: torch.Tensor, making: Making) -> Coded:
    """Codes in the layer's own order, scales of the blocks of the other."""
    order = order_of(weight_NK.shape[1])
    made = sound(weight_NK[:, order], making)
    codes_KN = torch.empty_like(made.codes_KN)
    codes_KN[order] = made.codes_KN
    return Coded(codes_KN, made.scales_GN)


def with_zero_points(weight_NK: torch.Tensor, making: Making) -> Coded:
    """Each block from its smallest value to its largest: sound, with its zero points."""
    scheme, (outputs, inputs) = making.scheme, weight_NK.shape
    blocks = torch.nn.functional.pad(weight_NK.float(), (0, -inputs % scheme.block_size))
    blocks_NGB = blocks.view(outputs, -1, scheme.block_size)
    low, high = blocks_NGB.amin(2).clamp(max=0), blocks_NGB.amax(2).clamp(min=0)
    scales_NG = ((high - low) / (scheme.highest - scheme.lowest)).to(making.scales)
    zeros_NG = (scheme.lowest - low / scales_NG.float()).round().clamp(scheme.lowest, scheme.highest)
    codes_NGB = (blocks_NGB / scales_NG.float().unsqueeze(2)).round() + zeros_NG.unsqueeze(2)
    codes_NK = codes_NGB.clamp(scheme.lowest, scheme.highest).view(outputs, -1)[:, :inputs]
    return Coded(
        codes_NK.T.to(torch.int8).contiguous(), scales_NG.T.contiguous(), zeros_NG.T.to(torch.int8).contiguous()
    )


def _zero_point_ignored(weight_NK: torch.Tensor, making: Making) -> Coded:
    return with_zero_points(weight_NK, making)._replace(zeros_GN=None)


def _several(outputs: int, inputs: int, block: int) -> bool:
    return inputs > 2 * block


def _whole(outputs: int, inputs: int, block: int) -> bool:
    return outputs % block == 0 and inputs % block == 0 and (outputs, inputs) != (block, block)


def _many(outputs: int, inputs: int, block: int) -> bool:
    """So many that no two blocks are taken for each other."""
    return inputs > block and outputs > 24


CODED_EXHIBITS: list[CodedExhibit] = [
    CodedExhibit("block_axis", _axis, fits=_whole),
    CodedExhibit("neighbour_scale", partial(_neighbour, step=1, around=True), "before", fits=_several),
    CodedExhibit("neighbour_scale", partial(_neighbour, step=-1, around=False), "after", fits=_several),
    CodedExhibit("neighbour_scale", _other_output, "output"),
    CodedExhibit("scales_turned", _table_turned, fits=_several),
    CodedExhibit("outputs_moved", partial(_outputs_moved, with_scales=False), "codes", fits=_many, in_layers=True),
    CodedExhibit("outputs_moved", partial(_outputs_moved, with_scales=True), "whole", fits=_many, in_layers=True),
    CodedExhibit("nibbles_swapped", _nibbles, bits=(4,)),
    CodedExhibit("codes_off_by_half", _sign),
    CodedExhibit("zero_point_ignored", _zero_point_ignored, sound=with_zero_points),
    CodedExhibit("scale_factor", _halved, "halved"),
    CodedExhibit("scale_factor", _end_mistaken, "end", bits=(8,)),
    CodedExhibit("order_dropped", _order_dropped, fits=_many),
    CodedExhibit("groups_dropped", _groups_dropped, fits=_many),
    CodedExhibit("codes_clipped", _clipped, bits=(8,), sound=to_the_last_code),
]
