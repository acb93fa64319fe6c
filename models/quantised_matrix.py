"""A quantised matrix as every part of the project knows it: codes, scales, and what they stand for.

The layout is that of ONNX's `DequantizeLinear` on axis 0 in blocks, which ONNX Runtime fuses with the product that
follows and TensorRT builds as it is: inputs K along the rows, outputs N along the columns.
https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CODE_BITS = (4, 8)
BLOCK_SIZES = (32, 64, 128)
_PIECE = 1 << 22  # codes packed at a time
CODES, SCALES, ZERO_POINTS, ORDER = ".codes", ".scales", ".zero_points", ".order"
"""What the names of a matrix's parts end with, after its own name, in a bundle's files and graph. Matrices with the
same order have one."""


@dataclass(frozen=True)
class QuantisationScheme:
    """How the values of a matrix are stored.

    Attributes:
        bits: of a code, 4 or 8. Codes are signed: -8..7, or -128..127.
        block_size: consecutive inputs of one output that share a scale: 32, 64 or 128. Where it does not divide K, the
            last block of each output is shorter.
        zero_points: whether a block has a zero point, too, which TensorRT does not take. It is a code.

    Raises:
        ValueError: another number of bits, or another size.
    """

    bits: int
    block_size: int = 32
    zero_points: bool = False

    def __post_init__(self) -> None:
        for what, value, known in (("bits", self.bits, CODE_BITS), ("block size", self.block_size, BLOCK_SIZES)):
            if type(value) is not int or value not in known:
                raise ValueError(f"{what} {value!r} of a quantised matrix: choose {_choice(known)}")

    @property
    def lowest(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def onnx(self) -> int:
        """The codes' type, as onnx.TensorProto.DataType and onnx_ir.DataType number it: INT4 or INT8."""
        return 22 if self.bits == 4 else 3

    def holds(self, other: QuantisationScheme) -> bool:
        """Whether codes of `other` are codes of this scheme, too, with the scales that they have.

        A block of `other` may be several of this scheme, with the same scale.
        """
        fit = other.block_size % self.block_size == 0 and other.bits <= self.bits
        return fit and (self.zero_points or not other.zero_points)

    def blocks(self, width: int) -> int:
        """How many scales an output of `width` inputs has."""
        return -(-width // self.block_size)

    def code_bytes(self, size: int) -> int:
        """What `size` codes take in a file."""
        return -(-size * self.bits // 8)


@dataclass(frozen=True)
class QuantisedMatrix:
    """The weight of a linear layer, quantised. Codes and scales are never looked into when it is made.

    Attributes:
        name: the Hugging Face name of the tensor that it stands for, whose shape is [N, K].
        scheme: of its codes.
        codes_KN: int8 [K, N], each within the scheme's range.
        scales_GN: [G, N] with G = `scheme.blocks(K)`, float16, bfloat16 or float32, and of either sign.
        zero_points_GN: int8 [G, N], what is taken from a code before it is scaled; None: nothing is.
        order_K: int64 [K]: row k of `codes_KN` is multiplied by the layer's input `order_K[k]`; None: by input k.
            Matrices that were quantised in order of activation (GPTQ's `desc_act`) have one.
    """

    name: str
    scheme: QuantisationScheme
    codes_KN: torch.Tensor
    scales_GN: torch.Tensor
    zero_points_GN: torch.Tensor | None = None
    order_K: torch.Tensor | None = None

    def __post_init__(self) -> None:
        width, outputs = self.codes_KN.shape
        blocks = (self.scheme.blocks(width), outputs)
        assert tuple(self.scales_GN.shape) == blocks, f"{self.name} has scales {tuple(self.scales_GN.shape)}"
        assert self.zero_points_GN is None or tuple(self.zero_points_GN.shape) == blocks, self.name
        assert self.order_K is None or tuple(self.order_K.shape) == (width,), self.name

    @property
    def shape(self) -> tuple[int, int]:
        """Of the tensor that it stands for: [N, K], outputs first."""
        width, outputs = self.codes_KN.shape
        return outputs, width

    def dequantised(self) -> torch.Tensor:
        """The values [N, K] in float32, inputs in the layer's own order.

        A code times a scale of 16 bits is exact there; one of a float32 scale is rounded once.
        """
        import torch

        values_KN = self.codes_KN.float()
        if self.zero_points_GN is not None:
            values_KN -= self._spread(self.zero_points_GN.float())
        values_KN *= self._spread(self.scales_GN.float())
        if self.order_K is None:
            return values_KN.T.contiguous()
        values_NK = torch.empty(self.shape)
        values_NK[:, self.order_K] = values_KN.T
        return values_NK

    def packed(self, *, outputs_first: bool = False) -> Iterator[torch.Tensor]:
        """The codes as `packed_as_stored` has them, piece by piece.

        Args:
            outputs_first: in the order of [N, K], as the rows of an embedding are looked up.
        """
        codes = self.codes_KN.T if outputs_first else self.codes_KN
        rows = 2 * max(1, _PIECE // (2 * max(1, codes.shape[1])))  # an even number: no byte is of two pieces
        parts = codes.split(rows)
        if (
            outputs_first
        ):  # PyTorch turns over a matrix that lies in one piece four times as fast as a part of a wider one
            parts = (part.T.contiguous().T for part in parts)
        return (packed_as_stored(part, self.scheme.bits) for part in parts)

    def in_scheme(self, scheme: QuantisationScheme) -> QuantisedMatrix:
        """The same matrix in a scheme that holds its own: with each block's scale for all blocks that it becomes."""
        import torch

        assert scheme.holds(self.scheme), f"{self.name} in {self.scheme} does not fit {scheme}"
        blocks = torch.arange(scheme.blocks(self.codes_KN.shape[0])) * scheme.block_size // self.scheme.block_size
        scales_GN, zero_points_GN = self.scales_GN[blocks], None
        if self.zero_points_GN is not None:
            zero_points_GN = self.zero_points_GN[blocks]
        elif scheme.zero_points:
            zero_points_GN = torch.zeros(scales_GN.shape, dtype=torch.int8)
        return replace(self, scheme=scheme, scales_GN=scales_GN, zero_points_GN=zero_points_GN)

    def _spread(self, values_GN: torch.Tensor) -> torch.Tensor:
        """Each block's value at each of its rows: [K, N]."""
        return values_GN.repeat_interleave(self.scheme.block_size, dim=0)[: self.codes_KN.shape[0]]


def beside_each_other(name: str, matrices: Sequence[QuantisedMatrix]) -> QuantisedMatrix:
    """Matrices of one scheme that read the same input, in the same order, as one with all of their outputs."""
    import torch

    first = matrices[0]
    if len(matrices) == 1:
        return first
    zeros = [one.zero_points_GN for one in matrices if one.zero_points_GN is not None]
    return replace(
        first,
        name=name,
        codes_KN=torch.cat([one.codes_KN for one in matrices], 1),
        scales_GN=torch.cat([one.scales_GN for one in matrices], 1),
        zero_points_GN=torch.cat(zeros, 1) if zeros else None,
    )


def packed_as_stored(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes int8 as ONNX stores them, uint8, flat: of 4 bits two a byte, the earlier one in its lower half.

    An odd number of codes leaves the upper half of the last byte zero.
    """
    import torch

    flat = codes.contiguous().view(-1)
    if bits == 8:
        return flat.view(torch.uint8)
    if flat.numel() % 2:
        flat = torch.nn.functional.pad(flat, (0, 1))
    pairs = flat.view(torch.int16)  # the earlier one in its lower byte; every second byte takes twice as long
    return ((pairs & 15) | (pairs >> 4 & 240)).to(torch.uint8)


def unpacked(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The int8 codes that `packed_as_stored` gave, in their order.

    Args:
        packed: uint8, flat.
        bits: of a code.
        count: how many there are; an odd number of 4 bits each leaves half a byte.
    """
    import torch

    if bits == 8:
        return packed.view(torch.int8)
    halves = torch.stack([packed & 15, packed >> 4], dim=-1).view(-1)[:count].view(torch.int8)
    return (halves ^ 8) - 8  # two's complement


def _choice(values: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
