"""Golden vectors out of a judgement that passed: the reference's outputs at a few positions and the limits they met."""

from __future__ import annotations

import torch

from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.tolerances import MAX_FACTOR
from blockexport.export.bundle.golden_file import GoldenVectors, choose_positions


def golden_vectors(context: CheckContext) -> GoldenVectors:
    """The vectors of a judged artifact, made of what its checks already computed.

    The limit at a position is the report's: a multiple of the noise floor there. The root mean square over so few
    positions is a matter of luck, so its limit is a multiple of the largest of three: the floor at these positions, the
    floor of the whole stretch, and the artifact's own error here, which the judgement has found to be rounding.
    """
    plan = context.plan
    total = plan.prefill + plan.decode
    interface = context.decoder.interface
    positions = choose_positions(plan.prefill, total, interface.width, one_a_row=interface.ends.one_a_row)
    limits, floor = context.max_floor, context.floor(positions)
    stretches = map(context.observed, (plan.prefill_positions, plan.decode_positions))
    sizes = [context.floor(seen).rms for seen in stretches if seen]
    chosen = context.artifact_errors.select(positions)
    sizes += [floor.rms, chosen.rms]
    inputs = context.inputs(context.decoder, context.ids_S[:total])
    return GoldenVectors(
        inputs=inputs.to(torch.float32) if context.decoder.headless else inputs,
        prefill=plan.prefill,
        positions_P=torch.tensor(positions, dtype=torch.int64),
        outputs_PV=context.expected.at(positions, chosen.starts_P.tolist()).to(torch.float32),
        tolerance_P=torch.tensor([MAX_FACTOR.value * limits[position] for position in positions]),
        rms_tolerance=floor.rms_limit * max(sizes),
        output=interface.output_name,
    )
