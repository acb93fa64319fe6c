"""The bill of materials of a bundle: CycloneDX 1.6 by its own schema, complete, and as true as the manifest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from blockexport import redeclare
from blockexport.export.bundle.manifest import AdapterRecord, read_manifest
from blockexport.export.bundle.sbom import sbom_bytes


def validated(content: bytes) -> dict[str, Any]:
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(content.decode())
    assert error is None, error
    found: dict[str, Any] = json.loads(content)
    refs = [part["bom-ref"] for part in found["components"]]
    assert len(set(refs)) == len(refs)
    assert {one for edge in found["dependencies"] for one in edge["dependsOn"]} <= set(refs)
    return found


def test_it_lists_what_is_there(judged_stories: Path) -> None:
    manifest = read_manifest(judged_stories)
    bill = validated((judged_stories / "sbom.cdx.json").read_bytes())
    parts = {part["bom-ref"]: part for part in bill["components"]}
    files = {part["name"]: part["hashes"] for part in parts.values() if part["type"] == "file"}
    listed = {name: entry.sha256 for name, entry in manifest.files.items() if name != "sbom.cdx.json"}
    assert files == {name: [{"alg": "SHA-256", "content": sha256}] for name, sha256 in listed.items()}
    assert len(files) > 10
    source = {"name": "blockexport:source_digest", "value": manifest.source.digest}
    assert parts["checkpoint"]["name"] == manifest.source.reference and source in parts["checkpoint"]["properties"]
    libraries = {part["name"]: part["version"] for part in parts.values() if part["type"] == "library"}
    assert libraries == manifest.tools
    assert {"blockexport", "torch", "onnx", "onnxruntime", "tokenizers", "numpy"} <= libraries.keys()
    edges = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    assert edges["file:model.onnx"] == ["file:model.safetensors", "file:rope.safetensors"]
    assert sorted(edges["bundle"]) == sorted(parts)


def test_of_adapters_and_engines(judged_stories: Path) -> None:
    manifest = read_manifest(judged_stories)
    files, engine = manifest.files, {"backend": "tensorrt-rtx", "version": "1.7.1"}
    changed = replace(
        manifest,
        source=replace(manifest.source, adapter=AdapterRecord("my adapter", "a" * 64)),
        tools={"torch": "2.13.0+cpu"},
        files={**files, **dict.fromkeys(("engines/a.engine", "engines/b.engine"), files["config.json"])},
        engines={"engines/a.engine": engine, "engines/b.engine": engine, "engines/gone.engine": {"backend": "x"}},
    )
    parts = {part["bom-ref"]: part for part in validated(sbom_bytes(changed))["components"]}
    assert parts["adapter"]["name"] == "my adapter"
    assert {ref: part["scope"] for ref, part in parts.items() if part["type"] == "library"} == {
        "pkg:pypi/torch@2.13.0%2Bcpu": "excluded",
        "pkg:pypi/tensorrt-rtx@1.7.1": "required",
    }


def test_it_follows_what_is_changed(judged_stories: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(judged_stories, tmp_path / "bundle"))
    redeclare(bundle, 330)
    redeclare(bundle, 400, tmp_path / "copy")
    for folder in (bundle, tmp_path / "copy"):
        content = (folder / "sbom.cdx.json").read_bytes()
        assert content != (judged_stories / "sbom.cdx.json").read_bytes()
        assert content == sbom_bytes(read_manifest(folder))
