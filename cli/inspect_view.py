"""How `blockexport inspect` looks on a terminal: the block as a table, then the sums.

Every figure is shown twice, rounded for reading and exact for checking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockexport.cli import console
from blockexport.models.wording import size

if TYPE_CHECKING:
    from rich.table import Table

    from blockexport.models.config.model_config import ModelConfig, NormPlacement

_LEGEND = "B batch, S new tokens. RoPE, softmax, activation and additions are not counted."
_PARTS = {"attention": "attention", "mlp": "MLP"}
_INDENT = (0, 0, 0, 2)


def count(value: float) -> str:
    """Parameters: 218.1 M, 8.03 B."""
    for limit, letter, digits in ((1e9, "B", 2), (1e6, "M", 1), (1e3, "k", 1)):
        if value >= limit:
            return f"{value / limit:.{digits}f} {letter}"
    return f"{value:.0f}"


def flop(value: float) -> str:
    """Operations, two digits or all whole ones: 4.3 GFLOP, 15 GFLOP, 134 MFLOP."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.1f} {letter}FLOP" if scaled < 9.95 else f"{scaled:.0f} {letter}FLOP"
    return f"{value:.0f} FLOP"


def show(model: str, description: dict[str, Any]) -> None:
    """Print the whole description on stdout."""
    from rich.padding import Padding
    from rich.text import Text

    out = console.stdout_console()
    out.print()
    from blockexport.models.config.model_config import ModelConfig
    from blockexport.models.strict_json import read_record

    config = read_record(ModelConfig, description["config"], "config")
    headline = f"{config.model_type}, {config.num_hidden_layers} blocks, in {description['precision']}"
    out.print(Text(f"  {model}", style="bold cyan"), Text(headline, style="dim"))
    out.print()
    out.print(Padding(_dimensions(config), _INDENT))
    out.print()
    out.print(Padding(_block(config, description), _INDENT))
    out.print(Text(f"  {_LEGEND}", style="dim"))
    for title, lines in _sums(config, description):
        out.print()
        out.print(Text(f"  {title}", style="bold"))
        out.print(Padding(figures(lines), (0, 0, 0, 4)))
    out.print()


def _dimensions(config: ModelConfig) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column(style="cyan", justify="right")
        grid.add_column(justify="right")
        grid.add_column(style="dim")
    dimensions = [
        ("D", config.hidden_size, "hidden_size"),
        ("N", config.num_attention_heads, "num_attention_heads"),
        ("F", config.intermediate_size, "intermediate_size"),
        ("K", config.num_key_value_heads, "num_key_value_heads"),
        ("V", config.vocab_size, "vocab_size"),
        ("H", config.head_dim, "head_dim"),
        ("L", config.num_hidden_layers, "num_hidden_layers"),
        ("", config.max_position_embeddings, "max_position_embeddings"),
    ]
    for left, right in zip(dimensions[::2], dimensions[1::2], strict=True):
        cells = [(letter, f"{value:,}", name) for letter, value, name in (left, right)]
        grid.add_row(*cells[0], *cells[1])
    outer = Table.grid()
    outer.add_row(grid)
    outer.add_row("")
    outer.add_row(options_in_words(config))
    return outer


def options_in_words(config: ModelConfig) -> str:
    """What the block has beside its dimensions, in a sentence."""
    scaling = config.rope_scaling
    stretched = "" if scaling is None else f" with {scaling.rope_type} scaling"
    if scaling is not None and scaling.rope_type != "freq_factors":
        stretched += f" by {scaling.factor:g}"
    if config.layers_without_rope:
        layers = config.num_hidden_layers
        stretched += f" in {layers - len(config.layers_without_rope)} of {layers} layers"
    norm = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}[config.norm]
    if config.rotary_dim is not None:
        stretched += f" on {config.rotary_dim} of {config.head_dim} dimensions of each head"
    rope = f"RoPE (theta {config.rope_theta:,.0f}){stretched}"
    if config.sliding_rope_theta is not None and config.sliding_window is not None:
        plain = "" if scaling is None else " without scaling"
        rope += f", theta {config.sliding_rope_theta:,.0f}{plain} in layers with a window"
    parts = [f"{norm} (eps {config.rms_norm_eps:g})", "learned positions" if config.learned_positions else rope]
    late = " after RoPE" if config.qk_norm_after_rope else ""
    parts += [f"QK-norm{late}"] if config.qk_norm else []
    parts += [f"norms {_PLACEMENTS[config.norm_placement]}"] if config.norm_placement != "pre" else []
    parts += _multipliers(config)
    parts += [] if config.residual == "serial" else ["attention and MLP in parallel"]
    biased = {"q, k, v": config.qkv_bias, "o": config.o_bias, "MLP": config.mlp_bias, "head": config.head_bias}
    names = ", ".join(name for name, there in biased.items() if there)
    parts.append(f"biases on {names}" if names else "no biases")
    windowed = config.layer_types.count("sliding_attention")
    if windowed:
        parts.append(f"a window of {config.sliding_window:,} tokens in {windowed} of {config.num_hidden_layers} layers")
    parts.append("head tied to the embedding" if config.tie_word_embeddings else "head of its own")
    return " · ".join(parts)


_PLACEMENTS: dict[NormPlacement, str] = {"post": "after the sublayers", "both": "before and after the sublayers"}


def _multipliers(config: ModelConfig) -> list[str]:
    """The constants that a model multiplies by, and its caps."""
    factors = {
        "gains of 1 + w": config.norm_gain_offset or None,
        "scores times {:g}": config.query_scale,
        "queries that grow with their position by {:g}": config.query_growth,
        "embedding times {:.6g}": None if config.embedding_multiplier == 1 else config.embedding_multiplier,
        "residuals times {:g}": None if config.residual_multiplier == 1 else config.residual_multiplier,
        "logits times {:g}": None if config.logits_multiplier == 1 else config.logits_multiplier,
        "scores capped at {:g}": config.attn_logit_softcapping,
        "logits capped at {:g}": config.final_logit_softcapping,
    }
    return [words.format(value) for words, value in factors.items() if value is not None]


def _block(config: ModelConfig, description: dict[str, Any]) -> Table:
    from rich import box
    from rich.table import Table

    window = config.window_of(0)
    title = f"Block 0, one token at T = {description['tokens']:,}" + (
        f" under a window of {window:,}" if window else ""
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_footer=True)
    operations = description["block"]
    table.add_column("", footer="block")
    table.add_column("shape out", style="cyan")
    table.add_column("parameters", justify="right", footer=f"{description['parameters']['block']:,}")
    table.add_column("FLOP per token", justify="right", footer=f"{sum(o['flops'] for o in operations):,}")
    for part in _PARTS:
        own = [operation for operation in operations if operation["part"] == part]
        for operation in own:
            shape = ", ".join(str(size) for size in operation["shape"])
            numbers = [f"{operation[key]:,}" if operation[key] else "" for key in ("parameters", "flops")]
            table.add_row(operation["name"], shape, *numbers)
        sums = [f"{sum(operation[key] for operation in own):,}" for key in ("parameters", "flops")]
        normed = " with its norm" if any(operation["name"].endswith("norm") for operation in own) else ""
        table.add_row(f"{_PARTS[part]}{normed}", "", *sums, style="bold", end_section=True)
    return table


Line = tuple[str, str, str]  # what it is, rounded, exact


def _line(what: str, value: int, rounded: Callable[[float], str] = count) -> Line:
    return what, rounded(value), f"{value:,}" + (" bytes" if rounded is size else "")


def _sums(config: ModelConfig, description: dict[str, Any]) -> list[tuple[str, list[Line]]]:
    parameters, flops, cache = (description[key] for key in ("parameters", "flops_per_token", "cache_bytes"))
    tokens, batch, precision = description["tokens"], description["batch_size"], description["precision"]
    counts = [
        _line("one block", parameters["block"]),
        ("the MLP's share of it", f"{100 * parameters['mlp_share']:.0f} %", f"{parameters['mlp']:,}"),
        _line(f"in {parameters['layers']} blocks", parameters["blocks"]),
        _line(_tables(config), parameters["embedding"]),
        *([_line("head", parameters["head"])] if parameters["head"] else []),
        _line("final norm", parameters["final_norm"]),
        _line("in all", parameters["total"]),
        _line(f"weights in {precision}", description["weight_bytes"], size),
    ]
    by_layer: list[int] = flops["attention_by_layer"]
    work = [
        _line("weights (2 per parameter, no lookup)", flops["weights"], flop),
        *(_line(f"attention, each of {by_layer.count(one)} layers", one, flop) for one in dict.fromkeys(by_layer)),
        _line("attention, all layers", flops["attention"], flop),
    ]
    saving = cache["times_without_gqa"]
    memory = [
        _line("per token", cache["per_token"], size),
        _line(f"{tokens:,} tokens", cache["per_sequence"], size),
        _line(f"a batch of {batch:,} such", cache["batch"], size),
        *([_line(f"without GQA, {saving} times as much", cache["without_gqa"], size)] if saving > 1 else []),
    ]
    return [
        ("Parameters", counts),
        (f"Operations per generated token, T = {tokens:,}", work),
        (f"KV cache in {precision}", memory),
    ]


def _tables(config: ModelConfig) -> str:
    """What is counted as embedding."""
    positions = "embeddings of tokens and positions" if config.learned_positions else "embedding"
    return f"{positions} and head, tied" if config.tie_word_embeddings else positions


def figures(lines: list[Line]) -> Table:
    """Figures below each other, rounded and exact."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=36)
    grid.add_column(justify="right", style="bold", min_width=11)
    grid.add_column(justify="right", style="dim", min_width=21, no_wrap=True)
    for line in lines:
        grid.add_row(*line)
    return grid
