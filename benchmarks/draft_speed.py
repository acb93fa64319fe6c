"""What a draft does for `generate`: tokens/s with and without, in turns, on text that repeats itself and on free text.

    python benchmarks/draft_speed.py BUNDLE [--draft ngram --draft BUNDLE ...] [--rounds 3] [--tokens 64] [--equal 50]

`--equal N` instead counts for how many of N prompts the greedy tokens are those of single steps, and says for the
others by how little the first differing choice was ahead of the next: a tie within rounding is no fault.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np

from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.generate import Generation, append
from blockexport.runtime.text.open_draft import open_draft
from blockexport.runtime.text.sampling import SamplingOptions
from blockexport.runtime.text.speculation import SpeculativeGeneration

GREEDY = SamplingOptions()
LIST = "".join(f"- name: server-{i}\n  port: {8000 + i}\n  image: registry/web:1.{i}\n" for i in range(1, 6))
TEXTS = {
    "repetitive": f"servers:\n{LIST}",
    "free": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
}
SUBJECTS = ("rivers", "the moon", "bread", "trains", "winter", "chess", "bees", "Rome", "glass", "a garden")
QUESTIONS = (
    "Write three sentences about {}.",
    "List five facts about {}.",
    "Why do people like {}?",
    "Explain {} to a child.",
    "Write a short poem about {}.",
)


def asked(tokenizer: BundleTokenizer, text: str) -> list[int]:
    """As the command sends it."""
    chat = tokenizer.chat_template is not None
    return tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)


def generation(
    decoder: Decoder, prompt: list[int], draft: str | None, tokenizer: BundleTokenizer, options: argparse.Namespace
) -> Generation:
    """Of one prompt, not yet run."""
    if draft is None:
        return Generation(decoder, prompt, GREEDY, tokenizer.stop_ids, options.tokens)
    proposes = open_draft(draft, decoder, tokenizer, options.backend)
    return SpeculativeGeneration(
        decoder, prompt, GREEDY, proposes, options.draft_tokens, tokenizer.stop_ids, options.tokens
    )


def lead(decoder: Decoder, prompt: list[int], ids: list[int], other: list[int]) -> float:
    """By how much the choice where two answers part was ahead of the other one."""
    place = next(i for i, pair in enumerate(zip(ids, other, strict=False)) if pair[0] != pair[1])
    decoder.reset(1)
    logits_V = append(decoder, prompt + ids[:place])[-1]
    return float(np.abs(logits_V[ids[place]] - logits_V[other[place]]))


def count_equal(decoder: Decoder, tokenizer: BundleTokenizer, drafts: list[str], options: argparse.Namespace) -> None:
    """Print for how many prompts each draft gives the tokens of single steps."""
    texts = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS][: options.equal]
    same = dict.fromkeys(drafts, 0)
    for prompt in (asked(tokenizer, text) for text in texts):
        ids = list(generation(decoder, prompt, None, tokenizer, options))
        for draft in drafts:
            other = list(generation(decoder, prompt, draft, tokenizer, options))
            same[draft] += ids == other
            if ids != other:
                print(f"{draft}: parted by a lead of {lead(decoder, prompt, ids, other):.2g}", flush=True)
    for draft in drafts:
        print(f"{draft}: {same[draft]} of {len(texts)} prompts have the same {options.tokens} tokens")


def measure(decoder: Decoder, tokenizer: BundleTokenizer, drafts: list[str], options: argparse.Namespace) -> None:
    """Print the median tokens/s of each draft and text."""
    print(f"{'text':12}{'draft':12}{'tokens/s':>10}{'times':>8}{'accepted':>10}{'a call':>8}")
    for name, text in TEXTS.items():
        prompt = asked(tokenizer, text) if name == "free" else tokenizer.encode(text)
        speeds: dict[str | None, list[float]] = {None: [], **{draft: [] for draft in drafts}}
        figures = {}
        for _ in range(options.rounds):
            for draft, found in speeds.items():
                run = generation(decoder, prompt, draft, tokenizer, options)
                for _ in run:
                    pass
                found.append(run.steps / run.decode_seconds)
                figures[draft] = run.drafted(), run.steps
        usual = statistics.median(speeds[None])
        for draft, found in speeds.items():
            speed, (drafted, steps) = statistics.median(found), figures[draft]
            rates = f"{drafted.acceptance_rate:10.2f}{steps / drafted.calls:8.2f}" if drafted else ""
            shown = "none" if draft is None else Path(draft).name
            print(f"{name:12}{shown:12}{speed:10.1f}{speed / usual:8.2f}{rates}", flush=True)


def main() -> None:
    """Parse the arguments, and measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--draft", action="append")
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--equal", type=int)
    options = parser.parse_args()
    drafts = options.draft or ["ngram"]
    decoder, tokenizer = open_decoder(options.bundle, options.backend), BundleTokenizer(options.bundle)
    (measure if options.equal is None else count_equal)(decoder, tokenizer, drafts, options)


if __name__ == "__main__":
    main()
