"""How `blockexport ablate` looks on a terminal: what is borne out, and a table of the swaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockexport.cli import console

if TYPE_CHECKING:
    from blockexport.compare.ablation.ablate import Ablation

_NUMBERS = range(1, 6)  # columns of the table


def show(ablation: Ablation, *, quiet: bool) -> None:
    """Print the conclusions on stdout, and unless `quiet` the table, what has to be known about it, and the page."""
    from rich.table import Table

    from blockexport.compare.ablation.ablate import PAGE
    from blockexport.compare.ablation.ablation_page import HEADINGS, change, conclusions, footnotes, rows

    out = console.stdout_console()
    for line in conclusions(ablation):
        out.print(line, soft_wrap=True)
    if quiet:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if i in _NUMBERS else "left", header_style="dim")
    for row in rows(ablation):
        table.add_row(*row)
    out.print()
    out.print(table)
    out.print()
    for line in (*footnotes(ablation), *(f"{one.pairing.name}: {change(one)}" for one in ablation.results)):
        out.print(line, style="dim", soft_wrap=True)
    console.say(f"page: {ablation.folder / PAGE}")
