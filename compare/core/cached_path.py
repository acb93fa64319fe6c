"""The eager cached path, run layer by layer instead of call by call, so that one layer's weights are in memory.

A layer's outputs on every call depend on nothing but the outputs of the layer before and its own cache, so all calls of
a teacher-forced decode can go through layer 0, then layer 1. Many variants of the model (one defect each) share a pass
over the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from blockexport.compare.core.defect import CACHE_KINDS, NOTHING_WRONG, Defect, LayerBlock
from blockexport.compare.core.nudge import Nudge
from blockexport.compare.core.weights_in_parts import make_block, make_final_norm, project, with_head_bias
from blockexport.models.block.cache import visible_slots
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.multipliers import finished
from blockexport.models.block.rope import rope_table_rows, rope_tables
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import Entrance
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends
from blockexport.models.progress import Progress, counted, silent

Past = tuple[torch.Tensor, torch.Tensor]
"""A layer's key and value caches, [1, K, M, H] each."""


@dataclass(frozen=True)
class Case:
    """A defect, in which layers (None: all), and from which position on (in calls that start there or later).

    With a nudge the run rounds anew.
    """

    defect: Defect = NOTHING_WRONG
    layers: frozenset[int] | None = None
    first_position: int = 0
    nudge: Nudge | None = None

    def acts(self, layer: int, call: range) -> bool:
        """Whether the defect is there in a layer during a call."""
        return call.start >= self.first_position and (self.layers is None or layer in self.layers)

    def touches(self, layer: int) -> bool:
        """Whether a layer ever computes otherwise than it should."""
        inside = self.defect.in_blocks or self.defect.weights_of(layer) != layer
        return self.nudge is not None or (inside and (self.layers is None or layer in self.layers))

    @property
    def scope(self) -> str:
        """Where and when, for people; empty when everywhere and always."""
        parts = []
        if self.layers is not None:
            names = ", ".join(str(layer) for layer in sorted(self.layers))
            parts.append(f"only in layer{'s' if len(self.layers) > 1 else ''} {names}")
        if self.first_position:
            parts.append(f"from position {self.first_position} on")
        return ", ".join(parts)


def defective(block: LayerBlock, layer: int, defect: Defect, checkpoint: Checkpoint) -> LayerBlock:
    """A block with the defect in it, of the type of `block`, which stays as it is; `block` where it has no effect."""
    other = defect.weights_of(layer)
    if other != layer:
        return make_block(checkpoint, layer, block.self_attn.q_proj.weight.dtype, weights_of=other)
    if not defect.in_blocks:
        return block
    with torch.device("meta"):
        made = defect.block(block.config, layer)
    made.load_state_dict(block.state_dict(), assign=True)
    made.requires_grad_(False).eval()
    defect.edit(made)
    return made


class CachedPath:
    """One row of tokens through prefill and decode.

    Args:
        checkpoint: the weights.
        dtype: of weights, activations and cache.
        ids_S: int64, the tokens.
        calls: the positions of each call in turn, as `Plan.calls` gives them.
        max_sequence_length: M.
        ends: a headless one gives hidden states after the final norm instead of logits; where embeddings come out,
            they do after every call.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        ids_S: torch.Tensor,
        calls: Sequence[range],
        max_sequence_length: int,
        ends: Ends = Ends.LOGITS,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.dtype = dtype
        self.ids_S = ids_S
        self.calls = list(calls)
        self.slots = max_sequence_length
        self.ends = ends
        rows = rope_table_rows(self.config, max_sequence_length)
        self._tables = dict(zip(self._windows(), rope_tables(self.config, rows), strict=True))

    @torch.no_grad()
    def run(
        self,
        cases: Sequence[Case],
        positions: Sequence[int],
        progress: Progress = silent,
        *,
        label: str = "explain: trying defects, layer",
    ) -> list[torch.Tensor]:
        """Outputs [len(positions), V] of each case in turn ([.., D] of hidden states and embeddings).

        Layers before the first that a case touches are run once for all such cases.
        """
        # Calls before any of the defects acts are the same for all cases, and are run once.
        starts = [case.first_position for case in cases if case.defect is not NOTHING_WRONG]
        late = 0 if any(case.nudge is not None for case in cases) else min(starts, default=0)
        shared = [call for call in self.calls if call.start < late]
        begin = shared[-1].stop if shared else 0
        head_TD = self._entering(Case())[:begin]
        kinds = [(self._ends(case), case.defect.positions) for case in cases]
        entering = {kind: self._entering(case)[begin:] for kind, case in zip(kinds, cases, strict=True)}
        tails = [entering[kind] for kind in kinds]
        for layer in counted(range(self.config.num_hidden_layers), label, progress):
            block = make_block(self.checkpoint, layer, self.dtype)
            head_TD, past = self._walk(block, block, shared, None, head_TD, self._empty())
            tails = self._tails(block, layer, cases, tails, past)
        return self._outputs(cases, [torch.cat((head_TD, x_TD)) for x_TD in tails], positions)

    @torch.no_grad()
    def run_by_call(self, case: Case, positions: Sequence[int], progress: Progress = silent) -> torch.Tensor:
        """Outputs [len(positions), V] of a model whose layers read each other's caches.

        What a layer finds there, another has made in the call before: so all layers run in one call before the next
        begins, and each layer's weights are read again for each call.
        """
        layers = self.config.num_hidden_layers
        entering_TD = self._entering(case)
        empty, streams = self._empty(), list[torch.Tensor]()
        left = dict.fromkeys(range(layers), empty)
        for call in counted(self.calls, "explain: trying exchanged caches, call", progress):
            reads = case.defect.reads if call.start >= case.first_position else {}
            x_SD, made = entering_TD[call.start : call.stop], dict[int, Past]()
            for layer in range(layers):
                block = make_block(self.checkpoint, layer, self.dtype)
                sources = [reads.get((layer, kind), (layer, kind)) for kind in CACHE_KINDS]
                key, value = (left[s[0]][CACHE_KINDS.index(s[1])] if s else empty[0] for s in sources)
                x_SD = x_SD if case.nudge is None else case.nudge(x_SD)
                x_SD, *past = block(x_SD, self.step(call, block.window), key, value)
                made[layer] = (past[0], past[1])
            left = made
            streams.append(x_SD)
        return self._outputs([case], [torch.cat(streams)], positions)[0]

    def _outputs(
        self, cases: Sequence[Case], streams: Sequence[torch.Tensor], positions: Sequence[int]
    ) -> list[torch.Tensor]:
        """What final norm and head make of the streams [T, D] that leave the last layer."""
        sound = make_final_norm(self.checkpoint, self.dtype)
        # What is confined to some layers leaves the norm after them as it is.
        norms = [case.defect.norm if case.layers is None else NOTHING_WRONG.norm for case in cases]
        if self.ends.pooling is not None:
            normed = [norm(sound)(x_TD) for norm, x_TD in zip(norms, streams, strict=True)]
            return [self._embeddings(case, states, positions) for case, states in zip(cases, normed, strict=True)]
        kept = torch.tensor(list(positions), dtype=torch.int64)
        normed = [norm(sound)(x_TD[kept]) for norm, x_TD in zip(norms, streams, strict=True)]
        return normed if self.ends.to_states else self._project(cases, normed)

    def _embeddings(self, case: Case, states_TD: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """The embeddings [P, D] of the calls that end at some positions."""
        starts = {call.stop - 1: call.start for call in self.calls}
        return torch.cat([case.defect.pool(states_TD[starts[p] : p + 1], self.ends) for p in positions])

    @torch.no_grad()
    def caches(self, nudge: Nudge | None = None) -> Iterator[Past]:
        """Each layer's cache after all calls, with nothing wrong; one layer's is held at a time."""
        x_TD = self._entering(Case())
        for layer in range(self.config.num_hidden_layers):
            block = make_block(self.checkpoint, layer, self.dtype)
            entering_TD = x_TD if nudge is None else nudge(x_TD)
            x_TD, past = self._walk(block, block, self.calls, None, entering_TD, self._empty())
            yield past

    def run_clean(
        self, positions: Sequence[int], progress: Progress = silent, nudge: Nudge | None = None
    ) -> torch.Tensor:
        """Outputs [len(positions), V] with nothing wrong."""
        label = f"explain: eager in {str(self.dtype).removeprefix('torch.')}, layer"
        return self.run([Case(nudge=nudge)], positions, progress, label=label)[0]

    def _ends(self, case: Case) -> ModelConfig:
        """The config by which embedding and logits are scaled; what is confined to some layers leaves that as it is."""
        return self.config if case.layers is not None else case.defect.ends(self.config)

    def _entering(self, case: Case) -> torch.Tensor:
        """The stream [T, D] that enters the first layer."""
        given = [place for call in self.calls for place in case.defect.positions(call)]
        places_T = torch.tensor(given).clamp(0, self.config.max_position_embeddings - 1)
        entrance, ids_T = Entrance(self.checkpoint), self.ids_S[: self.calls[-1].stop]
        return entrance.stream(ids_T, places_T, partial(torch.Tensor.to, dtype=self.dtype), self._ends(case))

    def _empty(self) -> Past:
        shape = (1, self.config.num_key_value_heads, self.slots, self.config.head_dim)
        return torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype)

    def _tails(
        self, block: LayerBlock, layer: int, cases: Sequence[Case], tails: Sequence[torch.Tensor], past: Past
    ) -> list[torch.Tensor]:
        """`_tail` of each case. What no defect has touched yet is one and the same tensor, and is run once."""
        untouched: dict[int, torch.Tensor] = {}
        after = []
        for case, x_TD in zip(cases, tails, strict=True):
            if case.touches(layer):
                after.append(self._tail(block, layer, case, x_TD, past))
                continue
            if id(x_TD) not in untouched:
                untouched[id(x_TD)] = self._tail(block, layer, Case(), x_TD, past)
            after.append(untouched[id(x_TD)])
        return after

    def _tail(self, block: LayerBlock, layer: int, case: Case, x_TD: torch.Tensor, past: Past) -> torch.Tensor:
        """A layer on the calls that the cases do not share."""
        calls = [call for call in self.calls if call.start >= self.calls[-1].stop - x_TD.shape[0]]
        x_TD = x_TD if case.nudge is None else case.nudge(x_TD)
        wrong = defective(block, layer, case.defect, self.checkpoint)
        acting = [call for call in calls if case.acts(layer, call)]
        return self._walk(block, wrong, calls, acting, x_TD, past)[0]

    def _walk(
        self,
        block: LayerBlock,
        wrong: LayerBlock,
        calls: Sequence[range],
        acting: Sequence[range] | None,
        x_TD: torch.Tensor,
        past: Past,
    ) -> tuple[torch.Tensor, Past]:
        """A layer on some calls in turn, as `wrong` has it on those that are `acting`; and its cache after them."""
        outputs, (key, value) = [x_TD[:0]], past
        first = calls[0].start if calls else 0
        for call in calls:
            chosen = wrong if acting is not None and call in acting else block
            x_SD = x_TD[call.start - first : call.stop - first]
            out_SD, key, value = chosen(x_SD, self.step(call, block.window), key, value)
            outputs.append(out_SD)
        return torch.cat(outputs), (key, value)

    def step(self, call: range, window: int | None) -> Step:
        """What the layers of a window share in a call."""
        position_ids = torch.arange(call.start, call.stop)[None]
        mask = visible_slots(position_ids, torch.arange(self.slots), window)
        return Step(position_ids, position_ids[:, 0], mask, *self._tables[window])

    def _windows(self) -> list[int | None]:
        """The window of each layer, which decides about its RoPE as well."""
        return [self.config.window_of(layer) for layer in range(self.config.num_hidden_layers)]

    def _project(self, cases: Sequence[Case], normed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        heads, logits = [case.defect.output(self.config) for case in cases], dict[int, torch.Tensor]()
        for name in sorted(set(heads)):
            of_head = [i for i, head in enumerate(heads) if head == name]
            made = project(self.checkpoint.read(name), [normed[i] for i in of_head])
            logits.update(zip(of_head, made, strict=True))
        ends = [self._ends(case) for case in cases]
        biased = [with_head_bias([logits[i]], self.checkpoint, config)[0] for i, config in enumerate(ends)]
        return [finished(one, config) for one, config in zip(biased, ends, strict=True)]
