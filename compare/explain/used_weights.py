"""The weights that another tool's graph uses to make a value, as a checkpoint has them, whatever the file calls them.

They are what goes into the nodes between the value and the sites before it without depending on any input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.audits.dataflow import Dataflow
from blockexport.compare.audits.sites_by_flow import SiteMap
from blockexport.compare.core.defect import output_tensor
from blockexport.compare.explain.sites import LAYER_SITES
from blockexport.models.checkpoints.tensor_names import EMBEDDING, FINAL_NORM
from blockexport.models.config.model_config import ModelConfig

if TYPE_CHECKING:
    import onnx

_PROJECTIONS = {
    **{f"{one}_proj": f"self_attn.{one}_proj" for one in "qkvo"},
    **{f"{one}_proj": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
_TENSORS: Mapping[str, tuple[str, ...]] = {
    **{site: (f"{name}.weight", f"{name}.bias") for site, name in _PROJECTIONS.items()},
    **{f"{one}_heads": (f"self_attn.{one}_norm.weight",) for one in "qk"},
    **{site: (f"{site}.weight",) for site in ("input_layernorm", "post_attention_layernorm")},
}
"""The tensors of a layer that make a site of the same input."""

_ENDS = ("embedding", "final_norm", "head")
_MIDDLE = "attention_residual"  # what follows is made from it, not from what lies before
_MOVING = ("Identity", "Transpose")


@dataclass(frozen=True)
class UsedWeight:
    """A tensor of the file where a node reads it.

    Attributes:
        name: what the file calls its initializer.
        values: as a node takes it; a matrix as [out, in].
    """

    name: str
    values: torch.Tensor


@dataclass(frozen=True)
class Uses:
    """Which weights make the value at a site, in one graph.

    Attributes:
        flow: of the graph.
        sites: of the graph, by the file's own names.
        logits: the name of that output.
        weights: what the file holds.
        config: of the checkpoint.
    """

    flow: Dataflow
    sites: SiteMap
    logits: str
    weights: ArtifactWeights
    config: ModelConfig

    def behind(self, layer: int | None, site: str) -> Iterator[UsedWeight]:
        """The weights of a site, or, where the graph lacks its value, of the next one that it has; each is read when
        it is asked for."""
        value = self._shown(layer).get(self._next_shown(layer, site))
        queue, stop = [value] if value else [], self._known - {value}
        for name in queue:
            node = self.flow.maker.get(name)
            if node is None:
                continue
            for place, source in enumerate(node.input):
                if source in self.flow.fixed:
                    yield from self._read(node, place)
                elif source and source not in stop and source not in queue:
                    queue.append(source)

    def tensors(self, layer: int | None, site: str) -> tuple[list[str], list[str]]:
        """The tensors of a checkpoint that may be there: the site's own, or else those of the sites before it that the
        graph does not show, in the order in which a tool puts them side by side."""
        if layer is None:
            names = {"embedding": [EMBEDDING], "final_norm": [FINAL_NORM], "head": [output_tensor(self.config)]}
        else:
            names = {one: [f"model.layers.{layer}.{name}" for name in ends] for one, ends in _TENSORS.items()}
        shown, order, last = self._shown(layer), _order(layer), self._next_shown(layer, site)
        first = order.index(_MIDDLE) if _MIDDLE in shown and order.index(_MIDDLE) < order.index(last) else 0
        hidden = [one for one in order[first : order.index(last)] if one not in shown]
        return names.get(last, []), [name for one in hidden for name in names.get(one, [])]

    def _next_shown(self, layer: int | None, site: str) -> str:
        """A site, or the next one that the graph shows where it does not show that; itself where it shows none."""
        shown, order = self._shown(layer), _order(layer)
        return next((one for one in order[order.index(site) :] if one in shown), site)

    def _shown(self, layer: int | None) -> Mapping[str, str]:
        """The names of the values in the graph, by site."""
        if layer is not None:
            return self.sites.layers[layer]
        ends = {"embedding": self.sites.streams[0], "final_norm": self.sites.final_norm, "head": self.logits}
        return {site: value for site, value in ends.items() if value}

    @cached_property
    def _known(self) -> set[str]:
        layers = (self._shown(layer) for layer in range(len(self.sites.layers)))
        return {value for shown in (self._shown(None), *layers) for value in shown.values()}

    def _read(self, node: onnx.NodeProto, place: int) -> Iterator[UsedWeight]:
        """An input of a node that is an initializer, turned over or not."""
        name, turned = str(node.input[place]), place == 1 and self._takes_inputs_first(node)
        while name in self.flow.maker and self.flow.maker[name].op_type in _MOVING:
            turned ^= self.flow.maker[name].op_type == "Transpose"
            name = str(self.flow.maker[name].input[0])
        if name in self.weights.shapes and self.weights.read is not None:
            values = self.weights.read(name)
            yield UsedWeight(name, values.T.contiguous() if turned and values.ndim == 2 else values)

    @staticmethod
    def _takes_inputs_first(node: onnx.NodeProto) -> bool:
        """Whether it is a product with a matrix that lies [in, out]."""
        turned = any(item.name == "transB" and item.i for item in node.attribute)
        return node.op_type in ("MatMul", "Gemm", "FusedMatMul") and not turned


def _order(layer: int | None) -> tuple[str, ...]:
    return _ENDS if layer is None else LAYER_SITES
