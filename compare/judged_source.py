"""The checkpoint a bundle is judged against: the one that is named, or the one it was exported from."""

from __future__ import annotations

from blockexport.export.bundle.manifest import Manifest
from blockexport.export.bundle.source_digest import source_digest
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.errors import NotJudgedError, UsageError


def open_source(manifest: Manifest, model: str | None = None) -> Checkpoint:
    """Open `model`, or the source the manifest records, whose bytes must be those of the export.

    A model that was named may differ from the recorded source (the same weights in another file, or a suspect): what
    it says is what the artifact is held against. Only its tensors must have the artifact's shapes.

    Raises:
        NotJudgedError: no model was named, and the recorded source is not there or has changed.
        UsageError: the named model does not open, or is of another shape.
    """
    seed = manifest.source.seed or 0
    if model is not None:
        checkpoint = open_checkpoint(model, seed=seed)
        _check_shapes(manifest, checkpoint, model)
        return checkpoint
    recorded = manifest.source.reference
    try:
        checkpoint = open_checkpoint(recorded, seed=seed)
    except (UsageError, OSError) as error:
        raise NotJudgedError(
            f"the bundle's source {recorded} does not open ({error}): without it there is nothing to judge against. "
            "Name the checkpoint with --model"
        ) from error
    if source_digest(checkpoint) != manifest.source.digest:
        raise NotJudgedError(
            f"{recorded} is no longer what the bundle was exported from: its config or weights have changed. "
            "Export again, or name the checkpoint with --model"
        )
    return checkpoint


def _check_shapes(manifest: Manifest, checkpoint: Checkpoint, model: str) -> None:
    ours, theirs = expected_tensors(manifest.config), expected_tensors(checkpoint.config)
    if ours == theirs:
        return
    name = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
    shapes = [str(list(shapes[name])) if name in shapes else "absent" for shapes in (ours, theirs)]
    raise UsageError(
        f"{model} is another architecture than the bundle: {name} is {shapes[0]} in the bundle and {shapes[1]} there. "
        "Name the checkpoint that the bundle was exported from"
    )
