"""Keys of a Hugging Face `config.json` that have no part in the mathematics of inference, each with the reason.

A key that is neither read by `config_hf.py`, nor ignored by its family, nor listed here is refused by name. To add one,
say why it is harmless.
"""

from __future__ import annotations

from typing import Any

_BY_REASON = {
    "names a class; the tensors themselves tell what the checkpoint holds": "architectures",
    "the tokenizer's own files say it": "tokenizer_class sep_token_id unk_token_id cls_token_id prefix",
    "padding is masked by position, whatever its id": "pad_token_id",
    "only matters in training": (
        "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop gradient_checkpointing "
        "use_reentrant task_specific_params finetuning_task"
    ),
    "whether transformers keeps a cache; this project always has one": "use_cache",
    "which cache transformers would keep; this project brings its own": "cache_implementation",
    "splits the MLP's work over time, with the same result": "chunk_size_feed_forward",
    "a length noted by early conversions; max_position_embeddings is the limit": "max_sequence_length",
    "bookkeeping of the tool that wrote the file": (
        "transformers_version _name_or_path name_or_path _commit_hash is_llama_config unsloth_fixed unsloth_version "
        "model_name"
    ),
    "settings for JavaScript runtimes": "transformers.js_config",
    "chooses a kernel in transformers, not what it computes": (
        "_attn_implementation _attn_implementation_autoset _attn_implementation_internal "
        "_experts_implementation_internal attn_implementation _flash_attn_2_enabled"
    ),
    "chooses what transformers' Python objects return": (
        "torchscript return_dict output_attentions output_hidden_states return_dict_in_generate output_scores"
    ),
    "a TensorFlow setting": "use_bfloat16 tf_legacy_loss",
    "describes a classification head, whose tensors would be refused": "id2label label2id num_labels problem_type",
    "a decoding setting; generation_config.json is where it is read": (
        "do_sample temperature top_k top_p typical_p min_p repetition_penalty length_penalty max_length max_new_tokens "
        "min_length num_beams num_beam_groups diversity_penalty early_stopping no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id forced_eos_token_id "
        "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
        "decoder_start_token_id"
    ),
}
HARMLESS: frozenset[str] = frozenset(key for keys in _BY_REASON.values() for key in keys.split())

_QUANTISED = "the weights are stored quantised; take the unquantised checkpoint, or a GGUF file of the model"
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "pretraining_tp": ((1,), "it splits the projections into slices that are added in another order"),
    "rope_interleaved": ((False,), "it pairs neighbouring dimensions, where a Hugging Face checkpoint pairs halves"),
    "use_mrope": ((False,), "positions in several dimensions belong to models that see images"),
    "partial_rotary_factor": ((1, 1.0), "it leaves part of each head without RoPE, and this family turns whole heads"),
    "is_decoder": ((True, False), "it says whether attention is causal"),
    "is_encoder_decoder": ((False,), "only decoders can be exported"),
    "add_cross_attention": ((False,), "only decoders without cross-attention can be exported"),
    "cross_attention_hidden_size": ((None,), "only decoders without cross-attention can be exported"),
    "tie_encoder_decoder": ((False,), "only decoders can be exported"),
    "pruned_heads": (({}, None), "layers with heads of their own number are not implemented"),
    "per_layer_config": (({}, None), "layers with dimensions of their own are not implemented"),
    "quantization": ((None,), _QUANTISED),
    "compression_config": ((None,), _QUANTISED),
    "auto_map": ((None,), "it names modelling code outside transformers, which may compute something else"),
}
"""Keys that say nothing at these values and change the mathematics, or mean weights we cannot read, at any other."""
