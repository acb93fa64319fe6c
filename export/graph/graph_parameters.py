"""The parameters of a graph as initializers: a tensor as it is, or the codes and scales of a quantised matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from blockexport.export.graph.graph_builder import GraphBuilder
from blockexport.models.quantisation import Quantisation
from blockexport.models.quantised_matrix import CODES, ORDER, SCALES, ZERO_POINTS, QuantisationScheme
from blockexport.models.side_by_side import SideBySide

TensorSource = Callable[[str], ir.TensorProtocol]
"""Gives the tensor behind a parameter's name, usually an ExternalTensor that points into a weights file."""


@dataclass(frozen=True)
class QuantisedParameter:
    """The initializers of a quantised matrix, and of those beside it.

    Attributes:
        name: of the matrix.
        tensors: which lie side by side, under what name.
        codes: of its values.
        scales: of its blocks.
        zero_points: of its blocks, where it has any.
        order: which input each row of the codes is multiplied by, where that is not the row's own number.
        scheme: of its codes.
    """

    name: str
    tensors: SideBySide
    codes: ir.Value
    scales: ir.Value
    zero_points: ir.Value | None
    order: ir.Value | None
    scheme: QuantisationScheme


class GraphParameters:
    """Those of a decoder, or of a part of it whose names are relative to `prefix`.

    Args:
        builder: the graph that they enter when they are first asked for.
        tensor: gives the tensor behind a name: of a parameter, or of the codes or scales of one.
        quantisation: which are quantised.
        beside: of the matrices that are quantised, which lie side by side with each.
        orders: of the matrices whose inputs come in another order, the matrix under whose name that order is.
        prefix: what stands before the names, such as `model.layers.3.`.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        tensor: TensorSource,
        quantisation: Quantisation | None = None,
        beside: Mapping[str, SideBySide] | None = None,
        orders: Mapping[str, str] | None = None,
        prefix: str = "",
    ) -> None:
        self._builder, self._tensor, self._quantisation, self._prefix = builder, tensor, quantisation, prefix
        self._beside, self._orders = beside or {}, orders or {}

    def under(self, prefix: str) -> GraphParameters:
        """Those whose names begin with `prefix`, without it."""
        wanted = self._quantisation, self._beside, self._orders
        return GraphParameters(self._builder, self._tensor, *wanted, self._prefix + prefix)

    def full(self, name: str) -> ir.Value:
        """The initializer of a parameter that is not quantised, by its name in the whole model."""
        return self._initializer(name)

    def value(self, name: str) -> ir.Value:
        """The initializer of a parameter that is not quantised."""
        return self._initializer(self._prefix + name)

    def quantised(self, name: str) -> QuantisedParameter | None:
        """The initializers of a quantised parameter; None where it is not quantised."""
        full = self._prefix + name
        scheme = None if self._quantisation is None else self._quantisation.scheme_of(full)
        if scheme is None:
            return None
        order, tensors = self._orders.get(full), self._beside[full]
        return QuantisedParameter(
            full,
            tensors,
            self._initializer(f"{tensors.name}{CODES}"),
            self._initializer(f"{tensors.name}{SCALES}"),
            self._initializer(f"{tensors.name}{ZERO_POINTS}") if scheme.zero_points else None,
            None if order is None else self._initializer(f"{order}{ORDER}"),
            scheme,
        )

    def _initializer(self, name: str) -> ir.Value:
        return self._builder.initializer(self._tensor(name), name)
