"""The audit refuses a network that is not the graph: the graph or the manifest is changed, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from blockexport.export.bundle.manifest import Manifest
from blockexport.export.tensorrt.trt_audit import Audit, audit
from blockexport.export.tensorrt.trt_network import parse
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from tests.export.tensorrt.trt_support import rtx
from tests.exported import export, random_model

Change = Callable[[onnx.GraphProto], None]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("bundle")
    return folder, export(random_model(), folder, Precision.FP16)


def audited(folder: Path, manifest: Manifest, change: Change | None = None) -> Audit:
    """The audit of the bundle's graph after `change`."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    if change is not None:
        change(model.graph)
    path = folder / "changed.onnx"  # beside the weights that it points into
    path.write_bytes(model.SerializeToString())
    adapter = rtx()
    network, parser = parse(adapter, adapter.builder(), path)
    try:
        return audit(adapter, network, manifest, None)
    finally:
        del parser


def first(graph: onnx.GraphProto, op_type: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in graph.node if node.op_type == op_type)
    return found


def insert_before(graph: onnx.GraphProto, node: onnx.NodeProto, new: onnx.NodeProto) -> None:
    graph.node.insert(list(graph.node).index(node), new)


def statistics_in_half(graph: onnx.GraphProto) -> None:
    next(item for item in first(graph, "RMSNormalization").attribute if item.name == "stash_type").i = 10


def rope_in_half(graph: onnx.GraphProto) -> None:
    """The heads and the tables in float16, without the casts around."""
    rope = first(graph, "RotaryEmbedding")
    widened = next(node for node in graph.node if node.output[0] == rope.input[0])
    narrowed = next(node for node in graph.node if node.op_type == "Cast" and node.input[0] == rope.output[0])
    for index in (1, 2):
        name = f"half_{index}"
        insert_before(graph, rope, helper.make_node("Cast", [rope.input[index]], [name], to=TensorProto.FLOAT16))
        rope.input[index] = name
    rope.input[0] = widened.input[0]
    rope.output[0] = narrowed.output[0]
    graph.node.remove(narrowed)


def product_in_float32(graph: onnx.GraphProto) -> None:
    product = next(node for node in graph.node if node.op_type == "Gemm" and len(node.input) == 3)
    after = product.output[0]
    for index, name in enumerate(list(product.input)):
        wide = f"wide_{index}"
        insert_before(graph, product, helper.make_node("Cast", [name], [wide], to=TensorProto.FLOAT))
        product.input[index] = wide
    product.output[0] = "wide"
    position = list(graph.node).index(product)
    graph.node.insert(position + 1, helper.make_node("Cast", ["wide"], [after], to=TensorProto.FLOAT16))


def cache_by_scatter(graph: onnx.GraphProto) -> None:
    """A cache write that copies: ScatterElements at the past's own slots 0 .. S-1."""
    write = first(graph, "TensorScatter")
    past, update, present = write.input[0], write.input[1], write.output[0]
    zero, index = "zero_like", "slots_like"
    for new in (
        helper.make_node("Sub", [update, update], [zero]),
        helper.make_node("Cast", [zero], [index], to=TensorProto.INT64),
    ):
        insert_before(graph, write, new)
    insert_before(graph, write, helper.make_node("ScatterElements", [past, index, update], [present], axis=2))
    graph.node.remove(write)


def no_mask(graph: onnx.GraphProto) -> None:
    del first(graph, "Attention").input[3]


def attention_dropped(graph: onnx.GraphProto) -> None:
    attention = first(graph, "Attention")
    insert_before(graph, attention, helper.make_node("Identity", [attention.input[0]], [attention.output[0]]))
    graph.node.remove(attention)


def swapped_caches(graph: onnx.GraphProto) -> None:
    writes = [node for node in graph.node if node.op_type == "TensorScatter"][:2]
    writes[0].input[0], writes[1].input[0] = writes[1].input[0], writes[0].input[0]


def norm_dropped(graph: onnx.GraphProto) -> None:
    norm = first(graph, "RMSNormalization")
    insert_before(graph, norm, helper.make_node("Identity", [norm.input[0]], [norm.output[0]]))
    graph.node.remove(norm)


def rope_dropped(graph: onnx.GraphProto) -> None:
    rope = first(graph, "RotaryEmbedding")
    insert_before(graph, rope, helper.make_node("Identity", [rope.input[0]], [rope.output[0]]))
    graph.node.remove(rope)


def unread_input(graph: onnx.GraphProto) -> None:
    """One layer reads and writes the cache of another, so its own key input is left."""
    attention = [node for node in graph.node if node.op_type == "TensorScatter"]
    attention[2].input[0] = attention[0].input[0]


GRAPH_CHANGES: dict[Change, str] = {
    statistics_in_half: r"takes a norm's statistics in float16, not float32",
    rope_in_half: r"turns heads in float16, not float32",
    product_in_float32: r"multiplies in float32, not float16",
    cache_by_scatter: r"present\.0\.key is not made by a cache update in place(.|\n)*SCATTER layers",
    no_mask: r"has no boolean mask",
    attention_dropped: r"2 attention layers, not 3",
    swapped_caches: r"present\.0\.key updates past_key_values\.0\.value, not past_key_values\.0\.key",
    norm_dropped: r"12 norm statistics, not 13",
    rope_dropped: r"5 rotary embeddings, not 6",
    unread_input: r"no layer reads the input past_key_values\.1\.key",
}


def test_the_graph_itself_passes(bundle: tuple[Path, Manifest]) -> None:
    found = audited(*bundle)
    assert (found.cache_updates, found.attention_layers) == (6, 3)
    assert found.matrix_products == {"float16": 22}
    assert found.norm_statistics == {"float32": 13}
    assert found.rotary_embeddings == {"float32": 6}


@pytest.mark.parametrize("change", GRAPH_CHANGES, ids=lambda change: change.__name__)
def test_a_changed_graph_is_refused(change: Change, bundle: tuple[Path, Manifest]) -> None:
    with pytest.raises(UsageError, match=GRAPH_CHANGES[change]):
        audited(*bundle, change)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder, how = tmp_path_factory.mktemp("quantised"), quantisation_of("int4", embedding="float")
    model = random_model(hidden_size=96, intermediate_size=160, head_dim=16, num_hidden_layers=1, layer_types=())
    return folder, export(model, folder, Precision.FP16, quantisation=how)


def matrix_copied(graph: onnx.GraphProto) -> None:
    """A product reads a copy of what is dequantised for it."""
    weight = first(graph, "DequantizeLinear").output[0]
    product = next(node for node in graph.node if weight in node.input)
    insert_before(graph, product, helper.make_node("Identity", [weight], ["copy"]))
    product.input[1] = "copy"


def test_quantised_matrices_stay_codes_until_they_are_multiplied(quantised: tuple[Path, Manifest]) -> None:
    folder, manifest = quantised
    found = audited(folder, manifest)
    # q, k and v lie side by side, and so do gate and up.
    assert found.dequantised == {"int4": 4, "int8": 1}
    assert found.matrix_products == {"float16": 5}
    with pytest.raises(UsageError, match=r"no product reads what .*qkv_proj.* dequantises"):
        audited(folder, manifest, matrix_copied)
    with pytest.raises(UsageError, match=r"7 matrices have int4 codes, not 0(.|\n)*1 matrices have int8 codes, not 8"):
        audited(folder, replace(manifest, quantisation=quantisation_of("int8", embedding="float")))
    with pytest.raises(UsageError, match="7 matrices have int4 codes, not 0"):
        audited(folder, replace(manifest, quantisation=None))


def test_a_problem_of_every_layer_is_told_once(bundle: tuple[Path, Manifest]) -> None:
    def without_masks(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            if node.op_type == "Attention":
                del node.input[3]

    with pytest.raises(UsageError) as caught:
        audited(*bundle, without_masks)
    (line,) = (line for line in str(caught.value).splitlines() if "no boolean mask" in line)
    assert line.startswith("  layers 0..2: model.layers.0.self_attn")
    assert line.endswith(" has no boolean mask (and the same at 2 more)")


def test_ports_are_compared_with_the_manifest(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    ids, positions, *caches = manifest.inputs
    changed = {
        r"input input_ids is int64, not int32": (replace(ids, dtype="int32"), positions, *caches),
        r"input past_key_values\.0\.key has shape \[-1, 2, 29, 10\]": (
            ids,
            positions,
            replace(caches[0], shape=("batch_size", 2, 31, 10)),
            *caches[1:],
        ),
        r"input 0 is input_ids, not position_ids": (positions, ids, *caches),
        r"8 inputs, not 7": (ids, positions, *caches[:-1]),
    }
    for problem, inputs in changed.items():
        with pytest.raises(UsageError, match=problem):
            audited(folder, replace(manifest, inputs=inputs))
    with pytest.raises(UsageError, match=r"output logits is float16, not float32"):
        audited(
            folder, replace(manifest, outputs=(replace(manifest.outputs[0], dtype="float32"), *manifest.outputs[1:]))
        )
