"""A bundle's tokenizer: encoding with BOS, streaming decode, stop tokens, sampling defaults, chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from blockexport.export.tokenizer.tokenizer_files import write_tokenizer_files
from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from blockexport.models.errors import UsageError
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.chat_template import render_chat
from blockexport.runtime.text.sampling import SamplingOptions
from tests.mixed_text import mixed_lines
from tests.support import shared_path, smollm2_gguf


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    write_tokenizer_files(GgufCheckpoint(smollm2_gguf()), folder)
    return folder


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    """A copy of stories260K's tokenizer files, free to be edited."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
        shutil.copyfile(shared_path("models/stories260K") / name, tmp_path / name)
    return tmp_path


def _edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    values |= changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}), encoding="utf-8")


def _streamed(tokenizer: BundleTokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


def test_streaming_smollm2_equals_decoding_at_once(smollm2: Path) -> None:
    tokenizer, library = BundleTokenizer(smollm2), Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    held_back = 0
    for line in mixed_lines(1000):
        ids = tokenizer.encode(line)
        pieces = _streamed(tokenizer, ids)
        assert "".join(pieces) == library.decode(ids) == line
        assert "\ufffd" not in "".join(pieces)  # half a character would show as this
        held_back += pieces.count("")
    assert held_back > 1000  # so characters were spread over tokens


def test_streaming_stories_equals_decoding_at_once(stories: Path) -> None:
    tokenizer, library = BundleTokenizer(stories), Tokenizer.from_file(str(stories / "tokenizer.json"))
    for line in mixed_lines(1000):
        ids = tokenizer.encode(line)
        assert "".join(_streamed(tokenizer, ids)) == library.decode(ids)


def test_broken_bytes_become_replacement_characters_and_nothing_is_taken_back(stories: Path) -> None:
    tokenizer = BundleTokenizer(stories)
    byte = range(3, 259)  # the vocabulary's <0x00> .. <0xFF>
    # A whole character, half of one, a letter, and half of one at the end.
    ids = [byte[0xE4], byte[0xBD], byte[0xA0], byte[0xE4], byte[0xBD], byte[0x61], byte[0xF0], byte[0x9F]]
    assert _streamed(tokenizer, ids) == ["", "", "你", "", "", "\ufffda", "", "", "\ufffd"]
    # A genuine U+FFFD passes at once.
    assert _streamed(tokenizer, [byte[0xEF], byte[0xBF], byte[0xBD]]) == ["", "", "\ufffd", ""]


def test_ids_that_are_no_text_print_nothing(smollm2: Path) -> None:
    tokenizer = BundleTokenizer(smollm2)
    assert _streamed(tokenizer, [1, 2, 49152, 10**6]) == [""] * 5


def test_the_space_in_front_goes_once_and_only_at_the_start(stories: Path) -> None:
    tokenizer = BundleTokenizer(stories)
    assert tokenizer.decode([1, *tokenizer.encode("a b", add_special_tokens=False)]) == "a b"
    assert tokenizer.decode(tokenizer.encode("  a", add_special_tokens=False)) == "  a"


def test_a_continuation_keeps_its_first_space(stories: Path) -> None:
    tokenizer = BundleTokenizer(stories)
    prompt, whole = tokenizer.encode("Once"), tokenizer.encode("Once upon")
    assert whole[: len(prompt)] == prompt
    assert tokenizer.decode(whole[len(prompt) :]) == "upon"
    assert tokenizer.decode(whole[len(prompt) :], after=prompt) == " upon"
    # Behind BOS alone there is no text yet.
    assert tokenizer.decode(prompt[1:], after=prompt[:1]) == "Once"


def test_unknown_decoders_are_refused_by_name(stories: Path) -> None:
    _edit(stories / "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(UsageError, match="WordPiece"):
        BundleTokenizer(stories)


def test_a_metaspace_decoder_reads_as_the_library_does(stories: Path) -> None:
    parts = [
        {"type": "ByteFallback"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ]
    _edit(stories / "tokenizer.json", decoder={"type": "Sequence", "decoders": parts})
    tokenizer, library = BundleTokenizer(stories), Tokenizer.from_file(str(stories / "tokenizer.json"))
    for line in ("once upon a time", "  two", "x"):
        assert tokenizer.decode(tokenizer.encode(line)) == library.decode(tokenizer.encode(line)) == line


def test_bos_is_added_once(stories: Path) -> None:
    assert BundleTokenizer(stories).encode("hi")[:2] == [1, BundleTokenizer(stories).encode("hi")[1]]
    plain = BundleTokenizer(stories).encode("hi", add_special_tokens=False)
    assert BundleTokenizer(stories).encode("hi") == [1, *plain]
    assert BundleTokenizer(stories).encode("") == [1]
    written = BundleTokenizer(stories).encode("<s>hi")
    assert written.count(1) == 1
    assert written[0] == 1


def test_add_bos_token_overrules_the_post_processor(stories: Path) -> None:
    plain = BundleTokenizer(stories).encode("hi", add_special_tokens=False)
    _edit(stories / "tokenizer_config.json", add_bos_token=False)
    assert BundleTokenizer(stories).encode("hi") == plain
    _edit(stories / "tokenizer_config.json", add_bos_token=True)
    _edit(stories / "tokenizer.json", post_processor=None)
    json_without = json.loads((stories / "tokenizer.json").read_text(encoding="utf-8"))
    assert "post_processor" not in json_without
    assert BundleTokenizer(stories).encode("hi") == [1, *plain]
    assert BundleTokenizer(stories).encode("<s>hi").count(1) == 1


def test_stop_ids_come_from_the_first_file_that_names_them(stories: Path) -> None:
    assert BundleTokenizer(stories).stop_ids == {1, 2}
    _edit(stories / "generation_config.json", eos_token_id=7)
    assert BundleTokenizer(stories).stop_ids == {7}
    _edit(stories / "generation_config.json", eos_token_id=None)
    _edit(stories / "config.json", eos_token_id=[9, 5])
    assert BundleTokenizer(stories).stop_ids == {5, 9}
    (stories / "config.json").unlink()
    assert BundleTokenizer(stories).stop_ids == {2}


def test_sampling_defaults(stories: Path) -> None:
    generation = stories / "generation_config.json"
    assert BundleTokenizer(stories).sampling_options() == SamplingOptions()
    assert BundleTokenizer(stories).sampling_options(temperature=0.5, seed=3) == SamplingOptions(0.5, seed=3)
    assert BundleTokenizer(stories).sampling_options(top_k=4) == SamplingOptions(1.0, 4)
    _edit(generation, temperature=0.6, top_p=0.9)  # does not sample yet
    assert BundleTokenizer(stories).sampling_options().temperature == 0.0
    _edit(generation, do_sample=True, repetition_penalty=1.1, num_beams=1)
    tokenizer = BundleTokenizer(stories)
    assert tokenizer.sampling_options() == SamplingOptions(0.6, 50, 0.9)
    assert tokenizer.sampling_options(temperature=0.0).temperature == 0.0
    assert tokenizer.sampling_options(top_k=0, top_p=1.0, seed=8) == SamplingOptions(0.6, 0, 1.0, 8)
    assert tokenizer.unapplied_settings() == ["repetition_penalty = 1.1"]


def test_missing_and_damaged_files_are_one_message(stories: Path) -> None:
    (stories / "generation_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"generation_config\.json is not valid JSON"):
        BundleTokenizer(stories)
    (stories / "generation_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(UsageError, match="has to hold one JSON object"):
        BundleTokenizer(stories)
    (stories / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a tokenizer"):
        BundleTokenizer(stories)
    (stories / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match="takes token ids only"):
        BundleTokenizer(stories)


def test_smollm2_chat_equals_transformers(smollm2: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    messages = [
        {"role": "user", "content": "What is 2 + 2? <b>&amp;</b>"},
        {"role": "assistant", "content": "4\n"},
        {"role": "user", "content": "  Grüße 🙂 "},
    ]
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(smollm2)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokenizer = BundleTokenizer(smollm2)
    assert tokenizer.chat_template is not None
    assert render_chat(tokenizer.chat_template, messages, tokenizer.special_tokens) == expected
    assert expected.endswith("<|im_start|>assistant\n")
    ids = tokenizer.encode_chat(messages)
    assert ids == reference(expected, add_special_tokens=False)["input_ids"]
    assert ids[0] == 1
    assert ids.count(1) == 5  # the default system message, three turns, the opening


def test_bos_in_a_chat_is_the_templates_business(stories: Path) -> None:
    _edit(stories / "tokenizer_config.json", chat_template="{{ messages[0].content }}")
    assert BundleTokenizer(stories).encode_chat([{"role": "user", "content": "hi"}]).count(1) == 0
    _edit(stories / "tokenizer_config.json", chat_template="{{ bos_token }}{{ messages[0].content }}")
    assert BundleTokenizer(stories).encode_chat([{"role": "user", "content": "hi"}]).count(1) == 1


def test_where_the_template_comes_from(stories: Path) -> None:
    assert BundleTokenizer(stories).chat_template is None
    with pytest.raises(UsageError, match="no chat template"):
        BundleTokenizer(stories).encode_chat([{"role": "user", "content": "hi"}])
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    _edit(stories / "tokenizer_config.json", chat_template=named)
    assert BundleTokenizer(stories).chat_template == "D"
    _edit(stories / "tokenizer_config.json", chat_template=named[:1])
    with pytest.raises(UsageError, match="tool_use"):
        BundleTokenizer(stories)
    _edit(stories / "tokenizer_config.json", chat_template=7)
    with pytest.raises(UsageError, match=r"chat_template in tokenizer_config\.json"):
        BundleTokenizer(stories)
    (stories / "chat_template.jinja").write_text("F", encoding="utf-8")
    assert BundleTokenizer(stories).chat_template == "F"


_FEATURES = """{%- set ns = namespace(n=0) %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {%- generation %}[{{ m['content'] | trim }}]{% endgeneration %}
{%- endfor %}
    {% if add_generation_prompt %}
{{ {'é': '<&>', 'n': ns.n} | tojson }} {{ tools is none }} {{ eos_token }}
    {% endif %}
"""


def test_templates_have_what_transformers_gives_them() -> None:
    messages = [{"role": role, "content": f" {role} "} for role in ("system", "user", "assistant", "user")]
    text = render_chat(_FEATURES, messages, {"eos_token": "</s>"})
    assert text == '[user][assistant]{"é": "<&>", "n": 2} True </s>\n'
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is not installed")
    rendered, _ = utils.render_jinja_template(
        conversations=[messages], chat_template=_FEATURES, add_generation_prompt=True, eos_token="</s>"
    )
    assert rendered == [text]
    assert render_chat("{{ strftime_now('%Y') }}", [], {}).startswith("20")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "chat template failed"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "chat template failed"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "chat template failed"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ],
)
def test_template_failures_are_the_users_to_see(template: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        render_chat(template, [{"role": "user", "content": "x"}], {})
    assert "--raw" in str(caught.value)
