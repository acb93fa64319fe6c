"""Which of a file's inputs and outputs are which: the names that tools give them, in one table.

Roles are called by Hugging Face's names, as onnxruntime-genai and optimum write them (`past_key_values.{i}.key`,
`present.{i}.key`). A tool with other names is a row in `CACHES`, or a name more in `INPUTS`; names that no tool is
known for are given as `ROLE=NAME` (`blockexport compare --map`). Outputs that have no name of their own (torch.onnx
numbers its nodes) are found by where the entries of each cache go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch

from blockexport.export.bundle.dataflow.cache_flow import CacheFlow
from blockexport.export.bundle.dataflow.flat_graph import FlatGraph
from blockexport.models import io_names
from blockexport.models.errors import UsageError

ATTENTION_MASK = "attention_mask"
CACHE_POSITION = "cache_position"
NUM_LOGITS_TO_KEEP = "num_logits_to_keep"
USE_CACHE_BRANCH = "use_cache_branch"
CUMULATIVE_LENGTH = "cumulative_length.{i}"
WINDOW = "sliding_window.{i}"
PAST_KEY, PAST_VALUE = f"{io_names.PAST}{{i}}.key", f"{io_names.PAST}{{i}}.value"
PRESENT_KEY, PRESENT_VALUE = f"{io_names.PRESENT}{{i}}.key", f"{io_names.PRESENT}{{i}}.value"
FULL_MASK, WINDOW_MASK = f"{ATTENTION_MASK}.full_attention", f"{ATTENTION_MASK}.sliding_attention"


@dataclass(frozen=True)
class CacheNames:
    """What a tool calls the caches of layer `{i}`; no names for outputs that it only numbers."""

    tool: str
    past: tuple[str, str]
    present: tuple[str, str] | None = None


CACHES: tuple[CacheNames, ...] = (
    CacheNames("optimum-onnx, onnxruntime-genai", (PAST_KEY, PAST_VALUE), (PRESENT_KEY, PRESENT_VALUE)),
    CacheNames(
        "transformers.exporters",
        ("input.cache.layers.{i}.keys", "input.cache.layers.{i}.values"),
        ("output.cache.layers.{i}.keys", "output.cache.layers.{i}.values"),
    ),
    CacheNames(
        "transformers.exporters, a graph of the prompt alone",
        ("cache.layers.{i}.keys", "cache.layers.{i}.values"),
        ("cache.layers.{i}.keys", "cache.layers.{i}.values"),
    ),
    CacheNames(
        "torch.onnx.export, a DynamicCache", ("past_key_values_key_cache_{i}", "past_key_values_value_cache_{i}")
    ),
    CacheNames("torch.onnx.export, pairs", ("past_key_values_{i}_0", "past_key_values_{i}_1")),
    CacheNames("lists of caches", ("key_cache.{i}", "value_cache.{i}"), ("new_key_cache.{i}", "new_value_cache.{i}")),
    CacheNames("lists of caches", ("key_cache_{i}", "value_cache_{i}"), ("key_cache_out_{i}", "value_cache_out_{i}")),
    CacheNames("numbered", ("past_{i}_key", "past_{i}_value"), ("present_{i}_key", "present_{i}_value")),
    CacheNames("numbered", ("past_key_{i}", "past_value_{i}"), ("present_key_{i}", "present_value_{i}")),
    CacheNames("short", ("k_{i}", "v_{i}"), ("k_out_{i}", "v_out_{i}")),
)
"""Conventions of names for caches. A new one is a row here."""

_INTEGERS = (torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
Forms = Mapping[int, tuple[torch.dtype, ...]]
"""The ranks that an input may have, and the types in each."""
_ROWS: Forms = {2: _INTEGERS}
_NUMBER: Forms = {0: _INTEGERS, 1: _INTEGERS}
_MASK: Forms = {2: (*_INTEGERS, torch.bool), 4: (torch.bool, *FLOATS)}


@dataclass(frozen=True)
class InputRole:
    """An input that is no cache: the forms it may have, and what tools call it beside the role's own name."""

    forms: Forms
    others: tuple[str, ...] = ()


INPUTS: Mapping[str, InputRole] = {
    io_names.INPUT_IDS: InputRole(_ROWS, ("input.input_ids",)),
    ATTENTION_MASK: InputRole(_MASK),
    FULL_MASK: InputRole(_MASK),
    WINDOW_MASK: InputRole(_MASK),
    io_names.POSITION_IDS: InputRole(_ROWS),
    CACHE_POSITION: InputRole({1: _INTEGERS}),
    NUM_LOGITS_TO_KEEP: InputRole(_NUMBER, ("logits_to_keep",)),
    USE_CACHE_BRANCH: InputRole({0: (torch.bool,), 1: (torch.bool,)}),
    CUMULATIVE_LENGTH: InputRole(_NUMBER, ("input.cache.layers.{i}.cumulative_length",)),
    WINDOW: InputRole(_NUMBER, ("input.cache.layers.{i}._sliding_window_tensor",)),
}
"""The other inputs by role."""

_INPUT_TEMPLATES = [
    *((role, name) for role, known in INPUTS.items() for name in (role, *known.others)),
    *(pair for row in CACHES for pair in zip((PAST_KEY, PAST_VALUE), row.past, strict=True)),
]
_OUTPUT_TEMPLATES = [
    (io_names.LOGITS, io_names.LOGITS),
    *(pair for row in CACHES if row.present for pair in zip((PRESENT_KEY, PRESENT_VALUE), row.present, strict=True)),
]
ROLES = (*INPUTS, PAST_KEY, PAST_VALUE, PRESENT_KEY, PRESENT_VALUE, io_names.LOGITS)


_DIGITS = 5  # of a layer's number: a list as long as the number says is made before any layer is missed


@dataclass(frozen=True)
class Names:
    """The file's names by role, for its inputs and its outputs; `odd` are inputs that have no role known here."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    odd: tuple[str, ...]

    @property
    def layers(self) -> int:
        """L, as far as the caches tell, of a graph that takes or gives them."""
        pattern = re.compile(r"(?:past_key_values|present)\.(\d+)\..*")
        found = [pattern.fullmatch(role) for role in (*self.inputs, *self.outputs)]
        return 1 + max((int(match.group(1)) for match in found if match), default=-1)


def read_map(entries: Sequence[str]) -> dict[str, str]:
    """`ROLE=NAME` entries, as `--map` takes them, to templates by role.

    Raises:
        UsageError: an entry is not of that form, or names no role.
    """
    found: dict[str, str] = {}
    for entry in entries:
        role, equals, name = entry.partition("=")
        if not equals or not name or role not in ROLES or ("{i}" in role) is not ("{i}" in name):
            raise UsageError(
                f"--map {entry!r} is not ROLE=NAME with one of the roles {', '.join(ROLES)}; where a role has {{i}}, "
                f"for the layer's number, the name has it too, as in '{PAST_KEY}=k_{{i}}'"
            )
        found[role] = name
    return found


def name_roles(model: onnx.ModelProto, mapped: Mapping[str, str], path: Path) -> Names:
    """Find the role of every input and output, first by `mapped`, then by the table, then by dataflow.

    Raises:
        UsageError: a name of `mapped` is not among the file's.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    outputs = [value.name for value in model.graph.output]
    for role, name in mapped.items():
        ends = outputs if role.startswith(("present", io_names.LOGITS)) else inputs
        if not any(_match(name, end) is not None for end in ends):
            raise UsageError(f"--map {role}={name}: {path} has no {name}; it has {', '.join(ends)}")
    given = _by_table(inputs, mapped, _INPUT_TEMPLATES)
    made = _by_table(outputs, mapped, _OUTPUT_TEMPLATES)
    if not all(role in made for role in io_names.present_names(Names(given, {}, ()).layers)):
        made = {**_by_flow(model, given, set(made.values())), **made}
    if io_names.LOGITS not in made:
        made |= _logits(model, set(made.values()))
    odd = tuple(name for name in inputs if name not in given.values())
    return Names(given, made, odd)


def _by_table(names: Iterable[str], mapped: Mapping[str, str], templates: Sequence[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    known = [*mapped.items(), *((role, name) for role, name in templates if role not in mapped)]
    for name in names:
        for role, template in known:
            layer = _match(template, name)
            if layer is not None:
                found.setdefault(role.replace("{i}", layer), name)
                break
    return found


def _match(template: str, name: str) -> str | None:
    """The layer's number in a name (empty in one that has none); None where the name is another."""
    before, hole, after = template.partition("{i}")
    if not hole:
        return "" if name == template else None
    match = re.fullmatch(re.escape(before) + f"([0-9]{{1,{_DIGITS}}})" + re.escape(after), name)
    return None if match is None else str(int(match.group(1)))


def _by_flow(model: onnx.ModelProto, given: Mapping[str, str], taken: set[str]) -> dict[str, str]:
    """Cache outputs by the input whose entries they hold."""
    roles = {name: role for role, name in given.items() if role.startswith(io_names.PAST)}
    pairs = CacheFlow(FlatGraph(model)).pairs
    return {
        roles[past].replace(io_names.PAST, io_names.PRESENT): output
        for output, past in pairs.items()
        if past in roles and output not in taken
    }


def _logits(model: onnx.ModelProto, taken: set[str]) -> dict[str, str]:
    """The one output of three dimensions that is no cache, whatever it is called."""
    left = [value for value in model.graph.output if value.name not in taken]
    alone = [value.name for value in left if len(value.type.tensor_type.shape.dim) == 3]
    return {io_names.LOGITS: alone[0]} if len(alone) == 1 else {}
