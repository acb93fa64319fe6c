"""The checkpoint that a bundle was exported from, opened again where the manifest says that it is."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.manifest import AdapterRecord, Manifest
from blockexport.export.bundle.source_digest import adapter_digest, source_digest
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.merged_checkpoint import MergedCheckpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.stage_checkpoint import StageCheckpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.errors import NotJudgedError, UsageError

NO_ADAPTER = "none"  # of a model that the bundle's adapter has been merged into


def open_source(manifest: Manifest, model: str | None = None, lora: str | Path | None = None) -> Checkpoint:
    """Open `model` with the adapter `lora`, or what the manifest records, whose bytes must be those of the export.

    What was named may differ from what is recorded (the same weights in another file, or a suspect): what it says is
    what the artifact is held against. Only its tensors must have the artifact's shapes. The adapter that is recorded
    is merged into a model that was named, too, unless `lora` is `none`. Of a stage it is a `StageCheckpoint`.

    Raises:
        NotJudgedError: model or adapter was not named, and the recorded one is not there or has changed.
        UsageError: what was named does not open, or is of another shape.
    """
    recorded = manifest.source
    checkpoint = _open_recorded(manifest) if model is None else _opened(model, manifest)
    if lora is None and recorded.adapter is not None:
        checkpoint = _with_recorded(checkpoint, recorded.adapter)
    elif lora is not None and lora != NO_ADAPTER:
        checkpoint = MergedCheckpoint(checkpoint, Path(lora))
    if manifest.stage is not None:
        stage = manifest.stage
        if stage.layers != checkpoint.config.num_hidden_layers:
            raise UsageError(
                f"{model or recorded.reference} has {checkpoint.config.num_hidden_layers} layers, and the bundle is a "
                f"stage of {stage.layers}. Name the checkpoint that the bundle was exported from"
            )
        checkpoint = StageCheckpoint(checkpoint, range(stage.first, stage.stop))
    if model is not None or lora is not None:
        _check_shapes(manifest, checkpoint, model or recorded.reference)
    return checkpoint


def _opened(model: str, manifest: Manifest) -> Checkpoint:
    """A bundle of a multimodal model was made with --text-only."""
    headless = manifest.interface.ends.to_states
    return open_checkpoint(model, seed=manifest.source.seed or 0, text_only=True, headless=headless)


def _open_recorded(manifest: Manifest) -> Checkpoint:
    recorded = manifest.source.reference
    try:
        checkpoint = _opened(recorded, manifest)
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


def _with_recorded(checkpoint: Checkpoint, adapter: AdapterRecord) -> Checkpoint:
    folder = Path(adapter.reference)
    try:
        merged, digest = MergedCheckpoint(checkpoint, folder), adapter_digest(folder)
    except (UsageError, OSError) as error:
        raise NotJudgedError(
            f"the adapter {folder}, which was merged into the bundle's source, does not open ({error}). Name it with "
            f"--lora, or say --lora {NO_ADAPTER} where it has been merged into the checkpoint of --model"
        ) from error
    if digest != adapter.digest:
        raise NotJudgedError(
            f"the adapter {folder} is no longer what was merged into the bundle's source: its config or weights have "
            "changed. Export again, or name the adapter with --lora"
        )
    return merged


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
