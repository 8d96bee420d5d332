"""A picture in a prompt: its own ids where the template has a place for it, between the texts that
the model reads around it.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flm.core.chat import Conversation, Message, ToolCall
from flm.core.picture import Picture, Sight
from flm.errors import BadRequest
from flm.prefix.boundaries import BoundaryFinder
from flm.prefix.shown import Shown, with_pictures
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer
from tests.server.house import TOKENIZER

SIGHT = Sight("cells", 2, 2, 4, 4, 4096, placeholder="<here>", mark="*", before="\n[", after="]\n")
MARK = ord("*")
SMALL, LARGE = (Picture(side, 4, bytes(3 * side * 4)) for side in (4, 12))
SAYS = (
    Message("user", "ab", pictures=((0, SMALL), (1, LARGE))),
    Message("user", "c", pictures=((1, SMALL),)),
)


def test_texts_around_a_picture_are_encoded_with_what_stands_beside_them() -> None:
    shown = Shown(SIGHT, MARK)
    text = shown.text("<here>a<here>b|c<here>", SAYS)
    assert text == "\n[*]\na\n[*]\nb|c\n[*]\n"
    tokens = [ord(each) for each in text]
    placed = shown.placed(tokens, SAYS)
    assert [(each.start, each.rows, each.columns) for each in placed] == [
        (2, 1, 1),
        (8, 1, 3),
        (18, 1, 1),
    ]
    assert [each.place for each in placed] == [
        "picture 1 of messages[0]",
        "picture 2 of messages[0]",
        "picture 1 of messages[1]",
    ]
    whole = with_pictures(tokens, placed)
    assert len(whole) == len(tokens) + 2
    assert all(whole[each.start : each.end] == each.ids for each in placed)
    assert placed[0].ids == placed[2].ids


@pytest.mark.parametrize(
    "rendered", ["<here>a<here>", "<here><here><here><here>", "<here>*<here><here>"]
)
def test_a_text_with_more_or_fewer_places_is_refused(rendered: str) -> None:
    shown = Shown(SIGHT, MARK)
    with pytest.raises(BadRequest, match=r"places for 3 images"):
        shown.placed([ord(each) for each in shown.text(rendered, SAYS)], SAYS)


def test_who_shows_nothing_may_write_what_he_likes() -> None:
    shown, says = Shown(SIGHT, MARK), (replace(SAYS[0], pictures=()),)
    assert shown.text("<here>*", says) == "<here>*"
    assert shown.placed([MARK, MARK], says) == ()


# Users show pictures, others only say.
DROPS = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}{% elif message.role == 'user' %}<file_sep>{% endif %}
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments.a }}{% endfor %}<|im_end|>
{% endfor %}"""
SHOWS = Message("user", "a", pictures=((0, SMALL),))
LEFT_OUT = Message("tool", "b", pictures=((0, LARGE),))


def found(*messages: Message) -> list[str]:
    sight = replace(SIGHT, placeholder="<file_sep>", mark="<file_sep>", before="", after="")
    template = ChatTemplate(DROPS, bos_token="", eos_token="")
    finder = BoundaryFinder(template, Tokenizer.load(TOKENIZER), sight=sight)
    prompt = finder.find(Conversation(messages), now=datetime(2026, 1, 1, tzinfo=UTC))
    return [each.place for each in prompt.pictures]


@pytest.mark.parametrize(
    "said",
    [
        [LEFT_OUT, Message("user", "<file_sep>")],
        [Message("user", "<file_sep>"), LEFT_OUT],
        [replace(LEFT_OUT, content="<file_sep>")],
        [Message("tool", "<file_sep>", pictures=((6, LARGE),))],
        [
            Message("assistant", "", tool_calls=(ToolCall("i", "n", r'{"a": "\u003cfile_sep>"}'),)),
            LEFT_OUT,
        ],
    ],
    ids=["behind", "before", "beside", "around", "in a call"],
)
def test_no_text_stands_for_a_picture_that_the_template_leaves_out(said: list[Message]) -> None:
    assert found(SHOWS) == ["picture 1 of messages[0]"]
    with pytest.raises(BadRequest, match="a text has <file_sep>"):
        found(SHOWS, *said)
    with pytest.raises(BadRequest, match="1 places for 2 images"):
        found(SHOWS, LEFT_OUT)
