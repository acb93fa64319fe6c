"""Makes models with LoRA adapters, and what peft makes of them. Run as a program, where peft is:

    peft_adapters.py FOLDER

writes for each of `CASES` into FOLDER/CASE: the base model (`base`), the adapter as peft saves it (`adapter`), and of
the model that peft reads back from the two, with the adapter beside it, the logits in float64 and the noise floor
(`peft.safetensors`), and in float32 the merged model (`merged`; not of one whose ends share a table).
"""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file

from tests.transformers_models import make_model, some_ids

IDS = some_ids(21)
MOVED = 8  # runs that measure the floor, beside one as it is


class Case(NamedTuple):
    """A base model, and what peft's `LoraConfig` is told."""

    lora: dict[str, Any]
    family: str = "llama"
    tied: bool = False
    base: torch.dtype = torch.float32
    adapter: torch.dtype = torch.float32


_PLAIN: dict[str, Any] = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]}
_ENDS = {**_PLAIN, "target_modules": ["embed_tokens", "lm_head", "o_proj", "down_proj"]}
_STACKED = {  # two modules of each family, the first of them stacked, and one more
    "phi3": ("qkv_proj", "gate_up_proj", "o_proj"),
    "gpt2": ("c_attn", "mlp.c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h", "attention.dense"),
    "phi": ("q_proj", "fc1", "dense"),
    "starcoder2": ("c_proj", "v_proj", "c_fc"),
}


def _ways(family: str) -> Iterator[tuple[str, dict[str, Any]]]:
    first, second, third = _STACKED[family]
    both = {"target_modules": [first, second]}
    yield "plain", both
    yield "every linear layer, rank-stabilised", {"target_modules": "all-linear", "use_rslora": True}
    yield "dora", {"target_modules": "all-linear", "use_dora": True}
    yield "patterns", {**both, "rank_pattern": {first: 5}, "alpha_pattern": {f"1.*{second}": 7}}
    yield "modules to save", {"target_modules": [second], "modules_to_save": [first, third]}
    yield "a layer", {**both, "layers_to_transform": [1]}
    if family != "phi3":  # which has no biases
        yield "biases", {**both, "bias": "lora_only"}
        yield "biases of their own", {**both, "bias": "all", "lora_bias": True}
    yield "the ends", {"target_modules": [_ENDS_OF.get(family, "embed_tokens"), first]}


_ENDS_OF = {"gpt2": "wte", "gpt_neox": "embed_in"}


CASES = {
    "plain": Case(_PLAIN),
    "rank-stabilised": Case({**_PLAIN, "use_rslora": True, "target_modules": "all-linear"}, "qwen3"),
    "patterns": Case(
        {
            **_PLAIN,
            "target_modules": ["q_proj", "k_proj", "gate_proj", "down_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 5, "^model.layers.0.*down_proj": 2},
            "alpha_pattern": {"gate_proj": 7, "q_proj": 11},
        }
    ),
    "patterns, rank-stabilised": Case(
        {**_PLAIN, "use_rslora": True, "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"1.self_attn.v_proj": 2}}
    ),
    "dora": Case({**_PLAIN, "use_dora": True, "target_modules": "all-linear"}, "qwen3"),
    "dora at the ends": Case({**_ENDS, "use_dora": True}),
    "the ends": Case(_ENDS, "smollm3"),
    "expression": Case({**_PLAIN, "target_modules": r"model\.layers\.(0|1)\.(self_attn\.o|mlp\.up)_proj"}),
    "layers": Case({**_PLAIN, "layers_to_transform": [1], "exclude_modules": ["v_proj"]}),
    "layers with a pattern": Case({**_PLAIN, "layers_to_transform": 0, "layers_pattern": "layers"}),
    "modules to save": Case({**_PLAIN, "modules_to_save": ["lm_head", "norm", "k_proj", "mlp"]}, "llama-biases"),
    "all biases": Case({**_PLAIN, "bias": "all"}, "llama-biases"),
    "biases of their own": Case({**_PLAIN, "bias": "lora_only", "lora_bias": True}, "llama-biases"),
    "types": Case({**_PLAIN, "use_dora": True}, base=torch.bfloat16, adapter=torch.float16),
    "tied, the embedding": Case({**_PLAIN, "target_modules": ["embed_tokens", "up_proj"]}, tied=True),
    "tied, the head": Case({**_PLAIN, "target_modules": ["lm_head", "up_proj"]}, tied=True),
    "tied, both as one": Case({**_ENDS, "ensure_weight_tying": True}, tied=True),
    "tied, the embedding whole": Case({**_PLAIN, "modules_to_save": ["embed_tokens"]}, tied=True),
    "tied, both whole as one": Case(
        {**_PLAIN, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, tied=True
    ),
    "tied, not touched": Case(_PLAIN, "qwen2-mixed", tied=True),
    **{f"{family}, {name}": Case({**_PLAIN, **lora}, family) for family in _STACKED for name, lora in _ways(family)},
}


def _moved(model: Any, generator: torch.Generator) -> Any:
    """A copy, each of its numbers moved by up to half of its last place.

    One run is a matter of luck where a softmax is sharp: of scores of up to 85, at one position of one case, peft's own
    merged model has from 0.2 to 1.5 times 1e-4.
    """
    moved = copy.deepcopy(model)
    for parameter in moved.parameters():
        parameter.mul_(1 + (torch.rand(parameter.shape, generator=generator) - 0.5) * torch.finfo(torch.float32).eps)
    return moved


def make(case: Case, folder: Path) -> None:
    """The files of one case."""
    peft: Any = importlib.import_module("peft")
    base = make_model(case.family, tied=case.tied).to(case.base)
    base.save_pretrained(folder / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(**case.lora, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad or "lora_" in name:
                if "magnitude" not in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
                else:
                    parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
                parameter.data = parameter.to(case.adapter)
    model.save_pretrained(folder / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(IDS).logits
        errors = [model(IDS).logits - exact, *(_moved(model, generator)(IDS).logits - exact for _ in range(MOVED))]
    save_file({"logits": exact, "errors": torch.stack(errors)}, folder / "peft.safetensors")
    if not case.tied:
        model.merge_and_unload().save_pretrained(folder / "merged")


def main(folder: Path) -> None:
    """All of them."""
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        make(case, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
