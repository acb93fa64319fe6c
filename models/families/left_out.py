"""Decoders of transformers that are no family here, each with the reason: what their block has and this one has not.

transformers' own list of causal language models is the census; a test walks it, so that no name of it is forgotten.
"""

from __future__ import annotations

_BY_REASON = {
    "mixtures of experts are not implemented": (
        "afmoe aria_text axk1 axk2 beam cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 "
        "dots3_note dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss "
        "granitemoe granitemoe_swa granitemoeshared hunyuan_v1_moe hy_v3 hy_v4 inkling2_loop_text inkling2_text "
        "inkling_text jetmoe kolibri1 laguna llama4 llama4_text longcat_flash mellum mimo_v2_flash minimax_m2 "
        "minimax_m3_vl_text mixtral olmoe phimoe qwen2_moe qwen3_moe sarvam_mla sarvam_moe solar_open"
    ),
    "layers with a recurrent state (state spaces, linear attention, convolutions) are not implemented": (
        "bailing_hybrid bamba falcon_h1 falcon_mamba jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 mamba mamba2 "
        "minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp "
        "qwen4_exp_text recurrent_gemma rwkv xlstm zamba zamba2 zaya"
    ),
    "attention over a latent cache (MLA) is not implemented": "minicpm3 youtu",
    "it is an encoder, or the decoder of one": (
        "bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text "
        "electra ernie marian mbart megatron-bert mvp pegasus plbart prophetnet rembert roberta roberta-prelayernorm "
        "roc_bert roformer trocr whisper xlm xlm-roberta xlm-roberta-xl xlnet xmod"
    ),
    "it sees or hears, and its text part is no family here": (
        "apertus1p5_text cohere_compass_text emu3 fuyu git got_ocr2 mllama moshi moss_transcribe_diarize musicgen "
        "musicgen_melody phi4_multimodal"
    ),
    "its text part is read with --text-only, where it is the part of a multimodal model": "gemma3",
    "layers with embeddings, dimensions or caches of their own are not implemented": (
        "gemma3n gemma3n_text gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant "
        "gemma4_unified_text"
    ),
    "layers that are run several times are not implemented": "dory hrm_text",
    "attention biases by distance (ALiBi) are not implemented": "bloom mpt",
    "attention with a learned sink is not implemented": "granite_swa",
    "scores that are masked by content, or two attentions of which one is taken off the other, are not implemented": (
        "diffllama doge reformer"
    ),
    "an activation with parameters of its own (xIELU) is not implemented": "apertus",
    "norms inside of a sublayer are not implemented, and its weights are ternary": "bitnet",
    "it reads bytes in patches": "blt",
    "norms of the embedding are not implemented": "modernbert-decoder nanochat",
    "it is of before 2024, and nobody has asked for it": (
        "biogpt codegen cpmant ctrl falcon gpt_bigcode gpt_neo gpt_neox_japanese gptj openai-gpt opt persimmon xglm"
    ),
}

LEFT_OUT: dict[str, str] = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""By `model_type`."""
