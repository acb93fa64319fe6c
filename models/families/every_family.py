"""Every family, a line each. A new one is a file beside this and a line here."""

from __future__ import annotations

from blockexport.models.families.arcee import ARCEE
from blockexport.models.families.cohere import COHERE
from blockexport.models.families.cohere2 import COHERE2
from blockexport.models.families.cwm import CWM
from blockexport.models.families.ernie4_5 import ERNIE4_5
from blockexport.models.families.exaone import EXAONE
from blockexport.models.families.exaone4 import EXAONE4
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.gemma import GEMMA
from blockexport.models.families.gemma2 import GEMMA2
from blockexport.models.families.gemma3_text import GEMMA3
from blockexport.models.families.glm import GLM
from blockexport.models.families.glm4 import GLM4
from blockexport.models.families.gpt2 import GPT2
from blockexport.models.families.gpt_neox import GPT_NEOX
from blockexport.models.families.granite import GRANITE
from blockexport.models.families.granitemoehybrid import GRANITE_MOE_HYBRID
from blockexport.models.families.helium import HELIUM
from blockexport.models.families.hunyuan_v1_dense import HUNYUAN_V1_DENSE
from blockexport.models.families.hyperclovax import HYPERCLOVAX
from blockexport.models.families.internlm3 import INTERNLM3
from blockexport.models.families.iquestcoder import IQUEST_CODER
from blockexport.models.families.jais2 import JAIS2
from blockexport.models.families.llama import LLAMA
from blockexport.models.families.minicpm import MINICPM
from blockexport.models.families.ministral import MINISTRAL
from blockexport.models.families.ministral3 import MINISTRAL3
from blockexport.models.families.mistral import MISTRAL
from blockexport.models.families.nemotron import NEMOTRON
from blockexport.models.families.olmo import OLMO
from blockexport.models.families.olmo2 import OLMO2
from blockexport.models.families.olmo3 import OLMO3
from blockexport.models.families.phi import PHI
from blockexport.models.families.phi3 import PHI3
from blockexport.models.families.qwen2 import QWEN2
from blockexport.models.families.qwen3 import QWEN3
from blockexport.models.families.seed_oss import SEED_OSS
from blockexport.models.families.smollm3 import SMOLLM3
from blockexport.models.families.stablelm import STABLELM
from blockexport.models.families.starcoder2 import STARCODER2
from blockexport.models.families.vaultgemma import VAULT_GEMMA

_ALL = (
    ARCEE,
    COHERE,
    COHERE2,
    CWM,
    ERNIE4_5,
    EXAONE,
    EXAONE4,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GLM,
    GLM4,
    GPT2,
    GPT_NEOX,
    GRANITE,
    GRANITE_MOE_HYBRID,
    HELIUM,
    HUNYUAN_V1_DENSE,
    HYPERCLOVAX,
    INTERNLM3,
    IQUEST_CODER,
    JAIS2,
    LLAMA,
    MINICPM,
    MINISTRAL,
    MINISTRAL3,
    MISTRAL,
    NEMOTRON,
    OLMO,
    OLMO2,
    OLMO3,
    PHI,
    PHI3,
    QWEN2,
    QWEN3,
    SEED_OSS,
    SMOLLM3,
    STABLELM,
    STARCODER2,
    VAULT_GEMMA,
)

FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}
"""By `model_type`."""

GGUF_FAMILIES: dict[str, tuple[Family, GgufForm]] = {
    family.gguf.architecture: (family, family.gguf) for family in _ALL if family.gguf
}
"""Those that llama.cpp has an architecture for, by its name."""

PRESETS: dict[str, Preset] = {name: preset for family in _ALL for name, preset in family.presets.items()}
"""Well-known dimensions by name, for random weights and for arithmetic without a download. Each repeats the
`config.json` of the model at its URL."""
