"""An ONNX decoder that another tool exported, behind the Decoder interface, on ONNX Runtime's CPU provider.

It is called the way its own runtime calls it: a cache that grows is handed back as it came out, and rows of unequal
length are padded on the left; one that past and present share is bound once, and rows are padded on the right. The
interface's own padding, on the right, is turned into that on the way in, and back on the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder, Foreign
from blockexport.runtime.foreign.foreign_convention import (
    ATTENTION_MASK,
    ELEMENT_TYPES,
    NUM_LOGITS_TO_KEEP,
    Convention,
    check_architecture,
)
from blockexport.runtime.onnx_session import open_session, ort, session_options

if TYPE_CHECKING:
    import onnx

DEFAULT_SLOTS = 512  # room for the judged prompt, its decode steps, and a way to go to the last of them


def open_foreign(
    path: Path,
    model: onnx.ModelProto,
    convention: Convention,
    config: ModelConfig,
    *,
    max_sequence_length: int | None = None,
    threads: int = 0,
) -> ForeignDecoder:
    """The decoder in another tool's ONNX file.

    Args:
        path: the file.
        model: its graph, as `foreign_convention.read_model` gives it.
        convention: as `foreign_convention.recognise` gives it.
        config: of the checkpoint it is said to come from.
        max_sequence_length: how many tokens a row may hold; 512 or what the model was made for, if fewer. A file that
            fixes the number of its slots allows no other.
        threads: threads inside an operator; 0 takes as many as PyTorch has.

    Raises:
        UsageError: the file is of another architecture than `config`, or ONNX Runtime does not load or run it.
    """
    check_architecture(model, convention, config, path)
    fixed = convention.slots
    if fixed is not None and max_sequence_length not in (None, fixed):
        raise UsageError(f"{path} fixes its cache at {fixed} slots, not {max_sequence_length}: leave the option away")
    if convention.fixed_batch not in (None, 1):
        raise UsageError(f"{path} fixes its batch at {convention.fixed_batch} rows: export it with a free batch, or 1")
    slots = fixed or max_sequence_length or min(DEFAULT_SLOTS, config.max_position_embeddings)
    if slots > config.max_position_embeddings:
        raise UsageError(
            f"{slots} cache slots are more than the {config.max_position_embeddings} positions of the model: a foreign "
            "file's RoPE table ends there. Ask for at most as many"
        )
    kind = SharedCacheDecoder if convention.shared else GrowingCacheDecoder
    decoder = kind(path, convention, config, slots, threads)
    decoder.probe()
    return decoder


class ForeignDecoder(Decoder):
    """What both conventions have in common: the session, the integer inputs, a trial run."""

    foreign: Foreign

    def __init__(self, path: Path, convention: Convention, config: ModelConfig, slots: int, threads: int = 0) -> None:
        self.config = config
        self.max_sequence_length = slots
        self.dtype = convention.dtype
        self.convention = convention
        self.foreign = Foreign(convention.sentence, self._no_slots(), _no_rows(convention))
        self._path = path
        self._session = open_session(str(path), session_options(threads), path, "Export it again.")
        self._past_names = io_names.past_names(convention.layers)
        self._present_names = io_names.present_names(convention.layers)
        self.reset()

    def probe(self) -> None:
        """Run two tokens and one more, to see that the file runs, what its logits are, and whether it takes rows.

        Raises:
            UsageError: it does not run, or its logits are not of the checkpoint's vocabulary.
        """
        length = min(2, self.max_sequence_length - 1)
        if length < 1:
            raise UsageError("a cache of one slot leaves nothing to judge: give -M 2 or more")
        self.reset()
        # Past the interface, which could not know yet what shape to expect.
        outputs = self._run(torch.zeros(1, length, dtype=torch.int64), torch.arange(length)[None])
        vocab_size = self.config.vocab_size
        if outputs.dim() != 3 or outputs.shape[1] not in (1, length) or outputs.shape[2] != vocab_size:
            raise UsageError(
                f"{self._path} gives logits {list(outputs.shape)} for 1 x {length} tokens, and the checkpoint has "
                f"a vocabulary of {vocab_size}: expected is [1, {length}, {vocab_size}]"
            )
        self.last_logits_only = outputs.shape[1] < length
        if self.last_logits_only and self.convention.shared:
            self.foreign = replace(
                self.foreign, no_rows="the file gives logits of the last column only, which in a shorter row is padding"
            )
        self._try(1, length)
        if self.foreign.no_rows is None:
            try:
                self._try(2, length)
            except UsageError as error:
                self.foreign = replace(
                    self.foreign, no_rows=f"the file does not run with rows of unequal length: {error}"
                )
        self.reset()

    def _try(self, rows: int, length: int) -> None:
        self.reset(rows)
        lengths_B = torch.tensor([length] + [1] * (rows - 1))
        self.prefill(torch.zeros(rows, length, dtype=torch.int64), lengths_B)
        self.step(torch.zeros(rows, 1, dtype=torch.int64))

    def _integers(
        self, ids_BS: torch.Tensor, mask_BT: torch.Tensor, position_ids_BS: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The integer inputs that the file has, in its types."""
        known = {
            io_names.INPUT_IDS: ids_BS,
            ATTENTION_MASK: mask_BT,
            io_names.POSITION_IDS: position_ids_BS,
            NUM_LOGITS_TO_KEEP: torch.full([1] * self.convention.ranks.get(NUM_LOGITS_TO_KEEP, 0), ids_BS.shape[1]),
        }
        return {name: known[name].to(dtype).contiguous() for name, dtype in self.convention.integers.items()}

    def _no_slots(self) -> str | None:
        """Why there are no slots to look at; None where there are."""
        raise NotImplementedError

    def _failed(self, error: Exception, position_ids_BS: torch.Tensor) -> UsageError:
        rows, length = position_ids_BS.shape
        return UsageError(
            f"ONNX Runtime {ort.__version__} does not run {self._path} on {rows} x {length} tokens from position "
            f"{int(position_ids_BS[0, 0])} on: {error}"
        )


class SharedCacheDecoder(ForeignDecoder):
    """GroupQueryAttention's convention: one buffer [B, K, M, H] for past and present, slot and position the same."""

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers themselves."""
        return self._past[2 * layer], self._past[2 * layer + 1]

    def _no_slots(self) -> str | None:
        return None

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, self.dtype)
        self._binding = self._session.io_binding()
        for past, present, buffer in zip(self._past_names, self._present_names, self._past, strict=True):
            _bind(self._binding.bind_input, past, buffer)
            _bind(self._binding.bind_output, present, buffer)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        rows, length = position_ids_BS.shape
        start_B = position_ids_BS[:, 0]
        if rows > 1 and length > 1 and int(start_B.max()) > 0:
            raise UsageError("GroupQueryAttention takes further chunks of a prompt in one row only")
        # The operator takes the last S entries of a row for the new ones, so padding counts among them; it is written
        # behind the row's own tokens, where no query sees it until it is overwritten.
        mask_BT = torch.arange(int(start_B.max()) + length)[None, :] < start_B[:, None] + length
        given = self._integers(inputs, mask_BT, position_ids_BS)
        for name, tensor in given.items():
            _bind(self._binding.bind_input, name, tensor)
        self._binding.bind_output(io_names.LOGITS)  # anew, since its shape changes; always the last of the outputs
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise self._failed(error, position_ids_BS) from error
        logits = self._binding.get_outputs()[-1].numpy()
        return torch.from_numpy(logits).to(self.dtype)


class GrowingCacheDecoder(ForeignDecoder):
    """optimum's convention: each call hands back past and new entries in one tensor, which the next call takes.

    Rows share the length of that tensor; which of its columns belong to a row is what `attention_mask` says.
    """

    _valid_B: torch.Tensor | None = None  # tokens of each row in the call that is running; None: no padding

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder.prefill`; here the graph is told of the padding."""
        self._valid_B = lengths_B
        try:
            return super().prefill(inputs, lengths_B)
        finally:
            self._valid_B = None

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies [B, K, M, H] with each row's entries at the slots of their positions."""
        return self._by_slot(self._past[2 * layer]), self._by_slot(self._past[2 * layer + 1])

    def _by_slot(self, grown_BKTH: torch.Tensor) -> torch.Tensor:
        rows, heads, _, width = grown_BKTH.shape
        slots = torch.zeros(rows, heads, self.max_sequence_length, width, dtype=grown_BKTH.dtype)
        for row, columns_T in enumerate(self._held_BT):
            slots[row, :, : int(columns_T.sum())] = grown_BKTH[row][:, columns_T]
        return slots

    def _no_slots(self) -> str | None:
        return "the file's cache grows with the tokens, and has neither free slots nor a last one"

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, 0, self.dtype)
        self._held_BT = torch.zeros(batch_size, 0, dtype=torch.bool)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        length = position_ids_BS.shape[1]
        held_B = self._held_BT.sum(1)
        if not torch.equal(position_ids_BS[:, 0], held_B):
            raise UsageError(
                f"positions start at {position_ids_BS[:, 0].tolist()} and the rows hold {held_B.tolist()} tokens: a "
                "cache that grows goes on where it stopped"
            )
        padding_B = torch.zeros_like(held_B) if self._valid_B is None else length - self._valid_B
        if bool((padding_B > 0).any()):
            self._check_padding()
        # To the left: column c of the graph is token c - padding of the row.
        columns_BS = (torch.arange(length)[None, :] - padding_B[:, None]) % length
        held_BT = torch.cat([self._held_BT, torch.arange(length)[None, :] >= padding_B[:, None]], dim=1)
        positions_BS = (held_BT.cumsum(1) - 1).clamp(min=0)[:, -length:]
        feeds = self._integers(inputs.gather(1, columns_BS), held_BT, positions_BS)
        feeds.update(zip(self._past_names, self._past, strict=True))
        try:
            logits, *present = self._session.run(
                [io_names.LOGITS, *self._present_names], {name: tensor.numpy() for name, tensor in feeds.items()}
            )
        except Exception as error:  # as above
            raise self._failed(error, position_ids_BS) from error
        self._past = [torch.from_numpy(tensor) for tensor in present]
        self._held_BT = held_BT
        return self._turned_back(torch.from_numpy(logits).to(self.dtype), padding_B)

    @staticmethod
    def _turned_back(outputs_BSV: torch.Tensor, padding_B: torch.Tensor) -> torch.Tensor:
        if outputs_BSV.shape[1] == 1 or not bool((padding_B > 0).any()):
            return outputs_BSV
        shifts = padding_B.tolist()
        return torch.stack([row_SV.roll(-by, 0) for row_SV, by in zip(outputs_BSV, shifts, strict=True)])

    def _check_padding(self) -> None:
        if self.foreign.no_rows is not None:
            raise UsageError(self.foreign.no_rows)
        if self._held_BT.shape[1] and io_names.POSITION_IDS not in self.convention.integers:
            raise UsageError("without position_ids only a first prompt may be padded")


def _no_rows(convention: Convention) -> str | None:
    if convention.fixed_batch is not None:
        return "the file fixes its batch at one row"
    if ATTENTION_MASK not in convention.integers:
        return f"the file has no {ATTENTION_MASK}, so rows of unequal length cannot be told apart from padding"
    return None


def _bind(method: Callable[..., None], name: str, tensor: torch.Tensor) -> None:
    # The binding holds an address and no reference: the caller keeps the tensor alive over the run.
    method(name, "cpu", 0, ELEMENT_TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
