"""Some layers of a checkpoint as a model of their own, whose layers are counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.config.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

    from blockexport.models.quantised_matrix import QuantisedMatrix

_LAYER = re.compile(r"(?<=^model\.layers\.)\d+(?=\.)")


def stage_config(config: ModelConfig, layers: range) -> ModelConfig:
    """The config of a stage with some of a model's layers. The last one has a head of its own: the embedding that it
    may be tied to is in the first."""
    return replace(
        config,
        num_hidden_layers=len(layers),
        layer_types=config.layer_types[layers.start : layers.stop],
        layers_without_rope=tuple(i - layers.start for i in config.layers_without_rope if i in layers),
        tie_word_embeddings=False,
    )


def joined_config(configs: Sequence[ModelConfig]) -> ModelConfig:
    """The config of the model that stages with these are, one after the other."""
    starts = accumulate((one.num_hidden_layers for one in configs), initial=0)
    return replace(
        configs[0],
        num_hidden_layers=sum(one.num_hidden_layers for one in configs),
        layer_types=tuple(kind for one in configs for kind in one.layer_types),
        layers_without_rope=tuple(
            start + i for start, one in zip(starts, configs, strict=False) for i in one.layers_without_rope
        ),
    )


class StageCheckpoint(Checkpoint):
    """The layers `layers` of a checkpoint; what is outside of layers is all there.

    Attributes:
        whole: the checkpoint with all layers, and with a head of its own.
        layers: which they are there.
    """

    def __init__(self, source: Checkpoint, layers: range) -> None:
        self.whole = UntiedCheckpoint(source) if source.config.tie_word_embeddings else source
        self.layers = layers
        self.config = stage_config(self.whole.config, layers)
        self.source, self.notes, self.range_is_stated = source.source, source.notes, source.range_is_stated
        # With a name of its own in the file, no tensor is taken for one whose whole file can be a bundle's.
        self.entries = {
            own: replace(entry, name=own, stored_name=entry.stored_name or name)
            for name, entry in self.whole.entries.items()
            if (own := self._own(name)) is not None
        }

    def _own(self, name: str) -> str | None:
        """What a tensor of the whole is called here; None where it is in another stage."""
        found = _LAYER.search(name)
        if found is None:
            return name
        layer = int(found[0])
        return _LAYER.sub(str(layer - self.layers.start), name) if layer in self.layers else None

    @property
    def base(self) -> Checkpoint:
        """See `Checkpoint.base`."""
        return self.whole.base

    @property
    def adapter(self) -> Path | None:
        """See `Checkpoint.adapter`."""
        return self.whole.adapter

    def whole_name(self, name: str) -> str:
        """What a tensor is called in the whole."""
        return _LAYER.sub(lambda found: str(int(found[0]) + self.layers.start), name)

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        return self.whole.read(self.whole_name(name))

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`."""
        return self.whole.strips(self.whole_name(name))

    def read_codes(self, name: str) -> QuantisedMatrix:
        """See `Checkpoint.read_codes`."""
        return replace(self.whole.read_codes(self.whole_name(name)), name=name)
