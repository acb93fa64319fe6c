"""Open a bundle's decoder on a backend by name."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.file_check import Verify
from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder

BACKENDS = ("onnxruntime", "replay", "pt2", "aoti", "eager", "tensorrt", "tensorrt-rtx")


def open_decoder(
    folder: str | Path,
    backend: str = "onnxruntime",
    *,
    max_sequence_length: int | None = None,
    model: str | None = None,
    low_memory: bool = False,
    threads: int = 0,
    verify: Verify = "sample",
) -> Decoder:
    """The decoder of the bundle in `folder`, with an empty cache of one row.

    Args:
        folder: a bundle.
        backend: one of `BACKENDS`; `eager` runs PyTorch on the source checkpoint in the bundle's precision.
        max_sequence_length: cache slots M, when other than the bundle's.
        model: where the source checkpoint is, for `eager`; by default where the manifest says.
        low_memory: map the weights instead of repacking them (onnxruntime).
        threads: threads inside an operator (onnxruntime); 0 takes as many as PyTorch has.

        verify: how the files that are run are compared with the manifest: `sample` reads some pages of each, which
            takes milliseconds and tells another model's weights; `whole` reads all; `nothing` runs them as they are.
            Compiled code (aoti, tensorrt) is always compared whole.

    Raises:
        UsageError: no such backend, no such bundle, a damaged artifact, a file that is not the one the manifest lists.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    # A runtime is imported only when it is asked for.
    if backend == "onnxruntime":
        from blockexport.runtime.onnx_decoder import OnnxDecoder

        return OnnxDecoder(
            folder,
            manifest,
            max_sequence_length=max_sequence_length,
            low_memory=low_memory,
            threads=threads,
            verify=verify,
        )
    if backend == "replay":
        from blockexport.runtime.replay.replay_decoder import ReplayDecoder

        return ReplayDecoder.open(folder, manifest, max_sequence_length=max_sequence_length, verify=verify)
    if backend == "pt2":
        from blockexport.runtime.pt2_decoder import Pt2Decoder

        return Pt2Decoder(folder, manifest, max_sequence_length=max_sequence_length, verify=verify)
    if backend in ("tensorrt", "tensorrt-rtx"):
        return _tensorrt(folder, manifest, backend, max_sequence_length)
    if backend == "aoti":
        from blockexport.runtime.aoti_decoder import AotiDecoder

        return AotiDecoder(folder, manifest, max_sequence_length=max_sequence_length)
    if backend == "eager":
        return _eager(manifest, max_sequence_length, model)
    raise UsageError(f"no backend {backend!r}: there are {', '.join(BACKENDS)}")


def _tensorrt(folder: Path, manifest: Manifest, backend: str, max_sequence_length: int | None) -> Decoder:
    from blockexport.runtime.tensorrt.trt_decoder import TensorRtDecoder

    if max_sequence_length not in (None, manifest.max_sequence_length):
        raise UsageError(
            f"an engine's cache has the {manifest.max_sequence_length} slots it was built with, not "
            f"{max_sequence_length}: export and build again with --max-sequence-length {max_sequence_length}"
        )
    return TensorRtDecoder.open(folder, manifest, backend)


def _eager(manifest: Manifest, max_sequence_length: int | None, model: str | None) -> Decoder:
    from blockexport.models.checkpoints.load_weights import load_model
    from blockexport.models.checkpoints.sources import open_checkpoint
    from blockexport.runtime.eager import EagerDecoder

    slots = max_sequence_length or manifest.max_sequence_length
    checkpoint = open_checkpoint(model or manifest.source.reference, seed=manifest.source.seed or 0)
    loaded = load_model(
        checkpoint,
        manifest.precision.torch_dtype,
        slots,
        headless=manifest.headless,
        last_logits_only=manifest.last_logits_only,
    )
    return EagerDecoder(loaded, slots)
