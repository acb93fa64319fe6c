"""Whether attributes are of the kinds that their operators give them. Readers differ in what they make of one that is
not: ONNX Runtime refuses the file, and TensorRT's parser reads the field that it expects, which is then empty."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import onnx
from onnx.defs import OpSchema

from blockexport.models.errors import UsageError

STANDARD_DOMAINS = ("", "ai.onnx")

_WORDS: Mapping[int, str] = {
    onnx.AttributeProto.INT: "a whole number",
    onnx.AttributeProto.FLOAT: "a fraction",
    onnx.AttributeProto.STRING: "a text",
    onnx.AttributeProto.TENSOR: "a tensor",
    onnx.AttributeProto.GRAPH: "a graph",
    onnx.AttributeProto.INTS: "a list of whole numbers",
    onnx.AttributeProto.FLOATS: "a list of fractions",
    onnx.AttributeProto.STRINGS: "a list of texts",
}


def require_kinds(node: onnx.NodeProto, label: str, version: int) -> None:
    """Refuse a node with an attribute of another kind than its standard operator's.

    Args:
        node: one outside of local functions, whose attributes may be references.
        label: what to call it.
        version: the opset of the standard operators.

    Raises:
        UsageError: naming the attribute, what it is and what it has to be.
    """
    kinds = _kinds(node.op_type, version) if node.domain in STANDARD_DOMAINS else {}
    for attribute in node.attribute:
        kind = kinds.get(attribute.name, attribute.type)
        if attribute.ref_attr_name or attribute.type != kind:
            given = "a reference to an attribute of no function" if attribute.ref_attr_name else _said(attribute.type)
            raise UsageError(
                f"the attribute {attribute.name} of {label} is {given}, and must be {_said(kind)}: export the file "
                "again"
            )


@cache
def _kinds(operator: str, version: int) -> Mapping[str, int]:
    """The kind of each attribute of a standard operator, later versions included; none where there is none."""
    kinds: dict[str, int] = {}
    for at in (onnx.defs.onnx_opset_version(), max(version, 1)):
        with suppress(onnx.defs.SchemaError):  # there is none, or not yet
            schema: OpSchema = onnx.defs.get_schema(operator, at)
            # The stubs lack `value`.
            kinds |= {name: int(attribute.type.value) for name, attribute in schema.attributes.items()}  # type: ignore[attr-defined]
    return kinds


def _said(kind: int) -> str:
    return _WORDS.get(kind, "of another kind")
