"""Each runner runs what it says: so many tokens, the likeliest each time, in every row, again from an empty cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.models.errors import NotJudgedError
from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, CaseSample, OpenedAs, Side, prompt_ids
from blockexport.runtime.bench.bundle_runner import BundleRunner
from blockexport.runtime.bench.meter import Meter
from blockexport.runtime.bench.runner import open_runner
from blockexport.runtime.bench.sides import bundle_side, other_side
from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model
from tests.support import shared_path

STEPS = 5
SPEAKS = """#!/bin/sh
# Answers as the C++ program does, and complains where it is asked for more than nine tokens.
echo "$@" > "$0.asked"
while read word rest; do
  echo "$word $rest" >> "$0.asked"
  case "$word" in
    load) echo loaded;;
    *) [ $(echo $rest | wc -w) -gt 29 ] && { echo "too many tokens" >&2; exit 2; }; echo 0.25; echo 1.5;;
  esac
done
"""
PLAN = BenchPlan((BenchCase(3, 9),), STEPS, 1, 1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    export(random_model(), folder)
    return folder


@pytest.fixture(scope="module")
def expected(bundle: Path) -> list[list[int]]:
    """[step][row] ids: the first token after the prompts, and one for each step."""
    decoder = open_decoder(bundle, threads=1)
    decoder.reset(3)
    chosen = [decoder.prefill(torch.tensor(prompt_ids(PLAN.cases[0], 101)))[:, -1:].argmax(-1)]
    for _ in range(STEPS):
        chosen.append(decoder.step(chosen[-1])[:, -1:].argmax(-1))
    return [one[:, 0].tolist() for one in chosen]


def watched(runner: Any, after: Any) -> list[list[int]]:
    """What the runner chooses in its second run, told by `after`; it has to choose the same as in the first."""
    runner.load()
    prompt = prompt_ids(PLAN.cases[0], 101)
    runs = []
    for _ in range(2):
        chosen: list[list[int]] = []
        for name in ("first_token", "step"):
            original = getattr(type(runner), name)

            def told(original: Any = original, chosen: list[list[int]] = chosen) -> None:
                original(runner)
                chosen.append(after())

            setattr(runner, name, told)
        sample = runner.run(prompt, STEPS, Meter())
        assert sample.first_token_seconds > 0 and sample.decode_seconds > 0
        runs.append(chosen)
    assert runs[0] == runs[1]
    return runs[1]


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
def test_a_bundle_in_a_decoder_of_ours(backend: str, bundle: Path, expected: list[list[int]]) -> None:
    runner = open_runner(bundle_side(bundle, backend), PLAN)
    assert isinstance(runner, BundleRunner)
    chosen = watched(runner, lambda: runner._inputs[:, 0].tolist())
    assert chosen == expected
    assert runner._decoder.lengths_B.tolist() == [9 + STEPS] * 3
    assert ("onnxruntime" if backend == "onnxruntime" else "torch") in runner.version


def test_a_bundle_in_genai_even_past_its_end_of_text(bundle: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    """What every row would choose first is made a token that ends a text: the steps are run all the same."""
    ends = set(expected[0])
    export(random_model(eos_token_ids=tuple(ends)), tmp_path)
    side = other_side(f"genai:{tmp_path}", bundle_side(bundle, "onnxruntime"))
    runner: Any = open_runner(side, PLAN)
    chosen = watched(runner, lambda: runner._generator.get_next_tokens().tolist())
    assert len(chosen) == 1 + STEPS and not runner._generator.is_done()
    assert runner._generator.token_count() == 9 + STEPS + 1
    assert all(ends.isdisjoint(row) for row in chosen)


def test_a_bundle_in_genai_chooses_as_ours_does(bundle: Path, expected: list[list[int]]) -> None:
    runner: Any = open_runner(other_side(f"genai:{bundle}", bundle_side(bundle, "onnxruntime")), PLAN)
    assert watched(runner, lambda: runner._generator.get_next_tokens().tolist()) == expected
    assert "onnxruntime-genai" in runner.version


def test_a_checkpoint_in_transformers_chooses_as_ours_does(tmp_path: Path) -> None:
    plain = {"qkv_bias": False, "o_bias": False, "mlp_bias": False, "sliding_window": None, "layer_types": ()}
    export(random_model(**plain), tmp_path / "plain")
    ours = bundle_side(tmp_path / "plain", "onnxruntime")
    (tmp_path / "folder").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "folder" / name).symlink_to(tmp_path / "plain" / name)
    runner: Any = open_runner(other_side(f"transformers:{tmp_path / 'folder'}", ours), PLAN)
    decoder: Any = open_runner(ours, PLAN)
    chosen = watched(runner, lambda: runner._ids[:, 0].tolist())
    assert chosen == watched(decoder, lambda: decoder._inputs[:, 0].tolist())
    assert runner._cache.get_max_length() == 29 and "transformers" in runner.version


def test_a_headless_bundle_is_fed_embeddings(tmp_path: Path) -> None:
    export(random_model(), tmp_path, headless=True)
    side = bundle_side(tmp_path, "onnxruntime")
    assert side.notes == ("headless: given embeddings, computes no logits",)
    runner = BundleRunner(side, PLAN)
    runner.load()
    runner.run(prompt_ids(PLAN.cases[0], 101), STEPS, Meter())
    assert runner._decoder.lengths_B.tolist() == [9 + STEPS] * 3
    assert runner._inputs.shape == (3, 1, 24)


class Answers:
    """A server of llama.cpp's that answers what it is told to, taking its time."""

    def __init__(self, **timings: float) -> None:
        self.timings = timings

    def handle_completions(self, request: dict[str, Any], listen: Any) -> None:
        self.request = request
        for _ in range(int(request["n_predict"])):
            listen({"choices": []})
        listen({"choices": [], "timings": self.timings})


def llama_side() -> Side:
    path = shared_path("models/stories260K/stories260K-F32.gguf")
    ours = Side("ours", "", path, 512, 64, backend="onnxruntime")
    return other_side(str(path), ours)


def test_a_gguf_file_in_llama_cpp() -> None:
    runner: Any = open_runner(llama_side(), PLAN)
    runner.load()
    for _ in range(2):  # nothing of the first prompt is taken from a cache
        sample = runner.run(prompt_ids(BenchCase(1, 20), 512), STEPS, Meter())
        assert sample.first_token_seconds > 0 and sample.decode_seconds > 0


def test_llama_cpp_is_timed_by_itself_and_has_to_have_run_it_all() -> None:
    runner: Any = open_runner(llama_side(), PLAN)
    joules = iter([1.0, 4.0, 20.0])
    meter = Meter(joules=lambda: next(joules))
    runner._server = Answers(prompt_n=20, prompt_ms=30.0, predicted_n=STEPS + 1, predicted_ms=500.0)
    assert runner.run([[7] * 20], STEPS, meter) == CaseSample(0.03, 0.5, 3.0, 16.0)
    assert (runner._server.request["n_predict"], runner._server.request["cache_prompt"]) == (STEPS + 1, False)
    runner._server = Answers(prompt_n=1, prompt_ms=30.0, predicted_n=STEPS + 1, predicted_ms=500.0)
    with pytest.raises(NotJudgedError, match=r"llama.cpp did not run 20 tokens and 5 more .*prompt_n"):
        runner.run([[7] * 20], STEPS, Meter(joules=lambda: None))


def test_a_c_program_is_asked_line_by_line_and_its_own_times_count(bundle: Path, tmp_path: Path) -> None:
    program = tmp_path / "speed"
    program.write_text(SPEAKS)
    program.chmod(0o755)
    ours = bundle_side(bundle, "onnxruntime", OpenedAs(31, exact=True, low_memory=True))
    runner = open_runner(other_side(f"cpp:{program}", ours), PLAN)
    assert runner.memory().resident
    runner.load()
    joules = iter([1.0, 4.0, 20.0])
    sample = runner.run(prompt_ids(PLAN.cases[0], 101), STEPS, Meter(joules=lambda: next(joules)))
    assert sample == CaseSample(0.25, 1.5, 3.0, 16.0)
    command, *asked = Path(f"{program}.asked").read_text().splitlines()
    flags = "--asked --backend onnxruntime --threads 1 --max-sequence-length 31 --exact --low-memory"
    assert command == f"{bundle} {flags}"
    ids = " ".join(str(token) for row in prompt_ids(PLAN.cases[0], 101) for token in row)
    assert [line.strip() for line in asked] == ["load", f"run 3 {STEPS} {ids}"]
    with pytest.raises(NotJudgedError, match=r"speed could not run .*: too many tokens. Leave it out of --against"):
        runner.run([[7] * 28], STEPS, Meter(joules=lambda: None))
