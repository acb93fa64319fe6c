"""The tensors of a LoRA adapter, each found its place in the base model, or refused by name.

peft calls them by the module they belong to, behind `base_model.model.`: `lora_A.weight` [r, in] and `lora_B.weight`
[out, r] of a linear layer, `lora_embedding_A` [r, V] and `lora_embedding_B` [D, r] of an embedding, DoRA's
`lora_magnitude_vector`, and whole tensors that take the place of the base model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from blockexport.models.checkpoints.adapter_places import SeenByPeft
from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.fused_tensors import StackedPart
from blockexport.models.checkpoints.safetensors_files import entries_of
from blockexport.models.checkpoints.tensor_names import EMBEDDING, FLOAT_TYPES, OUTPUT_HEAD, POSITIONS
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.formats.adapter_config import AdapterConfig, read_adapter_config
from blockexport.models.regular_file import is_there
from blockexport.models.wording import listed

ADAPTER_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
_PICKLED = "adapter_model.bin"
_BASE_LAYER = ".base_layer."
_STACKED = re.compile(r"\.(qkv_proj|gate_up_proj|query_key_value|c_attn|Wqkv)\.lora_")


@dataclass(frozen=True)
class LowRank:
    """What is added to a matrix: `scaling` times the product of two tensors.

    Attributes:
        down: `lora_A` [r, in], or `lora_embedding_A` [r, V].
        up: `lora_B` [out, r], or `lora_embedding_B` [D, r].
        scaling: the factor.
        magnitude: DoRA's, one for each row of a linear layer's matrix, for each column of an embedding.
        turned: the product is of an embedding, and its transpose is added.
    """

    down: TensorEntry
    up: TensorEntry
    scaling: float
    magnitude: TensorEntry | None = None
    turned: bool = False


@dataclass(frozen=True)
class TensorChange:
    """What an adapter makes of one tensor of the base model.

    Attributes:
        replaced: what takes its place first; None where nothing does.
        low_rank: what is added to a matrix.
        bias: `lora_B.bias`, which is added to a bias, times `scaling`.
        part: what of these is the tensor's, where peft sees it stacked or turned; None: everything.
    """

    replaced: TensorEntry | None = None
    low_rank: LowRank | None = None
    bias: TensorEntry | None = None
    scaling: float = 1.0
    part: StackedPart | None = None

    @property
    def computes(self) -> bool:
        """Whether the tensor has values that no file holds."""
        return self.low_rank is not None or self.bias is not None


@dataclass(frozen=True)
class LoraAdapter:
    """An opened adapter, and what it changes, by this project's names of the base model's tensors."""

    config: AdapterConfig
    path: Path
    changes: Mapping[str, TensorChange]


def read_adapter(folder: Path, base: ModelConfig) -> LoraAdapter:
    """The adapter in `folder`, held against a base model: every tensor is there, has its shape, and has its place.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`.
        base: the base model.

    Raises:
        UsageError: config or tensors are missing, damaged, unknown, or of another model.
    """
    config = read_adapter_config(folder)
    path = folder / ADAPTER_FILE
    if not is_there(path):
        if (folder / _PICKLED).exists():
            raise UsageError(
                f"{folder} has {_PICKLED} and no {ADAPTER_FILE}: pickled weights can run code when they are loaded and "
                "are not read. Save the adapter again with a newer peft"
            )
        raise UsageError(f"{folder} has no {ADAPTER_FILE}: download the adapter again")
    stored = {name: replace(entry, stored_name=name) for name, entry in entries_of(path).items()}
    seen = SeenByPeft.of(base)
    changes = _Finder(config, path, stored, seen, base.tie_word_embeddings).changes()
    ours = {
        name: replace(changes[own], part=seen.parts.get(name)) for name, own in seen.names.items() if own in changes
    }
    return LoraAdapter(config, path, ours)


class _Finder:
    """Takes the tensors of a file one by one, until all are taken."""

    def __init__(
        self,
        config: AdapterConfig,
        path: Path,
        stored: Mapping[str, TensorEntry],
        seen: SeenByPeft,
        tied: bool,
    ) -> None:
        self._config, self._path, self._seen, self._tied = config, path, seen, tied
        self._shapes = seen.shapes
        self._ends = [seen.names[name] for name in (EMBEDDING, OUTPUT_HEAD)]
        self._tables = [_module(seen.names[name]) for name in (EMBEDDING, POSITIONS) if name in seen.names]
        self._left = dict(stored)
        self._missing: list[str] = []

    def changes(self) -> dict[str, TensorChange]:
        found = dict(self._found())
        if self._missing or self._left:
            raise UsageError(self._mismatch())
        if not found:
            raise UsageError(f"{self._config.where}: target_modules names no module of the base model{self._of_base()}")
        return found

    def _found(self) -> Iterator[tuple[str, TensorChange]]:
        modules = {name.rpartition(".")[0] for name in self._shapes}
        low_ranks = {module: self._low_rank(module) for module in sorted(modules) if self._is_target(module)}
        for name, shape in self._shapes.items():
            module, _, part = name.rpartition(".")
            change = TensorChange(self._replaced(name, module, shape, is_target=module in low_ranks))
            if module in low_ranks and part == "weight":
                change = replace(change, low_rank=low_ranks[module])
            elif module in low_ranks and self._config.lora_bias:
                bias = self._take(f"{module}.lora_B.bias", shape)
                change = replace(change, bias=bias, scaling=self._config.scaling(module))
            if change != TensorChange():
                yield name, change

    def _is_target(self, module: str) -> bool:
        shape = self._shapes[f"{module}.weight"]
        is_inside = len(shape) == 2 and module not in (*self._tables, _module(self._ends[1]))
        if not any(self._config.targets(one, is_inside=is_inside) for one in self._tied_with(module)):
            return False
        if len(shape) != 2:
            raise UsageError(
                f"{self._config.where}: target_modules names {module}, which is a norm: peft adapts linear layers and "
                "embeddings only"
            )
        if self._config.lora_bias and f"{module}.bias" not in self._shapes:
            raise UsageError(
                f"{self._config.where}: lora_bias is true, and {module} of the base model has no bias that it could be "
                "merged into"
            )
        return True

    def _tied_with(self, module: str) -> list[str]:
        ends = list(map(_module, self._ends))
        return ends if self._tied and self._config.tied and module in ends else [module]

    def _low_rank(self, module: str) -> LowRank | None:
        rows, columns = self._shapes[f"{module}.weight"]
        rank, scaling = self._config.rank(module), self._config.scaling(module)
        turned = module in self._tables
        if turned:
            down = self._take(f"{module}.lora_embedding_A", (rank, rows))
            up = self._take(f"{module}.lora_embedding_B", (columns, rank))
        else:
            down = self._take(f"{module}.lora_A.weight", (rank, columns))
            up = self._take(f"{module}.lora_B.weight", (rows, rank))
        magnitude = None
        if self._config.dora:
            name = f"{module}.lora_magnitude_vector"  # a parameter to peft up to 0.12, a module since
            name = f"{name}.weight" if f"{PREFIX}{name}.weight" in self._left else name
            magnitude = self._take(name, (columns if turned else rows,))
        return None if down is None or up is None else LowRank(down, up, scaling, magnitude, turned)

    def _replaced(self, name: str, module: str, shape: tuple[int, ...], *, is_target: bool) -> TensorEntry | None:
        """What stands in for a tensor: of a module that was trained whole, of a bias that was trained, or of an end of
        the model, whose tables peft saves wherever they may have been resized."""
        part = name.rpartition(".")[2]
        config = self._config
        wrapped = f"{module}{_BASE_LAYER}{part}"
        if is_target and PREFIX + wrapped in self._left:
            required, called = False, wrapped
        else:
            required = any(map(config.saves, self._tied_with(module)))
            required |= part == "bias" and (config.bias == "all" or (config.bias == "lora_only" and is_target))
            called = name
        may_be = name in self._ends or part == "bias"
        if required or (may_be and PREFIX + called in self._left):
            return self._take(called, shape[::-1] if name in self._seen.turned else shape)
        return None

    def _take(self, name: str, shape: tuple[int, ...]) -> TensorEntry | None:
        entry = self._left.pop(PREFIX + name, None)
        if entry is None:
            self._missing.append(PREFIX + name)
            return None
        if entry.shape != shape:
            raise UsageError(
                f"{entry.name} in {self._path} has shape {list(entry.shape)}, and the base model and "
                f"{self._config.where} call for {list(shape)}: the adapter is of another model{self._of_base()}, or "
                "its vocabulary was resized, or r and rank_pattern were edited"
            )
        if entry.dtype not in FLOAT_TYPES:
            raise UsageError(
                f"{entry.name} in {self._path} has type {entry.dtype}; it must be {', '.join(FLOAT_TYPES)}"
            )
        return entry

    def _of_base(self) -> str:
        base = self._config.base_model
        return "" if base is None else f" (it says that it was trained on {base})"

    def _mismatch(self) -> str:
        lacks = f"lacks {_listed(self._missing)}, which {self._config.where} calls for" if self._missing else ""
        holds = f"holds {_listed(list(self._left))}, which it does not call for" if self._left else ""
        said = f"{self._path} {' and '.join(part for part in (lacks, holds) if part)}"
        if any(map(_STACKED.search, self._left)):
            return (
                f"{said}. These are projections that peft sees stacked in one and that are apart here: merge with peft"
            )
        return (
            f"{said}. The adapter is of another model{self._of_base()}, or its files do not belong together: download "
            "it again, or name the model that it was trained on"
        )


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _listed(names: list[str]) -> str:
    return f"{'the tensor' if len(names) == 1 else f'{len(names)} tensors'} {listed(names)}"
