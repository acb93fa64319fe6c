"""What a folder's sentence-transformers files say is read whole, or refused by the key that cannot be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockexport.models.errors import UsageError
from blockexport.models.formats.sentence_transformers import MODULES, read_embedding
from blockexport.models.interface import Pooling

WIDTH = 48
OWN = "sentence_transformers.models."
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{OWN}Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OWN}Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OWN}Normalize"}
POOLED = "1_Pooling/config.json"
LENGTH = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
SOUND: dict[str, Any] = {
    MODULES: [TRANSFORMER, POOLING, NORMALIZE],
    POOLED: {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True, "include_prompt": True},
    LENGTH: {"max_seq_length": 512, "do_lower_case": False},
    PROMPTS: {"__version__": {}, "prompts": {"query": "Instruct: find\nQuery:"}, "similarity_fn_name": "cosine"},
}


def written(folder: Path, **changes: Any) -> Path:
    """The sound files with some of them changed; None leaves one out."""
    for name, content in {**SOUND, **changes}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_sound_files(tmp_path: Path) -> None:
    said = read_embedding(written(tmp_path), WIDTH)
    assert said is not None
    assert (said.pooling, said.normalize, said.longest) == (Pooling.LAST, True, 512)
    assert said.notes == ("the model has prompts (query), which your program puts in front of its texts",)


def test_other_forms(tmp_path: Path) -> None:
    files = {MODULES: [TRANSFORMER, POOLING], POOLED: {"pooling_mode": "mean"}, LENGTH: None, PROMPTS: None}
    said = read_embedding(written(tmp_path, **files), WIDTH)
    assert said is not None
    assert (said.pooling, said.normalize, said.longest, said.notes) == (Pooling.MEAN, False, None, ())
    assert read_embedding(tmp_path / "1_Pooling", WIDTH) is None


@pytest.mark.parametrize("bert", [None, {"max_seq_length": None}])
@pytest.mark.parametrize(("said", "longest"), [(512, 512), (10**30, 10**30), (1e30, None), (-1, None), (None, None)])
def test_release_6_saves_the_length_with_the_tokenizer(
    tmp_path: Path, bert: dict[str, Any] | None, said: float | None, longest: int | None
) -> None:
    files = {LENGTH: bert, "tokenizer_config.json": {"model_max_length": said}}
    found = read_embedding(written(tmp_path, **files), WIDTH)
    assert found is not None and found.longest == longest


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (MODULES, "[", "modules.json"),
        (MODULES, {}, "is no list of modules"),
        (MODULES, [1], "is no list of modules"),
        (MODULES, [], "no modules"),
        (MODULES, [TRANSFORMER, POOLING, {**POOLING, "type": f"{OWN}Dense"}], "Transformer, Pooling, Dense"),
        (MODULES, [TRANSFORMER, {**POOLING, "type": "custom.Pool"}], "code of the model's own"),
        (MODULES, [TRANSFORMER, {**POOLING, "path": "../1_Pooling"}], "is no folder beside the file"),
        (MODULES, [TRANSFORMER, {**POOLING, "path": "/etc"}], "is no folder beside the file"),
        (MODULES, [TRANSFORMER, {**POOLING, "path": "1\0"}], "1"),
        (MODULES, [TRANSFORMER, {**POOLING, "path": "x" * 5000}], "x"),
        (MODULES, [{**TRANSFORMER, "path": "0_Transformer"}, POOLING], "the Transformer is in"),
        (MODULES, [TRANSFORMER, {**POOLING, "device": "cuda"}], "device"),
        (MODULES, [TRANSFORMER, {**POOLING, "type": 7}], "type"),
        (POOLED, None, "is missing"),
        (POOLED, {"pooling_mode_cls_token": True}, "pooling by cls cannot be exported"),
        (POOLED, {"pooling_mode": ["mean", "lasttoken"]}, "pooling by mean, lasttoken"),
        (POOLED, {"pooling_mode": {"a": 1}}, "pooling by"),
        (POOLED, {"pooling_mode_lasttoken": "yes"}, "pooling_mode_lasttoken"),
        (POOLED, {"word_embedding_dimension": 47}, "word_embedding_dimension"),
        (POOLED, {"include_prompt": False}, "include_prompt"),
        (POOLED, {"pooling_mode_lastoken": True}, "pooling_mode_lastoken"),
        ("2_Normalize/config.json", {"p": 1}, "key"),
        (LENGTH, {"do_lower_case": True}, "do_lower_case"),
        (LENGTH, {"max_seq_length": 0}, "max_seq_length"),
        (LENGTH, {"max_seq_length": -3}, "max_seq_length"),
        (LENGTH, {"max_seq_length": 2.5}, "max_seq_length"),
        (LENGTH, {"max_seq_length": "512"}, "max_seq_length"),
        (LENGTH, {"max_sequence_length": 512}, "max_sequence_length"),
        (PROMPTS, {"truncate_dim": 16}, "truncate_dim"),
        (PROMPTS, {"model_type": "SparseEncoder"}, "model_type"),
        (PROMPTS, {"prompt": {}}, "prompt"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(file: str, content: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_embedding(written(tmp_path, **{file: content}), WIDTH)
    assert said in str(refused.value)
