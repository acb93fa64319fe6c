"""One interface over every way to run a decoder: eager PyTorch, a .pt2, ONNX Runtime, TensorRT.

A decoder owns its static cache (B rows of M slots) and knows how many slots of each row are filled. Position and
slot are the same number. The interface checks what a graph cannot: that new tokens still fit, and are tokens at all.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import ArtifactError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.wording import plural
from blockexport.runtime.compute_device import CPU, ComputeDevice
from blockexport.runtime.decoder_inputs import check_rows, checked_inputs, checked_lengths, checked_positions

if TYPE_CHECKING:
    from blockexport.runtime.onnx_placement import Placement


@dataclass(frozen=True)
class Foreign:
    """What an artifact of another tool allows.

    Attributes:
        convention: how it is called, for people.
        no_slots: why its cache has no slots to look at (`cache` then gives copies); None where it has.
        no_rows: why it cannot run rows of unequal length; None where it can.
        one_token: its graph takes single tokens, so a longer call is several.
    """

    convention: str
    no_slots: str | None = None
    no_rows: str | None = None
    one_token: bool = False


class Decoder(ABC):
    """A loaded decoder with its cache.

    Attributes:
        interface: what it takes and gives: dimensions, M, type and ends.
        foreign: what an artifact of another tool allows; None for this project's own.
        lengths_B: int64 [B], filled slots of each row.
        device: where it computes; its caches lie there, and its outputs come back to the processor.
        most_slots: the largest M that its bundle can be opened with on this backend; None without a bundle.
    """

    interface: Interface
    foreign: Foreign | None = None
    device: ComputeDevice = CPU
    most_slots: int | None = None
    lengths_B: torch.Tensor
    _past: list[torch.Tensor]

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions."""
        return self.interface.config

    @property
    def max_sequence_length(self) -> int:
        """M, slots per row."""
        return self.interface.max_sequence_length

    @property
    def dtype(self) -> torch.dtype:
        """Type of cache and logits."""
        return self.interface.dtype

    @property
    def headless(self) -> bool:
        """True when it takes `inputs_embeds` [B, S, D] and gives `hidden_states` [B, S, D]."""
        return self.interface.ends.headless

    @property
    def one_a_row(self) -> bool:
        """True when a call gives one output for each row: the logits of its last token only, or an embedding."""
        return self.interface.ends.one_a_row

    @property
    def batch_size(self) -> int:
        """B, rows of the cache as of the last `reset`."""
        return int(self.lengths_B.shape[0])

    def reset(self, batch_size: int = 1) -> None:
        """Empty the cache (zeros) and give it `batch_size` rows.

        Raises:
            UsageError: fewer rows than one.
            NotJudgedError: the cache would be larger than this machine's memory.
        """
        check_rows(batch_size, self.interface)
        self._allocate(batch_size)
        self.lengths_B = torch.zeros(batch_size, dtype=torch.int64)

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """Append a chunk to every row: the prompt at first, further chunks of it later.

        Args:
            inputs: int64 [B, S] token ids, or [B, S, D] embeddings; rows shorter than S are padded on the right.
            lengths_B: valid tokens of each row in this chunk, 1..S; None means S everywhere.

        Returns:
            [B, S, V] logits, of which those of padding are meaningless. With `one_a_row` [B, 1, V], those of each row's
            last valid token, or [B, 1, D], its embedding.

        Raises:
            UsageError: the chunk, padding included, does not fit after what is cached, or is not what it should be:
                see `decoder_inputs`. Nothing has run then.
        """
        inputs = self._checked(inputs)
        sequence_length = inputs.shape[1]
        if lengths_B is None:
            added_B = torch.full_like(self.lengths_B, sequence_length)
        else:
            added_B = checked_lengths(lengths_B, self.batch_size, sequence_length)
        columns_BS = torch.arange(sequence_length)[None, :].expand(self.batch_size, -1)
        if self.one_a_row:
            # The artifact takes a row to end at its highest position, so padding repeats that of the last token.
            columns_BS = columns_BS.minimum(added_B[:, None] - 1)
        position_ids_BS = self.lengths_B[:, None] + columns_BS
        outputs = self._call(inputs, position_ids_BS)
        self.lengths_B = self.lengths_B + added_B
        return outputs

    def step(self, inputs: torch.Tensor) -> torch.Tensor:
        """Append one token to every row. `inputs` is [B, 1] ids or [B, 1, D]; returns [B, 1, V]."""
        inputs = self._checked(inputs)
        if inputs.shape[1] != 1:
            raise UsageError(f"a step was given {inputs.shape[1]} tokens for each row: give one, or call prefill")
        return self.prefill(inputs)

    def prefill_rows(self, rows: range, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """As `prefill`, for consecutive rows alone: the others are neither run, nor read, nor written.

        Args:
            rows: which; at least one.
            inputs: a row for each of them.
            lengths_B: valid tokens of each of them in this chunk.

        Raises:
            UsageError: rows that are not there; or as `prefill`.
        """
        if not 0 <= rows.start < rows.stop <= self.batch_size or rows.step != 1:
            raise UsageError(f"{rows} was asked for: give consecutive rows, at least one, of the {self.batch_size}")
        if len(rows) == self.batch_size:
            return self.prefill(inputs, lengths_B)
        # What holds the rows has to grow as a whole; where there are not slots enough, the call says so.
        self.make_room(
            min(int(self.lengths_B[rows.start : rows.stop].max()) + inputs.shape[1], self.max_sequence_length)
        )
        with self._alone(rows):
            return self.prefill(inputs, lengths_B)

    @contextlib.contextmanager
    def _alone(self, rows: range) -> Iterator[None]:
        """Have the cache of some rows as the whole cache, in place."""
        whole, lengths_B, part = self._past, self.lengths_B, slice(rows.start, rows.stop)
        views = [past_BKMH[part] for past_BKMH in whole]
        self._past, self.lengths_B = list(views), lengths_B[part]
        try:
            yield
            lengths_B = lengths_B.index_copy(0, torch.arange(rows.start, rows.stop), self.lengths_B)
            with torch.inference_mode():  # some decoders hold inference tensors, which nothing else may write to
                for view, past_BKMH in zip(views, self._past, strict=True):
                    if past_BKMH is not view:  # a pure program hands back a new cache
                        view.copy_(past_BKMH)
        finally:
            self._past, self.lengths_B = whole, lengths_B

    def forward(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Run once at explicit positions; `lengths_B` is left alone.

        Positions count up by one along each row. With `one_a_row` they do so to the row's last token, and
        padding after it has any position that is not higher.

        Raises:
            UsageError: a row would be written past its last slot, shapes disagree, or as `prefill`.
            ArtifactError: the artifact fails while it runs, or gives an output of another shape than it should.
        """
        inputs = self._checked(inputs)
        positions_BS = checked_positions(position_ids_BS, inputs, padded=self.one_a_row)
        return self._call(inputs, positions_BS)

    def _call(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        self._check(inputs, position_ids_BS)
        outputs = self._run(inputs, position_ids_BS)
        wanted = self.interface.output_shape(*position_ids_BS.shape)
        require_shape(self.interface.output_name, outputs.shape, wanted, position_ids_BS)
        return outputs if outputs.ndim == 3 else outputs[:, None]  # an embedding stands at the row's last token

    def _checked(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = checked_inputs(inputs, self.interface)
        if inputs.shape[0] != self.batch_size:
            raise UsageError(
                f"{inputs.shape[0]} rows were given to a cache of {self.batch_size}: call reset({inputs.shape[0]}) "
                "first"
            )
        return inputs

    def _check(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> None:
        """Whether the slots that a call writes are there."""
        sequence_length = inputs.shape[1]
        start_B = position_ids_BS[:, 0]
        start = int(start_B.max())
        if int(start_B.min()) < 0 or start + sequence_length > self.max_sequence_length:
            raise UsageError(
                f"{sequence_length} tokens (padding included) at position {start} need "
                f"{start + sequence_length} cache slots, and there are {self.max_sequence_length}: "
                f"{self.room_for('input', start + sequence_length)}"
            )

    def room_for(self, what: str, slots: int) -> str:
        """What to do about an input called `what` that needs `slots` slots, more than there are: a clause."""
        most = self.most_slots
        if most is None:
            return f"shorten the {what}, or ask for a larger max_sequence_length (-M)"
        if slots <= most:
            return f"shorten the {what}, or open the bundle with max_sequence_length (-M) from {slots} to {most}"
        # An ONNX file's RoPE table has at least the rows of the trained range; an engine may have fewer slots.
        beyond = " --beyond-trained-range" if slots > self.config.max_position_embeddings else ""
        return (
            f"shorten the {what} to at most {most}, the most that this bundle can be opened with, or export again with "
            f"--max-sequence-length {slots}{beyond}"
        )

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value of a layer, [B, K, M, H] each, as views where the backend can share memory: writing into
        them changes the cache."""
        return self._past[2 * layer], self._past[2 * layer + 1]

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same with the slots that there is memory for now: fewer than M of a cache that grows."""
        return self.cache(layer)

    @property
    def held_slots(self) -> int:
        """How many those are."""
        return self.held(0)[0].shape[2]

    @torch.inference_mode()  # some decoders hold inference tensors, which nothing else may write to
    def clear_row(self, row: int) -> None:
        """Zeros in all slots of a row, however many of them are filled."""
        for layer in range(self.config.num_hidden_layers):
            for tensor_BKMH in self.held(layer):
                tensor_BKMH[row].zero_()

    def placement(self) -> Placement | None:
        """Where the nodes of a graph run that runs on a GPU, after calls that empty the cache; None where nothing
        tells."""
        return None

    def make_room(self, slots: int) -> None:  # noqa: B027  (most caches have nothing to do)
        """Have memory for at least `slots` slots of each row, at most M. What is in those that there are stays, and new
        ones hold zeros. Only a cache that grows has anything to do."""

    def _allocate(self, batch_size: int) -> None:
        """Make zeroed caches of `batch_size` rows."""
        self._past = empty_cache(self.config, batch_size, self.max_sequence_length, self.dtype, self.device.torch)

    @abstractmethod
    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Run the artifact on checked inputs and update the cache."""


def require_shape(name: str, found: Sequence[int], wanted: Sequence[int], position_ids_BS: torch.Tensor) -> None:
    """Hold an output's shape against the one it should have.

    Raises:
        ArtifactError: it has another.
    """
    if tuple(found) != tuple(wanted):
        rows, length = position_ids_BS.shape
        raise ArtifactError(
            f"the output {name} has the shape {list(found)} and should have {list(wanted)}, when "
            f"{plural(rows, 'row')} of {plural(length, 'token')} from position {int(position_ids_BS[0, 0])} on are run"
        )
