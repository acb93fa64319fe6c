"""Does a backend have a fused attention kernel for a model? Asked by building one attention by itself."""

from __future__ import annotations

from collections.abc import Sequence

import onnx.parser

from blockexport.export.bundle.engine_entry import Profile
from blockexport.export.bundle.manifest import Manifest
from blockexport.export.graph.graph_builder import OPSET
from blockexport.export.tensorrt.trt_adapter import Adapter, BuildOptions
from blockexport.export.tensorrt.trt_network import add_profiles
from blockexport.models import io_names
from blockexport.models.native_output import captured_stderr


def why_not_fused(
    adapter: Adapter, manifest: Manifest, profiles: Sequence[Profile], targets: Sequence[str]
) -> str | None:
    """Why the backend has no fused attention kernel for this model, or None when it has one.

    Nothing in the interface tells, so one attention of the model's form is built by itself, without the permission to
    take it apart: a second's work.
    """
    builder = adapter.builder()
    network = adapter.network(builder)
    parser = adapter.trt.OnnxParser(network, adapter.log)
    parser.parse(_lone_attention(manifest).SerializeToString())
    config = adapter.config(builder, targets, BuildOptions())
    add_profiles(builder, network, config, profiles)
    with captured_stderr():
        engine = builder.build_serialized_network(network, config)
    # It says no in several ways: "not supported by a dedicated kernel", or a failed check of a size it is not made for.
    adapter.log.drain()
    if engine is not None:
        return None
    shape = f"head_dim {manifest.config.head_dim} in {manifest.precision.value}"
    return f"{adapter.name} {adapter.version} has no fused kernel for {shape} on {', '.join(targets)}"


def _lone_attention(manifest: Manifest) -> onnx.ModelProto:
    config, dtype = manifest.config, onnx.TensorProto.DataType.Name(manifest.precision.element.onnx).lower()
    batch, length, slots = io_names.BATCH_AXIS, io_names.SEQUENCE_AXIS, manifest.max_sequence_length
    query = f"{dtype}[{batch}, {config.num_attention_heads}, {length}, {config.head_dim}]"
    cache = f"{dtype}[{batch}, {config.num_key_value_heads}, {slots}, {config.head_dim}]"
    mask = f"bool[{batch}, 1, {length}, {slots}]"
    return onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": {OPSET}]>
        attention ({query} query, {cache} key, {cache} value, {mask} mask) => ({query} mixed) {{
            mixed = Attention <scale = 1.0> (query, key, value, mask)
        }}"""
    )
