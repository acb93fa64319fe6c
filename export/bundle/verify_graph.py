"""What is wrong with a bundle's graph, without running it: all of it, where what opens a bundle stops at the first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import onnx

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.external_data import ExternalPlace, external_places
from blockexport.export.bundle.manifest import Manifest
from blockexport.models.errors import UsageError


def wrong_graph(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Sentences without their full stop: a graph is not ONNX by ONNX's own checker, not the decoder that the
    manifest describes, or keeps its weights where it should not."""
    for name in manifest.graphs:
        yield from _wrong(folder, manifest, name)


def _wrong(folder: Path, manifest: Manifest, name: str) -> Iterator[str]:
    path = folder / name
    try:
        model = read_graph(folder, manifest, name)
    except UsageError as error:
        yield str(error)
        return
    try:
        onnx.checker.check_model(_without_data(model))
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        yield f"{path} does not pass ONNX's checker: {str(error).strip().splitlines()[0]}"
    stated = {one.domain: one.version for one in model.opset_import}
    for what, found, listed in (
        ("opset", stated.get(""), manifest.opset),
        ("IR version", model.ir_version, manifest.ir_version),
    ):
        if found != listed:
            yield f"{path} has the {what} {found}, and the manifest says {listed}"
    places = external_places(model, path)
    made_from = manifest.files[name].made_from
    for location in sorted({place.location for place in places} - made_from.keys()):
        yield f"{path} reads weights from {location}, which the manifest does not list as a source of it"
    for location in sorted({place.location for place in places}):
        if (folder / location).is_symlink():
            yield f"{path} reads weights from {location}, which is a symbolic link, and no file of the bundle"
    yield from _overlapping(places, path)


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs in place of the weights in other files, which `external_places` looks at: ONNX's checker
    refuses those that have a second name on the disk, and many stores keep one copy of equal files."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    outside = [one for one in bare.graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL]
    for one in outside:
        bare.graph.input.append(onnx.helper.make_tensor_value_info(one.name, one.data_type, one.dims))
        bare.graph.initializer.remove(one)
    return bare


def _overlapping(places: list[ExternalPlace], path: Path) -> Iterator[str]:
    """Pieces of a file that share bytes; the same piece under two names is one that both use."""
    spans = {(p.location, p.offset, p.offset + (p.needed or p.length or 0)): p.tensor for p in places}
    for one, other in pairwise(sorted(spans)):
        if one[0] == other[0] and other[1] < one[2]:
            yield (f"{path} reads {spans[one]} and {spans[other]} from bytes of {one[0]} that overlap, at {other[1]}")
