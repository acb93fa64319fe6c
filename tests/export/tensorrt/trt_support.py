"""TensorRT for RTX without our lint, and small attention graphs: what the tests of the TensorRT files share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from safetensors import safe_open

from blockexport.export.bundle.engine_entry import Profile, engine_name
from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.bundle.trt_library import TENSORRT_RTX
from blockexport.export.tensorrt.trt_adapter import Adapter, BuildOptions, load_backend
from blockexport.export.tensorrt.trt_audit import Audit
from blockexport.export.tensorrt.trt_build import Request
from blockexport.export.tensorrt.trt_engine import engine_entry, place_engine, staged_engine
from blockexport.export.tensorrt.trt_network import make_profiles
from blockexport.export.tensorrt.trt_process import build_engine_file
from blockexport.models.errors import NotJudgedError
from blockexport.models.native_output import captured_stderr
from blockexport.models.progress import Progress, silent
from tests.support import absent

BATCH, HEADS, KV_HEADS, SLOTS, HEAD_DIM = "batch_size", 6, 2, 32, 64
LENGTH = "sequence_length"
SIZES = {BATCH: (1, 3, 8), LENGTH: (1, 5, 16), "slots": (SLOTS, SLOTS, SLOTS)}
CACHE: list[str | int | None] = [BATCH, KV_HEADS, SLOTS, HEAD_DIM]
MIXED: list[str | int | None] = [BATCH, HEADS, LENGTH, HEAD_DIM]
HALF = TensorProto.FLOAT16
TARGETS = ("8.6", "8.9", "12.0")
PROFILES = make_profiles(4, 24)


def rtx() -> Adapter:
    """TensorRT for RTX; skips where it is not installed."""
    try:
        return load_backend(TENSORRT_RTX)
    except NotJudgedError as error:
        absent(str(error), "BLOCKEXPORT_REQUIRE_RTX")
        raise


def build_unchecked(path: Path) -> tuple[bytes | None, str]:
    """What TensorRT makes of an ONNX file by itself: an engine, or None and its error. No lint, no audit."""
    adapter = rtx()
    adapter.log.drain()
    builder = adapter.builder()
    network = adapter.network(builder)
    parser = adapter.trt.OnnxParser(network, adapter.log)
    with captured_stderr():
        if not parser.parse_from_file(str(path)):
            return None, "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
        config = adapter.config(builder, ("8.9",), BuildOptions())
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            axes = [(size, tensor.get_dimension_name(axis)) for axis, size in enumerate(tensor.shape)]
            profile.set_shape(tensor.name, *([s if s >= 0 else SIZES[name][k] for s, name in axes] for k in range(3)))
        config.add_optimization_profile(profile)
        engine = builder.build_serialized_network(network, config)
    return (None if engine is None else bytes(engine)), adapter.log.drain()


@dataclass(frozen=True)
class Engine:
    """An engine's bytes, and the audit its network passed."""

    engine: bytes
    audit: Audit


def kernels(engine: bytes) -> list[bytes]:
    """The source text of every kernel in an engine, in order: RTX compiles them when the engine is loaded."""
    return re.findall(rb'extern "C" __global__[^\0]*', engine)


def assert_alike(one: Engine, other: Engine, folder: Path) -> None:
    """Two builds from the bundle in `folder` have equal weights, layers, kernels and length.

    Their layers and the bytes of their weights by type are in the audit. The values are those that the engine holds as
    the bundle's file does (a few matrices are stored merged), each at one place in both.
    """
    assert other.audit == one.audit
    assert len(other.engine) == len(one.engine)
    assert kernels(other.engine) == kernels(one.engine) != []
    found = total = 0
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            raw = file.get_tensor(name).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            place = one.engine.find(raw)
            assert place < 0 or other.engine.find(raw, place) == place, name
            found, total = found + (len(raw) if place >= 0 else 0), total + len(raw)
    assert found > total / 4
    different = np.not_equal(np.frombuffer(one.engine, np.uint8), np.frombuffer(other.engine, np.uint8)).mean()
    assert different < 0.05, "tables are the small part"


def build(
    folder: Path,
    targets: tuple[str, ...] = ("8.9",),
    progress: Progress = silent,
    profiles: Sequence[Profile] = PROFILES,
    **options: Any,
) -> Engine:
    adapter = rtx()
    chosen, path = BuildOptions(**options), folder / "built.engine"
    request = Request(adapter.name, folder, read_manifest(folder), adapter.targets(targets), profiles, chosen)
    try:
        built = build_engine_file(request, path, progress)
        return Engine(path.read_bytes(), built.audit)
    finally:
        path.unlink(missing_ok=True)


def add_engine(
    folder: Path,
    manifest: Manifest,
    adapter: Adapter,
    targets: Sequence[str],
    profiles: Sequence[Profile],
    **options: Any,
) -> tuple[str, Manifest]:
    """Build an engine with `profiles` into a bundle; its name and the bundle's new manifest."""
    chosen, name = BuildOptions(**options), engine_name(adapter.name, targets, manifest.precision)
    with staged_engine(folder, manifest, name) as partial:
        request = Request(adapter.name, folder, manifest, targets, profiles, chosen)
        built = build_engine_file(request, partial)
        return name, place_engine(folder, partial, name, engine_entry(adapter, request, built), manifest)


def write_cache(past: str, update: str, present: str, **changes: Any) -> onnx.NodeProto:
    """One TensorScatter at the positions in `start`."""
    name = f"write_{past}"
    attributes: dict[str, Any] = {"axis": 2, "mode": "linear"} | changes
    return helper.make_node("TensorScatter", [past, update, "start"], [present], name=name, **attributes)


def attend(*inputs: str, outputs: Sequence[str] = ("mixed",), **attributes: Any) -> onnx.NodeProto:
    """One Attention whose query is already scaled."""
    return helper.make_node("Attention", list(inputs), list(outputs), "attention", **({"scale": 1.0} | attributes))


def cached_attention(
    nodes: Sequence[onnx.NodeProto] | None = None,
    *,
    opset: int = 24,
    slots: str | int = SLOTS,
    extra_outputs: Sequence[onnx.ValueInfoProto] = (),
    initializers: Sequence[onnx.TensorProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Key and value written into their caches and attended to under a mask; `nodes` replace the three of it."""
    value = helper.make_tensor_value_info
    cache: list[str | int | None] = [BATCH, KV_HEADS, slots, HEAD_DIM]
    chosen = nodes or [
        write_cache("past_key", "key", "present_key"),
        write_cache("past_value", "value", "present_value"),
        attend("query", "present_key", "present_value", "mask"),
    ]
    new: list[str | int | None] = [BATCH, KV_HEADS, LENGTH, HEAD_DIM]
    inputs = [
        value("query", HALF, MIXED),
        value("key", HALF, new),
        value("value", HALF, new),
        value("start", TensorProto.INT64, [BATCH]),
        value("count", TensorProto.INT64, [BATCH]),
        value("mask", TensorProto.BOOL, [BATCH, 1, LENGTH, slots]),
        value("past_key", HALF, cache),
        value("past_value", HALF, cache),
    ]
    used = {name for node in chosen for name in node.input}
    made = {name for node in chosen for name in node.output}
    outputs = [value("mixed", HALF, MIXED), value("present_key", HALF, cache), value("present_value", HALF, cache)]
    graph = helper.make_graph(
        chosen,
        "decoder",
        [item for item in inputs if item.name in used],
        [*(item for item in outputs if item.name in made), *extra_outputs],
        initializer=list(initializers),
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)
