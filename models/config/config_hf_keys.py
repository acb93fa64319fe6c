"""Keys of a Hugging Face `config.json` that have no part in the mathematics of inference, each with the reason.

A key that is neither read by `config_hf.py` nor listed here is refused by name. To add one, say why it is harmless.
"""

from __future__ import annotations

from typing import Any

_CLASS_NAME = "names a class; the tensors themselves tell what the checkpoint holds"
_TRAINING = "only matters in training"
_BOOKKEEPING = "bookkeeping of the tool that wrote the file"
_PYTHON_OUTPUT = "chooses what transformers' Python objects return"
_KERNEL = "chooses a kernel in transformers, not what it computes"
_DECODING = "a decoding setting; generation_config.json is where it is read"
_CLASSIFIER = "describes a classification head, whose tensors would be refused"
_TOKENIZER = "the tokenizer's own files say it"

HARMLESS: dict[str, str] = {
    "architectures": _CLASS_NAME,
    "tokenizer_class": _TOKENIZER,
    "pad_token_id": "padding is masked by position, whatever its id",
    "sep_token_id": _TOKENIZER,
    "unk_token_id": _TOKENIZER,
    "cls_token_id": _TOKENIZER,
    "prefix": _TOKENIZER,
    "initializer_range": _TRAINING,
    "attention_dropout": _TRAINING,
    "hidden_dropout": _TRAINING,
    "resid_pdrop": _TRAINING,
    "embd_pdrop": _TRAINING,
    "gradient_checkpointing": _TRAINING,
    "use_reentrant": _TRAINING,
    "task_specific_params": _TRAINING,
    "finetuning_task": _TRAINING,
    "use_cache": "whether transformers keeps a cache; this project always has one",
    "cache_implementation": "which cache transformers would keep; this project brings its own",
    "chunk_size_feed_forward": "splits the MLP's work over time, with the same result",
    "max_sequence_length": "a length noted by early conversions; max_position_embeddings is the limit",
    "transformers_version": _BOOKKEEPING,
    "_name_or_path": _BOOKKEEPING,
    "name_or_path": _BOOKKEEPING,
    "_commit_hash": _BOOKKEEPING,
    "is_llama_config": _BOOKKEEPING,
    "transformers.js_config": "settings for JavaScript runtimes",
    "unsloth_fixed": _BOOKKEEPING,
    "unsloth_version": _BOOKKEEPING,
    "model_name": _BOOKKEEPING,
    "_attn_implementation": _KERNEL,
    "_attn_implementation_autoset": _KERNEL,
    "_attn_implementation_internal": _KERNEL,
    "_experts_implementation_internal": _KERNEL,
    "attn_implementation": _KERNEL,
    "_flash_attn_2_enabled": _KERNEL,
    "torchscript": _PYTHON_OUTPUT,
    "return_dict": _PYTHON_OUTPUT,
    "output_attentions": _PYTHON_OUTPUT,
    "output_hidden_states": _PYTHON_OUTPUT,
    "return_dict_in_generate": _PYTHON_OUTPUT,
    "output_scores": _PYTHON_OUTPUT,
    "use_bfloat16": "a TensorFlow setting",
    "tf_legacy_loss": "a TensorFlow setting",
    "id2label": _CLASSIFIER,
    "label2id": _CLASSIFIER,
    "num_labels": _CLASSIFIER,
    "problem_type": _CLASSIFIER,
    **dict.fromkeys(
        (
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "min_p",
            "repetition_penalty",
            "length_penalty",
            "max_length",
            "max_new_tokens",
            "min_length",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "early_stopping",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "bad_words_ids",
            "num_return_sequences",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens",
            "decoder_start_token_id",
        ),
        _DECODING,
    ),
}

NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "pretraining_tp": ((1,), "it splits the projections into slices that are added in another order"),
    "rope_interleaved": ((False,), "it pairs neighbouring dimensions, where a Hugging Face checkpoint pairs halves"),
    "use_mrope": ((False,), "positions in several dimensions belong to models that see images"),
    "partial_rotary_factor": ((1, 1.0), "it leaves part of each head without RoPE, which is not implemented"),
    "is_decoder": ((True, False), "it says whether attention is causal"),
    "is_encoder_decoder": ((False,), "only decoders can be exported"),
    "add_cross_attention": ((False,), "only decoders without cross-attention can be exported"),
    "cross_attention_hidden_size": ((None,), "only decoders without cross-attention can be exported"),
    "tie_encoder_decoder": ((False,), "only decoders can be exported"),
    "pruned_heads": (({}, None), "layers with heads of their own number are not implemented"),
    "per_layer_config": (({}, None), "layers with dimensions of their own are not implemented"),
    "quantization_config": (
        (None,),
        "the weights are stored quantised; take the unquantised checkpoint, or a GGUF file of the model",
    ),
    **dict.fromkeys(
        ("quantization", "compression_config"),
        ((None,), "the weights are stored quantised; take the unquantised checkpoint, or a GGUF file of the model"),
    ),
    "auto_map": ((None,), "it names modelling code outside transformers, which may compute something else"),
}
"""Keys that say nothing at these values and change the mathematics, or mean weights we cannot read, at any other."""
