"""The C++ runtime on ONNX Runtime against Python's: the same bits, the same refusals."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from blockexport.cli.main import main
from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, read_manifest, sha256_of
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from blockexport.runtime.selftest import check_files, replay_golden
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import Sampler, SamplingOptions
from tests.bits import flip
from tests.exported import EVERYTHING, export, random_model
from tests.runtime.cpp import cpp_build
from tests.small_models import small_config, small_weights, write_folder
from tests.support import REPOSITORY, shared_path

ENGINES: dict[str, Any] = {
    "engines/rtx.engine": {
        "backend": "tensorrt-rtx",
        "version": "1.7.1.116",
        "compute_capabilities": ["8.6", "8.9"],
        "profiles": [{"name": "prefill", "batch_size": [1, 1, 8], "sequence_length": [1, 128, 512]}],
        "options": {"hardware_compatibility": None, "version_compatible": False, "strip_weights": False},
    },
    "engines/trt.engine": {
        "backend": "tensorrt",
        "version": "10.1",
        "compute_capabilities": ["8.0"],
        "profiles": [],
        "options": {"hardware_compatibility": "ampere-plus", "version_compatible": False, "strip_weights": False},
    },
}


@pytest.fixture(scope="module")
def built() -> Path:
    """The build folder."""
    return cpp_build.build("onnxruntime", cpp_build.onnxruntime_options())


@pytest.fixture
def bundle(judged_stories: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(judged_stories, tmp_path / "bundle"))


def selftest(built: Path, bundle: Path) -> tuple[int, str]:
    """Exit code and stderr of the sample."""
    done = cpp_build.attempt([str(built / "selftest"), str(bundle)])
    return done.returncode, done.stdout + done.stderr


def run_cpp(built: Path, folder: Path, **request: Any) -> np.ndarray[Any, Any]:
    """The float32 values that a `run` request gives."""
    output = folder / "logits.bin"
    done = cpp_build.request(built / "tests/decoder_tool", folder, op="run", output=str(output), **request)
    assert done.returncode == 0, done.stderr
    return np.fromfile(output, dtype=np.float32)


def test_what_needs_no_model(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    data = json.loads((judged_stories / MANIFEST).read_text())
    data["engines"] = ENGINES
    for name in ENGINES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"engine")
        data["files"][name] = asdict(file_entry(path))
    data["files"]["engines/trt.engine"]["made_from"] = {ONNX_FILE: "0" * 64}
    (tmp_path / MANIFEST).write_text(json.dumps(data))
    weights = judged_stories / "model.safetensors"
    vectors = REPOSITORY / "tests/data/sampling_vectors.json"
    cpp_build.run([str(built / "tests/core_tests"), str(vectors), str(weights), sha256_of(weights), str(tmp_path)])


def test_decode_to_the_last_slot_has_the_bits_of_python(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    decoder = open_decoder(judged_stories, threads=1)
    slots, vocab = decoder.max_sequence_length, decoder.config.vocab_size
    ids = [int(token) for token in np.random.default_rng(0).integers(0, vocab, slots)]
    # The caches begin with 128 slots, and grow to 256 and to 512.
    calls = [ids[:100], ids[100:200], ids[200:480], *([token] for token in ids[480:])]
    expected = [decoder.prefill(torch.tensor([call])).numpy().reshape(-1) for call in calls]
    found = run_cpp(
        built, tmp_path, bundle=str(judged_stories), options={"threads": 1}, calls=[{"ids": call} for call in calls]
    )
    assert np.array_equal(found.view(np.uint32), np.concatenate(expected).view(np.uint32))


def test_one_token_past_the_last_slot_throws(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    calls = [{"ids": [1] * 512}, {"ids": [1]}]
    done = cpp_build.request(
        built / "tests/decoder_tool",
        tmp_path,
        op="run",
        bundle=str(judged_stories),
        calls=calls,
        output=str(tmp_path / "out"),
    )
    assert done.returncode == 1
    assert "at position 512 do not fit into the 512 cache slots" in done.stderr


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_batch_of_unequal_rows(built: Path, tmp_path: Path, precision: Precision) -> None:
    """Two rows padded on the right, then steps; fp16 logits are widened from their own bits."""
    export(random_model(), tmp_path / "bundle", precision)
    ids = np.random.default_rng(1).integers(0, 101, (2, 9))
    steps = np.random.default_rng(2).integers(0, 101, (4, 2))
    calls = [{"ids": ids.reshape(-1).tolist(), "lengths": [9, 6]}, *({"ids": step.tolist()} for step in steps)]
    request = {"bundle": str(tmp_path / "bundle"), "options": {"threads": 1}, "rows": 2, "calls": calls}
    decoder = open_decoder(tmp_path / "bundle", threads=1)
    decoder.reset(2)
    expected = [decoder.prefill(torch.tensor(ids), torch.tensor([9, 6]))]
    expected += [decoder.step(torch.tensor(step)[:, None]) for step in steps]
    flat = np.concatenate([outputs.to(torch.float32).numpy().reshape(-1) for outputs in expected])
    assert np.array_equal(run_cpp(built, tmp_path, **request), flat)


def test_a_quantised_bundle_passes_selftest_and_has_the_bits_of_python(built: Path, tmp_path: Path) -> None:
    """As it is judged, and with activations in 8 bits, as it is run for speed."""
    config = small_config("llama", num_hidden_layers=1, max_position_embeddings=64)
    model, bundle = write_folder(tmp_path / "model", config, small_weights(config)), tmp_path / "bundle"
    assert main(["onnx", str(model), "-o", str(bundle), "--quantize", "int4", "--quiet"]) == 0
    code, said = selftest(built, bundle)
    assert code == 0 and "selftest passed" in said
    ids = torch.tensor([[7, 3, 60, 11, 2]])
    found = {}
    for exact in (False, True):
        options = {"threads": 1, "exact": exact}
        request = {"bundle": str(bundle), "options": options, "calls": [{"ids": ids[0].tolist()}]}
        found[exact] = run_cpp(built, tmp_path, **request)
        expected = open_decoder(bundle, threads=1, exact=exact).prefill(ids).numpy().reshape(-1)
        assert np.array_equal(found[exact].view(np.uint32), expected.view(np.uint32))
    assert not np.array_equal(found[False], found[True])


def test_what_onnxruntime_has_no_kernel_for_is_an_error_with_its_words(built: Path, tmp_path: Path) -> None:
    """Its CPU provider lacks most of bf16."""
    export(random_model(), tmp_path / "bundle", Precision.BF16)
    done = cpp_build.attempt([str(built / "chat"), str(tmp_path / "bundle"), "x"])
    assert done.returncode == 2
    assert "does not load" in done.stderr
    assert "Could not find an implementation for Gemm" in done.stderr


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_headless_model_takes_embeddings(built: Path, tmp_path: Path, precision: Precision) -> None:
    manifest = export(random_model(), tmp_path / "bundle", precision, headless=True)
    decoder = open_decoder(tmp_path / "bundle", threads=1)
    embeds = np.random.default_rng(3).normal(size=(1, 5, manifest.config.hidden_size)).astype(np.float32)
    expected = decoder.prefill(torch.tensor(embeds)).to(torch.float32).numpy().reshape(-1)
    calls = [{"embeds": embeds.reshape(-1).tolist()}]
    found = run_cpp(built, tmp_path, bundle=str(tmp_path / "bundle"), options={"threads": 1}, calls=calls)
    assert np.array_equal(found, expected)


def test_last_logits_only(built: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle", last_logits_only=True)
    expected = open_decoder(tmp_path / "bundle", threads=1).prefill(torch.tensor([[3, 1, 4, 1, 5]])).numpy()
    found = run_cpp(
        built, tmp_path, bundle=str(tmp_path / "bundle"), options={"threads": 1}, calls=[{"ids": [3, 1, 4, 1, 5]}]
    )
    assert np.array_equal(found, expected.reshape(-1))


def test_rows_of_unequal_length_have_the_logits_of_their_last_tokens(built: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle", last_logits_only=True)
    ids, lengths = [[3, 1, 4, 1, 5], [2, 7, 0, 0, 0], [8, 50, 50, 50, 50]], [5, 2, 1]
    decoder = open_decoder(tmp_path / "bundle", threads=1)
    decoder.reset(3)
    expected = [decoder.prefill(torch.tensor(ids), torch.tensor(lengths)), decoder.step(torch.tensor([[9], [9], [9]]))]
    calls = [{"ids": [token for row in ids for token in row], "lengths": lengths}, {"ids": [9, 9, 9]}]
    found = run_cpp(built, tmp_path, bundle=str(tmp_path / "bundle"), options={"threads": 1}, rows=3, calls=calls)
    assert np.array_equal(found, torch.cat([part.reshape(-1) for part in expected]).numpy())


def test_another_m_has_the_bits_of_python(built: Path, tmp_path: Path) -> None:
    """Exported with 29 slots, opened with fewer and with more; the file stays as it is."""
    export(random_model(), tmp_path / "bundle", slots=29)
    ids = [int(token) for token in np.random.default_rng(4).integers(0, 101, 64)]
    for slots in (7, 64):
        decoder = open_decoder(tmp_path / "bundle", threads=1, max_sequence_length=slots)
        expected = decoder.prefill(torch.tensor([ids[:slots]])).reshape(-1).numpy()
        request = {"bundle": str(tmp_path / "bundle"), "options": {"threads": 1, "max_sequence_length": slots}}
        assert np.array_equal(run_cpp(built, tmp_path, **request, calls=[{"ids": ids[:slots]}]), expected)
        calls = [{"ids": ids[:slots]}, {"ids": [1]}]
        done = cpp_build.request(
            built / "tests/decoder_tool", tmp_path, op="run", **request, calls=calls, output=str(tmp_path / "out")
        )
        assert f"do not fit into the {slots} cache slots" in done.stderr
    done = cpp_build.attempt([str(built / "chat"), str(tmp_path / "bundle"), "x", "--max-sequence-length", "65"])
    assert done.returncode == 2
    assert "max_sequence_length 65 is outside 1..64, the rows of this bundle's RoPE table" in done.stderr


@pytest.mark.parametrize(
    ("precision", "kinds"), [(Precision.FP16, {"last_logits_only": True}), (Precision.FP32, {"headless": True})]
)
def test_another_m_of_several_rows_and_other_ends(
    built: Path, tmp_path: Path, precision: Precision, kinds: dict[str, bool]
) -> None:
    export(random_model(), tmp_path / "bundle", precision, slots=29, **kinds)
    decoder = open_decoder(tmp_path / "bundle", threads=1, max_sequence_length=41)
    decoder.reset(2)
    tokens = np.random.default_rng(3).integers(0, 101, (2, 41))
    numbers = np.random.default_rng(4).standard_normal((2, 41, EVERYTHING.hidden_size)).astype("float32")
    given = torch.from_numpy(numbers) if decoder.headless else torch.from_numpy(tokens)
    parts = (given[:, :40], given[:, 40:])
    expected = [decoder.prefill(part) for part in parts]
    name = "embeds" if decoder.headless else "ids"
    calls = [{name: part.reshape(-1).tolist()} for part in parts]
    options = {"threads": 1, "max_sequence_length": 41}
    found = run_cpp(built, tmp_path, bundle=str(tmp_path / "bundle"), options=options, rows=2, calls=calls)
    assert np.array_equal(found, torch.cat([part.reshape(-1) for part in expected]).float().numpy())


NO_NUMBERS = [
    ("--max-sequence-length", "0", "--max-sequence-length is 0: choose at least 1"),
    ("-M", "-7", "--max-sequence-length is -7: choose at least 1"),
    ("-M", "12abc", "-M takes a number, and was given 12abc"),
    ("-M", "9" * 20, "-M takes a number, and was given 9999"),
    ("--threads", "1.5", "--threads takes a number, and was given 1.5"),
    ("--temperature", "0,5", "--temperature takes a number, and was given 0,5"),
    ("--seed", "x", "--seed takes a number, and was given x"),
]


@pytest.mark.parametrize(("option", "value", "message"), NO_NUMBERS)
def test_an_option_that_is_no_whole_number(
    built: Path, judged_stories: Path, option: str, value: str, message: str
) -> None:
    done = cpp_build.attempt([str(built / "chat"), str(judged_stories), "x", option, value])
    assert done.returncode == 2
    assert message in done.stderr


def test_a_prompt_beyond_the_cache_goes_with_more_slots(built: Path, tmp_path: Path) -> None:
    source, short = str(shared_path("models/stories260K")), tmp_path / "short"
    assert main(["onnx", source, "-o", str(short), "-M", "16", "--no-compare", "--quiet"]) == 0
    command = [str(built / "chat"), str(short), "word " * 30, "--max-new-tokens", "3", "--quiet"]
    done = cpp_build.attempt(command)
    assert done.returncode == 2
    advised = re.search(r"the cache 16 slots: shorten the prompt, or .* \(-M\) from (\d+) to 512", done.stderr)
    assert advised is not None, done.stderr
    assert cpp_build.attempt([*command, "-M", advised[1]]).returncode == 0
    assert cpp_build.attempt([*command, "-M", str(int(advised[1]) - 1)]).returncode == 2
    beyond = cpp_build.attempt([*command[:2], "word " * 300])
    assert beyond.returncode == 2 and "-M" not in beyond.stderr
    assert "to at most 512, the rows of this bundle's RoPE table, or export again with" in beyond.stderr
    for option in ("--max-sequence-length", "-M"):
        assert cpp_build.attempt([*command, option, "200"]).returncode == 0


def test_weights_of_a_stranger(built: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle")
    export(RandomCheckpoint(EVERYTHING, seed=6, reference="tests", std=0.2), tmp_path / "other")
    shutil.copyfile(tmp_path / "other/model.safetensors", tmp_path / "bundle/model.safetensors")
    for options in ({}, {"verify_weights": True}):
        done = cpp_build.request(
            built / "tests/decoder_tool",
            tmp_path,
            op="run",
            bundle=str(tmp_path / "bundle"),
            options=options,
            calls=[{"ids": [1]}],
            output=str(tmp_path / "out"),
        )
        assert done.returncode == 1
        assert "model.safetensors has the SHA-256" in done.stderr
        assert ("in its sampled pages" in done.stderr) is not bool(options)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("gpu", "is no device: give cpu, cuda or cuda:N"),
        ("cpu:0", "is no device"),
        ("cuda:", "is no device"),
        ("cuda:1234", "is no device"),
        (
            "cuda:1",
            "CUDA execution provider is not enabled in this build. Link the library of onnxruntime-gpu",
        ),
    ],
)
def test_a_device_that_is_not_there(built: Path, judged_stories: Path, device: str, said: str) -> None:
    done = cpp_build.attempt([str(built / "chat"), str(judged_stories), "x", "--device", device])
    assert done.returncode == 2
    assert said in done.stderr


def test_the_graph_without_a_mask_has_the_bits_of_the_other(built: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export(random_model(), bundle, attention=AttentionForms.BOTH)
    calls = [{"ids": [3, 1, 4, 1, 5, 9]}, {"ids": [2]}]
    masked, nonpad = (
        run_cpp(built, tmp_path, bundle=str(bundle), options={"threads": 1, "backend": name}, calls=calls)
        for name in ("onnxruntime", "onnxruntime-nonpad")
    )
    assert len(masked) == 7 * 101 and np.array_equal(masked, nonpad)
    (bundle / "model.nonpad.onnx").unlink()
    done = cpp_build.attempt([str(built / "chat"), str(bundle), "x", "--backend", "onnxruntime-nonpad"])
    assert done.returncode == 2 and "model.nonpad.onnx" in done.stderr


@pytest.mark.parametrize("threads", [-1, 100_000])
def test_an_absurd_number_of_threads(built: Path, judged_stories: Path, threads: int) -> None:
    done = cpp_build.attempt([str(built / "chat"), str(judged_stories), "x", "--threads", str(threads)])
    assert done.returncode == 2
    assert f"threads is {threads}, and must be 0 (the runtime's own choice) to " in done.stderr


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"max_sequence_length": 10**9}, "max_sequence_length is 1000000000, and must be within 1..512"),
        ({"max_sequence_length": 10**9, "rope_table_rows": 10**9}, "the shape of past_key_values.0.key is not"),
        ({"max_sequence_length": 0}, "max_sequence_length is 0, and must be above 0"),
        ({"max_sequence_length": -5}, "max_sequence_length is -5, and must be above 0"),
    ],
)
def test_a_forged_m(built: Path, bundle: Path, spoil: dict[str, int], message: str) -> None:
    rewrite(bundle, lambda data: data.update(spoil))
    done = cpp_build.attempt([str(built / "chat"), str(bundle), "x"])
    assert done.returncode == 2
    assert message in done.stderr


def test_a_cache_beyond_all_memory_is_told_in_numbers(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    done = cpp_build.request(
        built / "tests/decoder_tool", tmp_path, op="run", bundle=str(judged_stories), rows=10**9, calls=[], output="x"
    )
    assert done.returncode == 1
    assert "a cache of 1000000000 rows of 512 slots takes" in done.stderr


def test_golden_text_byte_for_byte(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    golden = json.loads(shared_path("models/stories260K/golden.json").read_text(encoding="utf-8"))
    count = len(golden["ids"]) - 1
    done = cpp_build.request(
        built / "tests/decoder_tool", tmp_path, op="generate", bundle=str(judged_stories), prompt=[1], count=count
    )
    made = json.loads(done.stdout)
    assert count >= 199
    assert [1, *made["ids"][0]] == golden["ids"]
    assert made["text"][0] == golden["text"]


def test_sampling_is_that_of_python(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    options = SamplingOptions(temperature=0.9, top_k=40, top_p=0.95, seed=2**63 + 11)
    expected = list(Generation(open_decoder(judged_stories, threads=1), [1], options, [2], 120))
    sampling = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": options.seed}
    done = cpp_build.request(
        built / "tests/decoder_tool",
        tmp_path,
        op="generate",
        bundle=str(judged_stories),
        options={"threads": 1},
        prompt=[1],
        count=120,
        sampling=sampling,
    )
    assert json.loads(done.stdout)["ids"][0] == expected
    logits = np.random.default_rng(4).normal(size=512).astype(np.float32)
    assert Sampler(options).sample(logits) == Sampler(options).sample(logits)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_k": 40, "seed": 3}])
@pytest.mark.parametrize("draft", ["ngram", "a bundle"])
def test_a_draft_changes_no_token_and_is_accepted(
    built: Path, judged_stories: Path, tmp_path: Path, draft: str, sampling: dict[str, Any]
) -> None:
    """To the last slot, in one call for several tokens. The model as its own draft is right at every greedy token."""
    prompt = [1, *BundleTokenizer(judged_stories).encode("One day, a cat and a dog and a cat and a dog"), 1]
    slots = open_decoder(judged_stories).max_sequence_length

    def told(**asked: Any) -> dict[str, Any]:
        request = {"bundle": str(judged_stories), "prompt": prompt, "count": slots, "sampling": sampling, **asked}
        done = cpp_build.request(built / "tests/decoder_tool", tmp_path, op="generate", **request)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    drafted = told(draft="ngram" if draft == "ngram" else str(judged_stories))
    assert drafted["ids"] == told()["ids"]
    (proposed,), (accepted,) = drafted["proposed"], drafted["accepted"]
    assert 0 < accepted <= proposed
    assert draft == "ngram" or sampling or accepted == proposed


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--draft", "other"], "has another tokenizer.json than the model"),
        (["--draft", "nothing"], "nothing"),
        (["--draft", "ngram", "--draft-tokens", "0"], "draft_tokens is 0 and must be 1..511"),
    ],
)
def test_a_draft_that_cannot_be(built: Path, bundle: Path, tmp_path: Path, asked: list[str], said: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["files"]["tokenizer.json"]["sha256"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    words = [str(tmp_path / word) if word in ("other", "nothing") else word for word in asked]
    done = cpp_build.attempt([str(built / "chat"), str(bundle), "Once", *words])
    assert done.returncode == 2
    assert said in done.stderr


def test_chat_answers_without_python_on_the_machine(built: Path, judged_stories: Path) -> None:
    command = [str(built / "chat"), str(judged_stories), "Once upon a time", "--max-new-tokens", "40"]
    done = cpp_build.attempt(command, clean=True)
    assert done.returncode == 0, done.stderr
    tokenizer = BundleTokenizer(judged_stories)
    prompt = tokenizer.encode("Once upon a time")
    ids = list(Generation(open_decoder(judged_stories), prompt, SamplingOptions(), tokenizer.stop_ids, 40))
    assert done.stdout == tokenizer.decode(ids, prompt) + "\n"


TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] != 'system' %}Be nice.{% endif %}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %} {{ m['content'].split('</think>')[-1].lstrip('\\n') }}</s>"
    "{% else %}[{{ m['role'] }}] {{ m['content'] }} [/]{% endif %}{% endfor %}"
)
CONVERSATIONS = [
    [("user", "Hi there")],
    [("system", "Be brief.\n"), ("user", " What? ")],
    [
        ("user", "a"),
        ("assistant", "<think>\nhm</think>\n\nWell, é"),
        ("user", ""),
        ("assistant", "\n\nno"),
        ("user", "z"),
    ],
]


@pytest.mark.parametrize("add_bos_token", [None, True, False])
def test_prompts_and_conversations_are_those_of_python(built: Path, tmp_path: Path, add_bos_token: bool | None) -> None:
    model, bundle = tmp_path / "model", tmp_path / "bundle"
    model.mkdir()
    for path in shared_path("models/stories260K").iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    (model / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((model / "tokenizer_config.json").read_text())
    if add_bos_token is not None:
        config["add_bos_token"] = add_bos_token
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert main(["onnx", str(model), "-o", str(bundle), "--quiet", "--no-compare"]) == 0
    python, tool = BundleTokenizer(bundle), built / "tests/decoder_tool"
    for text in ("Once upon", "<s>Once", " x", ""):
        done = cpp_build.request(tool, tmp_path, op="prompt", bundle=str(bundle), text=text)
        assert json.loads(done.stdout) == python.encode(text), text
    for messages in CONVERSATIONS:
        done = cpp_build.request(tool, tmp_path, op="prompt", bundle=str(bundle), messages=messages)
        expected = python.encode_chat([{"role": role, "content": content} for role, content in messages])
        assert json.loads(done.stdout) == expected, messages
    done = cpp_build.request(tool, tmp_path, op="prompt", bundle=str(bundle), messages=[("user", "a"), ("user", "b")])
    assert "should be from assistant" in done.stderr


def test_selftest_passes(built: Path, judged_stories: Path) -> None:
    code, said = selftest(built, judged_stories)
    assert code == 0, said
    assert "a token past slot 511 is refused" in said
    assert main(["selftest", str(judged_stories)]) == 0


def rewrite(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads((bundle / MANIFEST).read_text())
    change(data)
    (bundle / MANIFEST).write_text(json.dumps(data))


def reseal(bundle: Path, name: str) -> None:
    """Enter a changed file's hash, so that only its contents can give it away."""

    def change(data: dict[str, Any]) -> None:
        entry = asdict(file_entry(bundle / name, data["files"][name]["made_from"]))
        data["files"][name] = entry
        for other in data["files"].values():
            if name in other["made_from"]:
                other["made_from"][name] = entry["sha256"]

    rewrite(bundle, change)


def spoil_weights(bundle: Path, *, seal: bool) -> None:
    path = bundle / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1001] ^= 0x40
    path.write_bytes(content)
    if seal:
        reseal(bundle, "model.safetensors")


def spoil_graph(bundle: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(bundle / ONNX_FILE, load_external_data=False)
    change(model)
    onnx.save(model, bundle / ONNX_FILE)
    reseal(bundle, ONNX_FILE)


def swap_first_inputs(model: onnx.ModelProto) -> None:
    inputs = list(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend([inputs[1], inputs[0], *inputs[2:]])


def narrow_the_ids(model: onnx.ModelProto) -> None:
    # Gather takes both types of index, so that ONNX Runtime itself has nothing to say.
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


def widen_the_cache(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.shape.dim[2].dim_value = 400


def test_one_flipped_bit_is_found_by_its_hash(built: Path, bundle: Path) -> None:
    spoil_weights(bundle, seal=False)
    code, said = selftest(built, bundle)
    assert code == 1
    assert "model.safetensors has the SHA-256" in said
    assert main(["selftest", str(bundle)]) == 1


def test_one_flipped_bit_behind_a_right_hash_is_found_by_the_golden_vectors(built: Path, bundle: Path) -> None:
    spoil_weights(bundle, seal=True)
    code, said = selftest(built, bundle)
    assert code == 1, said
    assert "FAILED" in said
    assert main(["selftest", str(bundle)]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap_first_inputs, ['input 0 is "position_ids"', '"input_ids"']),
        (narrow_the_ids, ["input 0 (input_ids) is of type int32", "int64"]),
        (widen_the_cache, ["past_key_values.0.key", "400", "512"]),
    ],
)
def test_another_interface_than_the_manifests(
    built: Path, bundle: Path, change: Callable[[onnx.ModelProto], None], words: list[str]
) -> None:
    spoil_graph(bundle, change)
    code, said = selftest(built, bundle)
    assert code == 2
    assert all(word in said for word in words), said


def test_a_bundle_that_was_judged_and_found_bad(built: Path, bundle: Path) -> None:
    report = bundle / "parity" / "report.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "verdict": "fail", "summary": "FAIL: it differs"}))
    entry = asdict(file_entry(report))
    rewrite(bundle, lambda data: data["files"].update({"parity/report.json": entry}))
    code, said = selftest(built, bundle)
    assert code == 1 and f"{bundle} was judged and found bad: FAIL: it differs. {bundle}/parity/report.md says" in said
    done = cpp_build.attempt([str(built / "chat"), str(bundle), "x", "--max-new-tokens", "1", "--quiet"])
    assert done.returncode == 0 and f"warning: {bundle} was judged and found bad" in done.stderr


def test_a_bundle_of_a_newer_schema(built: Path, bundle: Path) -> None:
    rewrite(bundle, lambda data: data.update(schema_version=3))
    code, said = selftest(built, bundle)
    assert code == 2
    assert "schema version 3 and this program reads 2" in said


def test_a_stage_of_a_model(built: Path, bundle: Path) -> None:
    rewrite(bundle, lambda data: data.update(stage={"first": 0, "stop": 5, "layers": 9}))
    code, said = selftest(built, bundle)
    assert code == 2
    assert f"{bundle} is a stage, with some of a model's layers, and this program runs whole models" in said


@pytest.mark.parametrize("program", ["selftest", "chat"])
def test_a_model_that_gives_embeddings(built: Path, bundle: Path, program: str) -> None:
    rewrite(bundle, lambda data: data.update(embedding={"pooling": "mean", "normalized": True}))
    done = cpp_build.attempt([str(built / program), str(bundle), *(["Once"] if program == "chat" else [])])
    assert done.returncode == 2
    assert f"{bundle} gives embeddings, and this program runs what gives logits or hidden states" in done.stderr


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "golden.safetensors", MANIFEST])
def test_a_missing_file(built: Path, bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    expected = 2 if name == MANIFEST else 1  # a folder without a manifest is not a bundle, so nothing was judged
    code, said = selftest(built, bundle)
    assert code == expected
    assert name in said
    assert main(["selftest", str(bundle)]) == expected


def test_a_damaged_manifest_and_one_that_reaches_outside(built: Path, bundle: Path) -> None:
    text = (bundle / MANIFEST).read_text()
    (bundle / MANIFEST).write_text(text[:-200])
    assert "is damaged" in selftest(built, bundle)[1]
    (bundle / MANIFEST).write_text(text.replace('"config.json"', '"../config.json"'))
    assert "outside of the bundle" in selftest(built, bundle)[1]


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.full)])
def test_a_single_bit_of_the_weights(count: int, built: Path, bundle: Path) -> None:
    weights, chosen = bundle / "model.safetensors", random.Random(14)
    unseen = []
    for _ in range(count):
        bit = chosen.randrange(8 * weights.stat().st_size)
        flip(weights, bit)
        unseen += [bit] if selftest(built, bundle)[0] != 1 else []
        flip(weights, bit)
    assert unseen == []
    assert selftest(built, bundle)[0] == 0


def test_python_replays_the_same_vectors(judged_stories: Path) -> None:
    from blockexport.export.bundle.golden_file import read_golden

    manifest = read_manifest(judged_stories)
    check_files(judged_stories, manifest)
    golden = read_golden(judged_stories)
    result = replay_golden(open_decoder(judged_stories), golden)
    assert result.passed
    assert result.positions == len(golden.positions_P) >= 8
    assert golden.positions_P[-1] > golden.prefill
    assert (judged_stories / "golden.safetensors").stat().st_size < 5 * 2**20


def test_two_decoders_in_two_threads(built: Path, judged_stories: Path, tmp_path: Path) -> None:
    done = cpp_build.request(
        built / "tests/decoder_tool",
        tmp_path,
        op="generate",
        bundle=str(judged_stories),
        prompt=[1],
        count=60,
        threads=2,
    )
    first, second = json.loads(done.stdout)["ids"]
    assert len(first) == 60
    assert first == second
