"""`blockexport ablate`: what it prints, its exit codes, and a checkpoint of its that is exported and judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockexport.cli.main import command, main
from blockexport.compare.ablation.swaps import SWAPS
from tests.support import REPOSITORY

TINY = ("--seeds", "2", "--steps", "3", "--size", "24", "--threads", "1")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "text.txt").write_bytes((REPOSITORY / "LICENSE").read_bytes()[:3000])
    return str(tmp_path / "text.txt")


def test_a_table_conclusions_and_a_checkpoint_that_passes(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["ablate", text, "-o", str(out), "--swaps", "learned-positions", *TINY]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[2].split() == ["swap", "before", "after", "change", "±", "seeds", "±", "text", "verdict"]
    assert lines[3].startswith("learned-positions ") and lines[3].rstrip().endswith(("borne out", "better", "worse"))
    assert "learned-positions: from RoPE to learned positions; both sides have LayerNorm, GELU" in printed.out
    assert printed.err.splitlines() == [f"page: {out.resolve() / 'ablation.html'}"]
    assert main(["ablate", text, "-o", str(out), "--swaps", "learned-positions", *TINY, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "ablation.json").read_text())

    bundle = tmp_path / "bundle"
    model = str(out / "learned-positions-seed0")
    assert main(["onnx", model, "-o", str(bundle), "--max-sequence-length", "64", "--no-compare", "--quiet"]) == 0
    assert main(["compare", str(bundle), "--check", "decode", "--check", "parameters", "--quiet"]) == 0
    assert main(["generate", str(bundle), "The", "--max-new-tokens", "3", "--quiet"]) == 0


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each side of each swap."""
    folder = tmp_path_factory.mktemp("ablation")
    (folder / "text.txt").write_bytes((REPOSITORY / "LICENSE").read_bytes()[:3000])
    assert main(["ablate", str(folder / "text.txt"), "-o", str(folder / "out"), "--swaps", "all", *TINY]) == 0
    return folder / "out"


@pytest.mark.full
@pytest.mark.parametrize("name", ["baseline", *SWAPS])
def test_every_checkpoint_passes_as_onnx_and_is_built_as_an_engine(every: Path, tmp_path: Path, name: str) -> None:
    model, bundle = str(every / f"{name}-seed1"), str(tmp_path / "bundle")
    target = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--fp32"]
    assert main(["trt", model, "-o", bundle, "--max-sequence-length", "64", *target, "--quiet"]) == 0
    assert main(["compare", bundle, "--quiet"]) == 0


def test_the_help_lists_every_swap() -> None:
    (option,) = (one for one in command("ablate").params if one.name == "swaps")
    assert f": {', '.join(SWAPS)}. Default" in str(option.help)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--swaps", "gelo"), "there is no swap 'gelo' (did you mean gelu?)"),
        (("--size", "20"), "--size 20 has to be a multiple of 8"),
        (("--seeds", "1"), "--seeds is 1, and has to be a whole number of at least 2"),
        (("--threads", "0"), "--threads 0 is outside 1.."),
    ],
)
def test_wrong_use_ends_with_2_and_leaves_nothing(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], complaint: str
) -> None:
    assert main(["ablate", text, "-o", str(tmp_path / "out"), "--steps", "1", *options]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_an_output_in_the_text_folder_is_refused(tmp_path: Path, text: str) -> None:
    assert main(["ablate", str(tmp_path), "-o", str(tmp_path / "out"), *TINY]) == 2
