"""What a decoder is called with, checked before it runs, for a graph computes nonsense from many a wrong input.

A negative id reads a row from the end of the embedding; a length of 9 for 8 tokens moves the next step one slot too
far. The C++ runtime makes the same checks (cpp/src/decoder.cpp).
"""

from __future__ import annotations

import os

import torch

from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.wording import size


def checked_inputs(inputs: torch.Tensor, interface: Interface) -> torch.Tensor:
    """Ids as int64 [B, S]; or the embeddings [B, S, D] of a headless model, the hidden states of a stage, in its type.

    Raises:
        UsageError: another type or shape, no token, or an id outside of the vocabulary.
    """
    config, from_ids = interface.config, interface.ends.from_ids
    _require_tensor("inputs", inputs)
    kind, whose = ("hidden states", "stage") if interface.ends.is_stage else ("embeddings", "headless model")
    wanted = _IDS if from_ids else f"{kind} [batch_size, sequence_length, {config.hidden_size}]"
    if inputs.ndim != (2 if from_ids else 3) or 0 in inputs.shape:
        raise UsageError(
            f"inputs are {list(inputs.shape)}: this model takes {wanted}, with at least one row and one token"
        )
    if not from_ids:
        if not inputs.is_floating_point() or inputs.shape[2] != config.hidden_size:
            raise UsageError(f"inputs are {_described(inputs)}: this {whose} takes {wanted}, of a floating type")
        return inputs.to(interface.dtype)
    if not _is_integer(inputs):
        raise UsageError(f"inputs are {_described(inputs)}: this model takes {wanted}, which are integers")
    lowest, highest = (int(bound) for bound in inputs.aminmax())
    if lowest < 0 or highest >= config.vocab_size:
        raise UsageError(
            f"token id {lowest if lowest < 0 else highest} is outside the model's vocabulary of {config.vocab_size} "
            f"(0..{config.vocab_size - 1}): use the bundle's own tokenizer"
        )
    return inputs.to(torch.int64)


def checked_lengths(lengths_B: torch.Tensor, batch_size: int, sequence_length: int) -> torch.Tensor:
    """The valid tokens of each row of a chunk as int64 [B].

    Raises:
        UsageError: another type or shape, or a length that is not 1..S.
    """
    _require_tensor("lengths_B", lengths_B)
    if not _is_integer(lengths_B) or lengths_B.shape != (batch_size,):
        raise UsageError(f"lengths_B is {_described(lengths_B)}: give one integer for each of the {batch_size} rows")
    for row, length in enumerate(lengths_B.tolist()):
        if not 1 <= length <= sequence_length:
            raise UsageError(
                f"lengths_B is {length} for row {row} of a chunk of {sequence_length} tokens: it must be within "
                f"1..{sequence_length}"
            )
    return lengths_B.to(torch.int64)


def checked_positions(position_ids_BS: torch.Tensor, inputs: torch.Tensor, *, padded: bool = False) -> torch.Tensor:
    """Positions as int64 [B, S], which count up by one along each row.

    With `padded` they do so up to the highest, and what follows is padding.

    Raises:
        UsageError: another type or shape, or another order.
    """
    _require_tensor("position_ids", position_ids_BS)
    if not _is_integer(position_ids_BS):
        raise UsageError(f"position_ids are {_described(position_ids_BS)}: give integers")
    if position_ids_BS.shape != inputs.shape[:2]:
        raise UsageError(
            f"inputs are {list(inputs.shape[:2])} and position_ids {list(position_ids_BS.shape)}: "
            "both must be [batch_size, sequence_length]"
        )
    positions_BS = position_ids_BS.to(torch.int64)
    counted_BS = positions_BS[:, :1] + torch.arange(positions_BS.shape[1])[None, :]
    right_BS = positions_BS == counted_BS
    if padded:
        padding_BS = counted_BS > positions_BS.amax(1, keepdim=True)
        right_BS = torch.where(padding_BS, positions_BS >= 0, right_BS)
    if not bool(right_BS.all()):
        raise UsageError("position_ids must count up by one along each row: a row's new keys are one slice")
    return positions_BS


def check_rows(batch_size: int, interface: Interface) -> None:
    """Whether a cache of `batch_size` rows can be made.

    Raises:
        UsageError: it is not a number of rows.
        NotJudgedError: it is more than the memory of this machine.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"a cache of {batch_size!r} rows was asked for: give a whole number, at least 1")
    config, slots = interface.config, interface.max_sequence_length
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * slots
    needed, memory = batch_size * values * interface.element.itemsize, _physical_memory()
    if memory is not None and needed > memory:
        raise NotJudgedError(
            f"a cache of {batch_size} row{'s' if batch_size > 1 else ''} of {slots} slots takes "
            f"{size(needed)}, and this machine has {size(memory)}: take fewer rows, or a smaller max_sequence_length"
        )


_IDS = "token ids [batch_size, sequence_length]"


def _require_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"{name} is of type {type(value).__name__}: give a torch.Tensor")
    if value.is_meta:
        raise UsageError(f"{name} is on the meta device, where tensors have no values: give one that has them")


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _physical_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
