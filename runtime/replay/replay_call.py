"""One node of a replayed graph: its attributes, its inputs as tensors, and how it complains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from blockexport.models.element_types import BY_ONNX
from blockexport.models.errors import NotJudgedError


@dataclass(frozen=True)
class Call:
    """A node about to be run. `inputs` holds None where the graph leaves an optional input out."""

    op_type: str
    name: str
    inputs: Sequence[torch.Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)

    def given(self, index: int) -> torch.Tensor | None:
        """An optional input."""
        return self.inputs[index] if index < len(self.inputs) else None

    def need(self, index: int) -> torch.Tensor:
        """A required input."""
        value = self.given(index)
        if value is None:
            raise self.refuse(f"input {index} is missing")
        return value

    def ints(self, index: int) -> list[int]:
        """A small integer input, such as a shape, as Python numbers."""
        values: list[int] = self.need(index).reshape(-1).tolist()
        return values

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's Python value."""
        return self.attributes.get(name, default)

    def dtype_attribute(self, name: str, default: int) -> torch.dtype:
        """An attribute that names an ONNX element type."""
        number = int(self.attribute(name, default))
        if number not in BY_ONNX:
            raise self.refuse(f"{name}={number} is an element type that the replay does not know")
        return BY_ONNX[number].torch_dtype

    def only(self, **allowed: Any) -> None:
        """Refuse an attribute whose value is not the one given here: ignoring it would replay another operator."""
        for name, value in allowed.items():
            if self.attribute(name, value) != value:
                raise self.refuse(f"{name}={self.attribute(name)} is not implemented (only {value})")

    def same_type(self, *indices: int) -> None:
        """Refuse inputs of differing types, as an ONNX checker does: nothing is promoted silently."""
        types = {self.need(i).dtype for i in indices}
        if len(types) > 1:
            raise self.refuse(f"its inputs differ in type: {', '.join(sorted(str(t) for t in types))}")

    def refuse(self, why: str) -> NotJudgedError:
        """The error that says which node cannot be replayed."""
        return NotJudgedError(f"the replay cannot run {self.op_type} (node {self.name!r}): {why}")


Kernel = Callable[[Call], torch.Tensor]


def wide(x: torch.Tensor) -> torch.Tensor:
    """The type sums are taken in: float32 for half precision, the tensor's own otherwise."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
