"""Another tool's decoder, opened once more with its inner values as outputs, so that Locate can look into it."""

from __future__ import annotations

from itertools import chain

import onnx
from onnx import helper

from blockexport.compare.audits.artifact_weights import initializers
from blockexport.compare.audits.dataflow import Dataflow
from blockexport.compare.audits.sites_by_flow import SiteMap, find_sites
from blockexport.compare.explain.locate import WatchedSites
from blockexport.compare.explain.sites import LAYER_SITES
from blockexport.compare.explain.used_weights import Uses
from blockexport.models import io_names
from blockexport.models.errors import NotJudgedError
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_file import ForeignFile

_CACHES = ("cache_key", "cache_value")


def watch_foreign(decoder: ForeignDecoder) -> WatchedSites:
    """A second decoder of the same files, which tells its values, and where they are.

    Raises:
        NotJudgedError: a graph whose residual stream cannot be followed.
    """
    layers = decoder.config.num_hidden_layers
    found, files, uses = [], [], list[Uses]()
    for file in chain.from_iterable(file.branches() for file in decoder.files):
        model = onnx.ModelProto()
        model.CopyFrom(file.model)
        names = {**file.convention.names.inputs, **file.convention.names.outputs}
        flow = Dataflow(model.graph.node, [tensor.name for tensor in model.graph.initializer])
        sites = find_sites(flow, names, layers)
        if sites is None:
            raise NotJudgedError(
                f"not located: in the graph of {file.path} no residual stream is recognised, a chain of sums from the "
                "embedding on, so of this file nothing but its outputs is known"
            )
        watched, given = _keys(sites), {value.name for value in model.graph.output}
        others = (name for name in dict.fromkeys(watched.values()) if name not in given)
        model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in others)
        found.append(sites)
        held = initializers(file.model, file.path.parent)
        uses.append(Uses(flow, sites, names[io_names.LOGITS], held, decoder.config))
        files.append(ForeignFile(file.path, model, file.convention, edited=True, watched=watched))
    watching = type(decoder)(files, decoder.config, decoder.max_sequence_length)
    watching.interface, watching.foreign, watching.in_turn = decoder.interface, decoder.foreign, True
    return WatchedSites(watching, _site_map(found, layers), lambda call: uses[_graph(call)])


def _keys(sites: SiteMap) -> dict[str, str]:
    """What is watched, by `LAYER.SITE`; the caches are told by the decoder."""
    found = {f"{layer}.stream": str(value) for layer, value in enumerate(sites.streams)}
    for layer, values in enumerate(sites.layers):
        found |= {f"{layer}.{site}": value for site, value in values.items() if site not in _CACHES}
    return found | ({} if sites.final_norm is None else {"final_norm": sites.final_norm})


def _graph(call: int) -> int:
    """Which graph runs the call that begins at a position: the last is the prompt's."""
    return -1 if call == 0 else 0


def _site_map(found: list[SiteMap], layers: int) -> SiteMap:
    """The sites that all graphs show, and their nodes."""

    def node(call: int, layer: int | None, site: str) -> str:
        named = found[_graph(call)].nodes
        return "" if named is None else named(call, layer, site)

    shown = [set.intersection(*(set(sites.layers[layer]) for sites in found)) for layer in range(layers)]
    return SiteMap(
        layers=[{site: f"{layer}.{site}" for site in sites} for layer, sites in enumerate(shown)],
        hidden=[frozenset(LAYER_SITES) - sites for sites in shown],
        streams=[f"{layer}.stream" for layer in range(layers + 1)],
        final_norm="final_norm" if all(sites.final_norm for sites in found) else None,
        nodes=node,
    )
