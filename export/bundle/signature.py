"""A signature of a bundle's manifest, which names the hash of every other file, in the format of minisign.

`manifest.json.minisig` is what `minisign -Sm manifest.json` writes, and `minisign -Vm manifest.json -P KEY` reads. The
format: https://jedisct1.github.io/minisign. There is no time in it: the same key and manifest give the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blockexport.export.output.atomic_write import locked, replace_file
from blockexport.export.output.ownership import MANIFEST, SIGNATURE
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.regular_file import is_there, read_bytes, read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_KEY, _HASHED = b"Ed", b"ED"  # of keys, and of signatures of a BLAKE2b hash
_UNENCRYPTED = bytes(2)
_PUBLIC, _SECRET, _SIGNED = 42, 158, 74  # bytes
_LIMIT = 1 << 16  # bytes of a file with a key or a signature
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "


class _Signed(NamedTuple):
    key_id: bytes
    signature: bytes
    comment: str
    of_comment: bytes


def wrong_signature(folder: Path, content: bytes, key: str) -> str | None:
    """What is wrong with the signature of a bundle's manifest, as a sentence without its full stop; None where it is by
    `key`: a public key of minisign, or the path of a file with one. `content` is the manifest as it was checked.

    Raises:
        UsageError: the key is none.
        NotJudgedError: the package cryptography is not installed.
    """
    key_id, public = _public_key(key)
    path = folder / SIGNATURE
    if not is_there(path):
        return f"{folder} is not signed: {SIGNATURE} is missing"
    try:
        signed = _read(read_text(path, _LIMIT))
    except (UsageError, ValueError) as error:
        return f"{path} is not a signature of minisign's ({error})"
    if signed.key_id != key_id:
        return f"{path} is by the key {_shown(signed.key_id)}, and not by {_shown(key_id)}"
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signed.signature, hashlib.blake2b(content).digest())
        public.verify(signed.of_comment, signed.signature + signed.comment.encode())
    except InvalidSignature:
        return f"{path} is not a signature of {MANIFEST} as it is now"
    return None


def sign_manifest(folder: Path, content: bytes, key: Path) -> None:
    """Sign a bundle's manifest with a secret key of minisign's that has no password (`minisign -G -W`).

    Raises:
        UsageError: the key cannot be used, the manifest is not the `content` any more that was checked, or the disk is
            full.
        NotJudgedError: the package cryptography is not installed.
    """
    key_id, secret = _secret_key(key)
    with locked(folder):
        if read_bytes(folder / MANIFEST) != content:
            raise UsageError(f"{folder} was changed while it was verified, and is not signed: verify it again")
        signature = secret.sign(hashlib.blake2b(content).digest())
        comment = f"file:{MANIFEST}\thashed"
        of_comment = secret.sign(signature + comment.encode())
        lines = (
            f"{_UNTRUSTED}signature of a bundle of blockexport",
            base64.b64encode(_HASHED + key_id + signature).decode(),
            f"{_TRUSTED}{comment}",
            base64.b64encode(of_comment).decode(),
        )
        replace_file(folder / SIGNATURE, ("\n".join(lines) + "\n").encode())


def _read(text: str) -> _Signed:
    untrusted, encoded, trusted, last = text.rstrip("\n").split("\n")
    blob, of_comment = (base64.b64decode(line, validate=True) for line in (encoded, last))
    if not untrusted.startswith(_UNTRUSTED) or not trusted.startswith(_TRUSTED):
        raise ValueError("it has no comments")
    if len(blob) != _SIGNED or blob[:2] != _HASHED or len(of_comment) != 64:
        raise ValueError("of another kind or length")
    return _Signed(blob[2:10], blob[10:], trusted.removeprefix(_TRUSTED), of_comment)


def _public_key(key: str) -> tuple[bytes, Ed25519PublicKey]:
    line = read_text(Path(key), _LIMIT).strip().rsplit("\n", 1)[-1] if Path(key).is_file() else key
    blob = _decoded(line)
    if len(blob) != _PUBLIC or blob[:2] != _KEY:
        raise UsageError(f"{key} is neither a public key of minisign's nor a file with one: `minisign -G` makes a pair")
    return blob[2:10], _ed25519().Ed25519PublicKey.from_public_bytes(blob[10:])


def _secret_key(path: Path) -> tuple[bytes, Ed25519PrivateKey]:
    blob = _decoded(read_text(path, _LIMIT).strip().rsplit("\n", 1)[-1])
    if len(blob) != _SECRET or blob[:2] != _KEY:
        raise UsageError(f"{path} is not a secret key of minisign's: `minisign -G -W` makes a pair")
    if blob[2:4] != _UNENCRYPTED:
        raise UsageError(
            f"{path} has a password, which is minisign's to ask for: sign with `minisign -Sm BUNDLE/{MANIFEST}`, which "
            "gives the same file, or make a key without one (`minisign -G -W`)"
        )
    if hashlib.blake2b(_KEY + blob[54:126], digest_size=32).digest() != blob[126:]:
        raise UsageError(f"{path} is damaged: its checksum is that of another key. Restore it from a copy")
    return blob[54:62], _ed25519().Ed25519PrivateKey.from_private_bytes(blob[62:94])


def _decoded(line: str) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _shown(key_id: bytes) -> str:
    return key_id[::-1].hex().upper()


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise NotJudgedError("signatures need the package cryptography: pip install 'blockexport[sign]'") from error
    return ed25519
