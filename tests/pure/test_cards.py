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
    assert 256 <= card.context_length <= card.context_length_max
    assert 0 < card.sampling.temperature <= 1
    assert card.footprint_gb > 0
    assert card.row_values == 0 if card.embeds else card.row_values


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


# FastFlowLM's own list, and what its later versions are known to add.
THEIRS = """
    deepseek-r1:8b deepseek-r1-0528:8b embed-gemma:300m gemma3:1b gemma3:4b gemma4-12b:12b
    gemma4-it:e2b gemma4-it:e4b gemma4e-flash:e2b gemma4e-flash:e4b gpt-oss:20b gpt-oss-sg:20b
    hy-mt2-flash:1.8b lfm2:1.2b lfm2:2.6b lfm2-trans:2.6b lfm2.5-it:1.2b lfm2.5-tk:1.2b
    llama3.1:8b llama3.2:1b llama3.2:3b medgemma:4b medgemma1.5:4b nanbeige4.1:3b phi4-mini-it:4b
    qwen2.5-it:3b qwen2.5vl-it:3b qwen3:0.6b qwen3:1.7b qwen3:4b qwen3:8b qwen3-it:4b qwen3-tk:4b
    qwen3.5:0.8b qwen3.5:2b qwen3.5:4b qwen3.5:9b qwen3.6-moe:35b-a3b qwen3.8-mtp:27b
    qwen3vl-flash:4b qwen3vl-it:4b translategemma:4b whisper-v3:turbo
"""


@pytest.mark.parametrize("tag", THEIRS.split())
def test_every_tag_of_fastflowlms_is_a_model_or_told_why_not(tag: str) -> None:
    name, _, size = tag.partition(":")
    for wanted in (tag, name):
        if size in module.NOT_YET.get(name, "").split():
            with pytest.raises(ModelNotFound, match="cannot run yet: it"):
                find(wanted)
        else:
            assert find(wanted).tag.startswith(name.removesuffix("-mtp"))


def test_what_a_model_needs_besides_a_folder_is_said() -> None:
    with pytest.raises(ModelNotFound, match="it takes speech"):
        find("whisper-v3")
    assert set(module.NEEDS) <= set(module.NOT_YET)


def test_a_large_state_keeps_fewer_prompts() -> None:
    card = find("qwen3.8-mtp:27b")
    assert (card.prefix_slots, card.prefix_cache_mb) == (4, 1536)
    assert card.prefix_slots * card.state_bytes < card.prefix_cache_mb * 2**20


def test_no_model_is_both_here_and_not_yet() -> None:
    assert not {card.tag.partition(":")[0] for card in cards()} & set(module.NOT_YET)


def test_models_that_reason_do_so_by_default_or_when_asked() -> None:
    for card in cards():
        assert ("reasoning" in card.labels) == (card.thinks or card.think_toggles), card.tag
    modes = {
        "qwen3:8b": (True, True),
        "qwen3-tk:4b": (True, False),
        "qwen3.5:0.8b": (False, True),
        "qwen2.5-it:3b": (False, False),
    }
    for tag, mode in modes.items():
        assert (find(tag).thinks, find(tag).think_toggles) == mode
