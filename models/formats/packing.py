"""How a quantised checkpoint of safetensors has packed its matrices: what `quantization_config` of a config.json says.

Three tools' layouts are known. Of each every key is used, is listed as harmless with the reason, or is refused by name:
one that is skipped may say that activations are rounded, or weights rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.errors import UsageError
from blockexport.models.formats.module_targets import Targets
from blockexport.models.strict_json import shown
from blockexport.models.wording import listed

KEY = "quantization_config"
_REMEDY = "Take the unquantised checkpoint, or a GGUF file of the model"
_BITS = (4, 8)


class PackedLayout(StrEnum):
    """Whose tensors they are, by the name of the tool."""

    COMPRESSED_TENSORS = "compressed-tensors"
    GPTQ = "GPTQ"
    AWQ = "AWQ"


@dataclass(frozen=True)
class Packing:
    """How the weight [N, K] of a module is packed. A value is `(code - zero point) * scale`.

    Attributes:
        layout: of the tensors.
        bits: of a code, 4 or 8.
        group_size: consecutive inputs of an output that share a scale, before they were put in another order; None:
            all of them.
        symmetric: every zero point is the middle of the codes, 2^(bits - 1).
        stored_less: what is taken from a zero point when it is stored: 1 in GPTQ's first form.
        ordered: whether the file has to say which group an input belongs to.
    """

    layout: PackedLayout
    bits: int
    group_size: int | None
    symmetric: bool = True
    stored_less: int = 0
    ordered: bool = False

    @property
    def kind(self) -> str:
        """As notes call it: `GPTQ int4`."""
        return f"{self.layout} int{self.bits}{'' if self.symmetric else ' with zero points'}"


@dataclass(frozen=True)
class PackedModel:
    """What a config says of all modules.

    Attributes:
        method: the tool, for messages.
        packing_of: gives the packing of a module by its name (`model.layers.0.mlp.up_proj`); None: it is not packed.
        says_which: whether the config names the modules that are packed. If not, the tensors tell.
    """

    method: PackedLayout
    packing_of: Callable[[str], Packing | None]
    says_which: bool = False


def read_packing(data: Mapping[str, Any], where: str) -> PackedModel | None:
    """What a parsed `config.json` says, None where the weights are not quantised.

    Args:
        data: the JSON object.
        where: the file's name, for messages.

    Raises:
        UsageError: a method, a value or a key that is not implemented, or not understood.
    """
    content = data.get(KEY)
    if content is None:
        return None
    if not isinstance(content, dict):
        raise UsageError(f"{where}: {KEY} is {shown(content)}; it must be an object with keys")
    fields = RawFields(content, f"{where}: {KEY}")
    method = str(fields.text("quant_method")).lower()
    readers = {"compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq}
    if method not in readers:
        raise fields.error(
            f"quant_method {method!r} is not implemented; packed weights are read of {', '.join(readers)}. {_REMEDY}"
        )
    model = readers[method](fields)
    unknown = [key for key in fields.unused() if key not in _HARMLESS]
    if unknown:
        raise fields.unknown("", unknown)
    return model


_BY_REASON = {
    "settings of the run that chose the codes": (
        "damp_percent damp_auto_increment static_groups true_sequential act_group_aware mse dataset tokenizer "
        "batch_size pad_token_id model_seqlen cache_block_outputs block_name_to_quantize "
        "module_name_preceding_first_block model_name_or_path model_file_base_name hyb_act "
        "calib_data meta quantizer max_input_length"
    ),
    "choose a kernel, and not what it computes": (
        "use_exllama disable_exllama exllama_config use_cuda_fp16 backend do_fuse fuse_max_seq_len modules_to_fuse"
    ),
    "which modules are packed; the tensors tell": "lm_head modules_in_block_to_quantize modules_to_not_convert",
    "bookkeeping": "version global_compression_ratio method",
}
_HARMLESS = frozenset(key for keys in _BY_REASON.values() for key in keys.split())


def _bits(fields: RawFields, key: str, known: tuple[int, ...] = _BITS) -> int:
    bits = fields.integer(key)
    if bits not in known:
        choice = " or ".join(map(str, known))
        raise fields.error(f"{key} is {bits}, and only codes of {choice} bits are read. {_REMEDY}")
    return bits


def _group_size(fields: RawFields, default: int | None = None) -> int | None:
    """None for one group as wide as the matrix, which is written -1."""
    size = fields.integer("group_size", default, minimum=-1)
    if size == 0:
        raise fields.error("group_size is 0; it must be -1, or a number of inputs")
    return None if size == -1 else size


def _one_of(fields: RawFields, keys: tuple[str, ...], known: tuple[str, ...], default: str, what: str) -> str:
    """The value of a key that has had several names, in lower case."""
    given = {key: fields.text(key).lower() for key in keys if fields.get(key) is not None}
    for key, value in given.items():
        if value not in known:
            raise fields.error(f"{key} is {value!r}, and only {' and '.join(known)} are read: {what}. {_REMEDY}")
    if len(set(given.values())) > 1:
        raise fields.error(f"{' and '.join(given)} contradict each other: {', '.join(given.values())}")
    return next(iter(given.values()), default)


def _gptq(fields: RawFields) -> PackedModel:
    bits, group_size = _bits(fields, "bits"), _group_size(fields, 128)
    form = _one_of(
        fields, ("checkpoint_format", "format"), ("gptq", "gptq_v2"), "gptq", "others lay the codes out for one kernel"
    )
    fields.only("is_marlin_format", (False,), "the codes are laid out for one kernel")
    fields.only("pack_dtype", ("int32",), "codes are read out of 32-bit words")
    fields.only("adapter", (None, {}), "an adapter's product is added to the packed one")
    fields.only("rotation", (None,), "the weights are rotated, and activations have to be, too")
    _only_left_out(fields)
    packing = Packing(
        PackedLayout.GPTQ,
        bits,
        group_size,
        symmetric=fields.flag("sym", True),
        stored_less=int(form == "gptq"),
        ordered=fields.flag("desc_act", False),
    )
    return PackedModel(PackedLayout.GPTQ, lambda module: packing)


def _only_left_out(fields: RawFields) -> None:
    """GPTQModel's rules for single modules: `-:` leaves one unpacked, which its tensors show; others change it."""
    rules = fields.get("dynamic")
    if rules is not None and not isinstance(rules, dict):
        raise fields.error(f"dynamic is {shown(rules)}; it must be an object with rules")
    changed = [rule for rule in rules or {} if not str(rule).startswith("-:")]
    if changed:
        raise fields.error(
            f"dynamic has rules of their own for {listed(changed)}, and only rules that leave modules unpacked (-:) "
            f"are read. {_REMEDY}"
        )


def _awq(fields: RawFields) -> PackedModel:
    bits, group_size = _bits(fields, "bits", (4,)), _group_size(fields, 128)
    _one_of(fields, ("version", "format"), ("gemm",), "gemm", "others lay the codes out for one kernel")
    fields.only("zero_point", (True,), "the gemm form has zero points")
    fields.only("pack_dtype", ("int32",), "codes are read out of 32-bit words")
    if fields.get("backend") == "llm-awq":
        raise fields.error(f"backend is llm-awq, which lays the codes out for kernels of its own. {_REMEDY}")
    for key in ("sym", "desc_act"):
        fields.only(key, (False,), "AWQ has zero points, and no order of inputs")
    _only_left_out(fields)
    packing = Packing(PackedLayout.AWQ, bits, group_size, symmetric=False)
    return PackedModel(PackedLayout.AWQ, lambda module: packing)


def _compressed_tensors(fields: RawFields) -> PackedModel:
    if not _one_of(fields, ("format",), ("pack-quantized",), "", "codes are read in the packed form"):
        raise fields.error(f"the key 'format' is missing; pack-quantized is read. {_REMEDY}")
    # `frozen` is what the first releases wrote of the same tensors.
    fields.only("quantization_status", ("compressed", "frozen"), "the weights are not packed yet")
    fields.only("kv_cache_scheme", (None,), "the cache would be quantised, too")
    for key in ("sparsity_config", "moe_sparsity_config", "transform_config"):
        fields.only(key, (None, {}), "sparse and rotated weights are not implemented")
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise fields.error(f"config_groups is {shown(groups)}; it must be an object with a group or more")
    ignored = Targets.read(fields, "ignore", required=False)
    found = [_group(RawFields(group, f"{fields.where}: {name}"), group) for name, group in groups.items()]

    def packing_of(module: str) -> Packing | None:
        if ignored.rank(module) is not None:
            return None
        ranks = {rank: packing for targets, packing in found if (rank := targets.rank(module)) is not None}
        return ranks[min(ranks)] if ranks else None

    return PackedModel(PackedLayout.COMPRESSED_TENSORS, packing_of, says_which=True)


def _group(fields: RawFields, content: object) -> tuple[Targets, Packing]:
    if not isinstance(content, dict):
        raise UsageError(f"{fields.where} is {shown(content)}; it must be an object with keys")
    fields.only("input_activations", (None,), "activations would be quantised, too")
    fields.only("output_activations", (None,), "activations would be quantised, too")
    fields.only("format", (None, "pack-quantized"), "codes are read in the packed form")
    targets, weights = Targets.read(fields, "targets"), fields.get("weights")
    if not isinstance(weights, dict):
        raise fields.error(f"weights is {shown(weights)}; it must be an object with keys")
    packing = _weights(RawFields(weights, f"{fields.where}: weights"))
    if fields.unused():
        raise fields.unknown("", fields.unused())
    return targets, packing


def _weights(fields: RawFields) -> Packing:
    fields.only("type", ("int",), "codes are integers")
    fields.only("dynamic", (False,), "scales are those of the file")
    fields.only("block_structure", (None,), "scales of blocks in two dimensions are not implemented")
    strategy = _one_of(fields, ("strategy",), ("group", "channel"), "", "scales are of groups or of channels")
    size = fields.get("group_size")
    if strategy == "" or (strategy == "group") != (size not in (None, -1)):
        raise fields.error(f"strategy is {shown(strategy or None)} and group_size is {shown(size)}: they do not agree")
    order = fields.get("actorder")
    if order not in (None, False, True, "group", "dynamic", "weight", "static"):
        raise fields.error(f"actorder is {shown(order)}; group, dynamic, weight and static are known")
    settings = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}  # of the run that chose the codes
    packing = Packing(
        PackedLayout.COMPRESSED_TENSORS,
        _bits(fields, "num_bits"),
        _group_size(fields) if strategy == "group" else None,
        symmetric=fields.flag("symmetric", True),
        ordered=order in (True, "group", "dynamic"),
    )
    unknown = [key for key in fields.unused() if key not in settings]
    if unknown:
        raise fields.unknown("", unknown)
    return packing
