"""The AOTInductor package: judged in Python, run from C++ with libtorch and without Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from blockexport.cli.doctor_command import examine
from blockexport.cli.main import main
from blockexport.export.bundle.aoti_machine import AOTI_INFO
from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import AOTI_FILE, MANIFEST, read_manifest
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.open import open_decoder
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.compare.static_judge import judged
from tests.runtime.cpp import cpp_build
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path


@pytest.fixture(scope="module")
def made(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K with a package, which was judged on the way in."""
    cpp_build.require_tools()
    target = Path(shutil.copytree(judged_stories, tmp_path_factory.mktemp("aoti") / "bundle"))
    assert main(["aoti", str(target), "--quiet"]) == 0
    return target


@pytest.fixture(scope="module")
def built() -> Path:
    """The C++ programs over libtorch."""
    options = [
        "-DBLOCKEXPORT_WITH_AOTI=ON",
        "-DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF",
        f"-DBLOCKEXPORT_TORCH_DIR={cpp_build.package('torch')}",
        cpp_build.QUICKLY,
    ]
    return cpp_build.build("aoti", options, "chat", "selftest", "decoder_tool")


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def test_the_package_is_listed_with_what_it_was_made_from(made: Path) -> None:
    manifest = read_manifest(made)
    assert manifest.files[AOTI_FILE].made_from["model.safetensors"] == manifest.files["model.safetensors"].sha256
    info = json.loads((made / AOTI_INFO).read_text())
    assert info["torch"] == torch.__version__.partition("+")[0]
    assert main(["selftest", str(made), "--backend", "aoti"]) == 0


def test_the_weights_inside_are_held_against_the_checkpoint(made: Path) -> None:
    source = open_checkpoint(str(shared_path("models/stories260K")))
    sound = judged(made, source, "parameters", "aoti")
    assert sound.message == "260,032 parameters, as the arithmetic says, every value the checkpoint's to the bit"
    tensors = {name: source.read(name).clone() for name in source.entries}
    tensors["model.layers.3.mlp.up_proj.weight"][7, 9] *= 2
    wrong = judged(made, MemoryCheckpoint(source.config, tensors), "parameters", "aoti")
    assert wrong.message.startswith("model.layers.3.mlp.up_proj.weight differs in 1 of 11,008 values: [7, 9] is ")


def test_other_numbers_of_rows_tokens_and_slots(made: Path) -> None:
    """One package for all: S from 1, and any M up to the rows of its RoPE table."""
    ids = torch.tensor(np.random.default_rng(0).integers(0, 512, (3, 11)))
    for slots in (12, 100, 512):
        ours, theirs = (open_decoder(made, name, max_sequence_length=slots) for name in ("aoti", "onnxruntime"))
        for decoder in (ours, theirs):
            decoder.reset(3)
        torch.testing.assert_close(ours.prefill(ids), theirs.prefill(ids), rtol=0, atol=1e-4)
        torch.testing.assert_close(ours.step(ids[:, :1]), theirs.step(ids[:, :1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(ours.cache(4)[1], theirs.cache(4)[1], rtol=0, atol=1e-4)


def test_cpp_without_python_on_the_machine(made: Path, built: Path) -> None:
    selftest = cpp_build.attempt([str(built / "selftest"), str(made)], clean=True)
    assert selftest.returncode == 0, selftest.stderr
    chat = [str(built / "chat"), str(made), "Once upon a time", "--max-new-tokens", "30", "--quiet"]
    done = cpp_build.attempt(chat, clean=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(", there was a little girl named Lily.")


def test_golden_text_byte_for_byte(made: Path, built: Path, tmp_path: Path) -> None:
    golden = json.loads(shared_path("models/stories260K/golden.json").read_text(encoding="utf-8"))
    done = cpp_build.request(
        built / "tests/decoder_tool",
        tmp_path,
        op="generate",
        bundle=str(made),
        prompt=[1],
        count=len(golden["ids"]) - 1,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"][0] == golden["text"]


def test_two_decoders_in_two_threads(made: Path, built: Path, tmp_path: Path) -> None:
    done = cpp_build.request(
        built / "tests/decoder_tool", tmp_path, op="generate", bundle=str(made), prompt=[1], count=60, threads=2
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["ids"]
    assert len(first) == 60
    assert first == second


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("instruction_set", ["avx2", "avx4096"], "avx4096"),
        ("machine", "sparc64", "sparc64"),
        ("torch", "1.13.0", "1.13.0"),
        ("schema_version", 2, "schema version 2"),
        ("device", "cuda", "was compiled for cuda and was asked to run on cpu: say --device cuda"),
    ],
)
def test_a_package_for_another_machine_is_refused_by_name(
    bundle: Path, built: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, word: str
) -> None:
    info = json.loads((bundle / AOTI_INFO).read_text())
    (bundle / AOTI_INFO).write_text(json.dumps({**info, key: value}))
    data = json.loads((bundle / MANIFEST).read_text())
    data["files"][AOTI_INFO] = asdict(file_entry(bundle / AOTI_INFO))
    (bundle / MANIFEST).write_text(json.dumps(data))
    done = cpp_build.attempt([str(built / "selftest"), str(bundle)])
    assert done.returncode == 2
    assert word in done.stderr
    assert main(["selftest", str(bundle), "--backend", "aoti"]) in (2, 3)
    assert word in capsys.readouterr().err


def test_no_package_no_run(bundle: Path, built: Path) -> None:
    data = json.loads((bundle / MANIFEST).read_text())
    del data["files"][AOTI_FILE]
    (bundle / MANIFEST).write_text(json.dumps(data))
    done = cpp_build.attempt([str(built / "selftest"), str(bundle)])
    assert done.returncode == 2
    assert "`blockexport aoti BUNDLE` makes one" in done.stderr


def test_a_package_that_no_manifest_lists_is_not_loaded(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((bundle / MANIFEST).read_text())
    del data["files"][AOTI_FILE]
    (bundle / MANIFEST).write_text(json.dumps(data))
    assert main(["generate", str(bundle), "once", "--backend", "aoti"]) == 2
    assert f"{AOTI_FILE} is not in the manifest" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:1000] + bytes([content[1000] ^ 1]) + content[1001:],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:-100],
        lambda content: b"#!/bin/sh\n",
    ],
    ids=["a bit", "the last byte", "cut", "a stranger's"],
)
def test_a_package_that_is_not_the_manifests_is_not_loaded(
    change: Callable[[bytes], bytes], bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is native code: nothing of it runs before its hash is right."""
    path = bundle / AOTI_FILE
    path.write_bytes(change(path.read_bytes()))
    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda *_, **__: pytest.fail("it was loaded"))
    assert main(["generate", str(bundle), "once", "--backend", "aoti"]) == 2
    assert f"{AOTI_FILE} has" in capsys.readouterr().err and path.exists()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "/bin/false", "/dev/null"])
def test_without_a_compiler_nothing_is_begun(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert main(["aoti", "tiny", "-o", str(tmp_path / "bundle")]) == 3
    assert f"{compiler!r} does not run: install g++" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["C++ compiler"].state == "note" and compiler in findings["C++ compiler"].remedy


def test_a_compiler_that_fails_is_this_machines_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows its version and has no headers, say."""
    config = small_config(num_hidden_layers=1)
    model = write_folder(tmp_path / "model", config, small_weights(config))
    broken = tmp_path / "g++"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "g++ 12.0";; *) echo "no headers" >&2; exit 1;; esac\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    command = [sys.executable, "-c", "import sys; from blockexport.cli.main import run; sys.exit(run())"]
    command += ["aoti", str(model), "-o", str(tmp_path / "bundle"), "--no-compare"]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "fails here" in done.stderr


@pytest.mark.full
def test_smollm2(built: Path, judged_smollm2: Path, tmp_path: Path) -> None:
    """Thirty layers: a minute of compiling on two cores."""
    bundle = Path(shutil.copytree(judged_smollm2, tmp_path / "smollm2"))
    assert main(["aoti", str(bundle), "--quiet"]) == 0
    done = cpp_build.attempt([str(built / "chat"), str(bundle), "What is the capital of France?"], clean=True)
    assert "Paris" in done.stdout, done.stderr
    assert cpp_build.attempt([str(built / "selftest"), str(bundle)], clean=True).returncode == 0
