"""The `adapter_config.json` of a LoRA adapter as peft writes it: which modules it changes, and by how much.

Equations: LoRA, https://arxiv.org/abs/2106.09685, section 4.1; rank-stabilised scaling, https://arxiv.org/abs/2312.03732;
DoRA, https://arxiv.org/abs/2402.09353. Which modules are meant follows peft (`check_target_module_exists`,
`get_pattern_key`, `_set_trainable`). Every key is used, listed as harmless with the reason, or refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockexport.models.config.config_fields import RawFields
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, no_repeated_key, read_json_object
from blockexport.models.strict_json import shown

ADAPTER_CONFIG = "adapter_config.json"
BIASES = ("none", "all", "lora_only")
ALL_LINEAR = "all-linear"

_BY_REASON = {
    "names a class; the adapter's tensors themselves tell what it changes": "task_type auto_mapping",
    "bookkeeping of the tool that wrote the file": "peft_version revision inference_mode",
    "only matters in training": "lora_dropout",
    "settings of ways to begin a training, which init_lora_weights chooses among": (
        "loftq_config eva_config corda_config lora_ga_config"
    ),
    "how the base model stores its matrices, which peft corrects itself and the checkpoint's reader knows": (
        "fan_in_fan_out"
    ),
    "chooses where and with what library peft computes": "runtime_config megatron_core",
    "of QALoRA, which is refused": "qalora_group_size",
    "whether the first versions of peft merged while they evaluated": "merge_weights",
}
HARMLESS: frozenset[str] = frozenset(key for keys in _BY_REASON.values() for key in keys.split())

_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "trainable_token_indices": ((None, []), "rows of the embedding that were trained apart are not merged"),
    "layer_replication": ((None, []), "it makes a model with other layers than the base model"),
    "alora_invocation_tokens": ((None,), "an aLoRA works from a token of the prompt on, and cannot be merged"),
    "use_qalora": ((False,), "QALoRA pools the inputs of its matrices"),
    "monteclora_config": ((None,), "MonteCLoRA draws samples"),
    "velora_config": ((None,), "VeLoRA is not implemented"),
    "target_parameters": ((None, []), "parameters outside of linear layers (experts) are not implemented"),
    "use_bdlora": ((None, False), "block-diagonal matrices are not implemented"),
    "arrow_config": ((None,), "Arrow chooses among several adapters at each token"),
    "kasa_config": ((None,), "KaSA changes the base model's weights as well"),
    "enable_lora": ((None,), "parts of a fused matrix are not implemented"),
    "megatron_config": ((None,), "the layers of Megatron are not implemented"),
}
_HARMLESS_BEGINNINGS = (True, False, "gaussian", "orthogonal", "eva")
_MOST_BRANCHES, _LONGEST = 4, 1_000


@dataclass(frozen=True)
class Modules:
    """Modules that a list of names, or one regular expression, means. Names match whole, or as the last words of a
    module's name; a regular expression has to match all of it."""

    names: frozenset[str] = frozenset()
    expression: re.Pattern[str] | None = None

    def has(self, module: str) -> bool:
        """Whether the module is meant."""
        if self.expression is not None:
            return self.expression.fullmatch(module) is not None
        return module in self.names or any(module.endswith(f".{name}") for name in self.names)


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter's config says. Modules are called as in the base model: `model.layers.0.self_attn.q_proj`.

    Attributes:
        where: the file, for messages.
        dora: whether directions and magnitudes are apart.
        bias: which biases of the base model were trained: one of `BIASES`.
        lora_bias: whether the low-rank part has a bias of its own.
        tied: whether what is said of the embedding holds for a head that shares its table, and the other way round.
        base_model: what it says that it was trained on; None where it does not.
    """

    where: str
    dora: bool
    bias: str
    lora_bias: bool
    tied: bool
    base_model: str | None
    _rank: int
    _alpha: float
    _rank_stabilised: bool
    _ranks: Mapping[re.Pattern[str], int]
    _alphas: Mapping[re.Pattern[str], float]
    _targets: Modules
    _all_linear: bool
    _excluded: Modules
    _saved: tuple[str, ...]
    _layers: frozenset[int] | None

    def rank(self, module: str) -> int:
        """Rows of its matrix A."""
        return next((rank for pattern, rank in self._ranks.items() if pattern.match(module)), self._rank)

    def scaling(self, module: str) -> float:
        """The factor of the product of its matrices: alpha / r, or alpha / sqrt(r) where rank-stabilised."""
        alpha = next((alpha for pattern, alpha in self._alphas.items() if pattern.match(module)), self._alpha)
        rank = self.rank(module)
        return alpha / (math.sqrt(rank) if self._rank_stabilised else rank)

    def saves(self, module: str) -> bool:
        """Whether a module's own tensors take the place of the base model's, or those of a module around it."""
        words = module.split(".")
        fronts = (".".join(words[: count + 1]) for count in range(len(words)))
        return any(front.endswith(saved) for front in fronts for saved in self._saved)

    def targets(self, module: str, *, is_inside: bool) -> bool:
        """Whether a module has a low-rank part; `is_inside`: it is a linear layer, and not the output head."""
        if self._excluded.has(module) or self._is_in_saved(module):
            return False
        if self._all_linear:
            return is_inside
        if not self._targets.has(module):
            return False
        if self._layers is None or module in self._targets.names:
            return True
        layer = re.match(r".*\.[^.]*\.(\d+)\.", module)
        return layer is not None and int(layer[1]) in self._layers

    def _is_in_saved(self, module: str) -> bool:
        return any(f".{saved}." in f".{module}." for saved in self._saved)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The `adapter_config.json` of a folder.

    Raises:
        UsageError: it is missing or no LoRA's, or a key is unknown, of the wrong type, or asks for something that is
            not implemented.
    """
    path = folder / ADAPTER_CONFIG
    if not folder.is_dir() or not is_there(path):
        raise UsageError(f"{folder} is no adapter that peft saved: it has no {ADAPTER_CONFIG}. Give such a folder")
    fields = RawFields(read_json_object(path, "fetch the file again", no_repeated_key), str(path))
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise fields.error(f"peft_type is {shown(kind)}, and only LORA is merged: merge it with peft itself")
    for key, (allowed, why) in _NEUTRAL.items():
        fields.only(key, allowed, f"{why}. Merge it with peft itself")
    _check_beginning(fields)
    targets = fields.get("target_modules")
    layers = _layers(fields, targets)
    dora, lora_bias = fields.flag("use_dora", False), fields.flag("lora_bias", False)
    if dora and lora_bias:
        raise fields.error("use_dora and lora_bias are both true, which peft refuses: the file was edited")
    bias = fields.text("bias", "none")
    if bias not in BIASES:
        raise fields.error(f"bias is {shown(bias)}; it must be {', '.join(BIASES)}")
    base = fields.get("base_model_name_or_path")
    all_linear = isinstance(targets, str) and targets.lower() == ALL_LINEAR
    config = AdapterConfig(
        where=str(path),
        dora=dora,
        bias=bias,
        lora_bias=lora_bias,
        tied=fields.flag("ensure_weight_tying", False),
        base_model=base if isinstance(base, str) and base else None,
        _rank=fields.integer("r"),
        _alpha=fields.number("lora_alpha"),
        _rank_stabilised=fields.flag("use_rslora", False),
        _ranks=_by_pattern(fields, "rank_pattern", lambda value: type(value) is int and value >= 1),
        _alphas=_by_pattern(
            fields, "alpha_pattern", lambda value: type(value) in (int, float) and 0 < value < math.inf
        ),
        _targets=Modules() if all_linear else _modules(fields, "target_modules", targets),
        _all_linear=all_linear,
        _excluded=_modules(fields, "exclude_modules", fields.get("exclude_modules") or []),
        _saved=tuple(_names(fields, "modules_to_save", fields.get("modules_to_save") or [])),
        _layers=layers,
    )
    if unknown := [key for key in fields.unused() if key not in HARMLESS]:
        raise fields.unknown("", unknown)
    return config


def _check_beginning(fields: RawFields) -> None:
    """Ways to begin that change the base model's weights, and leave an adapter that fits the changed ones alone."""
    value = fields.get("init_lora_weights")
    if value is not None and not any(type(value) is type(one) and value == one for one in _HARMLESS_BEGINNINGS):
        raise fields.error(
            f"init_lora_weights is {shown(value)}, which changes the base model's weights or is not known here: "
            "convert the adapter (peft: save_pretrained with path_initial_model_for_weight_conversion)"
        )


def _layers(fields: RawFields, targets: Any) -> frozenset[int] | None:
    """The layers that `layers_to_transform` names, one or a list; None where all are meant."""
    listed, pattern = fields.get("layers_to_transform"), fields.get("layers_pattern")
    if pattern not in (None, "", [], "layers", ["layers"]):
        raise fields.error(f"layers_pattern is {shown(pattern)}; the layers of these models are called 'layers'")
    if listed is None or listed == []:
        return None
    numbers = listed if isinstance(listed, list) else [listed]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise fields.error(f"layers_to_transform is {shown(listed)}; it must be a layer's number, or a list of them")
    if isinstance(targets, str):
        raise fields.error("layers_to_transform goes with a list of target_modules, and they are a regular expression")
    return frozenset(numbers)


def _modules(fields: RawFields, key: str, value: Any) -> Modules:
    if isinstance(value, str):
        return Modules(expression=_compiled(fields, key, value, value))
    return Modules(frozenset(_names(fields, key, value)))


def _names(fields: RawFields, key: str, value: Any) -> Iterable[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise fields.error(f"{key} is {shown(value)}; it must be a list of names")
    return value


def _by_pattern(fields: RawFields, key: str, is_good: Any) -> dict[re.Pattern[str], Any]:
    """Values by what matches the last words of a module's name, the first that does first."""
    value = fields.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(map(is_good, value.values())):
        raise fields.error(f"{key} is {shown(value)}; it must give modules numbers above zero")
    return {_compiled(fields, key, text, rf"(.*\.)?({text})$"): number for text, number in value.items()}


def _compiled(fields: RawFields, key: str, text: str, whole: str) -> re.Pattern[str]:
    """An expression of a stranger. Few places where it may go on in more than one way, and no repeat of a group, cannot
    backtrack for long in a module's name."""
    branches = len(re.findall(r"(?<!\\)(?:[*+{]|(?<!\()\?|\((?=[^()]*\|))", text))
    if len(text) > _LONGEST or branches > _MOST_BRANCHES or re.search(r"(?<!\\)\)[*+{?]", text):
        raise fields.error(
            f"{key} has the regular expression {shown(text)}: it is not run, since it could take very long. List the "
            "modules by their names in a copy of the file"
        )
    try:
        return re.compile(whole)
    except re.error as error:
        raise fields.error(f"{key} has the regular expression {shown(text)}, which is none: {error}") from error
