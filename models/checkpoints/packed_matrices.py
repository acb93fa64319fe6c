"""The matrices that a safetensors checkpoint has packed, found among its tensors and checked before a value is used.

The tensors of a module `P` (`P.qweight`, `P.scales`, ...) become one entry `P.weight`, as if it were stored in
float32. Its values are read by `packed_values.py` and its codes by `packed_codes.py`, which share no code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING, FLOAT_TYPES
from blockexport.models.errors import UsageError
from blockexport.models.formats.packing import KEY, PackedLayout, PackedModel, Packing
from blockexport.models.quantised_matrix import BLOCK_SIZES, QuantisationScheme
from blockexport.models.wording import listed

if TYPE_CHECKING:
    import torch

WORD_BITS = 32

_GPTQ_PARTS = ("qweight", "scales", "qzeros", "g_idx")
_PARTS: Mapping[PackedLayout, tuple[str, ...]] = {
    PackedLayout.GPTQ: _GPTQ_PARTS,
    PackedLayout.AWQ: _GPTQ_PARTS[:3],
    PackedLayout.COMPRESSED_TENSORS: (
        *("weight_packed", "weight_scale", "weight_zero_point"),
        *("weight_g_idx", "weight_shape"),
    ),
}
"""By layout: codes, scales, zero points, groups of inputs, shape."""


@dataclass(frozen=True)
class PackedMatrix:
    """A packed weight [N, K].

    Attributes:
        name: its Hugging Face name, `P.weight`.
        packing: what the config says of it.
        shape: [N, K].
        codes: the tensor of its codes.
        scales: that of its scales.
        zeros: that of its zero points, where there are some.
        groups: that of the group of each input, int32 [K], where there is one.
    """

    name: str
    packing: Packing
    shape: tuple[int, int]
    codes: TensorEntry
    scales: TensorEntry
    zeros: TensorEntry | None
    groups: TensorEntry | None

    @property
    def parts(self) -> list[TensorEntry]:
        """Those that its values are made of."""
        return [part for part in (self.codes, self.scales, self.zeros, self.groups) if part is not None]

    @property
    def group_size(self) -> int:
        """Inputs of a group; the last may have fewer."""
        return self.packing.group_size or self.shape[1]

    @property
    def group_count(self) -> int:
        """G."""
        return -(-self.shape[1] // self.group_size)

    @property
    def block_size(self) -> int | None:
        """The largest block of a bundle that groups consist of, None where there is none; a single group has any."""
        sizes = BLOCK_SIZES[::-1]
        whole = next((size for size in sizes if self.group_size % size == 0), None)
        return sizes[0] if whole is None and self.group_count == 1 else whole


def part(entry: TensorEntry) -> torch.Tensor:
    """The tensor of a part, mapped from its file."""
    from blockexport.models.checkpoints.mapped_tensor import tensor_of

    assert entry.location is not None, entry.name
    return tensor_of(entry.location, entry.dtype, entry.shape)


@dataclass(frozen=True)
class Unpacked:
    """A checkpoint's tensors with an entry in place of the parts of each packed matrix.

    Attributes:
        entries: by Hugging Face name.
        matrices: the packed ones, by theirs.
        notes: what the user should know, a sentence each.
    """

    entries: dict[str, TensorEntry]
    matrices: dict[str, PackedMatrix]
    notes: tuple[str, ...] = ()


def with_packed(found: Mapping[str, TensorEntry], model: PackedModel, expected: Iterable[str], where: str) -> Unpacked:
    """Put an entry in place of the parts of each packed matrix.

    Args:
        found: all tensors of a checkpoint, by Hugging Face name.
        model: what its config says of them.
        expected: names of the tensors that the architecture has.
        where: the checkpoint, for messages.

    Raises:
        UsageError: a part is missing, or of another shape or type than the others call for; or config and tensors do
            not agree which modules are packed.
    """
    names = _PARTS[model.method]
    modules = [name.removesuffix(f".{names[0]}") for name in found if name.endswith(f".{names[0]}")]
    if not modules:
        raise UsageError(
            f"{where}: config.json says that weights are packed by {model.method}, and no tensor is a {names[0]}: "
            f"remove {KEY} from a copy of it if the weights have been dequantised"
        )
    matrices: dict[str, PackedMatrix] = {}
    rest = dict(found)
    for module in modules:
        parts = {name: rest.pop(f"{module}.{name}", None) for name in names}
        matrices[f"{module}.weight"] = _matrix(module, model, parts, where)
        if f"{module}.weight" in rest:
            raise UsageError(f"{where} holds {module} twice: packed and as {module}.weight. Keep the one that is meant")
    _check_left_out(rest, model, where)
    wanted = set(expected)
    idle = [f"{module}.bias" for module in modules if f"{module}.bias" in rest.keys() - wanted]
    idle = [name for name in idle if rest[name].location is not None and not part(rest[name]).any()]
    for name in idle:
        del rest[name]
    notes = [f"biases of 0 that the architecture has not are left out: {listed(idle)}"] if idle else []
    entries = {name: _entry(matrix, where) for name, matrix in matrices.items()}
    return Unpacked({**rest, **entries}, matrices, tuple(notes))


def _matrix(module: str, model: PackedModel, parts: Mapping[str, TensorEntry | None], where: str) -> PackedMatrix:
    packing = model.packing_of(module)
    if packing is None:
        raise UsageError(f"{where} has {module} packed, and {KEY} of its config.json says that it is not")
    primary, *others = parts.values()
    needed = [True, not packing.symmetric or model.method is PackedLayout.GPTQ, packing.ordered, True]
    scales, zeros, groups, shape = (*others, None, None)[:4]
    for name, one, is_needed in zip(list(parts)[1:], others, needed, strict=False):
        if one is None and is_needed:
            raise UsageError(f"{where} lacks {module}.{name}, without which {packing.kind} cannot be read")
        if one is not None and not is_needed and name == "weight_zero_point":
            raise UsageError(f"{where} holds {module}.{name}, and its config.json says that {module} is symmetric")
    assert primary is not None and scales is not None
    per_word = WORD_BITS // packing.bits
    if len(primary.shape) != 2 or len(scales.shape) != 2:
        raise UsageError(f"{where}: {module} is packed in shapes {list(primary.shape)} and {list(scales.shape)}")
    rows, columns = primary.shape
    if 0 in primary.shape:
        raise UsageError(f"{where}: {module} is packed in the shape {list(primary.shape)}, which has no codes")
    if model.method is PackedLayout.COMPRESSED_TENSORS:
        size = _stated_shape(shape, module, where)
    else:
        size = (columns, rows * per_word) if model.method is PackedLayout.GPTQ else (columns * per_word, rows)
    matrix = PackedMatrix(f"{module}.weight", packing, size, primary, scales, zeros, groups)
    _check_parts(matrix, where)
    return matrix


def _stated_shape(entry: TensorEntry | None, module: str, where: str) -> tuple[int, int]:
    assert entry is not None
    if entry.dtype not in ("I64", "I32") or entry.shape != (2,):
        raise UsageError(
            f"{where}: {module}.weight_shape is {entry.dtype} {list(entry.shape)}; it must be two integers"
        )
    outputs, width = (int(size) for size in part(entry))
    if outputs < 1 or width < 1:
        raise UsageError(f"{where}: {module}.weight_shape is [{outputs}, {width}]; both must be 1 or more")
    return outputs, width


def _check_parts(matrix: PackedMatrix, where: str) -> None:
    (outputs, width), count = matrix.shape, matrix.group_count

    def words(size: int) -> int:
        return -(-size * matrix.packing.bits // WORD_BITS)

    wanted = {
        PackedLayout.GPTQ: ((words(width), outputs), (count, outputs), (count, words(outputs))),
        PackedLayout.AWQ: ((width, words(outputs)), (count, outputs), (count, words(outputs))),
        PackedLayout.COMPRESSED_TENSORS: ((outputs, words(width)), (outputs, count), (words(outputs), count)),
    }[matrix.packing.layout]
    for entry, shape, kinds in (
        (matrix.codes, wanted[0], ("I32",)),
        (matrix.scales, wanted[1], FLOAT_TYPES),
        (matrix.zeros, wanted[2], ("I32",)),
        (matrix.groups, (width,), ("I32",)),
    ):
        if entry is not None and (entry.shape != shape or entry.dtype not in kinds):
            raise UsageError(
                f"{where}: {entry.stored_name or entry.name} is {entry.dtype} {list(entry.shape)}; a matrix of "
                f"{outputs} x {width} in {matrix.packing.kind} and groups of {matrix.group_size} calls for "
                f"{' or '.join(kinds)} {list(shape)}. {KEY} and weights do not belong together"
            )


def _check_left_out(rest: Mapping[str, TensorEntry], model: PackedModel, where: str) -> None:
    """Modules that the config says are packed have to be."""
    for name, entry in rest.items():
        module = name.removesuffix(".weight")
        if model.says_which and module != name and len(entry.shape) == 2 and model.packing_of(module) is not None:
            raise UsageError(f"{where} has {name} as it is, and {KEY} of its config.json says that it is packed")


def _entry(matrix: PackedMatrix, where: str) -> TensorEntry:
    """As which the rest of the project sees a packed matrix."""
    order, regular = order_of(matrix, where)
    # The rows of an embedding are looked up, and so their values cannot come in another order.
    fits = regular and matrix.block_size is not None and not (order is not None and matrix.name == EMBEDDING)
    zeros = not matrix.packing.symmetric
    return TensorEntry(
        matrix.name,
        "F32",
        matrix.shape,
        stored_name=matrix.codes.stored_name or matrix.codes.name,
        stored_type=matrix.packing.kind,
        codes=QuantisationScheme(matrix.packing.bits, matrix.block_size or 0, zeros) if fits else None,
        order=None if order is None or not fits else sha256(order.numpy().tobytes()).hexdigest(),
    )


def order_of(matrix: PackedMatrix, where: str) -> tuple[torch.Tensor | None, bool]:
    """In which order inputs stand group by group, int64 [K], and whether groups are whole then.

    None is the order in which they are: the file says nothing else.

    Raises:
        UsageError: an input is in a group that there is not.
    """
    import torch

    if matrix.groups is None:
        return None, True
    groups_K = part(matrix.groups).long()
    if matrix.packing.layout is PackedLayout.COMPRESSED_TENSORS and bool((groups_K == -1).all()):
        return None, True  # what that tool writes where there is no order
    low, high = int(groups_K.min()), int(groups_K.max())
    if low < 0 or high >= matrix.group_count:
        raise UsageError(
            f"{where}: {matrix.groups.stored_name or matrix.groups.name} puts inputs in groups {low}..{high}, and "
            f"there are {matrix.group_count}. Download it again"
        )
    usual_K = torch.arange(len(groups_K)) // matrix.group_size
    if torch.equal(groups_K, usual_K):
        return None, True
    order_K = groups_K.argsort(stable=True)
    return order_K, torch.equal(groups_K[order_K], usual_K)


def check_zero_points(matrix: PackedMatrix, other: int, beyond: int, where: str) -> None:
    """Refuse zero points of GPTQ that do not mean what the config says.

    Args:
        matrix: whose they are.
        other: how many are not the middle of the codes, which those of a symmetric matrix are. Kernels that multiply
            by symmetric matrices do not look at them.
        beyond: how many are one more than the highest code.
        where: the checkpoint, for messages.

    Raises:
        UsageError: there are such.
    """
    middle, name = 1 << (matrix.packing.bits - 1), matrix.zeros.name if matrix.zeros else ""
    if matrix.packing.symmetric and other:
        raise UsageError(
            f"{where}: {name} has {other:,} zero points that are not {middle}, as all of a symmetric matrix are, and "
            f"{KEY} says that it is symmetric. Correct there what is wrong: sym, or checkpoint_format"
        )
    if beyond:
        raise UsageError(
            f"{where}: {name} has {beyond:,} zero points of {2 * middle}, which is no code: programs read them in "
            "different ways. Convert the checkpoint to checkpoint_format gptq_v2"
        )
