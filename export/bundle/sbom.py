"""`sbom.cdx.json`: what a bundle is made of, as a bill of materials in CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/).

It says what the manifest says, in a form that other tools read, and is written whenever that is. It has no date and no
serial number: the same manifest gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import Manifest
from blockexport.export.output.disk import disk_errors
from blockexport.export.output.ownership import SBOM

_BUNDLE = "bundle"
Component = dict[str, Any]


def with_sbom(folder: Path, manifest: Manifest, name: str = SBOM) -> Manifest:
    """Write the bill of a bundle into `folder`, as `name`; returns the manifest that lists it.

    Raises:
        UsageError: the disk is full.
    """
    with disk_errors(folder):
        (folder / name).write_bytes(sbom_bytes(manifest))
    return replace(manifest, files=dict(sorted({**manifest.files, SBOM: file_entry(folder / name)}.items())))


def sbom_bytes(manifest: Manifest) -> bytes:
    """The file."""
    parts = [*_sources(manifest), *_libraries(manifest), *_files(manifest)]
    made_from = {_file(name): sorted(map(_file, entry.made_from)) for name, entry in manifest.files.items()}
    depends = {_BUNDLE: [part["bom-ref"] for part in parts], **{ref: on for ref, on in made_from.items() if on}}
    bundle = _model(
        _BUNDLE, manifest.source.reference, precision=manifest.precision.value, weights_digest=manifest.weights_digest
    )
    values = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": bundle},
        "components": parts,
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in depends.items()],
    }
    return (json.dumps(values, indent=2) + "\n").encode()


def _sources(manifest: Manifest) -> Iterator[Component]:
    source = manifest.source
    yield _model("checkpoint", source.reference, kind=source.kind, source_digest=source.digest)
    if source.adapter is not None:
        yield _model("adapter", source.adapter.reference, adapter_digest=source.adapter.digest)


def _model(ref: str, name: str, **properties: str) -> Component:
    values = [{"name": f"blockexport:{key}", "value": value} for key, value in properties.items()]
    return {"type": "machine-learning-model", "bom-ref": ref, "name": name, "properties": values}


def _libraries(manifest: Manifest) -> Iterator[Component]:
    """What made the bundle, none of which is in it; and what its engines run in."""
    for name, version in sorted(manifest.tools.items()):
        yield _library(name, version, "excluded")
    engines = [one for name, one in manifest.engines.items() if name in manifest.files and isinstance(one, dict)]
    for name, version in sorted({(str(one.get("backend")), str(one.get("version"))) for one in engines}):
        yield _library(name, version, "required")


def _library(name: str, version: str, scope: str) -> Component:
    purl = f"pkg:pypi/{quote(name.lower())}@{quote(version)}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "scope": scope, "purl": purl}


def _files(manifest: Manifest) -> Iterator[Component]:
    for name, entry in sorted(manifest.files.items()):
        if name != SBOM:
            hashes = [{"alg": "SHA-256", "content": entry.sha256}]
            yield {"type": "file", "bom-ref": _file(name), "name": name, "hashes": hashes}


def _file(name: str) -> str:
    return f"file:{name}"
