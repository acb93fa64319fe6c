"""What a weight behind the first difference holds instead of the checkpoint's, wherever and however a file keeps it."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
import torch
from onnx import helper

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.audits.dataflow import Dataflow
from blockexport.compare.audits.sites_by_flow import SiteMap
from blockexport.compare.explain.graph_values import SiteError
from blockexport.compare.explain.location import Location, Search
from blockexport.compare.explain.used_weights import Uses
from blockexport.compare.explain.wrong_weights import wrong_weights
from blockexport.models.checkpoints.tensor_names import expected_tensors
from tests.compare.memory_checkpoint import TINY, MemoryCheckpoint

CONFIG = replace(TINY, num_hidden_layers=2, head_dim=4, layer_types=("full_attention",) * 2)  # q_proj is square
CALL = range(4)


def _drawn() -> MemoryCheckpoint:
    generator = torch.Generator().manual_seed(7)
    shapes = expected_tensors(CONFIG)
    return MemoryCheckpoint(CONFIG, {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})


CHECKPOINT = _drawn()
Q, K, V = (f"model.layers.1.self_attn.{one}_proj" for one in "qkv")
GATE, UP = (f"model.layers.1.mlp.{one}_proj.weight" for one in ("gate", "up"))
Q_NORM, K_NORM = (f"model.layers.1.self_attn.{one}_norm.weight" for one in "qk")


def stored(name: str) -> torch.Tensor:
    return CHECKPOINT.tensors[name].clone()


def search(*places: tuple[int | None, str]) -> Search:
    """What Locate gives where each of these is the first difference of its layer."""
    (layer, site), *_ = places
    rows = tuple(SiteError(CALL, one, name, 1.0, 1e-7) for one, name in places)
    found = Location(0, 0, layer, site, 1.0, 1e-7, absent=False, layers=frozenset())
    return Search(found, reproduced=True, ratio=1.0, rows=rows, mapping=(0, 1), looked=(CALL,), calls=1)


def wrong(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, torch.Tensor],
    shown: dict[str, str],
    site: str,
) -> dict[str, str]:
    """Of a graph whose layer 1 is these nodes, from a value `x` on, with these values at its sites."""
    sites = SiteMap(layers=[{"mlp_residual": "x"}, shown], streams=["start", "x", "end"], final_norm="normed")
    weights = ArtifactWeights({name: tuple(t.shape) for name, t in tensors.items()}, tensors.__getitem__)
    uses = Uses(Dataflow(nodes, tensors), sites, "logits", weights, CONFIG)
    return wrong_weights(search((1, site)), uses, CHECKPOINT)


def product(kind: str) -> list[onnx.NodeProto]:
    """`q` of `x` and `w`, which lies [out, in] for Transpose and Gemm."""
    if kind == "Transpose":
        nodes = [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["q"]),
        ]
        return nodes
    if kind == "Gemm":
        return [helper.make_node("Gemm", ["x", "w"], ["q"], transB=1)]
    return [helper.make_node("MatMul" if kind == "MatMul" else "Gemm", ["x", "w"], ["q"])]


@pytest.mark.parametrize("kind", ["MatMul", "Gemm without transB", "Gemm", "Transpose"])
def test_a_square_matrix_is_read_the_way_its_node_takes_it(kind: str) -> None:
    weight = f"{Q}.weight"
    assert stored(weight).shape == (24, 24)
    right, turned = stored(weight), stored(weight).T.contiguous()
    if kind in ("MatMul", "Gemm without transB"):
        right, turned = turned, right
    assert wrong(product(kind), {"w": right}, {"q_proj": "q"}, "q_proj") == {}
    said = wrong(product(kind), {"w": turned}, {"q_proj": "q"}, "q_proj")
    assert said == {f"{weight} holds the checkpoint's values transposed": "w"}


@pytest.mark.parametrize(
    ("factor", "said"), [(1.05, "1.05"), (1 + 3e-5, "1.00003"), (-1.0, "-1"), (0.9996, "0.9996"), (1234.5, "1234")]
)
def test_a_factor_is_told_from_one(factor: float, said: str) -> None:
    weight = f"{Q}.weight"
    found = wrong(product("Gemm"), {"w": (stored(weight).double() * factor).float()}, {"q_proj": "q"}, "q_proj")
    assert found == {f"{weight} is {said} times the checkpoint's": "w"}


def test_of_matrices_side_by_side_the_wrong_one_is_named() -> None:
    """Behind a fused attention nothing tells which projection it is, and all that it takes are looked at."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["qkv"]),
        helper.make_node("GroupQueryAttention", ["qkv", "", "", "past"], ["merged", "present"], domain="com.microsoft"),
    ]
    weights, biases = ([stored(f"{one}.{kind}") for one in (Q, K, V)] for kind in ("weight", "bias"))
    shown = {"cache_key": "present", "merged": "merged"}

    def said(site: str) -> dict[str, str]:
        return wrong(nodes, {"w": torch.cat(weights).T.contiguous(), "b": torch.cat(biases)}, shown, site)

    assert said("merged") == said("cache_key") == {}
    weights[1] = weights[1] * 2
    assert said("cache_key") == said("merged") == {f"{K}.weight is 2 times the checkpoint's": "w"}
    weights[1], biases[2] = stored(f"{K}.weight"), biases[1]
    assert said("merged") == {f"{V}.bias holds the values of {K}.bias": "b"}
    weights[1], weights[2] = weights[2], weights[1]
    assert said("merged") == {
        f"{V}.bias holds the values of {K}.bias": "b",
        f"{K}.weight holds the values of {V}.weight": "w",
        f"{V}.weight holds the values of {K}.weight": "w",
    }


def test_the_mlps_two_side_by_side() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["both"]),
        helper.make_node("Split", ["both"], ["gate", "up"], axis=-1, num_outputs=2),
        helper.make_node("Mul", ["gate", "up"], ["activation"]),
    ]
    up = stored(UP)
    up[5] *= 0.5
    tensors = {"w": torch.cat([stored(GATE), up]).T.contiguous()}
    found = wrong(nodes, tensors, {"activation": "activation"}, "activation")
    assert found == {f"row 5 of {UP} is 0.5 times the checkpoint's": "w"}


def test_of_two_of_one_shape_the_right_one_tells_the_other() -> None:
    """Two that are both wrong cannot be told apart, and nothing is said of them."""
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["a"]),
        helper.make_node("Mul", ["x", "two"], ["b"]),
        helper.make_node("Attention", ["a", "b", "b"], ["attention"]),
    ]
    shown = {"attention": "attention"}
    off = stored(K_NORM) * 1.5
    assert wrong(nodes, {"one": stored(Q_NORM), "two": stored(K_NORM)}, shown, "attention") == {}
    found = wrong(nodes, {"one": stored(Q_NORM), "two": off}, shown, "attention")
    assert found == {f"{K_NORM} is 1.5 times the checkpoint's": "two"}
    assert wrong(nodes, {"one": stored(Q_NORM) * 3, "two": off}, shown, "attention") == {}


def test_what_lies_before_a_value_that_is_right_is_let_be() -> None:
    """A tool may fold a factor into a matrix and undo it later."""
    nodes = [
        helper.make_node("MatMul", ["start", "folded"], ["x"]),  # square, as q_proj is, whose place it is not in
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Mul", ["q", "gain"], ["heads"]),
    ]
    weight = stored(f"{Q}.weight")
    other = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    tensors = {"folded": other, "w": weight.T, "gain": stored(Q_NORM)}
    assert wrong(nodes, tensors, {"q_proj": "q"}, "q_proj") == {}
    tensors["w"] = weight.T * 0.5
    assert wrong(nodes, tensors, {"q_proj": "q", "q_heads": "heads"}, "q_heads") == {}
    half = {f"{Q}.weight is 0.5 times the checkpoint's": "w"}
    assert wrong(nodes, tensors, {"q_proj": "q"}, "q_proj") == half


def test_a_tied_head_is_the_embedding() -> None:
    tied = replace(CONFIG, tie_word_embeddings=True)
    checkpoint = MemoryCheckpoint(tied, {n: t for n, t in CHECKPOINT.tensors.items() if n != "lm_head.weight"})
    table = stored("model.embed_tokens.weight")
    table[17, 3] += 1
    nodes = [helper.make_node("MatMul", ["normed", "w"], ["logits"])]
    sites = SiteMap(layers=[{}, {}], streams=["start", "x", "end"], final_norm="normed")
    weights = ArtifactWeights({"w": (24, 101)}, {"w": table.T}.__getitem__)
    uses = Uses(Dataflow(nodes, ["w"]), sites, "logits", weights, tied)
    ((clause, name),) = wrong_weights(search((None, "head")), uses, checkpoint).items()
    assert clause.startswith("model.embed_tokens.weight differs in 1 of 2,424 values: [17, 3] is ") and name == "w"


def test_each_layer_that_differs_by_itself_is_looked_at() -> None:
    nodes, tensors, layers = list[onnx.NodeProto](), dict[str, torch.Tensor](), list[dict[str, str]]()
    outs = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1)]
    for layer in (0, 1):
        nodes.append(helper.make_node("MatMul", [f"merged{layer}", f"w{layer}"], [f"out{layer}"]))
        tensors[f"w{layer}"] = stored(outs[1 - layer]).T
        layers.append({"o_proj": f"out{layer}", "merged": f"merged{layer}"})
    sites = SiteMap(layers=layers, streams=["start", "x", "end"], final_norm="normed")
    weights = ArtifactWeights({name: tuple(t.shape) for name, t in tensors.items()}, tensors.__getitem__)
    uses = Uses(Dataflow(nodes, tensors), sites, "logits", weights, CONFIG)
    assert wrong_weights(search((0, "o_proj"), (1, "o_proj")), uses, CHECKPOINT) == {
        f"{outs[0]} holds the values of {outs[1]}": "w0",
        f"{outs[1]} holds the values of {outs[0]}": "w1",
    }
