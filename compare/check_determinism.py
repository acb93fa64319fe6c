"""The same calls twice."""

from __future__ import annotations

from blockexport.compare.check import CheckResult, Verdict, check
from blockexport.compare.context import CheckContext
from blockexport.compare.evidence import gather
from blockexport.compare.plan import calls_of
from blockexport.compare.unmoved import same_bits

PROMPT = 64
STEPS = 4


@check("determinism", "two runs give the same bits", order=55)
def determinism(context: CheckContext) -> CheckResult:
    """A prefill and a few steps, each time from an empty cache: dropout left on, say, or memory that nobody wrote."""
    sizes = (min(PROMPT, context.plan.prefill), *(1,) * STEPS)
    calls = calls_of(sizes, len(context.ids_S))
    positions = range(calls[-1].stop)
    said = gather(context.decoder, context.checkpoint, context.ids_S, calls, positions, twice=True)
    assert said.repeated_PV is not None
    pairs = zip(said.positions, said.outputs_PV, said.repeated_PV, strict=True)
    different = [position for position, one, other in pairs if not same_bits(one, other)]
    figures = {"positions": len(said.positions), "different": different}
    what = f"two runs of {len(positions)} positions"
    if not different:
        return CheckResult("determinism", Verdict.PASS, f"{what}: the same bits", figures)
    largest = float((said.repeated_PV.double() - said.outputs_PV.double()).abs().max())
    message = f"{what}: {len(different)} differ, by {largest:.3g} at the most, first position {different[0]}"
    return CheckResult("determinism", Verdict.FAIL, message, figures)
