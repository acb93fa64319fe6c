"""A model in stages, each a bundle with some of its layers: which bundles are a chain, in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from blockexport.export.bundle.manifest import Manifest, StageRecord, read_manifest
from blockexport.models.errors import UsageError

JUDGED_TOGETHER = (
    "a stage is judged with the others, from tokens to logits: blockexport compare STAGE STAGE ... (--no-compare "
    "leaves this out)"
)
_RANGE = re.compile(r"(\d{1,6}):(\d{1,6})")


def stage_record(layers: str, num_hidden_layers: int) -> StageRecord:
    """What `--layers FIRST:STOP` asks for.

    Raises:
        UsageError: it is no such range, or not of this model.
    """
    found = _RANGE.fullmatch(layers)
    if found is None:
        raise UsageError(f"--layers {layers!r} is no range of layers: write FIRST:STOP, such as 0:16 for the first 16")
    first, stop = int(found[1]), int(found[2])
    if not first < stop <= num_hidden_layers:
        raise UsageError(
            f"--layers {layers} are not layers of this model, which has {num_hidden_layers}: FIRST must be below STOP, "
            f"and STOP at most {num_hidden_layers}"
        )
    if stop - first == num_hidden_layers:
        raise UsageError(f"--layers {layers} is the whole model, and no stage of it: leave it out")
    return StageRecord(first, stop, num_hidden_layers)


def refuse_beside_layers(*, headless: bool, logits_last: bool, attention: bool, pt2: bool, calibrate: object) -> None:
    """Refuse options that say something of a whole model.

    Raises:
        UsageError: names the first one that was given.
    """
    given = {
        "--headless": headless,
        "--logits last": logits_last,
        "--attention": attention,
        "--pt2": pt2,
        "--calibrate": calibrate is not None,
    }
    if (name := next((name for name, there in given.items() if there), None)) is not None:
        raise UsageError(f"{name} is for whole models, and --layers asks for a stage: leave out one of the two")


def require_whole(manifest: Manifest, folder: Path, what: str) -> None:
    """Refuse a stage where a whole model is needed; `what` says why, and what to do.

    Raises:
        UsageError: it is a stage.
    """
    if manifest.stage is not None:
        raise UsageError(f"{folder} is a stage, {_layers(manifest.stage)}: {what}")


def read_chain(folders: Sequence[Path]) -> list[Manifest]:
    """The manifests of stages that make up one model, in their order.

    Raises:
        UsageError: one is no stage, or of another model, precision, quantisation or M than the first; layers are
            missing, there twice, or in another order.
    """
    manifests = [read_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.stage is None:
            raise UsageError(f"{folder} is a whole model, and no stage of one: give it alone")
    first = manifests[0]
    for folder, manifest in zip(folders[1:], manifests[1:], strict=True):
        for what, ours, theirs in (
            ("source", first.source.digest, manifest.source.digest),
            ("adapter", first.source.adapter, manifest.source.adapter),
            ("precision", first.precision, manifest.precision),
            ("quantisation", first.quantisation, manifest.quantisation),
            ("max_sequence_length", first.max_sequence_length, manifest.max_sequence_length),
            ("number of layers", first.stage and first.stage.layers, manifest.stage and manifest.stage.layers),
        ):
            if ours != theirs:
                raise UsageError(
                    f"{folder} and {folders[0]} are no stages of one model: their {what} is not the same ({theirs} and "
                    f"{ours}). Export the stages from one checkpoint, with the same options"
                )
    _check_order(folders, [manifest.stage for manifest in manifests if manifest.stage is not None])
    return manifests


def read_chain_or_whole(folders: Sequence[Path]) -> list[Manifest]:
    """The manifests of the stages that make up one model, or of the one bundle that is whole.

    Raises:
        UsageError: see `read_chain`; a stage alone.
    """
    if len(folders) > 1:
        return read_chain(folders)
    require_whole(manifest := read_manifest(folders[0]), folders[0], "name all stages, in the order of their layers")
    return [manifest]


def _check_order(folders: Sequence[Path], stages: Sequence[StageRecord]) -> None:
    total, reached = stages[0].layers, 0
    if list(stages) != (in_order := sorted(stages, key=lambda stage: stage.first)):
        places = [str(folders[stages.index(stage)]) for stage in in_order]
        raise UsageError(f"the stages are not in the order of their layers: give them as {' '.join(places)}")
    for folder, stage in zip(folders, stages, strict=True):
        if stage.first < reached:
            raise UsageError(
                f"{folder} has {_layers(stage)}, of which layer {stage.first} is in the stage before it, too: give "
                "stages that do not overlap"
            )
        if stage.first > reached:
            raise UsageError(_missing(reached, stage.first, total))
        reached = stage.stop
    if reached < total:
        raise UsageError(_missing(reached, total, total))


def described(folder: Path, manifest: Manifest) -> str:
    """A stage for people: where it is, and what it has."""
    assert manifest.stage is not None
    return f"{folder.name} has {_layers(manifest.stage)}"


def _missing(first: int, stop: int, total: int) -> str:
    return f"no stage has {_layers(StageRecord(first, stop, total))}: name that stage as well (--layers {first}:{stop})"


def _layers(stage: StageRecord) -> str:
    last = stage.stop - 1
    which = f"layer {last}" if stage.first == last else f"layers {stage.first} to {last}"
    return f"{which} of {stage.layers}"
