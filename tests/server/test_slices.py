"""A model that reads pictures in slices, whole: what stands for one in a prompt, and its reuse."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flm.core.picture import Picture
from flm.engine.conversation import Conversations
from flm.engine.residency import Resident
from flm.engine.terms import Terms
from flm.errors import BadRequest
from flm.graph.bundle import Bundle
from flm.models.compile import compile_model
from flm.server.apis.openai import ChatBody, conversation
from flm.text.tokenizer import Tokenizer
from tests.models.seen import made
from tests.models.sliced import sliced_folder
from tests.server.house import TOKENIZER
from tests.server.seeing import SEES, TEMPLATE, opened
from tests.server.test_pictures import (
    TEXT,
    asked,
    assert_warm_equals_cold,
    chat,
    eyes_of,
    part,
    prompts,
    usage,
)

WHOLE, CUT = made([(16, 12), (75, 61)])  # one view; and the whole with two rows of three
NAMES = {
    "<repo_name>": "<image>",
    "<reponame>": "</image>",
    "<file_sep>": "<|image_pad|>",
    "<filename>": "<slice>",
    "<gh_stars>": "</slice>",
    "<issue_start>": "<image_id>",
    "<issue_comment>": "</image_id>",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = sliced_folder(tmp_path_factory.mktemp("slices") / "hf")
    words = (TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")
    for before, after in NAMES.items():
        words = words.replace(json.dumps(before), json.dumps(after))
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    shutil.copy(TOKENIZER / "tokenizer_config.json", folder)
    plain = TEMPLATE.replace("<|vision_start|>", "").replace("<|vision_end|>", "")
    (folder / "chat_template.jinja").write_text(plain, encoding="utf-8")
    return compile_model(folder, Path(folder).parent / "bundle")


@pytest.fixture
def resident(bundle: Bundle) -> Iterator[Resident]:
    with opened(bundle) as found:
        yield found


def test_a_picture_stands_in_a_prompt_as_its_views_between_the_words_for_them(
    resident: Resident,
) -> None:
    prompt = prompts(resident, chat("see", part(WHOLE), "and", part(CUT), TEXT))
    whole, over, *slices = prompt.pictures
    assert len(slices) == 6
    assert [each.place[:9] for each in prompt.pictures] == ["picture 1"] + 7 * ["picture 2"]
    tokenizer: Tokenizer = resident.tokenizer
    ends = [each.end for each in prompt.pictures]
    starts = [*(each.start for each in prompt.pictures[1:]), len(prompt.tokens)]
    between = [
        "".join(map(tokenizer.piece, prompt.tokens[end:start]))
        for end, start in zip(ends, starts, strict=True)
    ]
    assert between[0] == "</image>and<image_id>1</image_id><image>"
    assert between[1] == "</image><slice>"
    assert between[2:7] == 2 * ["</slice><slice>"] + ["</slice>\n<slice>"] + 2 * ["</slice><slice>"]
    for each in prompt.pictures:
        assert prompt.tokens[each.start : each.end] == each.ids
        assert not any(each.start < b.offset < each.end for b in prompt.boundaries)
    assert over.ids != whole.ids


def test_each_view_is_encoded_once_and_the_whole_is_reused(resident: Resident) -> None:
    first, again, later = asked(
        resident,
        "/v1/chat/completions",
        chat(part(CUT), TEXT),
        chat(part(CUT, "WEBP"), TEXT),
        chat("now", part(CUT), TEXT),
    )
    length, cached = usage(first)
    assert cached == 0
    assert usage(again) == (length, length)
    assert usage(later)[1] < 20
    assert eyes_of(resident).encoded == 7


def test_warm_equals_cold_behind_slices(bundle: Bundle) -> None:
    assert_warm_equals_cold(bundle, CUT)


def test_a_budget_takes_slices_away_and_one_too_small_is_told(resident: Resident) -> None:
    def views(picture: Picture, tokens: int) -> int:
        body = ChatBody.model_validate({"model": "x", **chat(part(picture), TEXT)})
        settings = replace(SEES, image_max_tokens=tokens)
        said = conversation(body, model="x", settings=settings, sight=resident.sight)
        terms = Terms(resident.card.sampling)
        (reply,) = Conversations(resident).chat(said, terms, request_id="r")
        pictures = reply.request.prompt.pictures
        assert sum(each.end - each.start for each in pictures) <= tokens
        return len(pictures)

    assert [views(CUT, tokens) for tokens in (1024, 28, 27, 16, 4)] == [7, 7, 5, 3, 1]
    with pytest.raises(BadRequest, match="7 tokens at least, and 4 are allowed"):
        views(made([(100, 6)])[0], 4)
