"""A tiny model that sees, whole: compiled, loaded on the CPU, and asked over HTTP."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from PIL import Image

from flm.core.picture import Picture
from flm.engine.residency import Resident, load
from flm.graph.bundle import Bundle
from flm.graph.weights.gguf import GgufFile
from flm.models.compile import compile_model
from flm.settings import Settings
from tests.models import seen_qwen3vl, seen_qwen25vl
from tests.models.drive import FIXTURES
from tests.models.rewritten import published
from tests.models.seen import with_tower
from tests.server.house import CARD, SETTINGS, TOKENIZER

R1 = FIXTURES / "qwen35_r1"
SEES = replace(SETTINGS, prefix_min_gain=4, prefix_cache_mb=64, prefix_disk_mb=0)
# How Qwen3.5 writes parts.
TEMPLATE = """\
{%- macro said(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{%- endmacro -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ said(message.content) }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NAMES = {
    "<repo_name>": "<|vision_start|>",
    "<reponame>": "<|vision_end|>",
    "<file_sep>": "<|image_pad|>",
}


def seeing_folder(folder: Path, *, template: str = TEMPLATE) -> Path:
    file = GgufFile(R1 / "qwen35_r1.Q4_1.gguf")
    with_tower(published(file, R1 / "hf" / "config.json", folder))
    return with_words(folder, template=template)


def with_words(folder: Path, *, template: str = TEMPLATE) -> Path:
    """With a tokenizer that has a placeholder, and a template that writes it."""
    words = (TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")
    for before, after in NAMES.items():
        words = words.replace(json.dumps(before), json.dumps(after))
    (folder / "tokenizer.json").write_text(words, encoding="utf-8")
    shutil.copy(TOKENIZER / "tokenizer_config.json", folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def seeing_bundle(folder: Path) -> Bundle:
    return compile_model(seeing_folder(folder / "hf"), folder / "bundle")


ROWS = {"qwen3vl": seen_qwen3vl, "qwen25vl": seen_qwen25vl}


def rows_bundle(folder: Path, family: str) -> Bundle:
    """Of a model without a state: its prompts part anywhere."""
    source = with_words(ROWS[family].folder_of(ROWS[family].text_file(folder), folder / "hf"))
    return compile_model(source, folder / "bundle")


@contextmanager
def opened(bundle: Bundle, settings: Settings = SEES) -> Iterator[Resident]:
    resident = load(bundle, CARD, settings)
    try:
        yield resident
    finally:
        resident.close()


def sent(picture: Picture, form: str = "PNG") -> str:
    """In base64."""
    out = BytesIO()
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    image.save(out, form, **({"lossless": True} if form == "WEBP" else {}))
    return base64.b64encode(out.getvalue()).decode()
