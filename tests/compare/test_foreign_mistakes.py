"""A whole tensor scaled, exchanged or of another layer in another tool's file: detected, located and named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from blockexport.cli.main import main
from blockexport.compare.explain.foreign_values import watch_foreign
from blockexport.compare.explain.graph_values import SiteError
from blockexport.compare.explain.location import Location, Search
from blockexport.compare.explain.sites import LAYER_SITES
from blockexport.compare.explain.wrong_weights import wrong_weights
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.foreign.names import read_map
from blockexport.runtime.foreign.open_foreign import open_foreign, read_foreign
from tests import transformers_models
from tests.compare.foreign_mistakes import MISTAKES, TURNED, invisible, with_mistake
from tests.compare.foreign_table import CONVENTIONS, MAPS, impossible
from tests.foreign_files import FAMILIES, LAYERS, ForeignExports

SHORT = ("-M", "40", "--decode-steps", "6", *(p for name in ("prefill", "decode") for p in ("--check", name)))
SAMPLE = [
    ("final norm x 1.05", "genai"),
    ("down_proj x 1.00003", "optimum"),
    ("q_proj x 1.1", "genai"),
    ("embedding x 1.01", "optimum"),
    ("two exchanged", "optimum"),
    ("row halved", "genai"),
]
SOUND_SAMPLE = [("optimum", "llama"), ("genai", "llama")]
WHOLE = ("optimum", "genai", "transformers.exporters", "optimum, merged")


def is_found(
    mistake: str, convention: str, family: str, made: ForeignExports, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[str, bool]:
    """What a table says of a file with a mistake; whether it fails and is located, and that alone is named."""
    files, source, wanted = (
        CONVENTIONS[convention](made, family, folder),
        made.source(family),
        (MISTAKES | TURNED)[mistake],
    )
    for i, entry in enumerate(files):
        if str(entry).endswith(".onnx"):
            path = Path(str(entry))
            files[i] = with_mistake(path, folder / mistake / str(i) / path.name, source, wanted)
    capsys.readouterr()
    code = main(["compare", "--model", str(source), *map(str, [*files, *SHORT]), "--json"])
    if invisible(family, mistake):
        return f"exit {code} ({invisible(family, mistake)})", code == 0
    if code != 1:
        return f"exit {code}", False
    said = json.loads(capsys.readouterr().out)["explanation"]
    located = said["located"]
    if located is None:
        return f"not located: {said['note']}", False
    named = [wanted.named in message for message in said["file"]]
    alone = len(named) == 1 or mistake == "two exchanged"
    place = f"FAIL at layer {located['layer']}, {located['site']}, {located['node']}"
    return f"{place}; {said['sentences'][1:]}", located["site"] in wanted.sites and any(named) and alone


@pytest.mark.parametrize(("mistake", "convention"), SAMPLE)
def test_a_wrong_tensor_is_named(
    mistake: str, convention: str, foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, found = is_found(mistake, convention, "llama", foreign, tmp_path, capsys)
    assert found, said


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("convention", WHOLE)
def test_every_wrong_tensor_is_named(
    convention: str, family: str, foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = {mistake: is_found(mistake, convention, family, foreign, tmp_path, capsys) for mistake in MISTAKES}
    with capsys.disabled():
        sys.stdout.writelines(f"{convention} | {family} | {name} | {said}\n" for name, (said, _) in cells.items())
    assert [name for name, (_, found) in cells.items() if not found] == []


@pytest.mark.full
@pytest.mark.parametrize("convention", WHOLE[:2])
def test_a_square_matrix_the_wrong_way_round_is_named(
    convention: str,
    foreign: ForeignExports,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its shape fits either way, and every one of its values is in the file."""

    def square() -> Any:
        config = transformers_models.FAMILIES["llama"]()
        config.hidden_size = config.num_attention_heads * config.head_dim
        return config

    monkeypatch.setattr(transformers_models, "FAMILIES", {**transformers_models.FAMILIES, "square": square})
    said, found = is_found("transposed", convention, "square", foreign, tmp_path, capsys)
    assert found, said


def _everywhere() -> dict[str, Search]:
    """What Locate would give were any one site of any layer the first to differ."""
    places: list[tuple[int | None, str]] = [(layer, site) for layer in range(LAYERS) for site in LAYER_SITES]
    places += [(None, site) for site in ("embedding", "final_norm", "head")]
    found = {}
    for layer, site in places:
        first = Location(0, 0, layer, site, 1.0, 1e-7, absent=False, layers=frozenset())
        row = SiteError(range(4), layer, site, 1.0, 1e-7)
        found[f"{layer} {site}"] = Search(first, True, 1.0, (row,), (0, 1), (row.call,), 1)
    return found


@pytest.mark.parametrize(
    ("convention", "family"),
    [
        pytest.param(convention, family, marks=[] if (convention, family) in SOUND_SAMPLE else pytest.mark.full)
        for convention in CONVENTIONS
        for family in FAMILIES
        if not impossible(convention, family, "right")
    ],
)
def test_no_weight_of_a_right_file_is_named(
    convention: str, family: str, foreign: ForeignExports, tmp_path: Path
) -> None:
    """Wherever something else may be wrong."""
    paths = [Path(str(e)) for e in CONVENTIONS[convention](foreign, family, tmp_path) if str(e).endswith(".onnx")]
    checkpoint = open_checkpoint(str(foreign.source(family)))
    mapped = [entry for entry in MAPS if entry != "--map"] if convention == "--map" else []
    watched = watch_foreign(open_foreign(read_foreign(paths, read_map(mapped)), checkpoint.config))
    assert watched.uses is not None
    for call in (0, 8):
        uses, read = watched.uses(call), set[str]()
        for place, search in _everywhere().items():
            assert wrong_weights(search, uses, checkpoint) == {}, place
            assert search.location is not None
            read |= {weight.name for weight in uses.behind(search.location.layer, search.location.site)}
        assert len(read) >= len(checkpoint.entries) - 2 * 2 * LAYERS  # q, k and v may be one, and their biases
