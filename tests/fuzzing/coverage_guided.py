"""One parser under atheris: inputs that reach new code are kept, and damaged further.

python -P -m tests.fuzzing.coverage_guided PARSER CORPUS [options of libFuzzer]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["blockexport"], enable_loader_override=False):
    from tests.fuzzing.parsers import PARSERS, try_input

from tests.fuzzing.mutations import mutated


def fuzz() -> None:
    """Runs until libFuzzer ends the process, with the first input that is a bug, or when its time is over."""
    name = sys.argv[1]
    parser = PARSERS[name]
    logging.disable()
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as outer:
        folder = Path(outer, "in")
        folder.mkdir()

        def try_once(data: bytes) -> None:
            try_input(parser, data, folder)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            random = Random(seed)
            # Bytes that libFuzzer itself changes may hold values that it saw compared.
            return atheris.Mutate(data, most) if random.random() < 0.2 else mutated(data, random, most=most)

        atheris.Setup([sys.argv[0], *sys.argv[2:]], try_once, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    fuzz()
