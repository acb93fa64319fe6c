"""What TensorRT's parser made of the graph, compared with what the graph is: before the build, layer by layer.

A network that does not pass is not built. What only the backend's kernels decide (the precision inside softmax) is
recorded as such and not claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from blockexport.export.bundle.manifest import Manifest
from blockexport.export.lint.layer_groups import Problem, told_once
from blockexport.export.tensorrt.trt_adapter import Adapter
from blockexport.models.checkpoints.tensor_names import expected_tensors, norm_places
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port
from blockexport.models.side_by_side import JOINED


@dataclass(frozen=True)
class Audit:
    """The facts of a parsed network that passed.

    Attributes:
        cache_updates: KV_CACHE_UPDATE layers, two per decoder layer, each output aliasing its input.
        attention_layers: attention layers, one per decoder layer.
        attention: "fused" or "decomposed".
        attention_reason: why it is decomposed.
        matrix_products: number of matrix products by type of their operands.
        norm_statistics, rotary_embeddings: the type they are computed in, and how many there are.
        softmax: where its precision is decided.
        weight_bytes: bytes of constants by type, each tensor counted once.
        layers: layers by TensorRT's name for their kind.
        dequantised: matrices that are dequantised for a product, by the type of their codes.
    """

    cache_updates: int
    attention_layers: int
    attention: str
    attention_reason: str | None
    matrix_products: dict[str, int]
    norm_statistics: dict[str, int]
    rotary_embeddings: dict[str, int]
    weight_bytes: dict[str, int]
    layers: dict[str, int]
    dequantised: dict[str, int]
    softmax: str = "decided inside the backend's attention kernels"


@dataclass
class _Layers:
    """A network's layers by kind, and the names of all tensors that some layer reads."""

    by_kind: dict[str, list[Any]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def of(self, kind: str) -> list[Any]:
        return self.by_kind.get(kind, [])


def audit(adapter: Adapter, network: Any, manifest: Manifest, not_fused: str | None) -> Audit:
    """Check a parsed network against the bundle it came from.

    Args:
        adapter: the backend.
        network: as parsed.
        manifest: the bundle's.
        not_fused: why attention is decomposed, or None where it is fused.

    Raises:
        UsageError: the network differs from the graph, with every difference.
    """
    layers = _collect(network)
    problems = [
        *_ports("input", _all(network.num_inputs, network.get_input), manifest.inputs),
        *_ports("output", _all(network.num_outputs, network.get_output), manifest.outputs),
        *_unread(layers, manifest),
        *_caches(layers, manifest),
        *_attention(layers, manifest),
        *_precisions(layers, manifest),
        *_quantised(layers, manifest),
    ]
    if problems:
        listed = "\n".join(f"  {problem}" for problem in told_once(problems))
        raise UsageError(
            f"{adapter.name} {adapter.version} parsed the graph into another network, so it is not built:\n{listed}\n"
            "Export the bundle again; if this stays, report it with this message"
        )
    return Audit(
        cache_updates=len(layers.of("KV_CACHE_UPDATE")),
        attention_layers=len(layers.of("ATTENTION_INPUT")),
        attention="fused" if not_fused is None else "decomposed",
        attention_reason=not_fused,
        matrix_products=_count(_product_type(layer) for layer in layers.of("MATRIX_MULTIPLY")),
        norm_statistics=_count(_type(layer.get_input(0)) for layer in _statistics(layers)),
        rotary_embeddings=_count(_type(layer.get_output(0)) for layer in layers.of("ROTARY_EMBEDDING")),
        weight_bytes=_weight_bytes(adapter, layers),
        layers={kind: len(members) for kind, members in sorted(layers.by_kind.items())},
        dequantised=_count(_type(layer.get_input(0)) for layer in layers.of("DEQUANTIZE")),
    )


def _collect(network: Any) -> _Layers:
    layers = _Layers()
    for layer in _all(network.num_layers, network.get_layer):
        layers.by_kind.setdefault(layer.type.name, []).append(layer)
        inputs = _all(layer.num_inputs, layer.get_input)
        layers.read.update(tensor.name for tensor in inputs if tensor is not None)
    return layers


def _all(count: int, get: Any) -> list[Any]:
    return [get(index) for index in range(count)]


def _type(tensor: Any) -> str:
    name: str = tensor.dtype.name
    return next((one.name for one in ELEMENT_TYPES if one.tensorrt == name), name.lower())


def _count(types: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(types).items()))


def _ports(kind: str, tensors: Sequence[Any], ports: Sequence[Port]) -> Iterator[Problem]:
    """Name, type and shape of each input or output, in the manifest's order; a symbolic axis is -1 in TensorRT."""
    found, wanted = [tensor.name for tensor in tensors], [port.name for port in ports]
    if len(found) != len(wanted):
        yield f"{len(found)} {kind}s, not {len(wanted)}", ()
    elif found != wanted:
        index = next(index for index, names in enumerate(zip(found, wanted, strict=True)) if len(set(names)) > 1)
        yield f"{kind} {index} is {{}}, not {{}}", (found[index], wanted[index])
    if found != wanted:
        return
    for tensor, port in zip(tensors, ports, strict=True):
        declared = tuple(size if isinstance(size, int) else -1 for size in port.shape)
        shape = tuple(tensor.shape)
        if _type(tensor) != port.dtype:
            yield f"{kind} {{}} is {_type(tensor)}, not {port.dtype}", (port.name,)
        # TensorRT may know an output's shape better or worse than the graph says; inputs it takes as declared.
        fits = len(shape) == len(declared) and all(a == b or -1 in (a, b) for a, b in zip(shape, declared, strict=True))
        if not fits or (kind == "input" and shape != declared):
            yield f"{kind} {{}} has shape {list(shape)}, not {list(port.shape)}", (port.name,)


def _unread(layers: _Layers, manifest: Manifest) -> Iterator[Problem]:
    for port in manifest.inputs:
        if port.name not in layers.read:
            yield "no layer reads the input {}", (port.name,)


def _caches(layers: _Layers, manifest: Manifest) -> Iterator[Problem]:
    expected = {port.name: port.aliases for port in manifest.outputs if port.aliases is not None}
    written = {layer.get_output(0).name: layer.get_input(0).name for layer in layers.of("KV_CACHE_UPDATE")}
    for present, past in expected.items():
        if present not in written:
            yield "{} is not made by a cache update in place", (present,)
        elif written[present] != past:
            yield "{} updates {}, not {}", (present, written[present], past)
    extra = sorted(written.keys() - expected.keys())
    if extra:
        yield "cache updates that are no outputs: {}", (", ".join(extra),)
    if layers.of("SCATTER"):
        yield f"{len(layers.of('SCATTER'))} SCATTER layers, which copy the whole cache at every step", ()


def _attention(layers: _Layers, manifest: Manifest) -> Iterator[Problem]:
    expected, found = manifest.config.num_hidden_layers, layers.of("ATTENTION_INPUT")
    yield from _counted(found, "attention layers", expected)
    for layer in found:
        inputs = _all(layer.num_inputs, layer.get_input)
        if not any(tensor is not None and _type(tensor) == "bool" for tensor in inputs):
            yield "{} has no boolean mask", (layer.name,)


def _precisions(layers: _Layers, manifest: Manifest) -> Iterator[Problem]:
    config, wanted = manifest.config, manifest.precision.element.name
    for layer in layers.of("MATRIX_MULTIPLY"):
        if _product_type(layer) != wanted:
            yield f"{{}} multiplies in {_product_type(layer)}, not {wanted}", (layer.name,)
    products = _projections(config) + (0 if manifest.headless else 1)
    matrices = [layer for layer in layers.of("MATRIX_MULTIPLY") for _ in range(_matrices_of(layer))]
    yield from _counted(matrices, "matrix products", products)
    statistics = _statistics(layers)
    yield from _counted(statistics, "norm statistics", len(norm_places(config)))
    for layer in statistics:
        if _type(layer.get_input(0)) != "float32":
            yield f"{{}} takes a norm's statistics in {_type(layer.get_input(0))}, not float32", (layer.name,)
    rotations = layers.of("ROTARY_EMBEDDING")
    turned = sum(config.has_rope(layer) for layer in range(config.num_hidden_layers))
    yield from _counted(rotations, "rotary embeddings", 2 * turned)
    for layer in rotations:
        types = {_type(layer.get_input(i)) for i in range(3)}
        if types != {"float32"}:
            yield f"{{}} turns heads in {', '.join(sorted(types))}, not float32", (layer.name,)


def _quantised(layers: _Layers, manifest: Manifest) -> Iterator[Problem]:
    """Every matrix that the bundle quantises is codes that a product alone reads, of the type that the bundle has."""
    wanted: Counter[str] = Counter()
    quantisation = manifest.quantisation
    if quantisation is not None:
        wanted[f"int{quantisation.layers.bits}"] += _projections(manifest.config)
        if quantisation.head is not None and not manifest.headless:
            wanted[f"int{quantisation.head.bits}"] += 1
    found: Counter[str] = Counter()
    for layer in layers.of("DEQUANTIZE"):
        found[_type(layer.get_input(0))] += _matrices_of(layer)
    for dtype in sorted(wanted | found):
        if wanted[dtype] != found[dtype]:
            yield f"{found[dtype]} matrices have {dtype} codes, not {wanted[dtype]}", ()
    multiplied = {layer.get_input(1).name for layer in layers.of("MATRIX_MULTIPLY")}
    for layer in layers.of("DEQUANTIZE"):
        if layer.get_output(0).name not in multiplied:
            yield "no product reads what {} dequantises", (layer.name,)


def _matrices_of(layer: Any) -> int:
    """How many of the model's matrices lie side by side in one that a layer works on."""
    joined = (len(parts) for name, parts in JOINED.items() if f".{name.removesuffix('weight')}" in layer.name)
    return next(joined, 1)


def _projections(config: ModelConfig) -> int:
    """The matrices in the layers."""
    return sum(name.startswith("model.layers.") and len(shape) == 2 for name, shape in expected_tensors(config).items())


def _counted(found: Sequence[Any], what: str, wanted: int) -> Iterator[Problem]:
    if len(found) != wanted:
        yield f"{len(found)} {what}, not {wanted}", ()


def _statistics(layers: _Layers) -> list[Any]:
    """The norms' means of squares, or LayerNorms as a whole; the highest of integer positions, which `--logits last`
    takes, is none of them."""
    reductions = [layer for layer in layers.of("REDUCE") if "float" in _type(layer.get_input(0))]
    return reductions + layers.of("NORMALIZATION")


def _product_type(layer: Any) -> str:
    return " x ".join(sorted({_type(layer.get_input(0)), _type(layer.get_input(1))}))


def _weight_bytes(adapter: Adapter, layers: _Layers) -> dict[str, int]:
    seen: dict[str, tuple[str, int]] = {}
    for layer in layers.of("CONSTANT"):
        layer.__class__ = adapter.trt.IConstantLayer
        tensor = layer.get_output(0)
        seen[layer.name] = (_type(tensor), ceil(prod(layer.shape) * tensor.dtype.itemsize))
    total: Counter[str] = Counter()
    for dtype, size in seen.values():
        total[dtype] += size
    return dict(sorted(total.items()))
