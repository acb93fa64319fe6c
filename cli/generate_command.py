"""`blockexport generate`: text from a bundle, with the bundle's own tokenizer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console, options
from blockexport.cli.running_code import warn_of_code
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.wording import harmless
from blockexport.runtime.backends import ONNXRUNTIME
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockexport.runtime.text.detokenize import StreamDecoder
    from blockexport.runtime.text.generate import Generation
    from blockexport.runtime.text.sampling import SamplingOptions


PROMPT_BYTES = 1 << 24


def generate(
    bundle: options.Bundle,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to say to the model; - reads it from stdin.")],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="The most tokens to answer with.")
    ] = 256,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="0 is greedy; larger is more varied.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from the K likeliest tokens; 0 means all of them.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest tokens that make up this probability.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random numbers; the same seed gives the same text.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            metavar="ngram|BUNDLE",
            help="What proposes tokens that are verified several at a time: what followed the same words before, or a "
            "smaller model with the same tokenizer.",
        ),
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", metavar="K", min=1, help="The most tokens that a draft proposes at a time.")
    ] = 8,
    then: Annotated[
        list[Path] | None,
        typer.Option("--then", metavar="STAGE", help="The stage after BUNDLE, or after the last --then; repeated."),
    ] = None,
    backend: options.Backend = ONNXRUNTIME.name,
    device: options.Device = CPU_NAME,
    model: options.Source = None,
    trust: options.Trust = False,
    threads: options.Threads = None,
    max_sequence_length: options.OtherSlots = None,
    exact: options.Exact = False,
    verify_weights: Annotated[
        bool,
        typer.Option("--verify-weights", help="Compare every byte that is run with the manifest, and not a sample."),
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Answer PROMPT, or go on from it, printing the text as it comes; notes and the speed go to stderr.

    The prompt goes through the model's chat template when it has one. Sampling defaults come from the bundle's
    generation_config.json, where anything but "do_sample": true means greedy; giving --temperature, --top-k or --top-p
    samples (--temperature 0 stays greedy).

    Example: blockexport generate smollm2 "What is the capital of France?" --max-new-tokens 64
    """
    from functools import partial

    from blockexport.export.bundle.manifest import MANIFEST, read_manifest
    from blockexport.export.bundle.own_verdict import known_bad
    from blockexport.runtime.backends import backend_named
    from blockexport.runtime.open import open_model
    from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
    from blockexport.runtime.text.generate import Generation
    from blockexport.runtime.text.open_draft import open_draft
    from blockexport.runtime.text.speculation import SpeculativeGeneration

    if not bundle.exists() and os.path.isfile(os.path.join(prompt, MANIFEST)):  # noqa: PTH113, PTH118 (of any length)
        raise UsageError(f"{prompt} is the bundle, and comes before the prompt: blockexport generate BUNDLE PROMPT")
    manifest = read_manifest(bundle)  # what is not a bundle is told so before its tokenizer is missed
    if (reason := known_bad(bundle, manifest)) is not None:  # an answer may be what its fault is looked for with
        console.say(f"warning: {reason}")
    drafting = [Path(draft)] if draft is not None and os.path.isfile(os.path.join(draft, MANIFEST)) else []  # noqa: PTH113, PTH118
    for one in (bundle, *(then or ()), *drafting):
        warn_of_code(one, backend, trust=trust)
    text = _read_prompt(prompt)
    use_threads(threads)
    opened = partial(
        open_model,
        [bundle, *(then or ())],
        backend,
        max_sequence_length=max_sequence_length,
        model=model,
        verify="whole" if verify_weights else "sample",
        exact=exact,
        device=device,
    )
    # Where there is no GPU, a tokenizer would be no help.
    decoder = opened() if backend_named(backend).built_slots else None
    tokenizer = BundleTokenizer(bundle)
    options = tokenizer.sampling_options(temperature, top_k, top_p, seed)
    for setting in tokenizer.unapplied_settings():
        console.say(f"note: generation_config.json says {setting}, which is not applied", quiet=quiet)
    as_chat = tokenizer.chat_template is not None and not raw
    prompt_ids = tokenizer.encode_chat([{"role": "user", "content": text}]) if as_chat else tokenizer.encode(text)
    # A raw prompt is gone on from, spaces included; an answer stands by itself.
    after = [] if as_chat else prompt_ids
    decoder = decoder or opened()
    if draft is None:
        generation = Generation(decoder, prompt_ids, options, tokenizer.stop_ids, max_new_tokens)
    else:
        drafts = open_draft(draft, decoder, tokenizer, backend, exact=exact, device=device)
        generation = SpeculativeGeneration(
            decoder, prompt_ids, options, drafts, draft_tokens, tokenizer.stop_ids, max_new_tokens
        )
    if as_json:
        token_ids = list(generation)
        answer = {"prompt_ids": prompt_ids, "token_ids": token_ids, "text": tokenizer.decode(token_ids, after)}
        console.print_json({**answer, **_summary(generation, options, backend)})
    else:
        _print_stream(generation, tokenizer.stream(after))
        console.say(_speed(generation), quiet=quiet)
    return ExitCode.GOOD


def _read_prompt(prompt: str) -> str:
    """The prompt, or stdin without its last newline for `-`.

    Raises:
        UsageError: nothing came from stdin, it is not UTF-8, or cannot be read.
    """
    from blockexport.models.regular_file import is_text

    try:
        if prompt == "-":
            text = _read_stdin().decode("utf-8").removesuffix("\n")
        else:
            # A byte that is no text reaches us as a lone surrogate, and so does UTF-8 where the locale is another.
            text = prompt if is_text(prompt) else os.fsencode(prompt).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"the prompt is not UTF-8 ({error}): convert it first, with iconv for instance") from error
    if prompt == "-" and not text:
        raise UsageError(
            "PROMPT is -, and nothing came from stdin: pipe the prompt in (`... | blockexport generate BUNDLE -`), or "
            "give it as an argument"
        )
    return text  # an empty argument asks for what follows the beginning of a text


def _read_stdin() -> bytes:
    try:
        content = sys.stdin.buffer.read(PROMPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the prompt cannot be read from stdin: {error.strerror or error}") from error
    if len(content) > PROMPT_BYTES:
        raise UsageError(f"the prompt has more than {PROMPT_BYTES} bytes, which no cache holds: shorten it")
    return content


def _print_stream(generation: Generation, stream: StreamDecoder) -> None:
    """Write the text to stdout as it comes, and end the line. A terminal is not left to what a model says."""
    last, steers = "\n", sys.stdout.isatty()
    for piece in _pieces(generation, stream):
        if piece:
            last = piece
            sys.stdout.write(harmless(piece) if steers else piece)
            sys.stdout.flush()
    if not last.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()


def _pieces(generation: Generation, stream: StreamDecoder) -> Iterator[str]:
    for token_id in generation:
        yield stream.push(token_id)
    yield stream.flush()


def _speed(generation: Generation) -> str:
    prompt = f"prompt of {generation.prompt_length} tokens in {generation.prefill_seconds:.2f} s"
    if generation.steps == 0:
        return f"[{generation.count} tokens; {prompt}; ended by: {generation.finish_reason}]"
    each = generation.decode_seconds / generation.steps
    return (
        f"[{generation.count} tokens at {1 / each:.1f} tokens/s, {each * 1e3:.1f} ms each; {prompt}; "
        f"ended by: {generation.finish_reason}{_draft(generation)}]"
    )


def _draft(generation: Generation) -> str:
    told = generation.drafted()
    if told is None:
        return ""
    return f"; draft: {told.accepted} of {told.proposed} tokens accepted in {told.calls} calls"


def _summary(generation: Generation, options: SamplingOptions, backend: str) -> dict[str, Any]:
    from dataclasses import asdict

    drafted = generation.drafted()
    return {
        "finish_reason": str(generation.finish_reason),
        "backend": backend,
        "sampling": asdict(options),
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "decode_steps": generation.steps,
        "draft": None if drafted is None else asdict(drafted),
    }
