"""One ONNX graph of another tool in ONNX Runtime: what a call needs, given to the inputs that the graph has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import ArtifactError, NotJudgedError, UsageError
from blockexport.runtime.foreign import names as roles
from blockexport.runtime.foreign.foreign_convention import ForeignPort
from blockexport.runtime.foreign.foreign_file import ForeignFile
from blockexport.runtime.onnx_session import open_session, ort, session_options

_CAST = "InsertedPrecisionFreeCast_"  # what ONNX Runtime calls casts around an operator that it has no kernel for


class DoesNotRunError(ArtifactError):
    """ONNX Runtime loads a graph and fails while it runs it."""


@dataclass(frozen=True)
class CallValues:
    """What there is to say about a call.

    Attributes:
        ids_BS: the new tokens.
        columns_BT: True where a column of past and new entries belongs to a row.
        positions_BS: of the new tokens.
        start: columns or slots that are taken before the call.
        visible: the mask [B, 1, S, T or M] under a window, or under none.
    """

    ids_BS: torch.Tensor
    columns_BT: torch.Tensor
    positions_BS: torch.Tensor
    start: int
    visible: Callable[[int | None], torch.Tensor]


class ForeignGraph:
    """A graph ready to run.

    Args:
        file: the file.
        config: of the checkpoint.

    Raises:
        UsageError: it does not load, or its masks do not say which layers have a window.
        NotJudgedError: this ONNX Runtime lacks a kernel that it needs.
    """

    def __init__(self, file: ForeignFile, config: ModelConfig) -> None:
        self.path, self.model, self.convention, self.config = file.path, file.model, file.convention, config
        self.watched = file.watched
        options, model = session_options(), str(file.path)
        content = file.model.SerializeToString() if file.edited else model
        if file.edited:
            folder = str(file.path.parent)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        self.session = open_session(content, options, file.path, "Export it again.")
        self.windows = [config.window_of(layer) for layer in range(config.num_hidden_layers)]
        mask = file.convention.ports.get(roles.ATTENTION_MASK)
        if mask is not None and mask.rank == 4 and len(set(self.windows)) > 1:
            raise UsageError(
                f"{file.path} takes one {roles.ATTENTION_MASK} of four dimensions, and some layers of the model have a "
                f"window: known for that are {roles.FULL_MASK} and {roles.WINDOW_MASK}"
            )

    def given(self, call: CallValues) -> dict[str, torch.Tensor]:
        """The inputs that are no cache, by the file's names, in its types."""
        return {
            self.convention.names.inputs[role]: self._value(role, port, call)
            for role, port in self.convention.ports.items()
        }

    def _value(self, role: str, port: ForeignPort, call: CallValues) -> torch.Tensor:
        kind, _, layer = role.rpartition(".")
        if kind and layer.isdecimal():  # a number for each layer
            window = self.windows[int(layer)] if kind == roles.WINDOW.partition(".")[0] else call.start
            return torch.full([1] * port.rank, window or 0, dtype=port.dtype)
        match role:
            case roles.ATTENTION_MASK | roles.FULL_MASK | roles.WINDOW_MASK:
                return self._mask(role, port, call)
            case io_names.INPUT_IDS:
                value = call.ids_BS
            case io_names.POSITION_IDS:
                value = call.positions_BS
            case roles.CACHE_POSITION:
                value = torch.arange(call.start, call.start + call.ids_BS.shape[1])
            case roles.NUM_LOGITS_TO_KEEP:
                value = torch.full([1] * port.rank, call.ids_BS.shape[1])
            case _:
                assert role == roles.USE_CACHE_BRANCH
                value = torch.full([1] * port.rank, call.start > 0)
        return value.to(port.dtype).contiguous()

    def _mask(self, role: str, port: ForeignPort, call: CallValues) -> torch.Tensor:
        if port.rank == 2:
            return call.columns_BT.to(port.dtype).contiguous()
        windows = {roles.ATTENTION_MASK: self.windows[0], roles.FULL_MASK: None}
        visible = call.visible(windows.get(role, next((w for w in self.windows if w is not None), None)))
        if port.dtype == torch.bool:
            return visible.contiguous()
        blocked = torch.full(visible.shape, torch.finfo(port.dtype).min, dtype=port.dtype)
        return blocked.masked_fill(visible, 0.0)

    def run(
        self, feeds: Mapping[str, torch.Tensor], outputs: Sequence[str], length: int, start: int
    ) -> list[torch.Tensor]:
        """The named outputs.

        Raises:
            DoesNotRunError: a node fails.
            NotJudgedError: it fails without a kernel.
        """
        try:
            found = self.session.run(list(outputs), {name: tensor.numpy() for name, tensor in feeds.items()})
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            raise self.failed(error, length, start) from error
        return [torch.from_numpy(array) for array in found]

    def failed(self, error: Exception, length: int, start: int) -> Exception:
        """What a failed run means."""
        said = " ".join(str(error).split())
        _, cast, rest = said.partition(_CAST)
        if cast:
            value = rest.partition("'")[0]
            lacking = sorted({node.op_type for node in self.model.graph.node if value in node.input}) or [value]
            return NotJudgedError(
                f"ONNX Runtime {ort.__version__} has no kernel on a CPU for {', '.join(lacking)} in half precision, "
                f"which takes {value} in {self.path}, and does not get by without: {said}. Judge it where there is "
                "one, or export it in fp32"
            )
        return DoesNotRunError(
            f"ONNX Runtime {ort.__version__} does not run {self.path} on {length} tokens from position {start} on: "
            f"{said}"
        )
