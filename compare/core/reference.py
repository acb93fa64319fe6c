"""The judge's oracle: the whole sequence at once, in float64, without a cache, one layer of weights in memory.

Nothing here touches the cached path: the blocks' own projections and attention are applied to the full sequence, keys
and values of the prefix straight from the projection. The RoPE table stays the float32 one the model is served with,
widened. Run in another type, the same function shows what that type's arithmetic costs; with `round_weights_to`, what
rounding the weights alone costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from blockexport.compare.core.defect import LayerBlock, output_tensor
from blockexport.compare.core.nudge import Nudges
from blockexport.compare.core.weights_in_parts import make_block, make_final_norm, project, widened, with_head_bias
from blockexport.models.block.cache import visible_slots
from blockexport.models.block.multipliers import finished
from blockexport.models.block.norm import Norm
from blockexport.models.block.rope import rope_tables
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import Entrance
from blockexport.models.interface import Ends
from blockexport.models.progress import Progress, counted, silent

QUERY_BLOCK = 128  # queries whose scores exist at a time: [N, 128, S] and never [N, S, S]
TOKEN_BLOCK = 1024  # tokens in the MLP's wide middle at a time


_ENTERED = {
    "self_attn.o_proj": "the attention output",
    "mlp.down_proj": "the product inside the MLP",
}


class Reference:
    """A checkpoint run whole, layer by layer.

    Args:
        checkpoint: where the weights are read from, one tensor at a time.
        dtype: type of the arithmetic.
        round_weights_to: a type every weight is rounded to before it is widened to `dtype`.
        ends: a headless one, or one that gives embeddings, has hidden states after the final norm [S, D] for its
            outputs instead of logits [S, V].
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float64,
        round_weights_to: torch.dtype | None = None,
        ends: Ends = Ends.LOGITS,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.dtype = dtype
        self.round_weights_to = round_weights_to
        self.to_states = ends.to_states

    def run(
        self,
        sequences: Sequence[torch.Tensor],
        positions: Sequence[Sequence[int]],
        progress: Progress = silent,
    ) -> list[torch.Tensor]:
        """Outputs of several independent sequences in one pass over the weights.

        Args:
            sequences: int64 token ids [S], each of its own length.
            positions: for each sequence, the positions whose outputs are kept.
            progress: told the layers done.

        Returns:
            For each sequence [len(positions), V] in `dtype` ([len(positions), D] of hidden states).
        """
        return next(self.runs(sequences, positions, (None,), progress))

    @torch.inference_mode()
    def runs(
        self,
        sequences: Sequence[torch.Tensor],
        positions: Sequence[Sequence[int]],
        nudges: Nudges,
        progress: Progress = silent,
    ) -> Iterator[list[torch.Tensor]]:
        """What `run` gives, once for each of `nudges`, in one pass over the layers' weights.

        One run's outputs exist at a time: those of a large vocabulary are larger than all streams together.
        """
        layers = self.config.num_hidden_layers
        label = f"reference in {str(self.dtype).removeprefix('torch.')}: layer"
        entering = self._embed(sequences)
        streams = [entering for _ in nudges]
        tables = rope_tables(self.config, max(len(ids) for ids in sequences))
        for i in range(layers):
            progress(label, i, layers + 1)
            block = self._block(i)
            streams = [
                [self._layer(block, x_TD if nudge is None else nudge(x_TD), *tables[i]) for x_TD in run]
                for nudge, run in zip(nudges, streams, strict=True)
            ]
        progress(label, layers, layers + 1)
        norm = self._final_norm()
        for run in streams:
            kept = [
                x_TD[torch.tensor(list(keep), dtype=torch.int64)] for x_TD, keep in zip(run, positions, strict=True)
            ]
            normed = [norm(x_TD) for x_TD in kept]
            yield normed if self.to_states else self._project(normed)
        progress(label, layers + 1, layers + 1)

    @torch.inference_mode()
    def keys_values(
        self, ids_S: torch.Tensor, nudges: Nudges = (None,), progress: Progress = silent
    ) -> list[list[torch.Tensor]]:
        """What the cache has to hold, for each of `nudges`: keys (after RoPE) and values [S, K * H] of each layer in
        turn, in `dtype`."""
        positions_1S = torch.arange(len(ids_S))[None]
        streams = [self._embed([ids_S])[0] for _ in nudges]
        tables = rope_tables(self.config, len(ids_S))
        found: list[list[torch.Tensor]] = [[] for _ in nudges]
        for i in counted(range(self.config.num_hidden_layers), "keys and values: layer", progress):
            block = self._block(i)
            for run, nudge in enumerate(nudges):
                x_TD = streams[run] if nudge is None else nudge(streams[run])
                _, *kept = block.self_attn.project(block.normed("attention_in", x_TD), positions_1S, *tables[i])
                found[run] += [tensor_BKSH[0].transpose(0, 1).flatten(1) for tensor_BKSH in kept]
                streams[run] = self._layer(block, x_TD, *tables[i])
        return found

    def values(self, ids_S: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """What the model makes of one sequence on the way: the stream, what each module gives, and what enters the
        output projections. Each with its name for people, in order; one layer's are in memory at a time."""
        with torch.inference_mode():
            x_TD = self._embed([ids_S])[0]
        yield "the embedding", x_TD
        tables = rope_tables(self.config, len(ids_S))
        for i in range(self.config.num_hidden_layers):
            block, found = self._block(i), list[tuple[str, torch.Tensor]]()
            entered = {**_ENTERED, block.norms.get("mlp_in", ""): "the residual stream after attention"}
            for name, module in block.named_modules():
                if name and name in entered:
                    module.register_forward_pre_hook(_note(found, entered[name]))
                if not list(module.children()):
                    module.register_forward_hook(_note(found, name))
            with torch.inference_mode():
                x_TD = self._layer(block, x_TD, *tables[i])
            yield from ((f"layer {i}, {name}", value) for name, value in found)
            yield f"layer {i}, the residual stream after it", x_TD
        with torch.inference_mode():
            normed_TD = self._final_norm()(x_TD)
            yield "the final norm", normed_TD
            if not self.to_states:
                yield "the output head", self._project([normed_TD])[0]

    def _convert(self, weight: torch.Tensor) -> torch.Tensor:
        return widened(weight, self.dtype, self.round_weights_to)

    def _embed(self, sequences: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        entrance = Entrance(self.checkpoint)
        return [entrance.stream(ids, torch.arange(len(ids)), self._convert) for ids in sequences]

    def _block(self, layer: int) -> LayerBlock:
        return make_block(self.checkpoint, layer, self.dtype, rounded_to=self.round_weights_to)

    def _final_norm(self) -> Norm:
        return make_final_norm(self.checkpoint, self.dtype, self.round_weights_to)

    def _layer(self, block: LayerBlock, x_TD: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        length, window = x_TD.shape[0], block.window
        positions_1S = torch.arange(length)[None]
        attention = block.self_attn
        q, k, v = attention.project(block.normed("attention_in", x_TD), positions_1S, cos, sin)
        mixed = []
        for start in range(0, length, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, length)
            first = 0 if window is None else max(0, start - window + 1)
            mask = visible_slots(positions_1S[:, start:stop], torch.arange(first, stop), window)
            mixed.append(attention.attend(q[:, :, start:stop], k[:, :, first:stop], v[:, :, first:stop], mask))
        parts = (stream.split(TOKEN_BLOCK) for stream in (x_TD, attention.o_proj(torch.cat(mixed))))
        return torch.cat([block.finish(*part) for part in zip(*parts, strict=True)])

    def _project(self, normed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        products = project(self.checkpoint.read(output_tensor(self.config)), normed, self.round_weights_to)
        biased = with_head_bias(products, self.checkpoint, self.config, self.round_weights_to)
        return [finished(one, self.config) for one in biased]


def _note(found: list[tuple[str, torch.Tensor]], name: str) -> Callable[..., None]:
    """A hook that notes what a module gives, or before it runs what it is given."""
    return lambda module, inputs, *output: found.append((name, *(output or inputs[:1])))
