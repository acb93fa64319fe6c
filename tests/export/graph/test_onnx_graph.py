"""The exported graph: its operators, its names, that it holds no M, and that stamping equals tracing the whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch.export import Dim

from blockexport.export.bundle.check_graph import declare_max_sequence_length
from blockexport.export.graph.graph_builder import GraphBuilder
from blockexport.export.graph.graph_parameters import GraphParameters
from blockexport.export.graph.onnx_graph import build_model
from blockexport.export.graph.stamp import Stamp
from blockexport.export.graph.trace import example_inputs, fake_model, fragment_of, trace_parts
from blockexport.export.graph.translate import translate
from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision

SLOTS = 19
CONFIG = ModelConfig(
    "qwen3",
    vocab_size=101,
    hidden_size=24,
    intermediate_size=44,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    qkv_bias=True,
    qk_norm=True,
    sliding_window=5,
    layer_types=("full_attention", "sliding_attention", "sliding_attention", "full_attention"),
)
INTERFACE = Interface(CONFIG, Precision.FP32.element, SLOTS)
ALLOWED = {
    *("TensorScatter", "Attention", "RotaryEmbedding", "RMSNormalization", "Gemm", "Gather", "Add", "Sub", "Mul"),
    *("Sigmoid", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Shape", "Concat", "Range", "Cast"),
    *("LessOrEqual", "Greater", "And"),
}


def loaded(config: ModelConfig, ends: Ends = Ends.LOGITS) -> DecoderModel:
    checkpoint = RandomCheckpoint(config, 3, "test", std=0.2)
    return load_model(checkpoint, torch.float32, SLOTS, ends=ends)


def exported(model: DecoderModel, precision: Precision = Precision.FP32) -> onnx.ModelProto:
    """The graph with its weights inside."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())

    def tensor(name: str) -> ir.TensorProtocol:
        value = state[name].detach()
        typed = value if name in ("cos", "sin") else value.to(precision.torch_dtype)
        return ir.tensor(typed.contiguous(), name=name)

    return ir.to_proto(build_model(Interface(model.config, precision.element, SLOTS, model.ends), tensor))


def run(
    proto: onnx.ModelProto, inputs: torch.Tensor, positions: torch.Tensor, past: list[torch.Tensor]
) -> list[np.ndarray]:
    session_options = ort.SessionOptions()
    session_options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), session_options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = {name: t.numpy() for name, t in zip(names, [inputs, positions, *past], strict=True)}
    outputs: list[np.ndarray] = session.run(None, feed)
    return outputs


def some_step(config: ModelConfig, slots: int = SLOTS) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Two rows at different positions, the second up to the last slot, over caches that are full of numbers."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (2, 7), generator=generator)
    positions = torch.stack([torch.arange(7) + 2, torch.arange(7) + slots - 7])
    past = [torch.randn(t.shape, generator=generator) for t in empty_cache(config, 2, slots, torch.float32)]
    return ids, positions, past


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("precision", list(Precision))
def test_the_operators_are_exactly_these(qk_norm: bool, precision: Precision) -> None:
    config = replace(CONFIG, qk_norm=qk_norm)
    proto = exported(loaded(config), precision)
    layers = config.num_hidden_layers
    counts = Counter(node.op_type for node in proto.graph.node)
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 24)]
    assert counts["TensorScatter"] == 2 * layers
    assert counts["Attention"] == layers
    assert counts["RotaryEmbedding"] == 2 * layers
    assert counts["RMSNormalization"] == 2 * layers + 1 + (2 * layers if qk_norm else 0)
    assert counts["Gemm"] == 7 * layers + 1
    # In half precision RoPE turns q and k between casts, and so is q scaled unless 1/sqrt(H) is exact in the type.
    assert counts["Cast"] == (0 if precision is Precision.FP32 else 6 * layers)
    assert counts["And"] == 1, "one window, one mask for it, shared by its layers"
    assert set(counts) <= ALLOWED
    onnx.checker.check_model(proto, full_check=True)


def test_a_scale_that_half_precision_holds_exactly_needs_no_cast() -> None:
    proto = exported(loaded(replace(CONFIG, head_dim=16)), Precision.FP16)
    assert Counter(node.op_type for node in proto.graph.node)["Cast"] == 4 * CONFIG.num_hidden_layers


def test_sizes_that_equal_the_usual_stand_ins_are_no_trap() -> None:
    config = replace(
        CONFIG, vocab_size=1009, hidden_size=2026, intermediate_size=1019, num_hidden_layers=1, layer_types=()
    )
    model = loaded(config)
    ids, positions, past = some_step(config)
    expected, _ = model(ids, positions, past)
    torch.testing.assert_close(
        torch.from_numpy(run(exported(model), ids, positions, past)[0]), expected, rtol=1e-3, atol=1e-2
    )


def test_a_size_out_of_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(self: DecoderModel, inputs: torch.Tensor, position_ids: torch.Tensor, past: torch.Tensor) -> object:
        return inputs * inputs.shape[0], position_ids[:, 0], []

    monkeypatch.setattr(DecoderModel, "enter", enter)
    with pytest.raises(AssertionError, match="stands for a size"):
        trace_parts(INTERFACE)


def test_axes_and_ports_have_the_documented_names() -> None:
    proto = exported(loaded(CONFIG))
    layers = CONFIG.num_hidden_layers

    def described(values: object) -> list[tuple[str, list[str | int]]]:
        return [
            (v.name, [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim])
            for v in values  # type: ignore[attr-defined]
        ]

    rows = ["batch_size", "sequence_length"]
    cache = ["batch_size", 2, SLOTS, 10]
    assert described(proto.graph.input) == [
        ("input_ids", rows),
        ("position_ids", rows),
        *((name, cache) for name in io_names.past_names(layers)),
    ]
    assert described(proto.graph.output) == [
        ("logits", [*rows, 101]),
        *((name, cache) for name in io_names.present_names(layers)),
    ]


@pytest.mark.parametrize(
    ("ends", "tied"),
    # A last stage has a head of its own.
    [(ends, tied) for ends in Ends for tied in (False, True) if not (tied and ends is Ends.LAST_STAGE)],
)
def test_the_graph_computes_what_eager_computes(ends: Ends, tied: bool) -> None:
    model = loaded(replace(CONFIG, tie_word_embeddings=tied), ends)
    ids, positions, past = some_step(CONFIG)
    stream = torch.randn(2, 7, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    inputs = ids if ends.from_ids else stream
    expected, present = model(inputs, positions, past)
    outputs = run(exported(model), inputs, positions, past)
    for output, wanted in zip(outputs, [expected, *present], strict=True):
        torch.testing.assert_close(torch.from_numpy(output), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slots", [9, 19, 64])
def test_only_the_declared_shapes_hold_m(slots: int) -> None:
    model = loaded(CONFIG)
    proto = exported(model)
    declare_max_sequence_length(proto, slots, 64, CONFIG)
    ids, positions, past = some_step(CONFIG, slots)
    expected, _ = model(ids, positions, past)
    torch.testing.assert_close(torch.from_numpy(run(proto, ids, positions, past)[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slots", [0, 65])
def test_m_outside_the_table_is_refused(slots: int) -> None:
    with pytest.raises(UsageError, match=f"{slots} is outside 1..64"):
        declare_max_sequence_length(exported(loaded(CONFIG)), slots, 64, CONFIG)


@pytest.mark.parametrize("unturned", [(), (1, 3), (0, 1, 2, 3)])
def test_stamping_equals_translating_a_trace_of_the_whole_model(unturned: tuple[int, ...]) -> None:
    model = loaded(replace(CONFIG, layers_without_rope=unturned))
    whole = _traced_whole(model)
    stamped = exported(model)
    assert Counter(n.op_type for n in whole.graph.node) == Counter(n.op_type for n in stamped.graph.node)
    ids, positions, past = some_step(CONFIG)
    assert sum(n.op_type == "RotaryEmbedding" for n in stamped.graph.node) == 2 * (4 - len(unturned))
    for ours, theirs in zip(run(stamped, ids, positions, past), run(whole, ids, positions, past), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _traced_whole(model: DecoderModel) -> onnx.ModelProto:
    """The same graph the slow way: one `torch.export` of all layers, translated node by node."""
    batch, length, slots = Dim("batch"), Dim("length"), Dim("slots", min=2)
    with fake_model(replace(INTERFACE, config=model.config)) as fake:
        args = example_inputs(INTERFACE)
        sizes = ({0: batch, 1: length}, {0: batch, 1: length}, [{0: batch, 2: slots} for _ in args[2]])
        fragment = fragment_of(torch.export.export(fake, args, dynamic_shapes=sizes, strict=False))
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    stamped = exported(model)
    inputs = [ir.serde.deserialize_value_info_proto(value, None) for value in stamped.graph.input]
    builder = GraphBuilder(inputs)
    parameters = GraphParameters(builder, lambda name: ir.tensor(state[name].detach().numpy(), name=name))
    outputs = translate(Stamp(builder, fragment, inputs, parameters, ""))
    for output, declared in zip(outputs, stamped.graph.output, strict=True):
        ir.serde.deserialize_value_info_proto(declared, output)
        output.name = declared.name
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports={"": 24},
        name="whole",
    )
    return ir.to_proto(ir.Model(graph, ir_version=11))
