"""Signatures of manifests, in minisign's format."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from blockexport.cli.main import main
from blockexport.export.bundle.manifest import read_manifest
from tests.bits import flip
from tests.exported import export, random_model

ed25519 = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.ed25519", reason="cryptography is not installed: pip install '.[sign]'"
)


def pair(folder: Path, name: str, seed: int) -> tuple[Path, str]:
    """The file of a secret key without a password, and the public key, as `minisign -G -W` makes them."""
    secret = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    public, key_id = secret.public_key().public_bytes_raw(), bytes([seed]) * 8
    seeds = key_id + secret.private_bytes_raw() + public
    check = hashlib.blake2b(b"Ed" + seeds, digest_size=32).digest()
    blob = b"Ed" + bytes(2) + b"B2" + bytes(48) + seeds + check
    path = folder / f"{name}.key"
    path.write_text(f"untrusted comment: secret\n{base64.b64encode(blob).decode()}\n")
    return path, base64.b64encode(b"Ed" + key_id + public).decode()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    export(random_model(), tmp_path / "bundle")
    return tmp_path / "bundle"


def test_signed_and_verified(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, public = pair(tmp_path, "mine", 7)
    _, others = pair(tmp_path, "others", 9)
    assert main(["verify", str(bundle), "--key", public]) == 1
    assert "is not signed" in capsys.readouterr().out
    assert main(["verify", str(bundle), "--sign", str(secret)]) == 0
    assert f"signed with {secret}: the signature is {bundle / 'manifest.json.minisig'}\n" in capsys.readouterr().out
    first = (bundle / "manifest.json.minisig").read_bytes()
    assert main(["verify", str(bundle), "--key", public]) == 0
    (tmp_path / "mine.pub").write_text(f"untrusted comment: minisign public key\n{public}\n")
    assert main(["verify", str(bundle), "--key", str(tmp_path / "mine.pub")]) == 0
    capsys.readouterr()
    assert main(["verify", str(bundle)]) == 0
    captured = capsys.readouterr()
    assert "not checked: the signature" in captured.err and "signed with" not in captured.out
    assert main(["verify", str(bundle), "--key", others]) == 1
    assert "is by the key 0707070707070707, and not by 0909090909090909" in capsys.readouterr().out
    assert main(["verify", str(bundle), "--sign", str(secret)]) == 0
    assert (bundle / "manifest.json.minisig").read_bytes() == first
    if shutil.which("minisign"):
        command = ["minisign", "-Vm", str(bundle / "manifest.json"), "-P", public]
        assert subprocess.run(command, capture_output=True).returncode == 0


def test_a_changed_manifest_or_signature(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, public = pair(tmp_path, "mine", 7)
    assert main(["verify", str(bundle), "--sign", str(secret)]) == 0
    path = bundle / "manifest.json.minisig"
    start, signed = len("untrusted comment: "), path.read_bytes()
    for bit in range(8 * start + 8 * signed.index(b"\n"), 8 * len(signed) - 8, 53):
        flip(path, bit)
        assert main(["verify", str(bundle), "--key", public]) in (1, 2), bit
        path.write_bytes(signed)
    assert main(["redeclare", str(bundle), "-M", "21", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["verify", str(bundle), "--key", public]) == 1
    assert "is not a signature of manifest.json as it is now" in capsys.readouterr().out
    assert read_manifest(bundle).max_sequence_length == 21


def test_nothing_wrong_is_signed(bundle: Path, tmp_path: Path) -> None:
    secret, _ = pair(tmp_path, "mine", 7)
    flip(bundle / "rope.safetensors", 4000)
    assert main(["verify", str(bundle), "--sign", str(secret)]) == 1
    assert not (bundle / "manifest.json.minisig").exists()


def test_what_was_changed_while_it_was_verified_is_not_signed(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, _ = pair(tmp_path, "mine", 7)

    def changed(*_: object) -> list[str]:
        assert main(["redeclare", str(bundle), "-M", "21", "--quiet"]) == 0
        return []

    monkeypatch.setattr("blockexport.compare.verify_bundle.wrong_graph", changed)
    assert main(["verify", str(bundle), "--sign", str(secret)]) == 2
    assert "was changed while it was verified, and is not signed" in capsys.readouterr().err
    assert not (bundle / "manifest.json.minisig").exists()


def test_what_is_not_a_key(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, public = pair(tmp_path, "mine", 7)
    locked = bytearray(base64.b64decode(secret.read_text().splitlines()[1]))
    locked[2:4] = b"Sc"
    (tmp_path / "locked.key").write_text(f"untrusted comment: x\n{base64.b64encode(bytes(locked)).decode()}\n")
    locked[2:4], locked[70] = bytes(2), locked[70] ^ 1
    (tmp_path / "damaged.key").write_text(f"untrusted comment: x\n{base64.b64encode(bytes(locked)).decode()}\n")
    (tmp_path / "short.key").write_text("untrusted comment: x\nRWQ=\n")
    for option, value, words in (
        ("--sign", str(tmp_path / "locked.key"), "has a password"),
        ("--sign", str(tmp_path / "damaged.key"), "is damaged: its checksum"),
        ("--sign", str(tmp_path / "short.key"), "is not a secret key"),
        ("--sign", str(tmp_path / "none.key"), "cannot be read"),
        ("--key", public[:-4], "is neither a public key"),
        ("--key", "nonsense", "is neither a public key"),
    ):
        assert main(["verify", str(bundle), option, value]) == 2
        assert words in capsys.readouterr().err
