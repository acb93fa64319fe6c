"""The whole decoder in plain PyTorch: entry, L blocks, exit. Pure: the cache comes in and goes out.

`enter`, the blocks and `leave` are the three parts the exporter traces; `forward` strings them together and is what
"eager" means everywhere in this project. Parameter names are those of a Hugging Face checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from blockexport.models.block.block import Block
from blockexport.models.block.cache import visible_slots
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.multipliers import embedded, finished
from blockexport.models.block.norm import Norm
from blockexport.models.block.pooling import at_columns, last_columns, pooled
from blockexport.models.block.rope import named_tables, table_names
from blockexport.models.block.unset_weights import Embedding, Linear
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Ends


class Stack(nn.Module):
    """Embedding, blocks and final norm: what a Hugging Face checkpoint calls `model`."""

    def __init__(self, config: ModelConfig, ends: Ends) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size) if ends.from_ids else None
        learned = config.learned_positions and (ends.from_ids or ends.headless)
        positions = config.max_position_embeddings if learned else 0
        self.embed_positions = Embedding(positions, config.hidden_size) if positions else None
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm: nn.Module = Norm(config, config.hidden_size) if ends.normed else nn.Identity()


class DecoderModel(nn.Module):
    """A decoder with a static cache as an argument.

    Args:
        config: dimensions and options.
        table_rows: rows of the RoPE table; positions must stay below it.
        ends: what goes in and comes out. A row's last token is where its positions are highest.
    """

    def __init__(self, config: ModelConfig, table_rows: int, ends: Ends = Ends.LOGITS) -> None:
        super().__init__()
        self.config = config
        self.ends = ends
        self.windows = sorted({config.window_of(i) for i in range(config.num_hidden_layers)}, key=lambda w: w or 0)
        self.model = Stack(config, ends)
        has_own = ends.to_logits and (config.head_bias or not config.tie_word_embeddings)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=config.head_bias) if has_own else None
        if self.lm_head is not None and config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", None)
        self.cos: torch.Tensor
        self.sin: torch.Tensor
        for (cos_name, sin_name), (cos, sin) in named_tables(config, table_rows).items():
            self.register_buffer(cos_name, cos, persistent=False)
            self.register_buffer(sin_name, sin, persistent=False)

    def enter(
        self, inputs: torch.Tensor, position_ids_BS: torch.Tensor, past_key_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """The stream [T, D], write indices [B] and one mask [B, 1, S, M] per distinct window (`self.windows`).

        M is read off a cache's own shape, so that nothing in the exported graph depends on its value.
        """
        rows = inputs if self.model.embed_tokens is None else self.model.embed_tokens(inputs)
        positions = self.model.embed_positions
        learned = None if positions is None else positions(position_ids_BS)
        slots_M = torch.arange(past_key_BKMH.shape[2], device=position_ids_BS.device)
        masks = [visible_slots(position_ids_BS, slots_M, window) for window in self.windows]
        begins = self.ends.from_ids or self.ends.headless
        stream = embedded(rows, self.config, learned) if begins else rows
        return stream.reshape(-1, self.config.hidden_size), position_ids_BS[:, 0], masks

    def leave(self, x_TD: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Logits [B, S, V] ([B, 1, V] of the last tokens only), or of what has no head hidden states [B, S, D], or
        embeddings [B, D]."""
        batch, length = position_ids_BS.shape
        x_TD = self.model.norm(x_TD)
        if not self.ends.to_logits or self.ends.last_logits_only:
            x_BSD = x_TD.view(batch, length, self.config.hidden_size)
            if self.ends.pooling is not None:
                last_B, normalize = last_columns(position_ids_BS), self.ends.normalizes
                return pooled(x_BSD, last_B, self.ends.pooling, normalize=normalize)
            if not self.ends.to_logits:
                return x_BSD
            x_TD, length = at_columns(x_BSD, last_columns(position_ids_BS)), 1
        bias = None if self.lm_head is None else self.lm_head.bias
        logits_TV = finished(F.linear(x_TD, self.output_weight, bias), self.config)
        return logits_TV.view(batch, length, self.config.vocab_size)

    @property
    def output_weight(self) -> torch.Tensor:
        """The output projection [V, D]: the head's own, or the embedding it is tied to."""
        if self.lm_head is not None and not self.config.tie_word_embeddings:
            return self.lm_head.weight
        assert self.model.embed_tokens is not None
        return self.model.embed_tokens.weight

    def forward(
        self, inputs: torch.Tensor, position_ids_BS: torch.Tensor, past_key_values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """One forward pass.

        Args:
            inputs: int64 ids [B, S], rows of the embedding [B, S, D] when headless, or the stream [B, S, D] that enters
                a stage.
            position_ids_BS: int64, contiguous in each row; a token's position is its cache slot.
            past_key_values: 2L tensors [B, K, M, H], key and value of each layer in turn.

        Returns:
            Logits (or hidden states, or embeddings) and the 2L updated caches.
        """
        x_TD, write_indices_B, masks = self.enter(inputs, position_ids_BS, past_key_values[0])
        present: list[torch.Tensor] = []
        for i, layer in enumerate(self.model.layers):
            mask = masks[self.windows.index(self.config.window_of(i))]
            cos, sin = (self.get_buffer(name) for name in table_names(self.config, i))
            step = Step(position_ids_BS, write_indices_B, mask, cos, sin)
            x_TD, key, value = layer(x_TD, step, past_key_values[2 * i], past_key_values[2 * i + 1])
            present += [key, value]
        return self.leave(x_TD, position_ids_BS), present
