"""A chain of stages on Ray against the same model in one file and in one process: values, and speed.

    python benchmarks/ray_chain.py WHOLE PART PART ... [--steps 300] [--rows 3] [--threads 1]

Rows of unequal length are filled and then go on for so many steps, with the same random tokens everywhere. The chain on
Ray has to give what the stages give in one process, to the bit; how far both are from the one file is held against how
far eager PyTorch is from it, in the same precision.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from blockexport import open_chain, open_decoder
from blockexport.runtime.ray_chain import RayChain, connected
from blockexport.runtime.threads import use_threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whole", type=Path)
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    use_threads(options.threads)
    with connected("local", len(options.parts), options.threads) as threads:
        decoders = {
            "one file": open_decoder(options.whole),
            "eager": open_decoder(options.whole, "eager"),
            "stages": open_chain(options.parts),
            "stages on Ray": RayChain(options.parts, threads),
        }
        generator = torch.Generator().manual_seed(0)
        length, vocab_size = 40, decoders["one file"].config.vocab_size
        ids_BS = torch.randint(vocab_size, (options.rows, length + options.steps), generator=generator)
        lengths_B = torch.randint(1, length + 1, (options.rows,), generator=generator)
        squares, seconds = dict.fromkeys(decoders, 0.0), dict.fromkeys(decoders, 0.0)
        largest, equal, count = dict.fromkeys(decoders, 0.0), True, 0
        for decoder in decoders.values():
            decoder.reset(options.rows)
            decoder.prefill(ids_BS[:, :length], lengths_B)
        for step in range(length, length + options.steps):
            found = {}
            for name, decoder in decoders.items():
                started = time.perf_counter()
                found[name] = decoder.step(ids_BS[:, step : step + 1])
                seconds[name] += time.perf_counter() - started
            for name, logits in found.items():
                error = (logits - found["one file"]).double()
                squares[name] += float(error.square().sum())
                largest[name] = max(largest[name], float(error.abs().max()))
            equal = equal and torch.equal(found["stages"], found["stages on Ray"])
            count += found["one file"].numel()
    print(f"rows that begin with {lengths_B.tolist()} tokens, {options.steps} steps, {options.threads} thread(s)")
    for name in decoders:
        print(
            f"{name}: rms {(squares[name] / count) ** 0.5:.2e} and at most {largest[name]:.2e} from one file, "
            f"{1e3 * seconds[name] / options.steps:.1f} ms a step"
        )
    print(f"stages on Ray and in one process are {'equal to the bit' if equal else 'NOT EQUAL'}")
    sys.exit(not equal or squares["stages"] > 4 * squares["eager"])


if __name__ == "__main__":
    main()
