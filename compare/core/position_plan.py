"""Which positions are judged: one sequence serves every check on the cached path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from blockexport.models.errors import UsageError

PREFILL = 256
DECODE = 64
LAST = 8  # slots at the end of the cache
CHUNK = 256  # tokens per call on the way there
STEPS = 64  # single steps that are spread over the whole cache
DENSE = 4  # of the first slots, each filled by a single step of its own
GOLDEN = 0.618034  # squares times this, less their whole part, fill the unit interval evenly and in no regular order


@dataclass(frozen=True)
class Plan:
    """Stretches of one sequence: a prefill, decode steps after it, a fill, and steps into the last cache slots.

    The last stretch may overlap the decode steps of a small cache.
    """

    prefill: int
    decode: int
    last: int
    max_sequence_length: int

    @property
    def prefill_positions(self) -> range:
        """Positions given in the first call."""
        return range(self.prefill)

    @property
    def decode_positions(self) -> range:
        """Positions given one by one after the prefill."""
        return range(self.prefill, self.prefill + self.decode)

    @property
    def last_positions(self) -> range:
        """The last cache slots, filled one by one."""
        return range(self.max_sequence_length - self.last, self.max_sequence_length)

    def calls(self, *, to_last_slot: bool) -> list[range]:
        """The positions of each call in turn: the prefill, the steps, chunks up to the last slots, and those."""
        reached = self.decode_positions.stop
        last = range(max(self.last_positions.start, reached), self.max_sequence_length) if to_last_slot else ()
        return stepped([self.prefill_positions], [*self.decode_positions, *last])

    @cached_property
    def spread_steps(self) -> list[int]:
        """Positions of single steps over the whole cache: the first few, the last, and one in each of 64 equal parts.

        Where in its part a step lies differs from part to part, so that no alignment of positions, nor a length of the
        chunks between them, is left out.
        """
        slots = self.max_sequence_length
        parts = min(STEPS, slots)
        spread = {int((part + part * part * GOLDEN % 1) * slots / parts) for part in range(parts)}
        return sorted({*range(min(DENSE, slots)), *spread, slots - 1})

    @property
    def spread_calls(self) -> list[range]:
        """The positions of each call of a walk over the whole cache: single steps, and between them chunks."""
        return stepped([], self.spread_steps)

    @property
    def spread_positions(self) -> list[int]:
        """Those of that walk that are judged wherever they lie: its single steps, and the end of the chunk before."""
        return sorted({p for step in self.spread_steps for p in (step - 1, step) if p >= 0})


def calls_of(sizes: Iterable[int], length: int) -> list[range]:
    """The positions of consecutive calls of `sizes` tokens, the first ones that `length` positions have room for."""
    calls: list[range] = []
    for size in sizes:
        start = calls[-1].stop if calls else 0
        if start < length:
            calls.append(range(start, min(start + size, length)))
    return calls


def stepped(calls: Sequence[range], steps: Iterable[int]) -> list[range]:
    """Some calls, and after them single steps at the positions `steps`, with chunks before each where there is room."""
    calls = list(calls)
    for step in steps:
        start = calls[-1].stop if calls else 0
        calls += [range(p, min(p + CHUNK, step)) for p in range(start, step, CHUNK)]
        calls.append(range(step, step + 1))
    return calls


def make_plan(max_sequence_length: int, decode_steps: int | None = None, prefill: int | None = None) -> Plan:
    """Fit the stretches into a cache of M slots; the prompt gives way to the wanted number of decode steps.

    Raises:
        UsageError: the wanted prefill and steps do not fit.
    """
    room = max_sequence_length
    if decode_steps is None:
        length = min(PREFILL, max(1, room // 2)) if prefill is None else prefill
        decode_steps = min(DECODE, max(room - length, 0))
    else:
        length = min(PREFILL, max(1, room - decode_steps)) if prefill is None else prefill
    if length < 1 or decode_steps < 0 or length + decode_steps > room:
        raise UsageError(
            f"a prefill of {length} tokens and {decode_steps} decode steps need {length + decode_steps} cache slots, "
            f"and there are {room}: ask for at most {room - (1 if prefill is None else length)} steps"
        )
    return Plan(length, decode_steps, min(LAST, room - length), room)
