"""A model that translates is asked in each of the ways that people ask it elsewhere."""

from dataclasses import replace
from datetime import datetime

import pytest

from flm.core.chat import Conversation, Message
from flm.core.picture import Picture
from flm.engine.reader import Reader
from flm.errors import BadRequest
from flm.server.apis.content import flat_text, languages
from flm.settings import Settings
from flm.text.template import CHATML, ChatTemplate

TEMPLATE = """\
{%- set names = {'en': 'English', 'de': 'German'} -%}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if m.content is string or m.content | length != 1 %}{{ raise_exception('one item') }}{% endif %}
{%- set part = m.content[0] %}
{{- '<start_of_turn>user\\n' + names[part.source_lang_code] + ' to ' }}
{{- names[part.target_lang_code] + ':\\n' }}
{{- ('<start_of_image>' if part.type == 'image' else part.text) + '<end_of_turn>\\n' }}
{%- else %}{{ '<start_of_turn>model\\n' + m.content + '<end_of_turn>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}
"""
MODEL = ChatTemplate(TEMPLATE, bos_token="<bos>", eos_token="<eos>")
ASKED = "<start_of_turn>user\nEnglish to German:\nHello<end_of_turn>\n<start_of_turn>model\n"
PICTURE = Picture(1, 1, b"rgb")
PART = {"type": "text", "source_lang_code": "en", "target_lang_code": "de", "text": "Hello"}


def said(*messages: Message, **variables: str) -> str:
    return MODEL.render(Conversation(messages, template_kwargs=variables), now=datetime(2026, 1, 1))


def test_a_part_says_its_languages() -> None:
    text, *_ = flat_text([PART], place="messages[0].content", reader=Reader("m", Settings()))
    assert said(Message("user", text, languages=languages([PART]))) == ASKED


def test_a_text_takes_the_languages_of_the_templates_variables() -> None:
    variables = {"source_lang_code": "en", "target_lang_code": "de"}
    assert said(Message("user", "Hello"), **variables) == ASKED


def test_a_text_takes_the_languages_of_the_one_before_it() -> None:
    first = Message("user", "Hello", languages=("en", "de"))
    text = said(first, Message("assistant", "Hallo"), Message("user", "Goodbye"))
    assert text.endswith("English to German:\nGoodbye<end_of_turn>\n<start_of_turn>model\n")


def test_a_text_without_languages_is_the_whole_prompt() -> None:
    assert said(Message("system", "To German."), Message("user", "Hello ")) == (
        "<bos><start_of_turn>user\nTo German.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
    )
    assert said(Message("user", "a"), Message("assistant", "b"), Message("user", "c")) == (
        "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
        "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_picture_is_translated_like_a_text() -> None:
    shown = Message("user", "", pictures=((0, PICTURE),), languages=("en", "de"))
    assert said(shown) == ASKED.replace("Hello", "<start_of_image>")
    with pytest.raises(BadRequest, match="one item"):
        said(replace(shown, content="and this"))


def test_without_languages_pictures_stand_where_they_are_in_the_text() -> None:
    shown = Message("user", "What does it say? ", pictures=((18, PICTURE),))
    assert said(Message("system", "To German."), shown) == (
        "<bos><start_of_turn>user\nTo German.\n\nWhat does it say?<start_of_image><end_of_turn>\n"
        "<start_of_turn>model\n"
    )


def test_a_language_that_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(BadRequest, match="template"):
        said(Message("user", "Hello", languages=("en", "tlh")))


def test_other_models_see_the_text_alone() -> None:
    chatml = ChatTemplate(CHATML, bos_token="", eos_token="")
    text = chatml.render(Conversation((Message("user", "Hello", languages=("en", "de")),)))
    assert text.startswith("<|im_start|>user\nHello<|im_end|>")


@pytest.mark.parametrize(
    "content", ["Hello", None, [], ["Hello"], [{**PART, "source_lang_code": 1}]]
)
def test_a_part_that_does_not_say_both_says_none(content: object) -> None:
    assert languages(content) is None  # type: ignore[arg-type]
