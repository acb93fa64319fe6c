"""What `blockexport trt` says of the engine it built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.cli import console
from blockexport.models.wording import size

if TYPE_CHECKING:
    from blockexport.export.bundle.engine_entry import EngineEntry
    from blockexport.export.bundle.manifest import Manifest


def print_engine(folder: Path, name: str, manifest: Manifest, *, as_json: bool, quiet: bool) -> None:
    """Print the entry of an engine: size, audit and profiles; with `quiet` the file alone; or all of it as JSON."""
    from blockexport.export.bundle.engine_entry import entry_of

    file = manifest.files[name]
    if as_json:
        described = {"file": name, "bytes": file.bytes, "sha256": file.sha256, **manifest.engines[name]}
        console.print_json({"bundle": str(folder), "engine": described})
        return
    out = console.stdout_console()
    lines = _summary(folder / name, file.bytes, entry_of(manifest, name))
    for line in lines[:1] if quiet else lines:
        out.print(line, soft_wrap=True)


def _summary(path: Path, length: int, entry: EngineEntry) -> list[str]:
    audit = entry.audit
    attention = audit["attention"] + (f" ({audit['attention_reason']})" if audit["attention_reason"] else "")
    spans = [
        f"{profile.name} {profile.sequence_length[0]}..{profile.sequence_length[2]} tokens x "
        f"{profile.batch_size[0]}..{profile.batch_size[2]} rows"
        for profile in entry.profiles
    ]
    products = _counted(audit["matrix_products"])
    if codes := audit.get("dequantised"):
        products += f", by codes {_counted(codes)}"
    weights = ", ".join(f"{size(count)} {dtype}" for dtype, count in audit["weight_bytes"].items() if count > 1e4)
    return [
        f"{path}: {size(length)}, {entry.backend} {entry.version}, for {', '.join(entry.compute_capabilities)}",
        f"  caches       {audit['cache_updates']}, each output in the memory of its input",
        f"  attention    {audit['attention_layers']} layers, {attention}; softmax {audit['softmax']}",
        f"  products     {products}",
        f"  norms, RoPE  {_counted(audit['norm_statistics'])}; {_counted(audit['rotary_embeddings'])}",
        f"  weights      {weights}",
        f"  profiles     {'; '.join(spans)}",
        f"  rebuild      {entry.rebuild}",
        "  not executed: judge it where its GPU is, with blockexport compare --backend " + entry.backend,
    ]


def _counted(types: dict[str, int]) -> str:
    return ", ".join(f"{count} in {dtype}" for dtype, count in types.items())
