"""Rows of one cache that are lent to one tenant after the other, as `serve` has it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from blockexport.compare.checks.check_batch import JudgedRow, floors_of_rows
from blockexport.compare.checks.check_slots import poison
from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.logit_distance import Errors, measure
from blockexport.compare.core.slots import cache_tensors
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.errors import UsageError
from blockexport.models.progress import counted
from blockexport.models.wording import plural
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.rows import Rows

ROWS = 3  # that are lent
TENANTS = 12  # so that each has several
TENANTS_OF_LARGE = 6  # two a row
LARGE = 1e9  # parameters, from which on each token takes long
LONGEST_CHUNK = 11
LEAVES = 0.04  # how likely a tenant gives up before a turn


def _cannot(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "the rows of another tool's file cannot be run apart"
    if context.ends.pooling is not None:
        return "rows are lent to texts that go on, and an embedding is one call"
    return None if context.rows else "the cache is too small for rows of unequal length"


@dataclass
class _Tenant:
    """Who has a row, or had it: the tokens of one of the context's rows, of which the first are its prompt."""

    number: int
    of: int  # the context's row
    ids_S: torch.Tensor
    prompt: int
    place: int = -1  # the row it was lent
    done: int = 0  # tokens that are in the cache
    positions: list[int] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def hear(self, tokens: int, outputs_SV: torch.Tensor) -> None:
        """The outputs of its next tokens, or of the last of them."""
        self.positions += list(range(self.done, self.done + tokens))[-len(outputs_SV) :]
        self.outputs.append(outputs_SV.cpu().clone())
        self.done += tokens

    @property
    def ended(self) -> bool:
        return self.done == len(self.ids_S)


@partial(
    Check,
    "serving",
    Kind.NUMERICAL,
    inapplicable=_cannot,
    in_rows=True,
    by_name=True,
    unlocated="other checks run the same tokens in rows that nobody had before: this one is about how rows are lent",
)
def serving(context: CheckContext) -> Outcome:
    """Tenants come, give up and go in a random order; prompts are run in chunks of random sizes while others take
    their steps; and every slot that a new tenant finds holds large numbers. Each gets the outputs of its tokens alone.
    """
    tenants = _tenants(context)
    try:
        _serve(context, context.decoder, tenants)
    except UsageError as error:  # tokens that fit have no room: the lengths of rows are wrong
        return Outcome("", 1, [f"a row that is lent has no room for its tenant: {error}"])
    judged = list(_judged(context, [one for one in tenants if one.positions]))
    what = f"{plural(len(judged), 'tenant')} of {ROWS} rows"
    errors = Errors.join([row.errors for row in judged])
    result = judge_stretch(context, what, errors, floors_of_rows(context, judged))
    if not result.complaints:
        return result
    alone = (judge_stretch(context, row.what, row.errors, floors_of_rows(context, [row])) for row in judged)
    guilty = next((one.complaints for one in alone if one.complaints), result.complaints)
    return replace(result, complaints=guilty)


def _tenants(context: CheckContext) -> list[_Tenant]:
    rng = random.Random(0)
    made = []
    large = count_parameters(context.config).total >= LARGE
    for number in range(TENANTS_OF_LARGE if large else TENANTS):
        row = context.rows[number % len(context.rows)]
        length = rng.randint(2, len(row.ids_S)) if number % 3 else len(row.ids_S)
        made.append(_Tenant(number, number % len(context.rows), row.ids_S[:length], rng.randint(1, length)))
    return made


def _serve(context: CheckContext, decoder: Decoder, tenants: list[_Tenant]) -> None:
    rng = random.Random(1)
    rows, waiting, here = Rows(decoder, ROWS), list(tenants), list[_Tenant]()
    total, left = sum(len(one.ids_S) for one in tenants), 0  # tokens, and those of tenants that gave up
    for row in range(ROWS):
        _poison(decoder, row)
    while waiting or here:
        context.progress("serving: token", left + sum(one.done for one in tenants), total)
        for tenant in list(here):
            if tenant.ended or rng.random() < LEAVES:
                left += len(tenant.ids_S) - tenant.done
                here.remove(tenant)
                rows.take_back(tenant.place)
                _poison(decoder, tenant.place)
        while waiting and (free := rows.lend()) is not None:
            here.append(waiting.pop(0))
            here[-1].place = free
        inputs = {one.number: context.inputs(decoder, one.ids_S) for one in here}
        prompts = [one for one in here if one.done < one.prompt]
        for tenant in prompts[: rng.randint(0, len(prompts))]:
            size = min(rng.randint(1, LONGEST_CHUNK), tenant.prompt - tenant.done)
            chunk = inputs[tenant.number][tenant.done : tenant.done + size]
            tenant.hear(size, rows.append(tenant.place, chunk))
        steps = [one for one in here if one not in prompts and not one.ended and rng.random() < 0.8]
        if steps:
            given = {one.place: inputs[one.number][one.done : one.done + 1] for one in steps}
            outputs = rows.step(given)
            for tenant in steps:
                tenant.hear(1, outputs[tenant.place][None])
    context.progress("serving: token", total, total)


@torch.inference_mode()  # some decoders hold inference tensors, which nothing else may write to
def _poison(decoder: Decoder, row: int) -> None:
    """What a former tenant left, as loud as can be."""
    mark = poison(decoder)
    for i, (_, tensor_BKMH) in enumerate(cache_tensors(decoder)):
        tensor_BKMH[row : row + 1].copy_(mark.pattern(i, tensor_BKMH))


def _judged(context: CheckContext, tenants: list[_Tenant]) -> Iterator[JudgedRow]:
    """Each tenant's errors, and eager's own in a row that never had another."""
    eager = []
    rows = counted(context.rows, "serving: row of eager", context.progress)
    for row, expected_PV in zip(rows, context.expected.outputs[1:], strict=True):
        (outputs_PV,) = context.run_rows(context.eager, row.ids_S[None], [row.prompt], row.prompt)
        eager.append(measure(outputs_PV, expected_PV, range(len(row.ids_S))))
    for one in tenants:
        expected_PV = context.expected.outputs[1 + one.of]
        errors = measure(torch.cat(one.outputs), expected_PV[one.positions], one.positions)
        what = f"tenant {one.number} of row {one.place} ({plural(one.done, 'token')}, prompt of {one.prompt})"
        yield JudgedRow(what, errors, eager[one.of].select(one.positions), one.of)
