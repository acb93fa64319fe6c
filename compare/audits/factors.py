"""The constants that a value of a graph is multiplied by on its way."""

from __future__ import annotations

import onnx_ir as ir

from blockexport.compare.audits.type_audit import NORMS

_CARRIES = ("Cast", "Identity", "Transpose", "Reshape", "Split", "Unsqueeze", "Squeeze", "RotaryEmbedding")
_ENDS = ("Gemm", "MatMul", *NORMS)


def factor_of(value: ir.Value | None, growths: list[tuple[float, float]]) -> float | str:
    """The product of the constants that a value is multiplied by after its projection, or what hides it; factors of the
    positions on the way are put into `growths`."""
    product = 1.0
    while value is not None:
        node = value.producer()
        if node is None:
            return f"the input {value.name}"
        if node.op_type in _ENDS:
            return product
        if node.op_type in ("Mul", "Div"):
            constants = [scalar_of(operand) for operand in node.inputs]
            growth = growth_of(node.inputs[1]) if node.op_type == "Mul" and constants == [None, None] else None
            if growth is not None:
                growths.append(growth)
                value = node.inputs[0]
                continue
            if node.op_type == "Mul" and constants[0] is not None:
                constants.reverse()
                value = node.inputs[1]
            else:
                value = node.inputs[0]
            if constants[1] is None or not constants[1]:
                return f"a {node.op_type} of two values"
            product = product * constants[1] if node.op_type == "Mul" else product / constants[1]
        elif node.op_type == "TensorScatter":
            value = node.inputs[1]
        elif node.op_type in _CARRIES:
            value = node.inputs[0]
        else:
            return f"the operator {node.op_type}"
    return "a missing input"


def growth_of(value: ir.Value | None) -> tuple[float, float] | None:
    """Length and factor of `1 + factor * ln(1 + floor(position / length))`, where a value is that."""
    found, asked = list[float](), iter(("Add", "Mul", "Log", "Add", "Div"))
    wanted = next(asked)
    while wanted and value is not None and (node := value.producer()) is not None:
        value = node.inputs[0]
        if node.op_type == wanted:
            number = 1.0 if wanted == "Log" else scalar_of(node.inputs[1])
            if number is None or (wanted == "Add" and number != 1.0):
                return None
            found.append(number)
            wanted = next(asked, "")
        elif node.op_type not in ("Cast", "Unsqueeze"):
            return None
    return None if wanted else (found[4], found[1])


def scalar_of(value: ir.Value | None) -> float | None:
    """The value of a constant of one element."""
    tensor = tensor_of(value)
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    attribute = node.attributes.get("value") if node is not None and node.op_type == "Constant" else None
    return None if attribute is None else attribute.as_tensor()
