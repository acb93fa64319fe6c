"""Open a bundle's decoder on a backend by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from blockexport.export.bundle.chain import read_chain, read_chain_or_whole
from blockexport.export.bundle.file_check import Verify
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints.stage_checkpoint import joined_config
from blockexport.models.errors import UsageError
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole
from blockexport.runtime.backends import ONNXRUNTIME, Opening, backend_named, device_for
from blockexport.runtime.chain_decoder import ChainDecoder
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.decoder import Decoder


@typed_call
def open_decoder(
    folder: str | Path,
    backend: str = ONNXRUNTIME.name,
    *,
    max_sequence_length: int | None = None,
    model: str | None = None,
    low_memory: bool = False,
    threads: int = 0,
    verify: Verify = "sample",
    exact: bool = False,
    first_slots: int | None = None,
    device: str = CPU_NAME,
) -> Decoder:
    """The decoder of the bundle in `folder`, with an empty cache of one row.

    Args:
        folder: a bundle.
        backend: the name of one of `BACKENDS`; `eager` runs PyTorch in the bundle's precision, on the source
            checkpoint, or on the dequantised weights of a quantised bundle.
        max_sequence_length: cache slots M, when other than the bundle's.
        model: where the source checkpoint is, for `eager`; by default where the manifest says.
        low_memory: map the weights instead of repacking them (onnxruntime).
        threads: threads inside an operator (onnxruntime); 0 takes as many as PyTorch has.
        verify: how the files that are run are compared with the manifest: `sample` reads some pages of each, which
            takes milliseconds and tells another model's weights; `whole` reads all; `nothing` runs them as they are.
            Compiled code (aoti, tensorrt) is always compared whole.
        exact: run the file as it is judged (onnxruntime): products by quantised weights in the declared type, with
            weights dequantised in memory, and all M cache slots from the start. By default activations are rounded to 8
            bits block by block first, as ONNX Runtime does in any program that does not forbid it: several times as
            fast, for an error of about 0.6 % of each product. And there are as many slots as the context needs.
        first_slots: slots of each row that a cache has at first, where it grows (onnxruntime); by default 128, or all M
            with `exact`.
        device: `cpu`, or `cuda:N` for a GPU (onnxruntime, eager, pt2, aoti); an engine needs not be told.

    Raises:
        UsageError: no such backend or device, a backend that does not run there, no such bundle, a damaged artifact, a
            file that is not the one the manifest lists.
    """
    if verify not in get_args(Verify):
        raise UsageError(f"verify is {verify!r}: there are {', '.join(get_args(Verify))}")
    folder, slots = Path(folder), whole("max_sequence_length", max_sequence_length, least=1)
    first = whole("first_slots", first_slots, least=1)
    record, at = backend_named(backend), device_for(backend, device)
    manifest = read_manifest(folder)
    wanted = Opening(backend, folder, manifest, slots, model, low_memory, threads, verify, exact, first, at)
    decoder = record.open(wanted)
    decoder.most_slots = decoder.max_sequence_length if record.built_slots else manifest.rope_table_rows
    return decoder


def open_chain(folders: Sequence[str | Path], backend: str = ONNXRUNTIME.name, **how: Any) -> ChainDecoder:
    """The decoder of a whole model whose stages are the bundles in `folders`, all in this process.

    Args:
        folders: the stages in the order of their layers, as `export_bundle` makes them with `layers`.
        backend: see `open_decoder`.
        how: its other arguments.

    Raises:
        UsageError: they are no stages of one model, some are missing, or as `open_decoder`.
    """
    manifests = read_chain([Path(folder) for folder in folders])
    if (device := how.get("device", CPU_NAME)) != CPU_NAME:
        raise UsageError(f"--device {device} runs a bundle in one piece, and stages run on the processor: leave it out")
    stages = [open_decoder(folder, backend, **how) for folder in folders]
    decoder = ChainDecoder(stages, joined_config([one.config for one in manifests]))
    decoder.most_slots = min(stage.most_slots or stage.max_sequence_length for stage in stages)
    return decoder


def open_model(folders: Sequence[Path], backend: str = ONNXRUNTIME.name, **how: Any) -> Decoder:
    """The decoder of a bundle, or of a model whose stages are several.

    Raises:
        UsageError: see `open_chain`; a stage alone.
    """
    if len(folders) > 1:
        return open_chain(folders, backend, **how)
    read_chain_or_whole(folders)
    return open_decoder(folders[0], backend, **how)
