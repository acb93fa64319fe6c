"""Pages made from the code: commands, families, backends, other tools' names, a drawing of the house, and the API.

All but the API are committed: `python docs/generated_pages.py` writes them, and a test fails when they are out of date.
The API pages are made while the site is built: MkDocs calls `on_config` and `on_files` (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import html
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import blockexport
from blockexport.cli.main import COMMANDS, SETTINGS, command
from blockexport.models.families.every_family import FAMILIES, PRESETS
from blockexport.models.families.family import Family
from blockexport.models.families.left_out import LEFT_OUT
from blockexport.models.precision import Precision
from blockexport.runtime.backends import BACKENDS, Backend
from blockexport.runtime.foreign.names import CACHES, INPUTS, ROLES

REPOSITORY = Path(__file__).resolve().parent.parent
API = "reference/api"
FOLDERS = {
    "models": "The block in plain PyTorch, configs and checkpoints.",
    "export": "Graphs, weights, tokenizers, bundles and engines.",
    "runtime": "Running an artifact behind one Decoder interface, text and sampling.",
    "compare": "The judge: reference, noise floor, checks, explanation, report.",
    "cli": "The commands.",
}


def commands_page() -> str:
    """Every command: what its help says, its arguments and its options."""
    parts = [
        "# Commands\n\nAs `blockexport COMMAND --help` has it. [Exit codes](exit-codes.md) are the same for all.\n"
    ]
    for name in COMMANDS:
        called = command(name)
        inner = called.make_context(f"blockexport {name}", [], resilient_parsing=True, **SETTINGS)
        usage = " ".join(called.collect_usage_pieces(inner))
        parts.append(
            f"## blockexport {name}\n\n```text\nblockexport {name} {usage}\n```\n\n{_prose(called.help or '')}\n"
        )
        rows = [record for param in called.get_params(inner) if (record := param.get_help_record(inner)) is not None]
        parts += [
            "| option | effect |",
            "|---|---|",
            *(f"| <code>{_cell(a)}</code> | {_cell(b)} |" for a, b in rows),
            "",
        ]
    return "\n".join(parts)


def _prose(text: str) -> str:
    """Help text as Markdown: paragraphs, and examples as code."""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    return "\n\n".join(
        f"```text\n{part.removeprefix('Example: ')}\n```" if part.startswith("Example: ") else part
        for part in paragraphs
    )


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;").replace("*", "&#42;")


def foreign_names_page() -> str:
    """What other tools call inputs, outputs and caches, from the table that recognises them."""

    def row(*cells: str) -> str:
        return "| " + " | ".join(cells) + " |"

    def names(them: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in them) or "found by dataflow"

    return "\n".join(
        [
            "# Names in other tools' files\n",
            "What `compare --onnx` recognises without `--map`; `{i}` is the layer's number.\n",
            *(row("caches of", "before a call", "after it"), row(*["---"] * 3)),
            *(row(caches.tool, names(caches.past), names(caches.present or ())) for caches in CACHES),
            "\nThe other inputs by role, which is what `--map ROLE=NAME` takes:\n",
            *(row("role", "names"), row(*["---"] * 2)),
            *(row(f"`{role}`", names((role, *known.others))) for role, known in INPUTS.items()),
            f"\nEvery role: {names(ROLES)}.\n",
        ]
    )


def families_page() -> str:
    """Every family: what its record says."""
    rows = [
        f"| `{family.model_type}` | `{family.class_name}` "
        f"| {f'`{family.gguf.architecture}`' if family.gguf else 'none of its own'} "
        f"| {', '.join(f'`{name}`' for name in family.presets) or 'none'} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(
        [
            "# Families\n",
            "A config of another `model_type` is refused by name. A preset has the dimensions of a known model, and "
            "random weights.\n",
            "| `model_type` | transformers' class | GGUF architecture | presets |",
            "|---|---|---|---|",
            *rows,
            "\n## What is proven of each\n",
            "On small random models of every family and of its options, which transformers makes and saves: PyTorch "
            "gives transformers' logits at every position, within `assert_close`'s defaults in float32, and beyond the "
            "original range where RoPE is scaled; the exported file passes `compare` up to its last slot, and gives "
            "the same after rows of unequal length. The tests walk one list of models, and fail where a family is not "
            "on it.\n",
            "| `model_type` | HF folder, ONNX file | GGUF, against llama.cpp | `config.json` of a bundle "
            "| onnxruntime-genai | TensorRT for RTX, built and audited | int4 |",
            "|---|---|---|---|---|---|---|",
            *map(_proven, FAMILIES.values()),
            "",
            "What some models of these families ask for:\n",
            "- RoPE scaling: linear, llama3 and YaRN (`rope_type` yarn); in a GGUF file linear, llama3 as the factors "
            "in `rope_freqs.weight`, and YaRN in `mistral3`.",
            "- LongRoPE (Phi-3 and Phi-3.5 with 128k, Phi-4-mini) and dynamic scaling turn all keys by another table "
            "once a text is longer than the original range, and one static cache must not hold both. Up to the last "
            "position of that range the file gives transformers' logits; there are no slots beyond it, with "
            "`--beyond-trained-range` or without. Beyond it dynamic scaling has a table for each length, so that no "
            "file can be right. LongRoPE has one table for all lengths there: a file that has it is right where the "
            "first call alone is longer than the original range, and wrong for every shorter text. Whoever has nothing "
            "but such texts writes this into a copy of `config.json`: `long_factor` in the place of `short_factor`, "
            "the longest context as `original_max_position_embeddings`, and as `attention_factor` what both contexts "
            "implied, sqrt(1 + ln(longest / original) / ln(original)).",
            "- Capped attention scores (Gemma 2, VaultGemma): ONNX Runtime has them; a TensorRT engine is refused by "
            "name, as no layer of TensorRT's caps scores.",
            "- Matrices that a checkpoint has stacked (Phi-3's q, k and v, or gate and up in GLM-4) are taken apart. "
            "The `config.json` of a bundle says the family whose tensors have the names that the bundle's have: "
            "`mistral` for Phi-3, `granite` for Granite 4 and MiniCPM, `llama` for EXAONE 3. Where there is none, the "
            "bundle has no `config.json`: transformers could not read its tensors, and nothing else asks for that "
            "file.",
            "- The text part of a multimodal model (Gemma 3, Mistral 3, and others whose `text_config` is of a family "
            "above) is exported with `--text-only`, without the tensors of the other parts.",
            "- MiniCPM's code comes with its files and is not in transformers: it is held against llama.cpp, and "
            "transformers' Granite with its multipliers. Sparse attention (MiniCPM 4.1) is refused by name.",
            "- Hunyuan's RoPE of type dynamic has an `alpha`, one larger base for every position: exported at any "
            "length.",
            "- GPT-2's positions are learned, each a row of a table: there is no slot beyond the last of them, with "
            "`--beyond-trained-range` or without.",
            "- A GGUF file with a sliding window is refused in architectures whose window llama.cpp does not read.",
            "\n## Why the others are not\n",
            "Every other decoder of transformers' own list of causal language models, by what its block has and this "
            "one has not; a test walks the list. The refusal says the reason.\n",
            "| reason | `model_type` |",
            "|---|---|",
            *(f"| {reason} | {', '.join(f'`{name}`' for name in names)} |" for reason, names in _left_out().items()),
            "",
        ]
    )


def _left_out() -> dict[str, list[str]]:
    return {reason: [name for name in LEFT_OUT if LEFT_OUT[name] == reason] for reason in LEFT_OUT.values()}


def _proven(family: Family) -> str:
    """The row of a family: "no" has its reason."""
    capped = "attn_logit_softcapping" in family.write_options(PRESETS["tiny"].config)
    own_names = family.written_as is None and (family.tensor_names or family.fused)
    cells = (
        "yes",
        "yes" if family.gguf else "no: llama.cpp has no such architecture, or stores it as another one",
        "none: transformers has other names for its tensors"
        if own_names
        else f"yes, as `{family.written_as or family.model_type}`",
        "yes",
        "no: its models cap scores" if capped else "yes",
        "yes",
    )
    return f"| `{family.model_type}` | {' | '.join(cells)} |"


def backends_page() -> str:
    """Every backend: what its record says."""
    parts = [
        "# Backends\n\nWhat `--backend` takes. The first that judges a bundle's precision is used where none is named; "
        "one that is not listed is refused.\n"
    ]
    for backend in BACKENDS:
        parts.append(f"## {backend.name}\n")
        parts += [f"- {line}" for line in _backend_facts(backend)]
        parts += ["\n| precision | rounds as the target does | can judge | what a run proves |", "|---|---|---|---|"]
        for precision in Precision:
            said = backend.arithmetic[precision]
            answers = ["yes" if answer else "no" for answer in (said.is_target, said.can_judge)]
            parts.append(f"| {precision} | {' | '.join(answers)} | {_cell(said.note)} |")
        parts.append("")
    return "\n".join(parts)


def _backend_facts(backend: Backend) -> Iterator[str]:
    if backend.file or backend.graph:
        yield f"runs `{backend.file}`" if backend.file else f"runs an engine built from `{backend.graph}`"
    yield f"devices: {', '.join(backend.devices)}"
    if backend.library:
        commands = (f"`pip install {name}`" for name in (backend.library.distribution, *backend.library.alternatives))
        yield f"install: {' or '.join(commands)}"
    if backend.judges:
        yield f"judges by default: {', '.join(backend.judges)}"
    if not backend.file and backend.graph:
        yield "[never executed by us](../concepts/tensorrt-build.md#what-was-executed-and-what-was-only-built)"
    yield f"a difference can be located inside the graph: {'yes' if backend.graph else 'no, it runs no ONNX graph'}"
    if backend.cmake_option:
        yield f"in C++: `-D{backend.cmake_option}=ON`"


def modules(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Each room of a folder (the folder itself first) with its modules, as dotted names."""
    rooms: dict[str, list[str]] = {}
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        if "cpp" in path.parts or path.name == "__init__.py":
            continue
        relative = path.relative_to(REPOSITORY).with_suffix("")
        rooms.setdefault(".".join(relative.parts[:-1]), []).append("blockexport." + ".".join(relative.parts))
    yield from sorted(rooms.items())


def api_pages() -> dict[str, str]:
    """One page per room, with every module of it, and an index."""
    pages: dict[str, str] = {}
    index = ["# API\n\n[The library](library.md): the functions of `import blockexport`.\n"]
    for folder, summary in FOLDERS.items():
        index.append(f"\n**{folder}**: {summary}\n")
        for room, names in modules(folder):
            title = room.replace(".", "/")
            index.append(f"- [{title}]({room}.md)")
            pages[f"{API}/{room}.md"] = f"# {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
    acts = "\n".join(f"::: blockexport.{name}\n" for name in ("bundle_export", "library"))
    homes = (f"[`{name}`][blockexport.{module}.{name}]" for name, module in blockexport._HOMES.items())
    pages[f"{API}/library.md"] = f"# The library\n\n`import blockexport` gives: {', '.join(homes)}.\n\n{acts}"
    return {f"{API}/index.md": "\n".join(index) + "\n", **pages}


def house() -> str:
    """The folders and their rooms as a drawing (SVG): what is farther right may import what is farther left."""
    width, gap, left = 172, 22, 8
    most = max(len(list(modules(folder))) for folder in FOLDERS)
    height = 60 + 34 * most
    columns = []
    for number, folder in enumerate(FOLDERS):
        rooms = [room.partition(".")[2] for room, _ in modules(folder) if "." in room]
        x = left + number * (width + gap)
        boxes = "".join(
            f'<rect x="{x + 12}" y="{74 + 34 * row}" width="{width - 24}" height="26" rx="4" class="room"/>'
            f'<text x="{x + width / 2}" y="{91 + 34 * row}">{room}</text>'
            for row, room in enumerate(rooms)
        )
        arrow = f'<path d="M {x - 3} 40 h {-gap + 6}" marker-end="url(#head)"/>' if number else ""
        columns.append(
            f'<rect x="{x}" y="14" width="{width}" height="{height}" rx="8" class="folder"/>'
            f'<text x="{x + width / 2}" y="46" class="name">{folder}/</text>{boxes}{arrow}'
        )
    total = left * 2 + len(FOLDERS) * width + (len(FOLDERS) - 1) * gap
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height + 28}" role="img">'
        "<title>The folders and their rooms; an arrow points at what may be imported</title>"
        "<style>text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#1f2937}"
        ".name{font-weight:600;font-size:16px}"
        ".folder{fill:#eef2ff;stroke:#6366f1}.room{fill:#fff;stroke:#a5b4fc}path{stroke:#6366f1;stroke-width:2}</style>"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" style="fill:#6366f1;stroke:none"/></marker></defs>{"".join(columns)}</svg>'
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the API pages into the navigation (called by MkDocs)."""
    assert config.nav is not None
    reference = next(entry["Reference"] for entry in config.nav if isinstance(entry, dict) and "Reference" in entry)
    reference.append({"API": sorted(api_pages())})
    return config


def committed() -> dict[str, str]:
    """The generated files that are committed, by their place below docs/."""
    return {
        "reference/commands.md": commands_page(),
        "reference/families.md": families_page(),
        "reference/backends.md": backends_page(),
        "reference/foreign-names.md": foreign_names_page(),
        "images/house.svg": house() + "\n",
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages (called by MkDocs)."""
    for uri, text in api_pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


if __name__ == "__main__":
    for place, content in committed().items():
        (REPOSITORY / "docs" / place).write_text(content, encoding="utf-8")
