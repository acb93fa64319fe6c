"""`constants`: silent on what the exporter writes, and one clause for each number that is not the config's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from blockexport.compare.audits.constant_audit import ConstantAudit, audit_constants
from blockexport.compare.audits.table_difference import table_problem
from blockexport.compare.core.check import Verdict
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.export.bundle.rope_file import ROPE_FILE
from blockexport.models.block.rope import rope_table
from blockexport.models.config.model_config import RopeScaling
from blockexport.models.element_types import BY_NAME
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from tests.any_model import draw
from tests.compare.static_judge import figures_of, judged, spoilt
from tests.exported import EVERYTHING, export, gainful
from tests.stored_codes import Change
from tests.zoo_bench import Bench, attribute
from tests.zoo_edits_block import norm_half
from tests.zoo_edits_position import rope_backwards, rope_missing, table

CHECKPOINT = gainful(EVERYTHING)
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(8, 40))]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    folder = tmp_path_factory.mktemp("constants")
    for precision in Precision:
        export(CHECKPOINT, folder / precision, precision)
    return {precision: folder / precision for precision in Precision}


@pytest.mark.parametrize("precision", Precision)
def test_a_sound_file_passes(bundles: dict[Precision, Path], precision: Precision) -> None:
    result = judged(bundles[precision], CHECKPOINT, "constants")
    assert result.verdict is Verdict.PASS
    assert result.message == "as the config asks: 13 epsilons, 3 attention scales, 2 RoPE tables"


@pytest.mark.parametrize("seed", SEEDS)
def test_sound_graphs_of_every_family_pass(seed: int, tmp_path: Path) -> None:
    """Windows, scaled RoPE, QK-norm, biases, tied heads, headless stacks, last logits, in three precisions."""
    drawn = draw(seed)
    ends = {"headless": drawn.headless, "last_logits_only": drawn.last_logits_only}
    for precision in Precision:
        export(gainful(drawn.config), tmp_path / precision, precision, drawn.slots, **ends)
        graph = ir.load(tmp_path / precision / ONNX_FILE).graph
        interface = Interface(drawn.config, BY_NAME["float32"], drawn.slots, Ends.of(**ends))
        audit = audit_constants(graph, interface)
        layers = drawn.config.num_hidden_layers
        norms = (4 if drawn.config.qk_norm else 2) * layers + 1
        assert (audit.problems, audit.unseen) == ([], []), drawn
        assert audit.counts == {"epsilons": norms, "attention scales": layers, "RoPE tables": 2}, drawn


def test_rope_in_a_layer_that_should_have_none_is_a_problem(tmp_path: Path) -> None:
    checkpoint = gainful(replace(EVERYTHING, layers_without_rope=(1,)))
    export(checkpoint, tmp_path / "right")
    assert judged(tmp_path / "right", checkpoint, "constants").verdict is Verdict.PASS
    wrong = judged(tmp_path / "right", gainful(replace(EVERYTHING, layers_without_rope=(1, 2))), "constants")
    assert wrong.verdict is Verdict.FAIL
    assert wrong.message == "layer 2 has RotaryEmbedding, and the config has no RoPE there"
    every_layer = Interface(EVERYTHING, BY_NAME["float32"], 29)
    assert audit_constants(ir.load(tmp_path / "right" / ONNX_FILE).graph, every_layer).unseen == [
        "layer 1 has 0 RotaryEmbedding, and q and k are to be turned"
    ]


def epsilon_of(place: str) -> Callable[[Bench], None]:
    def spoil(bench: Bench) -> None:
        bench.node(f"{place}.rms_norm").attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-6)

    return spoil


def scale_by(name: str, of: str = "self_attn.mul") -> Callable[[Bench], None]:
    """Multiply (or divide) once more, by 1.1."""

    def spoil(bench: Bench) -> None:
        for node in list(bench.named(of)):
            value = node.outputs[0]
            dtype = bench.value(f"past_key_values.{bench.layers[0]}.key").dtype
            assert dtype is not None
            bench.put(value, bench.add(name, value, _as(bench, 1.1, dtype)))

    return spoil


def _as(bench: Bench, number: float, dtype: ir.DataType) -> ir.Value:
    name = f"factor_{len(bench.graph.initializers)}"
    tensor = ir.tensor(np.asarray(number).astype(dtype.numpy()), dtype=dtype, name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]), const_value=tensor)
    bench.graph.register_initializer(value)
    return value


def keys_scaled(bench: Bench) -> None:
    for layer in bench.layers:
        node = bench.node(f"present.{layer}.key")
        update = node.inputs[1]
        dtype = bench.value(f"past_key_values.{layer}.key").dtype
        assert dtype is not None
        node.replace_input_with(1, bench.add("Mul", _as(bench, 1.1, dtype), update))


def window(bench: Bench) -> None:
    (node,) = (n for n in bench.graph if n.op_type == "Sub")
    node.replace_input_with(1, bench.constant(6))


def other_table(bench: Bench) -> None:
    """Layer 1 alone has the table of another theta."""
    table(rope_theta=20_000.0)(bench)


def swapped(bench: Bench) -> None:
    bench.swap_inputs(bench.node(_q(1)), bench.node(_q(2)))


def _q(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.q_proj.linear"


def bias_dropped(bench: Bench) -> None:
    bench.node("model.layers.1.self_attn.o_proj.linear").resize_inputs(2)


LAYER_2 = "layer 2 post_attention_layernorm"
WRONG = "epsilon is 1e-06, the config's rms_norm_eps is 1e-05"
SCALED = "attention scale is 0.34"  # 1.1 / sqrt(10), the factor rounded to the graph's type
SPOILT: list[tuple[str, Callable[[Bench], None], list[int], str]] = [
    ("epsilon", epsilon_of("model.layers.2.post_attention_layernorm"), [], f"{LAYER_2} {WRONG}"),
    ("final epsilon", epsilon_of("model.norm"), [], f"the final norm (model.norm) {WRONG}"),
    ("epsilons", attribute("RMSNormalization", "epsilon", 1e-6, everywhere=True), [], f"all 13 norms: {WRONG}"),
    ("q norm", epsilon_of("model.layers.0.self_attn.q_norm"), [], f"layer 0 self_attn.q_norm {WRONG}"),
    ("scale", scale_by("Mul"), [1], f"layer 1 {SCALED}"),
    ("keys", keys_scaled, [2], f"layer 2 {SCALED}"),
    ("attribute", attribute("Attention", "scale", 1.1), [0, 1, 2], f"layer 0, layer 1, layer 2 {SCALED}"),
    ("divided", scale_by("Div"), [0], "layer 0 attention scale is 0.287"),
    ("softcap", attribute("Attention", "softcap", 30.0), [1], "layer 1 attention softcap is 30, wanted none"),
    ("window", window, [], "layer 1: the mask subtracts 6 from the positions, the config's sliding_window is 7"),
    ("table", other_table, [1], "RoPE table in layer 1 differs from position 1 on"),
    ("pairs", attribute("RotaryEmbedding", "interleaved", 1), [2], "layer 2 RotaryEmbedding pairs neighbours"),
    ("weights", swapped, [], "layer 1 self_attn.q_proj reads model.layers.2.self_attn.q_proj.weight"),
    ("bias", bias_dropped, [], "model.layers.1.self_attn.o_proj.bias is read by no node"),
]


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize(("name", "spoil", "layers", "said"), SPOILT, ids=[name for name, *_ in SPOILT])
def test_a_wrong_constant_is_said(
    bundles: dict[Precision, Path],
    precision: Precision,
    name: str,
    spoil: Callable[[Bench], None],
    layers: list[int],
    said: str,
    tmp_path: Path,
) -> None:
    bench = Bench(bundles[precision], EVERYTHING, layers)
    spoil(bench)
    result = judged(bench.save(tmp_path / "spoilt", bundles[precision]), CHECKPOINT, "constants")
    assert result.verdict is Verdict.FAIL
    assert said in result.message, result.message
    figures = figures_of(result, ConstantAudit)
    assert len(figures.problems) <= 4 and figures.unseen == []


def at(rows: slice, change: Change) -> Change:
    def run(values: torch.Tensor) -> torch.Tensor:
        values[rows] = change(values[rows])
        return values

    return run


def frozen(values: torch.Tensor) -> torch.Tensor:
    values[31:] = values[30]
    return values


TABLES: list[tuple[dict[str, Change], str]] = [
    ({"cos": at(slice(17, 18), lambda x: x + 0.001)}, "RoPE table differs at position 17: "),
    ({"sin": at(slice(17, 20), lambda x: -x)}, "RoPE table differs at positions 17 to 19: "),
    ({"cos": frozen, "sin": frozen}, "RoPE table differs from position 31 on: "),
    ({"sin": lambda x: x.half().float()}, "RoPE table differs from position 1 on: "),
    ({"cos": at(slice(3, 64, 30), lambda x: x * torch.nan)}, "RoPE table differs at 3 positions, the first 3: nan for"),
]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize(("changes", "said"), TABLES)
def test_a_wrong_table_is_said(
    bundles: dict[Precision, Path], precision: Precision, changes: dict[str, Change], said: str, tmp_path: Path
) -> None:
    result = judged(spoilt(bundles[precision], tmp_path / "b", ROPE_FILE, changes), CHECKPOINT, "constants")
    assert result.verdict is Verdict.FAIL
    assert result.message.startswith(said), result.message
    assert [f"({kind})" for kind in changes] == [problem[-5:] for problem in figures_of(result, ConstantAudit).problems]


def test_the_last_bit_of_a_table_is_another_machines_own(bundles: dict[Precision, Path], tmp_path: Path) -> None:
    def ulp(values: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(values, torch.full_like(values, 9))

    folder = spoilt(bundles[Precision.FP32], tmp_path / "b", ROPE_FILE, {"cos": ulp, "sin": ulp})
    assert judged(folder, CHECKPOINT, "constants").verdict is Verdict.PASS


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 10_001.0},
        {"rope_scaling": RopeScaling("linear", factor=1.001)},
        {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_position_embeddings=64)},
    ],
)
def test_tables_of_nearly_the_same_config_differ(change: dict[str, object]) -> None:
    cos, sin = rope_table(replace(EVERYTHING, **change), 64)  # type: ignore[arg-type]
    assert table_problem(sin, "sin", EVERYTHING, 64) is not None
    assert table_problem(*(rope_table(EVERYTHING, 64)[1], "sin"), EVERYTHING, 64) is None
    assert "has 64 rows, and the cache 65 slots" in str(table_problem(cos, "cos", EVERYTHING, 65))
    assert "5 pairs a position are wanted" in str(table_problem(cos[:, :4], "cos", EVERYTHING, 64))


UNSEEN: list[tuple[Callable[[Bench], None], str]] = [
    (norm_half, "layer 0 input_layernorm has no RMSNormalization to read an epsilon off"),
    (rope_backwards, "layer 0: sin of RotaryEmbedding is computed (spoilt_1)"),
    (rope_missing, "layer 0 has 0 RotaryEmbedding, and q and k are to be turned"),
]


def test_queries_that_grow_are_held_against_the_config(tmp_path: Path) -> None:
    config = replace(EVERYTHING, query_growth=0.3, query_growth_length=16)
    export(gainful(config), tmp_path, Precision.FP16)
    graph = ir.load(tmp_path / ONNX_FILE).graph
    others = {
        "wanted not at all": EVERYTHING,
        "queries grow by 0.3 with each 16 positions, wanted by 0.3 with each 17": replace(
            config, query_growth_length=17
        ),
        "queries grow by 0.3 with each 16 positions, wanted by 0.4": replace(config, query_growth=0.4),
    }
    for said, other in {"": config, **others}.items():
        audit = audit_constants(graph, Interface(other, BY_NAME["float32"], 29))
        assert audit.unseen == [] and len(audit.problems) == 3 * bool(said)
        assert all(said in problem for problem in audit.problems)


def test_another_form_of_gelu_is_a_problem(tmp_path: Path) -> None:
    config = replace(EVERYTHING, hidden_act="gelu_pytorch_tanh")
    export(gainful(config), tmp_path, Precision.FP16)
    graph = ir.load(tmp_path / ONNX_FILE).graph
    wanted = Interface(config, BY_NAME["float16"], 29)
    assert audit_constants(graph, wanted).problems == []
    exact = replace(wanted, config=replace(config, hidden_act="gelu"))
    said = "layer 0, layer 1, layer 2 GELU is by tanh, the config's is exact"
    assert audit_constants(graph, exact).problems == [said]


def test_a_gelu_that_is_spelled_out_is_not_judged(tmp_path: Path) -> None:
    export(gainful(config := replace(EVERYTHING, hidden_act="gelu")), tmp_path / "bundle", Precision.FP16)
    bench = Bench(tmp_path / "bundle", config)
    node = bench.node("model.layers.1.mlp.gelu")
    bench.change(node, "Erf", [node.inputs[0]])
    audit = audit_constants(bench.graph, Interface(config, BY_NAME["float16"], 29))
    assert audit.problems == [] and audit.unseen == ["layer 1 has no Gelu to read its form off"]
    assert audit.counts["forms of GELU"] == 2


@pytest.mark.parametrize(("spoil", "said"), UNSEEN, ids=[spoil.__name__ for spoil, _ in UNSEEN])
def test_what_a_graph_hides_is_not_judged(
    bundles: dict[Precision, Path], spoil: Callable[[Bench], None], said: str, tmp_path: Path
) -> None:
    bench = Bench(bundles[Precision.FP32], EVERYTHING)
    spoil(bench)
    result = judged(bench.save(tmp_path / "spoilt", bundles[Precision.FP32]), CHECKPOINT, "constants")
    assert result.verdict is Verdict.NOT_JUDGED
    assert said in result.message


def test_a_graph_that_is_no_decoder_hides_everything() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.node("Relu", [x])
    audit = audit_constants(ir.Graph([x], node.outputs, nodes=[node]), Interface(EVERYTHING, BY_NAME["float32"], 29))
    assert audit.problems == [] and len(audit.unseen) == 13 + 3 + 3
