"""The drawing of a block has every step once, with its shape, in boxes that are apart, and needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from blockexport.cli.inspect_view import options_in_words
from blockexport.models.block_drawing import RESIDUAL, draw_block, draw_steps
from blockexport.models.config.arithmetic import Operation, block_operations
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import PRESETS
from tests.browser import visit
from tests.small_models import small_config

SVG = "{http://www.w3.org/2000/svg}"
CONFIG = small_config("qwen3")
STEPS = block_operations(CONFIG, 64)
Box = tuple[float, float, float, float]


def texts(document: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(document).iter(f"{SVG}text")]


def boxes(document: str) -> list[Box]:
    """Left, top, right and bottom of every box."""
    found = []
    for rect in ElementTree.fromstring(document).iter(f"{SVG}rect"):
        if rect.get("class", "").startswith("node"):
            left, top, width, height = (float(rect.get(key, "0")) for key in ("x", "y", "width", "height"))
            found.append((left, top, left + width, top + height))
    return found


def sums(document: str) -> int:
    return len(list(ElementTree.fromstring(document).iter(f"{SVG}circle")))


def norm(part: str, name: str) -> Operation:
    return Operation(part, name, ("B", "S", CONFIG.hidden_size), CONFIG.hidden_size)


def without(*names: str) -> list[Operation]:
    return [step for step in STEPS if step.name not in names]


def norms_after() -> list[Operation]:
    after: list[Operation] = []
    for step in without("input_layernorm", "post_attention_layernorm"):
        after += [norm(step.part, f"post_{step.part}_norm")] if step.name == RESIDUAL else []
        after.append(step)
    return after


PARALLEL = [step for step in STEPS if (step.part, step.name) != ("attention", RESIDUAL)]
FORMS = {
    "as it is": STEPS,
    "norms after": norms_after(),
    "norms before and after": [norm("attention", "input_layernorm"), *norms_after()],
    "a plain MLP": without("gate_proj"),
    "parallel": PARALLEL,
    "parallel with one norm": [step for step in PARALLEL if step.name != "post_attention_layernorm"],
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_step_is_there_once_and_apart_from_the_others(form: str) -> None:
    steps = [step for step in FORMS[form] if step.name != RESIDUAL]
    document = draw_steps(FORMS[form], "a <model> & more", ["said of it"])
    words = texts(document)
    assert words[:2] == ["a <model> & more", "said of it"]
    for step in steps:
        assert words.count(step.name) == 1, step.name
        assert f"[{', '.join(map(str, step.shape))}]" in words
    assert len(boxes(document)) == len(steps) + 2, "and the two caches"
    assert sums(document) == (1 if form.startswith("parallel") else 2)
    # What waits for the sum goes past what the MLP reads, and a norm's result past what waits: lines that cross.
    assert document.count('class="room"') == {"parallel": 1, "parallel with one norm": 2}.get(form, 0)
    _check_apart(document)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_fit_their_boxes(preset: str) -> None:
    config = PRESETS[preset].config
    _check_apart(draw_block(config, preset, options_in_words(config), 512))


def _check_apart(document: str) -> None:
    width, height = (float(value) for value in re.findall(r'viewBox="0 0 (\S+) (\S+)"', document)[0])
    found = boxes(document)
    for i, (left, top, right, bottom) in enumerate(found):
        assert 0 < left < right < width and 0 < top < bottom < height
        for other in found[i + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    for text in ElementTree.fromstring(document).iter(f"{SVG}text"):
        if text.get("class") == "name" and text.get("text-anchor") == "start":
            x = float(text.get("x", "0"))
            box = next(one for one in found if one[0] < x < one[2] and one[1] < float(text.get("y", "0")) < one[3])
            assert x + 8 * len(text.text or "") < box[2], f"{text.text} is wider than its box"


def test_layers_of_several_kinds_are_told() -> None:
    mixed = small_config(layer_types=("full_attention", "sliding_attention", "full_attention"), sliding_window=16)
    said = " ".join(texts(draw_block(mixed, "m", "", 64)))
    assert "3 blocks, 2 of them like this one, the first" in said
    assert "all alike" in " ".join(texts(draw_block(CONFIG, "m", "", 64)))


@pytest.mark.parametrize("config", [PRESETS["llama-3-8b"].config, CONFIG])
def test_it_asks_for_nothing(config: ModelConfig, tmp_path: Path) -> None:
    page = tmp_path / "block.svg"
    page.write_text(draw_block(config, "a model", options_in_words(config), 64))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    seen = visit(page, scratch)
    assert seen.console == [] and [address for address in seen.requests if address != page.as_uri()] == []
