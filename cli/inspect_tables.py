"""What `blockexport inspect` adds on demand: what a device does at most, what fits into a memory, how attention grows,
and two models side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from blockexport.cli import console
from blockexport.cli.inspect_view import count, figures, flop
from blockexport.models.wording import size

if TYPE_CHECKING:
    from rich.table import Table

_LEFT_OUT = "Activations, and what a runtime takes itself, are not counted."


def show_limits(description: dict[str, Any], *, growth: bool) -> None:
    """Print what was asked for beyond the model itself, on stdout."""
    from rich.padding import Padding
    from rich.text import Text

    sections: list[tuple[str, Table]] = []
    tokens, precision = description["tokens"], description["precision"]
    if "device" in description:
        device = description["device"]
        title = f"{device['name']} at most, in {precision}, T = {tokens:,}"
        sections.append((title, _speeds(description, device, tokens)))
    if "fits" in description:
        room = size(description["fits"]["memory_bytes"])
        sections.append((f"In {room} of memory, in {precision}", _fits(description)))
    if growth:
        sections.append(("Attention's part of a step of one row", _growth(description["growth"])))
    out = console.stdout_console()
    for title, table in sections:
        out.print(Text(f"  {title}", style="bold"))
        out.print(Padding(table, (0, 0, 0, 4)))
        out.print()
    if sections:
        out.print(Text(f"  {_LEFT_OUT}", style="dim"))
        out.print()


def _speeds(description: dict[str, Any], device: dict[str, Any], tokens: int) -> Table:
    rows, slots = description["batch_size"], description["fits"]["cache_slots"]
    stretches = {
        "step, one row": (device["step"], tokens),
        f"step, {rows:,} rows": (device["batched_step"], rows * tokens),
        f"prompt of {tokens:,}": (device["prompt"], tokens),
    }
    lines = []
    for what, (limit, needed) in stretches.items():
        bound = f"bound by {limit['bound_by']}" if needed <= slots else "if it fitted"
        lines.append((f"{what}, {bound}", f"{_short(limit['tokens_per_second'])} tok/s", _time(limit["seconds"])))
    return figures(lines)


def _fits(description: dict[str, Any]) -> Table:
    fits, weights = description["fits"], description["weight_bytes"]
    if fits["left_bytes"] <= 0:
        return figures([("the weights do not fit", size(weights), f"{weights:,} bytes")])
    lines = [
        ("left beside the weights", size(fits["left_bytes"]), f"{fits['left_bytes']:,} bytes"),
        ("longest context of one row", f"{fits['longest_context']:,}", "tokens"),
    ]
    for one in fits["batches"]:
        lines.append((f"largest batch at {one['tokens']:,} tokens", f"{one['batch_size']:,}", "rows"))
    return figures(lines)


def _growth(rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("tokens", "operations", "of the step's", "bytes read", "of the step's "):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            f"{row['tokens']:,}",
            flop(row["attention_flops"]),
            f"{100 * row['attention_share']:.1f} %",
            size(row["cache_bytes_read"]),
            f"{100 * row['cache_share']:.1f} %",
        )
    return table


def show_compared(described: Mapping[str, dict[str, Any]]) -> None:
    """Print the figures of two models side by side on stdout, with how many times as much the second has."""
    from rich import box
    from rich.table import Table

    names, (one, other) = list(described), list(described.values())
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for title in (*names, "times"):
        table.add_column(title, justify="right")
    for what, value, shown in _figures_of(one):
        first, second = value(one), value(other)
        times = f"{second / first:.2f}" if first else ""
        table.add_row(what, shown(first), shown(second), times)
    out = console.stdout_console()
    out.print()
    out.print(table)


Figure = tuple[str, Callable[[dict[str, Any]], float], Callable[[float], str]]


def _figures_of(description: dict[str, Any]) -> list[Figure]:
    tokens, precision, rows = description["tokens"], description["precision"], description["batch_size"]

    def dimension(key: str) -> Callable[[dict[str, Any]], float]:
        return lambda one: float(one["config"][key])

    listed: list[Figure] = [
        (key, dimension(key), lambda value: f"{value:,.0f}")
        for key in (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "max_position_embeddings",
        )
    ]
    listed += [
        ("parameters", lambda one: one["parameters"]["total"], count),
        ("of one block", lambda one: one["parameters"]["block"], count),
        (f"weights in {precision}", lambda one: one["weight_bytes"], size),
        ("operations per token, weights", lambda one: one["flops_per_token"]["weights"], flop),
        (f"attention at {tokens:,} tokens", lambda one: one["flops_per_token"]["attention"], flop),
        ("cache per token", lambda one: one["cache_bytes"]["per_token"], size),
        (f"cache of {rows:,} rows of {tokens:,}", lambda one: one["cache_bytes"]["batch"], size),
    ]
    if "device" in description:
        name = description["device"]["name"]
        for key, what in (("step", "one row"), ("batched_step", f"{rows:,} rows"), ("prompt", "a prompt")):
            listed.append((f"tok/s on {name}, {what}", _speed(key), _short))
    if "fits" in description:
        listed.append(("cache slots that fit", lambda one: one["fits"]["cache_slots"], lambda value: f"{value:,.0f}"))
    return listed


def _speed(key: str) -> Callable[[dict[str, Any]], float]:
    return lambda one: float(one["device"][key]["tokens_per_second"])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    for limit, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
