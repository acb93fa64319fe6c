"""From a bundle's ONNX file to a parsed TensorRT network with optimisation profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from blockexport.export.bundle.engine_entry import Profile
from blockexport.export.bundle.manifest import Manifest
from blockexport.export.tensorrt.trt_adapter import Adapter
from blockexport.models import io_names
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.native_output import captured_stderr
from blockexport.models.quantisation import Quantisation
from blockexport.models.quantised_matrix import BLOCK_SIZES

MOST_ELEMENTS = 2**31 - 1  # of a tensor: TensorRT's "Limitations" in its developer guide


def make_profiles(max_batch_size: int, max_prefill: int) -> tuple[Profile, Profile]:
    """Prefill (1 to `max_prefill` tokens per row) and decode (one token per row), for 1 to `max_batch_size` rows."""
    batch_size = (1, 1, max_batch_size)
    return (
        Profile("prefill", batch_size, (1, min(128, max_prefill), max_prefill)),
        Profile("decode", batch_size, (1, 1, 1)),
    )


def bundle_profiles(manifest: Manifest, max_batch_size: int, max_prefill: int) -> tuple[Profile, Profile]:
    """The profiles of an engine for a bundle: see `make_profiles`.

    Raises:
        UsageError: more tokens than the cache has slots, or more elements than TensorRT counts.
    """
    slots = manifest.max_sequence_length
    if max_prefill > slots:
        raise UsageError(
            f"--max-prefill {max_prefill} is beyond the bundle's {slots} cache slots: choose at most {slots}"
        )
    profiles = make_profiles(max_batch_size, max_prefill)
    check_volumes(manifest, profiles)
    return profiles


def check_volumes(manifest: Manifest, profiles: Sequence[Profile]) -> None:
    """Refuse profiles with a tensor of more elements than TensorRT counts.

    Raises:
        UsageError: naming the tensor, its elements and how many rows there may be.
    """
    config, slots = manifest.config, manifest.max_sequence_length
    for profile in profiles:
        rows, length = profile.batch_size[2], profile.sequence_length[2]
        per_row = {
            "a cache": config.num_key_value_heads * slots * config.head_dim,
            "the logits": prod(manifest.interface.output_shape(1, length)),
            "the mask": length * slots,
            "the MLP's products": length * config.intermediate_size,
        }
        what, most = max(per_row.items(), key=lambda item: item[1])
        if rows * most > MOST_ELEMENTS:
            raise UsageError(
                f"with --max-batch-size {rows} and up to {length} tokens, {what} would have {rows * most} elements, "
                f"and TensorRT counts to {MOST_ELEMENTS}: choose at most {MOST_ELEMENTS // most} rows, or fewer tokens"
            )


def check_quantisation(config: ModelConfig, quantisation: Quantisation) -> None:
    """Refuse to quantise a model in a way that no engine can be built from, before its bundle is made.

    Raises:
        UsageError: a quantised embedding, zero points, or blocks that do not divide the inputs of a matrix, with those
            that do.
    """
    if quantisation.embedding is not None:
        raise UsageError(
            f"--embedding int{quantisation.embedding.bits}: TensorRT takes no codes that are looked up. For an engine "
            "the embedding is left in its precision: leave the option out, or choose float"
        )
    if quantisation.layers.zero_points or (quantisation.head is not None and quantisation.head.zero_points):
        raise UsageError(
            "the checkpoint's codes have zero points (as AWQ's have, and GPTQ's with sym: false), and TensorRT takes "
            "symmetric codes alone: leave out --quantize, so that they are dequantised, or run the bundle of "
            "`blockexport onnx` in ONNX Runtime"
        )
    block = quantisation.layers.block_size
    widths: dict[int, str] = {}
    for name, shape in expected_tensors(quantisation.stored_config(config)).items():
        if quantisation.scheme_of(name) is not None:
            widths.setdefault(shape[1], name)
    for width, name in widths.items():
        if _in_whole_blocks(width, block):
            continue
        fitting = [str(size) for size in BLOCK_SIZES if all(_in_whole_blocks(one, size) for one in widths)]
        remedy = f"choose --block-size {' or '.join(fitting)}" if fitting else "build the engine without --quantize"
        raise UsageError(
            f"blocks of {block} do not divide the {width} inputs of {name}, and TensorRT takes whole blocks alone: "
            f"{remedy}"
        )


def _in_whole_blocks(width: int, block: int) -> bool:
    return width <= block or width % block == 0


def parse(adapter: Adapter, builder: Any, path: Path) -> tuple[Any, Any]:
    """The network of an ONNX file, and the parser, which owns the weights that the network refers to.

    Raises:
        UsageError: TensorRT's parser refuses the file, with its first reason.
    """
    network = adapter.network(builder)
    parser = adapter.trt.OnnxParser(network, adapter.log)
    with captured_stderr():
        parsed = parser.parse_from_file(str(path))
    if not parsed:
        raise UsageError(f"{adapter.name} {adapter.version} rejects {path}: {_parser_errors(parser)}")
    adapter.log.drain()
    return network, parser


def _parser_errors(parser: Any) -> str:
    errors = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        node = " ".join(part for part in (error.node_operator(), error.node_name()) if part)
        reason = error.desc().strip().splitlines()
        # What follows the first lines are TensorRT's own source files and its search for a GPU.
        told = " ".join(line for line in reason[:2] if "catchCudaError" not in line)
        errors.append(f"{node}: {told}" if node else told)
    return "; ".join(errors) or "it gives no reason"


def add_profiles(builder: Any, network: Any, config: Any, profiles: Sequence[Profile]) -> None:
    """Give the config an optimisation profile for each of `profiles`, in order."""
    for profile in profiles:
        made = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            sizes = {io_names.BATCH_AXIS: profile.batch_size, io_names.SEQUENCE_AXIS: profile.sequence_length}
            axes = [(size, tensor.get_dimension_name(axis)) for axis, size in enumerate(tensor.shape)]
            shapes = [[size if size >= 0 else sizes[name][k] for size, name in axes] for k in range(3)]
            made.set_shape(tensor.name, *shapes)
        config.add_optimization_profile(made)


def attentions(adapter: Adapter, network: Any) -> list[Any]:
    """The IAttention of every attention layer, in order of the layers."""
    trt, found = adapter.trt, []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            found.append(layer.attention)
    return found


def give_queries_their_own_positions(adapter: Adapter, network: Any) -> None:
    """Read the positions of every query's rotary embedding through one cast to int32; the values stay the same.

    Query and key of a layer read cosine and sine at the same positions, and for that TensorRT for RTX turns both in
    one kernel, with a launch size that it names anew in each layer. It then takes the kernels of all layers for
    different ones and stores the same source text for each: 0.34 MB a layer with two profiles, measured with 1.7.1.
    Kernels that turn either alone it recognises and stores once.
    """
    trt = adapter.trt
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    producers = {layer.get_output(k).name: layer for layer in layers for k in range(layer.num_outputs)}
    keys = {
        _rotated_by(trt, producers, layer.get_input(1))
        for layer in layers
        if layer.type == trt.LayerType.KV_CACHE_UPDATE
    }
    rotations = [layer for layer in layers if layer.type == trt.LayerType.ROTARY_EMBEDDING]
    if not rotations:
        return
    positions = network.add_cast(rotations[0].get_input(3), trt.int32).get_output(0)
    for rotation in rotations:
        if rotation.name not in keys:
            rotation.set_input(3, positions)


def _rotated_by(trt: Any, producers: Mapping[str, Any], tensor: Any) -> str | None:
    """Name of the rotary embedding that a tensor comes from, through casts; None when it comes from something else."""
    layer = producers.get(tensor.name)
    while layer is not None and layer.type == trt.LayerType.CAST:
        layer = producers.get(layer.get_input(0).name)
    return layer.name if layer is not None and layer.type == trt.LayerType.ROTARY_EMBEDDING else None


def set_key_value_lengths(adapter: Adapter, network: Any) -> np.ndarray[Any, Any]:
    """Tell every attention how many slots of each row are filled: the newest position + 1, beside the mask.

    Returns the constant that the network refers to; it has to outlive the build.
    """
    trt, one = adapter.trt, np.ones(1, np.int64)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    position_ids = next(tensor for tensor in inputs if tensor.name == io_names.POSITION_IDS)
    # Positions count up along a row, so its largest is its newest.
    newest = network.add_reduce(position_ids, trt.ReduceOperation.MAX, 1 << 1, False).get_output(0)
    constant = network.add_constant((1,), one).get_output(0)
    lengths = network.add_elementwise(newest, constant, trt.ElementWiseOperation.SUM).get_output(0)
    lengths_32 = network.add_cast(lengths, trt.int32).get_output(0)
    for attention in attentions(adapter, network):
        attention.key_value_lengths = lengths_32
    return one
