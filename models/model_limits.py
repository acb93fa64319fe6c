"""What a model does at most on a device, and what fits into its memory, by counting.

The least time of a step is that of reading all weights once and the keys and values that the rows see, or that of the
arithmetic where it is longer (`roofline.py`); activations are left out, of the memory as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from blockexport.models.config import arithmetic
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.roofline import Footprint, MachineSpeed, Work, prefill_work, step_work

_FIRST = 1024  # tokens of the shortest context of a table; the next has twice as many


@dataclass(frozen=True)
class Limit:
    """The most of a stretch of work that a device does.

    Attributes:
        tokens_per_second: of all rows together.
        bound_by: `memory` where reading takes longer than computing, else `arithmetic`.
        bytes: that have to be read, or written.
        flops: floating-point operations.
        seconds: the least time.
    """

    tokens_per_second: float
    bound_by: str
    bytes: int
    flops: int
    seconds: float


def footprint_of(config: ModelConfig, itemsize: int) -> Footprint:
    """What a step reads of a model in a type of `itemsize` bytes: all weights but an embedding that is looked up."""
    return Footprint(config, arithmetic.weight_flops(config) // 2 * itemsize, itemsize)


def step_limit(footprint: Footprint, speed: MachineSpeed, rows: int, tokens: int) -> Limit:
    """One token of each of `rows` rows, which then have `tokens` in the cache."""
    return _limit(step_work(footprint, (rows, tokens - 1), 1), speed, rows)


def prompt_limit(footprint: Footprint, speed: MachineSpeed, rows: int, tokens: int) -> Limit:
    """A prompt of `tokens` in each row."""
    return _limit(prefill_work(footprint, (rows, tokens)), speed, rows * tokens)


def _limit(work: Work, speed: MachineSpeed, tokens: int) -> Limit:
    seconds = work.seconds(speed)
    reading = work.bytes / speed.memory_bandwidth
    return Limit(tokens / seconds, "memory" if reading >= seconds else "arithmetic", work.bytes, work.flops, seconds)


def contexts(config: ModelConfig, tokens: int) -> list[int]:
    """Context lengths of a table: 1,024 and its doubles within the model's range, its whole range, and `tokens`."""
    reach, doubles = config.max_position_embeddings, []
    length = _FIRST
    while length < reach:
        doubles.append(length)
        length *= 2
    return sorted({*doubles, reach, tokens})


def fits(config: ModelConfig, itemsize: int, memory: float, tokens: int) -> dict[str, object]:
    """The largest batch of each context length whose cache fits beside the weights, and the longest context of one row.

    Nothing fits where the weights alone do not: batches of 0, and a context of 0.
    """
    weights = arithmetic.count_parameters(config).total * itemsize
    slots = max(0, int(memory - weights)) // arithmetic.cache_bytes(config, itemsize)
    return {
        "memory_bytes": int(memory),
        "left_bytes": int(memory - weights),
        "cache_slots": slots,
        "longest_context": min(slots, config.max_position_embeddings),
        "batches": [{"tokens": length, "batch_size": slots // length} for length in contexts(config, tokens)],
    }


def growth(config: ModelConfig, itemsize: int, tokens: int) -> Iterator[dict[str, float]]:
    """How a step of one row grows with the context: attention's operations, and the keys and values it reads."""
    footprint = footprint_of(config, itemsize)
    weights = arithmetic.weight_flops(config)
    for length in contexts(config, tokens):
        attention = arithmetic.all_attention_flops(config, length)
        read = step_work(footprint, (1, length - 1), 1).bytes - footprint.weight_bytes
        yield {
            "tokens": length,
            "attention_flops": attention,
            "attention_share": attention / (attention + weights),
            "cache_bytes_read": read,
            "cache_share": read / (read + footprint.weight_bytes),
        }


def limits(config: ModelConfig, itemsize: int, speed: MachineSpeed, rows: int, tokens: int) -> dict[str, object]:
    """A step of one row, a step of all rows, and a prompt of one row, at most."""
    footprint = footprint_of(config, itemsize)
    return {
        "name": speed.device,
        "memory_bandwidth": speed.memory_bandwidth,
        "matrix_peak": speed.matrix_peak,
        "step": asdict(step_limit(footprint, speed, 1, tokens)),
        "batched_step": asdict(step_limit(footprint, speed, rows, tokens)),
        "prompt": asdict(prompt_limit(footprint, speed, 1, tokens)),
    }
