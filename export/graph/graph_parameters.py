"""The parameters of a graph as initializers: a tensor as it is, or the codes and scales of a quantised matrix."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from blockexport.export.graph.graph_builder import GraphBuilder
from blockexport.models.quantisation import Quantisation
from blockexport.models.quantised_matrix import CODES, SCALES, QuantisationScheme

TensorSource = Callable[[str], ir.TensorProtocol]
"""Gives the tensor behind a parameter's name, usually an ExternalTensor that points into a weights file."""


class GraphParameters:
    """Those of a decoder, or of a part of it whose names are relative to `prefix`.

    Args:
        builder: the graph that they enter when they are first asked for.
        tensor: gives the tensor behind a name: of a parameter, or of the codes or scales of one.
        quantisation: which are quantised.
        prefix: what stands before the names, such as `model.layers.3.`.
    """

    def __init__(
        self, builder: GraphBuilder, tensor: TensorSource, quantisation: Quantisation | None = None, prefix: str = ""
    ) -> None:
        self._builder, self._tensor, self._quantisation, self._prefix = builder, tensor, quantisation, prefix

    def under(self, prefix: str) -> GraphParameters:
        """Those whose names begin with `prefix`, without it."""
        return GraphParameters(self._builder, self._tensor, self._quantisation, self._prefix + prefix)

    def value(self, name: str) -> ir.Value:
        """The initializer of a parameter that is not quantised."""
        return self._initializer(self._prefix + name)

    def scheme(self, name: str) -> QuantisationScheme | None:
        """How a parameter is quantised; None where it is not."""
        return None if self._quantisation is None else self._quantisation.scheme_of(self._prefix + name)

    def codes_and_scales(self, name: str) -> tuple[ir.Value, ir.Value]:
        """The initializers of a quantised parameter."""
        return self._initializer(f"{self._prefix}{name}{CODES}"), self._initializer(f"{self._prefix}{name}{SCALES}")

    def _initializer(self, name: str) -> ir.Value:
        return self._builder.initializer(self._tensor(name), name)
