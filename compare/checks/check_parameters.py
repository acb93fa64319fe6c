"""The artifact's weights: counted against the architecture, and held against the checkpoint's bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.audits.foreign_weights import Held, corresponding, hold_foreign
from blockexport.compare.audits.merged_weights import merged_weights
from blockexport.compare.audits.quantised_weights import QuantisedCheckpoint, off_grid
from blockexport.compare.audits.stored_matrices import StoredCheckpoint, misplaced_codes
from blockexport.compare.audits.weight_difference import describe_difference, same_values
from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.progress import counted
from blockexport.models.quantised_matrix import SCALES

DESCRIBED = 3  # tensors whose difference is described; finding whose values one holds reads many others


def _no_file(context: CheckContext) -> str | None:
    if context.weights is None:
        return "this backend runs no file of the bundle"
    if context.decoder.foreign is not None and not corresponding(context.weights().shapes):
        return "another tool's file names and lays out its weights in its own way"
    return None


@dataclass(frozen=True)
class ParameterFigures(Figures):
    """Parameters found and expected, and the weights that differ; None where the file does not show their values."""

    found: int
    expected: int
    differing: list[str] | None = None


@partial(Check, "parameters", Kind.CONTENT, inapplicable=_no_file)
def parameters(context: CheckContext) -> Outcome:
    """Every weight is in the file once, in its shape and with the checkpoint's value, and nothing else is."""
    assert context.weights is not None
    weights = context.weights()
    if context.decoder.foreign is not None:
        return _foreign(context, weights)
    wanted = expected_tensors(context.config, ends=context.ends)
    if isinstance(context.original, StoredCheckpoint):
        return _stored(context, context.original, weights, wanted)
    count, expected = sum(prod(shape) for shape in weights.shapes.values()), _expected_count(context)
    complaints = _wrong_shapes(weights.shapes, wanted)
    if count != expected:
        complaints.insert(0, f"{count:,} parameters in the file, {expected:,} by the arithmetic")
    differing: list[str] | None = None
    message = f"{count:,} parameters, as the arithmetic says"
    if weights.read is None:
        message += "; this file does not show their values, which were not compared"
    else:
        differing, said = _wrong_values(context, context.checkpoint, weights, wanted)
        complaints += said
        message += ", every value the checkpoint's to the bit" + _merged_too(context.original, wanted)
    return Outcome(message, len(weights.shapes), complaints, figures=ParameterFigures(count, expected, differing))


def _merged_too(checkpoint: Checkpoint, wanted: Mapping[str, tuple[int, ...]]) -> str:
    """What is said of the tensors that an adapter was merged into."""
    merged = merged_weights(checkpoint)
    if merged is None:
        return ""
    return f", or in {sum(map(merged.changes, wanted))} tensors what base model and adapter give, rounded"


def _foreign(context: CheckContext, weights: ArtifactWeights) -> Outcome:
    """Of another tool's file: what it plainly holds is the checkpoint's. How it lays out the rest is its own matter."""
    held = hold_foreign(weights, context.checkpoint, context.progress)
    message = f"{held.same} of {len(context.checkpoint.entries)} weights are in the file to the bit"
    if isinstance(context.original, QuantisedCheckpoint):
        return _quantised(context.original, held)
    if held.not_compared:
        message += f"; the others ({held.not_compared[0]} first) it lays out in its own way, and they were not compared"
    return Outcome(message, held.same, held.said, figures=held)


def _quantised(checkpoint: QuantisedCheckpoint, held: Held) -> Outcome:
    """What a file quantises is the source's to within a step of its grid, what it does not to the bit."""
    grids = len(checkpoint.grids)
    kept = len(checkpoint.entries) - grids
    whole = [name for name in held.not_compared if name not in checkpoint.grids]
    same = f"{kept - len(whole)} of {kept} others to the bit"
    message = f"{grids} weights are the checkpoint's within a step of their grid, {same}"
    off = dict(off_grid(checkpoint))
    complaints = [*held.said, *_first(off)]
    figures = replace(held, differing=[*held.differing, *off], quantised=sorted(checkpoint.grids))
    return Outcome(message, grids + held.same, complaints, figures=figures)


def _stored(
    context: CheckContext, checkpoint: StoredCheckpoint, weights: ArtifactWeights, wanted: Mapping[str, tuple[int, ...]]
) -> Outcome:
    """Of a quantised bundle: codes are the checkpoint's, or nearest to its values; what is no matrix is the same."""
    quantised = [name for name in checkpoint.wanted if name in wanted]
    kept = {name: shape for name, shape in wanted.items() if name not in quantised}
    scales = {matrix.scales.name for name, matrix in checkpoint.matrices.items() if name in quantised}
    scales |= {f"{name}{SCALES}" for name in quantised}
    found = {name: shape for name, shape in weights.shapes.items() if name not in scales}
    complaints = _wrong_shapes(found, kept)
    differing, said = _wrong_values(context, checkpoint.original, replace(weights, shapes=found), kept)
    misplaced = dict(misplaced_codes(checkpoint, quantised, context.progress))
    complaints += [*said, *_first(misplaced), *_wrongly_merged(checkpoint.original, quantised)]
    count = sum(prod(shape) for shape in wanted.values())
    taken = sum(map(checkpoint.is_taken_over, quantised))
    rounded = [name for name in quantised if not checkpoint.is_taken_over(name)]
    beside = sum(map(checkpoint.quantisation.is_calibrated, rounded))
    nearest = len(rounded) - beside
    parts = [
        f"{taken} matrices have the checkpoint's own codes" if taken else "",
        f"{nearest} matrices have the codes nearest to the checkpoint's values" if nearest else "",
        f"{beside} matrices, which are calibrated, those nearest to its values or beside them" if beside else "",
        f"{len(kept)} other tensors its bits",
    ]
    message = f"{count:,} parameters, as the arithmetic says: {', '.join(filter(None, parts))}"
    message += _merged_too(checkpoint.original, wanted)
    figures = ParameterFigures(count, count, [*differing, *misplaced])
    return Outcome(message, len(wanted), complaints, figures=figures)


def _wrongly_merged(checkpoint: Checkpoint, quantised: Sequence[str]) -> list[str]:
    """Codes are held against values that an adapter was merged into: whether those are right."""
    merged = merged_weights(checkpoint)
    changed = [] if merged is None else filter(merged.changes, quantised)
    faults = [merged.fault(name, checkpoint.read(name)) for name in changed if merged is not None]
    return [f"what the codes were held against is wrong: {fault}" for fault in faults if fault is not None]


def _first(wrong: Mapping[str, str]) -> list[str]:
    """What is said of the first of the matrices that are wrong, and how many more there are."""
    more = len(wrong) - DESCRIBED
    plural = "quantised matrix more differs" if more == 1 else "quantised matrices more differ"
    return [*list(wrong.values())[:DESCRIBED], *([f"{more:,} {plural}"] if more > 0 else [])]


def _expected_count(context: CheckContext) -> int:
    config, counted = context.config, count_parameters(context.config)
    absent = 0 if context.ends.to_logits else counted.head
    absent += 0 if context.ends.from_ids else config.vocab_size * config.hidden_size  # learned positions stay
    return counted.total - absent


def _wrong_shapes(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    complaints = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    complaints += [f"{name} is no weight of this model" for name in sorted(found.keys() - wanted.keys())]
    return complaints + [
        f"{name} is {list(found[name])} and not {list(wanted[name])}"
        for name in sorted(wanted.keys() & found.keys())
        if tuple(found[name]) != tuple(wanted[name])
    ]


def _wrong_values(
    context: CheckContext, checkpoint: Checkpoint, weights: ArtifactWeights, wanted: Mapping[str, tuple[int, ...]]
) -> tuple[list[str], list[str]]:
    """Names of the tensors that are not the checkpoint's, and what to say; one tensor is in memory at a time."""
    assert weights.read is not None
    own, merged = context.decoder.dtype, merged_weights(context.original)
    names = [name for name, shape in wanted.items() if weights.shapes.get(name) == shape]
    differing: list[str] = []
    said: list[str] = []
    retyped: list[str] = []
    for name in counted(names, "weights", context.progress):
        found = weights.read(name)
        if found.dtype != own:
            retyped.append(name)
        elif merged is not None and merged.changes(name):
            if (fault := merged.fault(name, found)) is not None:
                differing.append(name)
                said.append(fault)
        elif not same_values(found, checkpoint, name):
            differing.append(name)
            if len(differing) <= DESCRIBED:
                said.append(describe_difference(found, checkpoint, name, wanted))
    said = said[:DESCRIBED]
    more = len(differing) - len(said)
    if more:
        said.append("1 weight more differs" if more == 1 else f"{more:,} weights more differ")
    if retyped:
        said.append(f"{len(retyped):,} weights are not {str(own).removeprefix('torch.')}, the first {retyped[0]}")
    return differing + retyped, said
