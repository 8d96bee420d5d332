"""What a model's folder says of its tokens beside tokenizer.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flm.core.json_file import read_json_object
from flm.errors import BadModelFile


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """None and () stand for what the folder leaves open, "" for a token it does not have."""

    bos_token: str
    eos_token: str
    add_bos: bool | None
    eos_ids: tuple[int, ...]  # all that end a reply, which only our own bundles say
    declared_eos_ids: tuple[int, ...]  # some of them


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """From tokenizer_config.json and generation_config.json, each if there. Raises BadModelFile."""
    path = folder / "tokenizer_config.json"
    config = read_json_object(path)
    add_bos = config.get("add_bos_token")
    if add_bos is not None and not isinstance(add_bos, bool):
        raise _bad(path, "add_bos_token", "true or false")
    generation_path = folder / "generation_config.json"
    declared = read_json_object(generation_path).get("eos_token_id")
    return TokenizerConfig(
        bos_token=_token(path, "bos_token", config.get("bos_token")),
        eos_token=_token(path, "eos_token", config.get("eos_token")),
        add_bos=add_bos,
        eos_ids=_ids(path, "eos_token_ids", config.get("eos_token_ids")),
        declared_eos_ids=_ids(generation_path, "eos_token_id", declared),
    )


def _token(path: Path, key: str, value: Any) -> str:
    """A token is written as its text, or as an object with it."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str | None):
        raise _bad(path, key, "a token")
    return text or ""


def _ids(path: Path, key: str, value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(id_, int) for id_ in ids):
        raise _bad(path, key, "token ids")
    return tuple(ids)


def _bad(path: Path, key: str, due: str) -> BadModelFile:
    return BadModelFile(f"{path}: {key} is not {due}")
