"""Encoders: a text's vector is what the arithmetic gives, whatever it shares a pass with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flm.engine import embedder as module
from flm.engine.embedder import Embedder, load_embedder
from flm.engine.residency import load
from flm.errors import BadModelFile, BadRequest, NoRoom, PassCancelled, UnsupportedModel
from flm.graph.weights.safetensors import SafetensorsFolder
from flm.hub.pull import pull
from flm.models.cards import encoders
from flm.models.compile import compile_model
from flm.settings import Settings
from tests.conftest import CACHE
from tests.models.gguf_writer import write_gguf
from tests.models.tiny_bert import LENGTH_MAX, reference, write_bert

(CARD,) = encoders()
TEXTS = ["the sky is blue", "what", "where runs the river through town", "a river", "finding skys"]


def opened(source: Path, folder: Path) -> Embedder:
    return load_embedder(compile_model(source, folder), CARD, Settings(), taken_bytes=0)


def test_a_vector_is_what_the_arithmetic_gives(tmp_path: Path) -> None:
    tensors = write_bert(tmp_path / "hf")
    encoder = opened(tmp_path / "hf", tmp_path / "bundle")
    texts = encoder.tokenizer.encode(TEXTS)
    assert texts[1] == [2, 13, 3]
    assert texts[4] == [2, 18, 16, 6, 15, 3]
    for ids, vector in zip(texts, encoder.embed(texts), strict=True):
        assert vector.dtype == np.float32
        np.testing.assert_allclose(vector, reference(tensors, ids), atol=1e-6)


def test_what_shares_a_pass_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "hf")
    encoder = opened(tmp_path / "hf", tmp_path / "bundle")
    texts = encoder.tokenizer.encode(TEXTS)
    together = encoder.embed(texts)
    for tokens_max in (1, 12):
        monkeypatch.setattr(module, "PASS_TOKENS_MAX", tokens_max)
        for one, other in zip(encoder.embed(texts), together, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_what_nobody_wants_any_more_ends_before_its_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / "hf")
    encoder = opened(tmp_path / "hf", tmp_path / "bundle")
    monkeypatch.setattr(module, "PASS_TOKENS_MAX", 1)
    answers = [True, True, False, True]
    with pytest.raises(PassCancelled):
        encoder.embed(encoder.tokenizer.encode(TEXTS), wanted=lambda: answers.pop(0))
    assert answers == [True]


def test_the_first_token_stands_for_a_text_where_the_folder_says_so(tmp_path: Path) -> None:
    write_bert(tmp_path / "mean")
    write_bert(tmp_path / "first", first=True)
    means = opened(tmp_path / "mean", tmp_path / "a")
    firsts = opened(tmp_path / "first", tmp_path / "b")
    text = means.tokenizer.encode(["the sky is blue"])
    assert not np.allclose(means.embed(text), firsts.embed(text), atol=0.05)
    assert np.linalg.norm(firsts.embed(text)[0]) == pytest.approx(1, abs=1e-6)


def test_texts_are_cut_where_the_model_ends_and_closed(tmp_path: Path) -> None:
    write_bert(tmp_path / "hf")
    encoder = opened(tmp_path / "hf", tmp_path / "bundle")
    assert encoder.context_length == LENGTH_MAX
    (ids,) = encoder.tokenizer.encode(["blue " * 100])
    assert len(ids) == 102
    cut = encoder.tokenizer.cut(ids, LENGTH_MAX)
    assert (len(cut), cut[:-1], cut[-1]) == (LENGTH_MAX, ids[: LENGTH_MAX - 1], 3)


def test_an_encoder_is_no_model_that_writes(tmp_path: Path) -> None:
    write_bert(tmp_path / "hf")
    bundle = compile_model(tmp_path / "hf", tmp_path / "bundle")
    with pytest.raises(BadRequest, match="writes no replies"):
        load(bundle, CARD, Settings())


def test_what_is_taken_already_leaves_no_room(tmp_path: Path) -> None:
    write_bert(tmp_path / "hf")
    bundle = compile_model(tmp_path / "hf", tmp_path / "bundle")
    with pytest.raises(NoRoom, match="beside"):
        load_embedder(bundle, CARD, Settings(), taken_bytes=2**60)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"hidden_act": "relu"}, UnsupportedModel),
        ({"num_attention_heads": 5}, BadModelFile),
        ({"num_hidden_layers": 3}, BadModelFile),
        ({"intermediate_size": 63}, BadModelFile),
        ({"max_position_embeddings": "many"}, BadModelFile),
        ({"layer_norm_eps": None}, BadModelFile),
    ],
)
def test_folders_that_cannot_be_are_refused(
    tmp_path: Path, config: dict[str, object], error: type[Exception]
) -> None:
    write_bert(tmp_path / "hf", **config)
    with pytest.raises(error):
        compile_model(tmp_path / "hf", tmp_path / "bundle")


def test_an_encoder_in_a_gguf_file_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "bert.gguf", {"general.architecture": "bert"}, {})
    with pytest.raises(UnsupportedModel, match="GGUF"):
        compile_model(file, tmp_path / "bundle")


@pytest.mark.slow
def test_all_minilm_gives_the_published_vectors() -> None:
    """Those that the model's page shows for its two sentences, as far as they are printed; all of
    them by the arithmetic.
    """
    settings = replace(Settings(), model_path=CACHE / "flm")
    source = pull(CARD.tag, settings, progress=lambda *_: None)
    encoder = opened(source, CACHE / "flm" / "minilm-test-bundle")
    texts = encoder.tokenizer.encode(["This is an example sentence", *TEXTS, "hello world " * 60])
    vectors = encoder.embed(texts)
    published = [6.76569194e-02, 6.34959713e-02, 4.87131178e-02, 7.93049708e-02, 3.74480747e-02]
    np.testing.assert_allclose(vectors[0][:5], published, atol=2e-7)
    folder = SafetensorsFolder(source, quantized=False)
    tensors = {
        name: folder.vector(name).reshape(folder.stored(name).shape)
        for name in folder.tensors
        if "position_ids" not in name
    }
    for ids, vector in zip(texts, vectors, strict=True):
        assert vector @ reference(tensors, ids, folder.config) >= 0.999999
