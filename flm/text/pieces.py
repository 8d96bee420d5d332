"""How a token's text stands for bytes: byte-level BPE and SentencePiece each have an alphabet."""

import re
from collections.abc import Callable
from typing import Any

from flm.errors import UnsupportedModel

PieceBytes = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes are moved past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(moved)
    }


_BYTE_OF_CHAR = _byte_of_char()


def byte_level(piece: str) -> bytes:
    """`"Ġcaf"` is `b" caf"`; text outside the alphabet stands for itself."""
    try:
        return bytes([_BYTE_OF_CHAR[char] for char in piece])
    except KeyError:
        return piece.encode()


def sentencepiece(piece: str) -> bytes:
    """`"▁caf"` is `b" caf"`, `"<0xC3>"` is one byte."""
    byte = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()


def alphabet_of(decoder: Any) -> tuple[PieceBytes, bool]:
    """(piece to bytes, whether a text's first space is dropped) of a `tokenizers` decoder.

    Asked by example, since many arrangements of decoder parts mean the same two alphabets.
    """
    if decoder is not None and decoder.decode(["Ġa", "Ġb"]) == " a b":
        return byte_level, False
    if decoder is not None and decoder.decode(["a", "▁b"]) == "a b":
        return sentencepiece, decoder.decode(["▁a"]) == "a"
    raise UnsupportedModel(
        "tokenizer.json decodes in a way that is neither byte-level BPE nor SentencePiece",
        fix="use a model of a supported family (flm list)",
    )
