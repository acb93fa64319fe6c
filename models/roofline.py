"""The least time that a model's arithmetic and memory traffic allow on a machine, by counting.

A step reads every weight once, for all rows together, and the keys and values that its rows see. A prompt is read
through once: every weight is read once, and the keys and values of all its tokens are written. The head is counted
for a prompt's last token alone, for no other token's logits are needed. Activations are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockexport.models.config import arithmetic
from blockexport.models.config.model_config import ModelConfig


@dataclass(frozen=True)
class Footprint:
    """What a step has to read and compute, for the roofline.

    Attributes:
        config: the model's dimensions.
        weight_bytes: bytes of the weights that every step reads.
        cache_itemsize: bytes of a value in the cache.
        gives_logits: whether it has the output head.
    """

    config: ModelConfig
    weight_bytes: int
    cache_itemsize: int
    gives_logits: bool = True

    @property
    def head_flops(self) -> int:
        """Operations of the output head for a token."""
        return 2 * self.config.vocab_size * self.config.hidden_size if self.gives_logits else 0

    @property
    def body_flops(self) -> int:
        """Operations of all other matrices for a token."""
        return arithmetic.weight_flops(self.config) - 2 * self.config.vocab_size * self.config.hidden_size


@dataclass(frozen=True)
class MachineSpeed:
    """What a machine does at most, as it was measured or as its maker says.

    Attributes:
        device: its name.
        memory_bandwidth: bytes read per second.
        matrix_peak: floating-point operations per second in a product of large matrices.
        matrix_type: the type of those matrices.
    """

    device: str
    memory_bandwidth: float
    matrix_peak: float
    matrix_type: str

    def best(self, other: MachineSpeed) -> MachineSpeed:
        """The larger of both figures: what disturbs a measurement makes it smaller."""
        return MachineSpeed(
            self.device,
            max(self.memory_bandwidth, other.memory_bandwidth),
            max(self.matrix_peak, other.matrix_peak),
            self.matrix_type,
        )


@dataclass(frozen=True)
class Work:
    """Bytes that have to pass, and floating-point operations."""

    bytes: int
    flops: int

    def seconds(self, speed: MachineSpeed) -> float:
        """The least time for it: that of the traffic, or of the arithmetic where it takes longer."""
        return max(self.bytes / speed.memory_bandwidth, self.flops / speed.matrix_peak)


def prefill_work(footprint: Footprint, case: tuple[int, int]) -> Work:
    """From a prompt of tokens in every row to the outputs of the last one; `case` is the rows, and the tokens."""
    config, (rows, context) = footprint.config, case
    written = arithmetic.cache_bytes(config, footprint.cache_itemsize, context, rows)
    attention = sum(_causal_flops(config, layer, context) for layer in range(config.num_hidden_layers))
    flops = context * footprint.body_flops + footprint.head_flops + attention
    return Work(footprint.weight_bytes + written, rows * flops)


def step_work(footprint: Footprint, case: tuple[int, int], steps: int) -> Work:
    """`steps` tokens of every row, one after the other, after others; `case` is the rows, and how many were before."""
    config, (rows, context) = footprint.config, case
    per_slot = arithmetic.cache_bytes(config, footprint.cache_itemsize) // config.num_hidden_layers
    bytes_, flops = 0, 0
    for visible in range(context + 1, context + steps + 1):
        slots = sum(arithmetic.visible_tokens(config, layer, visible) for layer in range(config.num_hidden_layers))
        bytes_ += footprint.weight_bytes + rows * per_slot * slots
        weights = footprint.body_flops + footprint.head_flops
        flops += rows * (weights + arithmetic.all_attention_flops(config, visible))
    return Work(bytes_, flops)


def _causal_flops(config: ModelConfig, layer: int, tokens: int) -> int:
    """`attention_flops` of tokens that see 1, 2, ... `tokens` slots, at most their window."""
    seen = arithmetic.visible_tokens(config, layer, tokens)
    slots = seen * (seen + 1) // 2 + (tokens - seen) * seen
    return arithmetic.attention_flops(config, 1, layer) * slots
