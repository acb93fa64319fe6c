"""An ONNX decoder that another tool exported, behind the Decoder interface, on ONNX Runtime's CPU provider.

It is called the way its own runtime calls it: a cache that grows is handed back as it came out, and rows of unequal
length are padded on the left; one that past and present share is bound once, and rows are padded on the right. The
interface's own padding, on the right, is turned into that on the way in, and back on the way out. Where the prompt has
a graph of its own, that one makes the first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.element_types import element_of
from blockexport.models.errors import ArtifactError, UsageError
from blockexport.models.interface import Ends, Interface
from blockexport.runtime.decoder import Decoder, Foreign, require_shape
from blockexport.runtime.foreign import names as roles
from blockexport.runtime.foreign.foreign_convention import Cache
from blockexport.runtime.foreign.foreign_file import ForeignFile
from blockexport.runtime.foreign.foreign_graph import CallValues, DoesNotRunError, ForeignGraph

Observer = Callable[[str, torch.Tensor], None]


class ForeignDecoder(Decoder):
    """What all conventions have in common: the sessions, calls of one token, a trial run.

    Attributes:
        observer: told of the values that a file has `watched` after each run of its graph, and of the caches, by slot,
            each under a key; None is nobody.
        in_turn: caches are handed out as copies, which the next run leaves alone.

    Args:
        files: the graph that takes a cache, and the one for the prompt where there is one.
        config: of the checkpoint.
        slots: tokens that a row may hold.
    """

    foreign: Foreign
    observer: Observer | None = None
    in_turn = False

    def __init__(self, files: Sequence[ForeignFile], config: ModelConfig, slots: int) -> None:
        self.files = files
        graphs = [ForeignGraph(file, config) for file in files]
        self.graph = next(graph for graph in graphs if graph.convention.cache is not Cache.NONE)
        self.first = next((graph for graph in graphs if graph is not self.graph), self.graph)
        self.convention = self.graph.convention
        self.interface = Interface(config, element_of(self.convention.dtype), slots)
        apart = "" if self.first is self.graph else f"; a graph of its own for the prompt, {self.first.path.name}"
        single = self.first.convention.one_token
        self.foreign = Foreign(self.convention.sentence + apart, self._no_slots(), self._no_rows(), single)
        self.reset()

    def probe(self) -> None:
        """Run two tokens and one more, to see that the file runs, whether it gives the last logits only, and whether
        it takes rows. A shape that is wrong is left for the checks to find.

        Raises:
            UsageError: it does not run.
        """
        length = min(2, self.max_sequence_length - 1)
        if length < 1:
            raise UsageError("a cache of one slot leaves nothing to judge: give -M 2 or more")
        try:
            self.reset()
            outputs = self._run(torch.zeros(1, length, dtype=torch.int64), torch.arange(length)[None])
            short = outputs.dim() == 3 and outputs.shape[1] == 1 < length
            if short and not self.first.convention.all_logits:
                self.interface = replace(self.interface, ends=Ends.LAST_LOGITS)
            if self.one_a_row and self.convention.cache is not Cache.GROWING and self.foreign.no_rows is None:
                why = "the file gives logits of the last column only, which in a shorter row is padding"
                self.foreign = replace(self.foreign, no_rows=why)
            self._try(1, length)
        except DoesNotRunError as error:
            raise UsageError(str(error)) from error
        except ArtifactError:
            return
        try:
            if self.foreign.no_rows is None:
                self._try(2, length)
        except DoesNotRunError as error:
            self.foreign = replace(self.foreign, no_rows=f"the file does not run with rows of unequal length: {error}")
        except ArtifactError:
            pass
        self.reset()

    def _try(self, rows: int, length: int) -> None:
        self.reset(rows)
        lengths_B = torch.tensor([length] + [1] * (rows - 1))
        self.prefill(torch.zeros(rows, length, dtype=torch.int64), lengths_B)
        self.step(torch.zeros(rows, 1, dtype=torch.int64))

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        self._check_call(position_ids_BS)
        start = int(position_ids_BS[:, 0].max())
        graph = self.graph if start else self.first
        if not (graph.convention.one_token and inputs.shape[1] > 1):
            return self._call_graph(graph, inputs, position_ids_BS)
        steps = zip(inputs.split(1, 1), position_ids_BS.split(1, 1), strict=True)
        observer, told = self.observer, dict[str, list[torch.Tensor]]()
        if observer is not None:
            self.observer = lambda key, value: told.setdefault(key, []).append(value)
        try:
            outputs = torch.cat([self._call_graph(graph, ids_B1, at_B1) for ids_B1, at_B1 in steps], 1)
        finally:
            self.observer = observer
        for key, values in told.items():
            assert observer is not None
            observer(key, values[-1] if ".cache_" in key else _joined(values))
        return outputs

    def _call_graph(self, graph: ForeignGraph, ids_BS: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """One call of a graph."""
        raise NotImplementedError

    def _check_call(self, position_ids_BS: torch.Tensor) -> None:
        """Refuse positions that the convention has no way to say."""

    def _run_graph(
        self, graph: ForeignGraph, values: CallValues, past: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits and caches."""
        found, layers = graph.convention.names, graph.convention.layers
        feeds = graph.given(values)
        pasts = zip(io_names.past_names(layers), past, strict=True)
        feeds |= {found.inputs[role]: tensor for role, tensor in pasts if role in found.inputs}
        wanted = [found.outputs[role] for role in (io_names.LOGITS, *io_names.present_names(layers))]
        seen = self._names_watched(graph)
        outputs = graph.run(feeds, [*wanted, *seen], values.ids_BS.shape[1], values.start)
        logits, present = outputs[0], outputs[1 : len(wanted)]
        self._tell(graph, dict(zip(seen, outputs[len(wanted) :], strict=True)))
        return logits.to(self.dtype), present

    @property
    def fed(self) -> str:
        """Tokens are no value to be watched."""
        return ""

    def _names_watched(self, graph: ForeignGraph) -> list[str]:
        if self.observer is None:
            return []
        return list(dict.fromkeys(graph.watched.values()))

    def _tell(self, graph: ForeignGraph, seen: Mapping[str, torch.Tensor]) -> None:
        """Hand values of a run to the observer."""
        if self.observer is not None:
            for key, name in graph.watched.items():
                self.observer(key, seen[name])

    def _tell_caches(self) -> None:
        """Hand the caches to the observer as they are after a call, [B, K, M, H] each."""
        if self.observer is not None:
            for layer in range(self.config.num_hidden_layers):
                for kind, tensor in zip(("key", "value"), self.cache(layer), strict=True):
                    self.observer(f"{layer}.cache_{kind}", tensor)

    def _require_caches(self, present: Sequence[torch.Tensor], slots: int, position_ids_BS: torch.Tensor) -> None:
        """Hold the caches of a call against what they should hold."""
        shape = (len(position_ids_BS), self.config.num_key_value_heads, slots, self.config.head_dim)
        for role, tensor in zip(io_names.present_names(self.convention.layers), present, strict=True):
            require_shape(self.convention.names.outputs[role], tensor.shape, shape, position_ids_BS)

    def _no_slots(self) -> str | None:
        """Why there are no slots to look at; None where there are."""
        raise NotImplementedError

    def _no_rows(self) -> str | None:
        """Why rows of unequal length cannot be run; None where they can."""
        graphs = {self.first.path: self.first, self.graph.path: self.graph}.values()
        if any(graph.convention.fixed_batch is not None for graph in graphs):
            return "the file fixes its batch at one row"
        blind = [graph for graph in graphs if roles.ATTENTION_MASK not in graph.convention.ports]
        if blind:
            return f"{blind[0].path.name} has no {roles.ATTENTION_MASK}, so padding cannot be told from rows' tokens"
        if self.first.convention.one_token:
            return "the file takes one token in each call, so rows of unequal length cannot be padded"
        return None


def _joined(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """A value of one row in calls of one token each, as it would be in one call: along the token's axis."""
    axis = max((axis for axis in range(values[0].dim() - 1) if values[0].shape[axis] == 1), default=0)
    return torch.cat(list(values), axis)
