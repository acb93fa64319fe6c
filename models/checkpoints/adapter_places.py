"""The tensors of a model as peft sees them: by the names of its family, with stacked projections as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blockexport.models.checkpoints.fused_tensors import StackedPart, storage_of, whole_of
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.checkpoints.tensor_spellings import own_name
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import FAMILIES


@dataclass(frozen=True)
class SeenByPeft:
    """The tensors of a base model, its head apart.

    Attributes:
        shapes: by their names there; those of linear layers [out, in].
        turned: those that are stored [in, out].
        names: what each tensor of this project is called there.
        parts: which part of that it is, for those that are not the same.
    """

    shapes: Mapping[str, tuple[int, ...]]
    turned: frozenset[str]
    names: Mapping[str, str]
    parts: Mapping[str, StackedPart]

    @classmethod
    def of(cls, config: ModelConfig) -> SeenByPeft:
        """Those of a model."""
        ours = expected_tensors(replace(config, tie_word_embeddings=False))
        own, storage = FAMILIES[config.model_type].tensor_names, storage_of(config)
        shapes, names, parts = dict[str, tuple[int, ...]](), dict[str, str](), dict[str, StackedPart]()
        for name, shape in ours.items():
            whole = whole_of(name, storage, ours)
            if whole is not None:
                parts[name] = whole[1]
            names[name] = own_name(name if whole is None else whole[0], own)
            others = shapes.get(names[name], (0,))[0]
            shapes[names[name]] = (others + shape[0], *shape[1:])
        turned = {names[name] for name, part in parts.items() if part.storage.inputs_first and len(ours[name]) == 2}
        return cls(shapes, frozenset(turned), names, parts)
