"""What a decoder takes and gives: names, types and shapes, in the one order that every artifact uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import ElementType
from blockexport.models.precision import Precision

if TYPE_CHECKING:
    import torch


class Pooling(StrEnum):
    """What the embedding of a text is made of: its last token's state, or the mean of all of its tokens' states."""

    LAST = "last"
    MEAN = "mean"


class Ends(StrEnum):
    """What a decoder begins and ends with.

    With the hidden states after the final norm for outputs it is headless: it takes embeddings, and has neither
    embedding nor output head. An embedding is one vector for each row of a call, made of its tokens' hidden states
    after the final norm. A stage has some of a model's layers: between stages goes the residual stream, and the
    final norm is in the last one, with the head.
    """

    LOGITS = "logits"
    LAST_LOGITS = "logits of each row's last token only"
    HIDDEN_STATES = "hidden states"
    LAST_EMBEDDING = "embeddings, the last token's state, normalised"
    MEAN_EMBEDDING = "embeddings, the mean of the states, normalised"
    LAST_STATE = "embeddings, the last token's state"
    MEAN_STATE = "embeddings, the mean of the states"
    FIRST_STAGE = "the stream after a first stage"
    INNER_STAGE = "the stream after a stage in the middle"
    LAST_STAGE = "logits after a last stage"

    @classmethod
    def of(cls, *, headless: bool = False, last_logits_only: bool = False) -> Ends:
        """The ends that two flags ask for.

        Raises:
            ValueError: both are set.
        """
        if headless and last_logits_only:
            raise ValueError("a headless decoder has no logits, of the last token or of others")
        return cls.HIDDEN_STATES if headless else cls.LAST_LOGITS if last_logits_only else cls.LOGITS

    @classmethod
    def of_embedding(cls, pooling: Pooling, *, normalize: bool) -> Ends:
        """The ends of what gives embeddings."""
        if normalize:
            return cls.MEAN_EMBEDDING if pooling is Pooling.MEAN else cls.LAST_EMBEDDING
        return cls.MEAN_STATE if pooling is Pooling.MEAN else cls.LAST_STATE

    @classmethod
    def of_stage(cls, layers: range, num_hidden_layers: int) -> Ends:
        """The ends of a stage that has some of a model's layers, not all of them."""
        if layers.start == 0:
            return cls.FIRST_STAGE
        return cls.LAST_STAGE if layers.stop == num_hidden_layers else cls.INNER_STAGE

    @property
    def is_stage(self) -> bool:
        """Whether other stages come before it, after it, or both."""
        return self in (Ends.FIRST_STAGE, Ends.INNER_STAGE, Ends.LAST_STAGE)

    @property
    def from_ids(self) -> bool:
        """Whether token ids go in, so that it has the embedding."""
        return self in (Ends.LOGITS, Ends.LAST_LOGITS, Ends.FIRST_STAGE) or self.pooling is not None

    @property
    def to_logits(self) -> bool:
        """Whether logits come out, so that it has the output head."""
        return self in (Ends.LOGITS, Ends.LAST_LOGITS, Ends.LAST_STAGE)

    @property
    def normed(self) -> bool:
        """Whether it has the final norm."""
        return self not in (Ends.FIRST_STAGE, Ends.INNER_STAGE)

    @property
    def to_states(self) -> bool:
        """Whether the hidden states after the final norm come out, or what is pooled of them."""
        return self.normed and not self.to_logits

    @property
    def headless(self) -> bool:
        """Whether `inputs_embeds` [B, S, D] go in and `hidden_states` [B, S, D] come out."""
        return self is Ends.HIDDEN_STATES

    @property
    def pooling(self) -> Pooling | None:
        """What the embedding [B, D] that comes out is made of; None where none comes out."""
        if self in (Ends.LAST_EMBEDDING, Ends.LAST_STATE):
            return Pooling.LAST
        return Pooling.MEAN if self in (Ends.MEAN_EMBEDDING, Ends.MEAN_STATE) else None

    @property
    def normalizes(self) -> bool:
        """Whether embeddings are brought to length 1."""
        return self in (Ends.LAST_EMBEDDING, Ends.MEAN_EMBEDDING)

    @property
    def last_logits_only(self) -> bool:
        """Whether the logits of each row's last token alone come out, [B, 1, V]."""
        return self is Ends.LAST_LOGITS

    @property
    def one_a_row(self) -> bool:
        """Whether a call gives one output for each row, at its last token, so that positions tell where that is."""
        return self.last_logits_only or self.pooling is not None

    def told(self, length: int) -> range:
        """Those of `length` tokens of a row in one call whose outputs come out."""
        return range(length - 1 if self.one_a_row else 0, length)


@dataclass(frozen=True)
class Port:
    """An input or output: its name, its type (`int64`, `float32`, ...), and its shape with symbolic axes by name.

    `aliases`, on an output, is the input whose buffer it may share: the cache is updated in place.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    aliases: str | None = None

    @classmethod
    def declared(cls, name: str, dtype: str, sizes: Iterable[object]) -> Port:
        """An input or output as a file declares it, whose axes of no certain size have no names."""
        return cls(name, dtype, tuple(size if isinstance(size, int) else "any" for size in sizes))

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype} [{', '.join(map(str, self.shape))}])"


@dataclass(frozen=True)
class Interface:
    """The interface of one decoder.

    Attributes:
        config: the model's dimensions.
        element: type of cache and outputs.
        max_sequence_length: M, slots per row of the cache.
        ends: what goes in first, and what comes out.
    """

    config: ModelConfig
    element: ElementType
    max_sequence_length: int
    ends: Ends = Ends.LOGITS

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of cache and outputs."""
        return self.element.torch_dtype

    @property
    def precision(self) -> Precision:
        """The precision of a bundle.

        Raises:
            NotJudgedError: no bundle is of this type.
        """
        return Precision.of(self.dtype)

    @property
    def input_name(self) -> str:
        """`input_ids`, `inputs_embeds`, or what a stage takes from the one before it."""
        if self.ends.from_ids:
            return io_names.INPUT_IDS
        return io_names.HIDDEN_STATES_IN if self.ends.is_stage else io_names.INPUTS_EMBEDS

    @property
    def output_name(self) -> str:
        """`logits`, `hidden_states` or `embeddings`."""
        if self.ends.pooling is not None:
            return io_names.EMBEDDINGS
        return io_names.LOGITS if self.ends.to_logits else io_names.HIDDEN_STATES

    @property
    def width(self) -> int:
        """Values of an output for a token: V, or D of hidden states and embeddings."""
        return self.config.vocab_size if self.ends.to_logits else self.config.hidden_size

    def output_shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Of the outputs of `length` tokens in each of `rows` rows."""
        if self.ends.pooling is not None:
            return rows, self.width
        return rows, 1 if self.ends.last_logits_only else length, self.width

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Ids or embeddings, positions, and the caches."""
        axes = (io_names.BATCH_AXIS, io_names.SEQUENCE_AXIS)
        if self.ends.from_ids:
            first = Port(self.input_name, "int64", axes)
        else:
            first = Port(self.input_name, self.element.name, (*axes, self.config.hidden_size))
        past = io_names.past_names(self.config.num_hidden_layers)
        return (first, Port(io_names.POSITION_IDS, "int64", axes), *(self._cache(name) for name in past))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Logits, hidden states or embeddings, and the caches."""
        length = () if self.ends.pooling is not None else (1 if self.ends.last_logits_only else io_names.SEQUENCE_AXIS,)
        result = Port(self.output_name, self.element.name, (io_names.BATCH_AXIS, *length, self.width))
        present = io_names.present_names(self.config.num_hidden_layers)
        return (result, *(self._cache(name, io_names.past_of(name)) for name in present))

    def _cache(self, name: str, aliases: str | None = None) -> Port:
        # One batch symbol for all caches: with a symbol each, TensorRT emits every layer's kernels anew.
        slots = (io_names.BATCH_AXIS, self.config.num_key_value_heads, self.max_sequence_length, self.config.head_dim)
        return Port(name, self.element.name, slots, aliases)
