"""Every card can be pulled and listed, and every wrong tag gets an answer that helps."""

import re

import pytest

from flm.errors import ModelNotFound
from flm.models import cards as module
from flm.models.cards import cards, find


def test_tags_and_folders_are_unique() -> None:
    tags = [tag for card in cards() for tag in (card.tag, *card.aliases)]
    assert len(tags) == len(set(tags))
    assert len({card.name for card in cards()}) == len(cards())


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.tag)
def test_a_card_is_whole(card: module.Card) -> None:
    assert re.fullmatch(r"[a-z0-9.\-]+:[a-z0-9.\-]+", card.tag)
    assert card.sources
    assert all(re.fullmatch(r"(pypi|hf):\S+/\S+", source) for source in card.sources)
    assert card.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", card.sha256)
    # What a package index gives has no hash of its own that outlives the index.
    assert card.sha256 or not any(source.startswith("pypi:") for source in card.sources)
    assert 512 <= card.context_length <= card.context_length_max
    assert 0 < card.sampling.temperature <= 1
    assert card.footprint_gb > 0
    assert card.row_values


def test_a_name_alone_is_its_first_size_and_case_does_not_matter() -> None:
    assert find("smollm2").tag == "smollm2:135m"
    assert find("SmolLM2:1.7B").tag == "smollm2:1.7b"
    assert find("deepseek-r1").thinks


def test_an_unknown_tag_gets_fastflowlms_words_and_the_nearest_tag() -> None:
    with pytest.raises(ModelNotFound) as error:
        find("smolm2:135m")
    assert error.value.message == (
        "Model not found: smolm2:135m; Please check with `flm list` and try again."
    )
    assert "did you mean smollm2:135m?" in error.value.fix
    with pytest.raises(ModelNotFound) as error:
        find("smolm2")
    assert "did you mean smollm2?" in error.value.fix


@pytest.mark.parametrize("tag", ["qwen2.5-it:3b", "gemma3", "whisper-v3:turbo"])
def test_fastflowlms_other_models_are_known_not_unknown(tag: str) -> None:
    with pytest.raises(ModelNotFound, match="cannot run yet"):
        find(tag)


def test_no_model_is_both_here_and_not_yet() -> None:
    assert not {card.tag.partition(":")[0] for card in cards()} & set(module.NOT_YET)
