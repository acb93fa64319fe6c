"""A drawing of a model's block as SVG: every step with its shape and parameters, along the residual stream.

It is made of the steps that `arithmetic.block_operations` lists, in their order, so that what a model's options change
there (norms before or after a sublayer, a plain MLP) is drawn as it is. A part whose steps do not end in `+ residual`
is added together with the next one: the two sublayers stand side by side on the stream (parallel residual).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from blockexport.models.config.arithmetic import Operation, block_operations
from blockexport.models.config.model_config import ModelConfig

RESIDUAL = "+ residual"
_WIDTH, _TRUNK, _ASIDE = 800, 64, 104  # of the drawing; where the stream goes down, and what joins it later
_CENTRE, _LANE_WIDTH, _NODE_WIDTH, _HEIGHT, _PITCH = 470, 186, 250, 46, 66
_ROOM = 6
_LANES = {1: (470,), 2: (350, 590), 3: (262, 470, 678)}
_LANE = re.compile(r"(?:(q|gate)|(k|up)|(v))_(?:proj|norm)|RoPE on (?:(q)|(k))")
_TITLES = {"attention": "attention", "mlp": "MLP"}
_STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1c2733 }
.title { font-size: 20px; font-weight: 600 } .quiet { fill: #5b6b7b } .part { font-weight: 600; fill: #5b6b7b }
.name { font-weight: 600 } .shape { font: 12px ui-monospace, 'SF Mono', Menlo, monospace; fill: #40505f }
.count { font-size: 11px; fill: #5b6b7b } .panel { fill: #f6f8fa }
.wire { fill: none; stroke: #7b8a99; stroke-width: 1.5 } .room { stroke: #fff; stroke-width: 9 }
.stream { stroke: #1c2733; stroke-width: 3; fill: none } .sum { fill: #fff; stroke: #1c2733; stroke-width: 2 }
.node { stroke-width: 1.2 } .attention { fill: #e6effb; stroke: #5b82b5 } .mlp { fill: #e5f4ea; stroke: #57986d }
.norm { fill: #fdf1d8; stroke: #c0913a } .cache { fill: #f1e9fa; stroke: #8a6bb0; stroke-dasharray: 5 3 }
.plain { fill: #fff; stroke: #9aa7b3 }
"""


@dataclass
class _Sheet:
    """What has been drawn so far, from the top down."""

    y: float
    panels: list[str] = field(default_factory=list)
    wires: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)

    def wire(self, *path: str | float, kind: str = "wire") -> None:
        """A line along an SVG path."""
        self.wires.append(f'<path class="{kind}" d="{" ".join(_number(step) for step in path)}"/>')

    def bridge(self, x: float, top: float, bottom: float) -> None:
        """Room around a line that goes down and is drawn next, where it crosses others."""
        self.wire("M", x, top + _ROOM, "V", bottom - _ROOM, kind="room")

    def text(self, x: float, y: float, words: str, kind: str, anchor: str = "start") -> None:
        """One line of text on its baseline."""
        where = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
        self.nodes.append(f'<text class="{kind}" {where}>{escape(words)}</text>')

    def node(self, x: float, width: float, step: Operation, kind: str) -> None:
        """A box around `x` at the height reached, with the name, the shape and the parameters of a step."""
        left, where = x - width / 2, f'y="{_number(self.y)}" height="{_HEIGHT}" rx="7"'
        self.nodes.append(f'<rect class="node {kind}" x="{_number(left)}" width="{_number(width)}" {where}/>')
        self.text(left + 9, self.y + 19, step.name, "name")
        if step.parameters:
            self.text(left + width - 9, self.y + 37, _count(step.parameters), "count", "end")
        self.text(left + 9, self.y + 37, f"[{', '.join(map(str, step.shape))}]", "shape")

    def sum(self, label: str) -> None:
        """Where something is added to the stream."""
        self.nodes.append(f'<circle class="sum" cx="{_TRUNK}" cy="{_number(self.y)}" r="11"/>')
        self.text(_TRUNK, self.y + 5, "+", "name", "middle")
        self.text(_TRUNK + 18, self.y + 18, label, "shape")


def draw_block(config: ModelConfig, title: str, options: str, tokens: int) -> str:
    """The first block of a model as an SVG document, which needs nothing else to be shown.

    Args:
        config: the model.
        title: its name.
        options: a sentence on what it has beside its dimensions.
        tokens: slots that a query could see.
    """
    same = [layer for layer in range(config.num_hidden_layers) if _kind(config, layer) == _kind(config, 0)]
    alike = "all alike" if len(same) == config.num_hidden_layers else f"{len(same)} of them like this one, the first"
    under = f"{config.num_hidden_layers} blocks, {alike}. B batch, S new tokens, M cache slots; at {tokens:,} tokens"
    whole = options.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}·\N{NO-BREAK SPACE}", " · ")
    return draw_steps(block_operations(config, tokens), title, [*textwrap.wrap(whole, 108), under])


def draw_steps(steps: Sequence[Operation], title: str, lines: Sequence[str]) -> str:
    """The steps of a block as an SVG document, under a title and some lines of text."""
    sheet = _Sheet(34)
    sheet.text(30, sheet.y, title, "title")
    for line in lines:
        sheet.y += 21
        sheet.text(30, sheet.y, line, "quiet")
    sheet.y += 46
    top, stream = sheet.y, next(step.shape for step in reversed(steps) if step.name in (RESIDUAL, steps[-1].name))
    shape = f"[{', '.join(map(str, stream))}]"
    sheet.text(_TRUNK + 18, top - 6, f"x {shape}", "shape")
    waiting, shared = list[float](), None
    for part in dict.fromkeys(step.part for step in steps):
        own = [step for step in steps if step.part == part]
        added = own[-1].name == RESIDUAL
        shared = _draw_part(sheet, own[:-1] if added else own, shared if waiting else None)
        if not added:
            waiting.append(sheet.y - _PITCH + _HEIGHT)
            sheet.wire("M", _CENTRE, waiting[-1], "V", waiting[-1] + 14, "H", _ASIDE)
            sheet.y += 34
            continue
        end = sheet.y - _PITCH + _HEIGHT
        sheet.y = end + 22
        sheet.wire("M", _CENTRE, end, "V", sheet.y, "H", _TRUNK + 11)
        for start in waiting:
            sheet.bridge(_ASIDE, start + 14, sheet.y - 16)
            sheet.wire("M", _ASIDE, start + 14, "V", sheet.y - 16, "L", _TRUNK + 8, sheet.y - 8)
        waiting.clear()
        sheet.sum(shape)
        sheet.y += 40
    sheet.wire("M", _TRUNK, top, "V", sheet.y, kind="stream")
    sheet.wire("M", _TRUNK - 6, sheet.y - 8, "L", _TRUNK, sheet.y, "L", _TRUNK + 6, sheet.y - 8, kind="stream")
    body = "\n".join([*sheet.panels, *sheet.wires, *sheet.nodes])
    height = _number(sheet.y + 20)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _draw_part(sheet: _Sheet, steps: Sequence[Operation], normed: float | None) -> float | None:
    """One sublayer, from the stream down to its last step. `normed` is the height of a norm whose result it reads where
    it has none of its own; returns that of its first norm."""
    part, top = steps[0].part, sheet.y - 4
    rows = _rows(steps)
    reads = normed if normed is not None and not _is_norm(steps[0]) else None
    start = sheet.y + 12
    if reads is None:
        sheet.wire("M", _TRUNK, start, "H", _CENTRE)
    else:
        sheet.bridge(_ASIDE + 30, reads, start)
        sheet.wire("M", _CENTRE - _NODE_WIDTH / 2, reads, "H", _ASIDE + 30, "V", start, "H", _CENTRE)
    sheet.y = start + 16
    ends: dict[int, tuple[float, float]] = {}  # where the last step of a lane ended; -1 for a step across all
    at = (float(_CENTRE), start)
    first: float | None = None
    for row in rows:
        lanes = _LANES[3 if part == "attention" else 2] if set(row) != {None} else _LANES[1]
        for lane, step in row.items():
            x = lanes[lane or 0]
            if lane is None:
                _join(sheet, ends, at, step)
                ends = {2: ends[2]} if step.name != "mix of v" and 2 in ends else {}
            else:
                _from_above(sheet, ends.get(lane, at), x)
            sheet.node(x, _NODE_WIDTH if lane is None else _LANE_WIDTH, step, _style(step))
            if _is_norm(step) and first is None:
                first = sheet.y + _HEIGHT / 2
            if lane is None:
                at = (x, sheet.y + _HEIGHT)
            else:
                ends[lane] = (x, sheet.y + _HEIGHT)
        sheet.y += _PITCH
    bottom = sheet.y - _PITCH + _HEIGHT + 10
    left, where = _ASIDE + 46, f'y="{_number(top)}" height="{_number(bottom - top)}"'
    sheet.panels.append(f'<rect class="panel" x="{left}" width="{_WIDTH - 14 - left}" {where} rx="10"/>')
    sheet.text(_WIDTH - 26, bottom - 12, f"{_TITLES[part]}  {_count(sum(s.parameters for s in steps))}", "part", "end")
    return first


def _rows(steps: Sequence[Operation]) -> list[dict[int | None, Operation]]:
    """Steps that stand side by side, by their lanes; None is the whole width. Before attention mixes anything, keys and
    values go into the cache."""
    rows: list[dict[int | None, Operation]] = []
    gated = any(step.name == "gate_proj" for step in steps)
    for step in steps:
        match = _LANE.fullmatch(step.name) if step.part == "attention" or gated else None
        lane = None if match is None or match.lastindex is None else (0, 1, 2, 0, 1)[match.lastindex - 1]
        if step.name == "scores q·k":
            rows.append(_cache(steps))
        if (
            lane is None
            or not rows
            or None in rows[-1]
            or lane in rows[-1]
            or max(k for k in rows[-1] if k is not None) > lane
        ):
            rows.append({})
        rows[-1][lane] = step
    return rows


def _cache(steps: Sequence[Operation]) -> dict[int | None, Operation]:
    shapes = {step.name: step.shape for step in steps}
    heads, width = shapes["k_proj"][-2:]
    slots = ("B", heads, "M", width)
    return {lane: Operation("attention", f"{what} cache", slots) for lane, what in ((1, "key"), (2, "value"))}


def _from_above(sheet: _Sheet, at: tuple[float, float], x: float) -> None:
    """A wire from what was before to the top of a box at `x`."""
    if at[0] == x:
        sheet.wire("M", *at, "V", sheet.y)
    else:
        sheet.wire("M", *at, "V", sheet.y - 10, "H", x, "V", sheet.y)


def _join(sheet: _Sheet, ends: dict[int, tuple[float, float]], at: tuple[float, float], step: Operation) -> None:
    """Wires into a step across all lanes: from them, or from the step before. Values go past the scores to the mix."""
    joined = {lane: end for lane, end in ends.items() if lane != 2}
    if not joined:
        _from_above(sheet, at, _CENTRE)
    for lane, (x, y) in joined.items():
        into = _CENTRE + (lane - (len(joined) - 1) / 2) * 60
        sheet.wire("M", x, y, "V", sheet.y - 10, "H", into, "V", sheet.y)
    if 2 in ends and step.name == "mix of v":
        middle = sheet.y + _HEIGHT / 2
        sheet.wire("M", *ends[2], "V", middle, "H", _CENTRE + _NODE_WIDTH / 2)


def _style(step: Operation) -> str:
    if _is_norm(step):
        return "norm"
    if step.name.endswith(" cache"):
        return "cache"
    return step.part if step.parameters else "plain"


def _is_norm(step: Operation) -> bool:
    return step.name.endswith("norm")


def _kind(config: ModelConfig, layer: int) -> tuple[int | None, bool]:
    return config.window_of(layer), config.has_rope(layer)


def _count(parameters: int) -> str:
    for limit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if parameters >= limit:
            return f"{parameters / limit:.3g} {letter}"
    return str(parameters)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
