"""A bundle's own tokenizer: text to ids and back, the tokens that end an answer, and the sampling it suggests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockexport.export.bundle.generation_config import (
    GENERATION_CONFIG,
    GenerationConfig,
    read_generation_config,
    token_ids,
)
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_text, is_there, read_json_object
from blockexport.models.strict_json import shown
from blockexport.runtime.text.chat_template import Message, find_template, render_chat
from blockexport.runtime.text.detokenize import StreamDecoder, TokenBytes
from blockexport.runtime.text.encoder import load_tokenizer
from blockexport.runtime.text.sampling import SamplingOptions

# What transformers takes where a generation_config.json that samples leaves a value out.
_DEFAULT_TEMPERATURE, _DEFAULT_TOP_K, _DEFAULT_TOP_P = 1.0, 50, 1.0


class BundleTokenizer:
    """The tokenizer of a bundle.

    Attributes:
        special_tokens: `bos_token`, `eos_token`, `unk_token`, `pad_token` ..., as text.
        chat_template: the Jinja source, or None.
        stop_ids: the tokens that end an answer.
    """

    def __init__(self, folder: Path) -> None:
        """Read the files of `folder`.

        Raises:
            UsageError: there is no tokenizer.json, or a file is damaged.
        """
        path = folder / "tokenizer.json"
        if not is_there(path):
            raise UsageError(
                f"{folder} has no tokenizer.json, so it takes token ids only: export again from a checkpoint that has "
                "a tokenizer, or put its tokenizer.json into the bundle"
            )
        loaded = load_tokenizer(path)
        self._tokenizer, self._encode = loaded.tokenizer, loaded.encode
        self._bytes = TokenBytes(self._tokenizer, loaded.decoder)
        self._config = _read_json(folder / "tokenizer_config.json")
        generation = folder / GENERATION_CONFIG
        self._generation = read_generation_config(generation) if is_there(generation) else GenerationConfig()
        self.chat_template, self.special_tokens = chat_template_of(folder)
        self.stop_ids = self._stop_ids(_read_json(folder / "config.json"))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with BOS (and EOS) as the tokenizer's post-processor adds them.

        `add_bos_token` in tokenizer_config.json overrules the post-processor. A text that already starts with the BOS
        token gets no second one.
        """
        encoded = self._encode(text)
        ids, plain = encoded.whole, encoded.plain
        if not add_special_tokens:
            return plain
        bos = self._id_of("bos_token")
        if bos is None:
            return ids
        written = plain[:1] == [bos]
        added = ids[: 1 + len(plain)] == [bos, *plain]
        wanted = self._config.get("add_bos_token")
        if added and (written or wanted is False):
            return ids[1:]
        return [bos, *ids] if wanted is True and not written and not added else ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation, ready for the assistant's answer.

        The template writes the special tokens itself, BOS among them if the model was trained with it there, so
        nothing is added, as in transformers.

        Raises:
            UsageError: there is no template, or it fails.
        """
        if self.chat_template is None:
            raise UsageError("the bundle has no chat template: use --raw to send the prompt as it is")
        return self.encode(render_chat(self.chat_template, messages, self.special_tokens), add_special_tokens=False)

    def misfit(self, vocab_size: int) -> str | None:
        """What of the vocabulary lies outside of a model's `vocab_size` ids, in a sentence; None where nothing does.

        Raises:
            UsageError: more than added tokens do: it is the tokenizer of another model.
        """
        own = self._tokenizer.get_vocab(with_added_tokens=False)
        beyond = max(own.values(), default=0)
        if beyond >= vocab_size:
            raise UsageError(
                f"tokenizer.json has ids up to {beyond}, and the model's vocabulary has {vocab_size}: it is another "
                "model's tokenizer. Put the model's own there, or remove it to export for token ids alone"
            )
        added = self._tokenizer.get_added_tokens_decoder()
        outside = sorted(i for i in added if i >= vocab_size)
        if not outside:
            return None
        return (
            f"{len(outside)} added tokens of tokenizer.json, the first {added[outside[0]].content!r}, have ids beyond "
            f"the model's vocabulary of {vocab_size}: a text with one of them is refused"
        )

    def first_difference(self, other: BundleTokenizer) -> str | None:
        """A token that does not have the same id in another tokenizer, in words; None where all have."""
        here, there = (dict(one._tokenizer.get_vocab(with_added_tokens=True)) for one in (self, other))
        differing = here.items() ^ there.items()
        if not differing:
            return None
        token = min(differing, key=lambda item: item[1])[0]
        return f"{shown(token)} has {here.get(token, 'no id')} in the one and {there.get(token, 'no id')} in the other"

    def stream(self, after: Iterable[int] = ()) -> StreamDecoder:
        """A streaming decoder for what follows the ids `after`, whose own text it does not give.

        A text on its own loses the space that SentencePiece puts in front of it; one that goes on from a prompt keeps
        it.
        """
        stream = StreamDecoder(self._bytes)
        for token_id in after:
            stream.push(token_id)
        return stream

    def decode(self, ids: Iterable[int], after: Iterable[int] = ()) -> str:
        """The text of `ids` that follows `after`, without special tokens."""
        stream = self.stream(after)
        return "".join([stream.push(token_id) for token_id in ids]) + stream.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; a special token, which is no text, for its own name."""
        return self._bytes[token_id] or (self._tokenizer.id_to_token(token_id) or "").encode()

    def sampling_options(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> SamplingOptions:
        """What generation_config.json suggests, each given value taking its place.

        Without `"do_sample": true` the suggestion is greedy. A given temperature above 0 samples; a given top-k or
        top-p samples too, at the file's temperature or 1.
        """
        suggested = SamplingOptions(seed=seed)
        given_by_file, samples = self._generation, self._generation.do_sample
        if samples or any(value is not None for value in (temperature, top_k, top_p)):
            suggested = SamplingOptions(
                float(_or(given_by_file.temperature, _DEFAULT_TEMPERATURE)),
                int(_or(given_by_file.top_k, _DEFAULT_TOP_K if samples else 0)),
                float(_or(given_by_file.top_p, _DEFAULT_TOP_P)),
                seed,
            )
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(suggested, **changes)

    def unapplied_settings(self) -> list[str]:
        """Settings of generation_config.json that would change the answer and are not applied, as `name = value`."""
        return [f"{name} = {shown(value)}" for name, value in self._generation.unapplied.items()]

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        token_id: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return token_id

    def _stop_ids(self, model_config: Mapping[str, Any]) -> frozenset[int]:
        """generation_config.json's, else config.json's, else the tokenizer's EOS."""
        for ends in (self._generation.eos_token_ids, token_ids(model_config.get("eos_token_id"))):
            if ends is not None:
                return frozenset(ends)
        eos = self._id_of("eos_token")
        return frozenset() if eos is None else frozenset([eos])


def check_tokenizer(folder: Path, vocab_size: int, note: Callable[[str], None]) -> None:
    """Whether the tokenizer in `folder`, if there is one, is one and the model's; `note` hears of small misfits.

    Raises:
        UsageError: it is damaged, or another model's.
    """
    if not (folder / "tokenizer.json").is_file():
        return
    try:
        misfit = BundleTokenizer(folder).misfit(vocab_size)
    except UsageError as error:  # the folder is the bundle in the making, which nobody knows by name
        raise UsageError(str(error).replace(f"{folder}/", "the checkpoint's ")) from error
    if misfit is not None:
        note(misfit)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def chat_template_of(folder: Path) -> tuple[str | None, dict[str, str]]:
    """A bundle's chat template, if it has one, and its special tokens by name, without reading the vocabulary."""
    config = _read_json(folder / "tokenizer_config.json")
    return find_template(folder, config), _special_tokens(_read_json(folder / "special_tokens_map.json") | config)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    return read_json_object(path, "export the bundle again") if is_there(path) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The entries called `*_token`, which are text or an object with the text as its `content`."""
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            if not is_text(text):
                raise UsageError(f"{name} of the tokenizer is {text!r}, half of a character: correct or remove it")
            tokens[name] = text
    return tokens
