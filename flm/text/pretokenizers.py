"""How byte-level BPE tokenizers cut text into words before merging, by GGUF's `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json files; the names are llama.cpp's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Each pattern cuts what the ones before left whole; its matches and the gaps are the words."""

    patterns: tuple[str, ...]
    single_digits: bool = False  # digits stand alone, before any pattern
    nfc: bool = False  # the text is composed first
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False  # when the file does not say

    def as_json(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json."""
        steps: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
            for p in self.patterns
        ]
        if self.single_digits:
            steps.insert(0, {"type": "Digits", "individual_digits": True})
        plain = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", **plain}]}


_SPACES = r"\s+(?!\S)|\s+"
_NEWLINES = r"\s*[\r\n]+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """The pattern of cl100k and its heirs, which differ in what may be a number or a letter."""
    return (
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_NEWLINES}|{_SPACES}"
    )


def _cased_words(digits: str, suffix: str) -> str:
    """The pattern of o200k and its heirs: a word may start upper and go on lower, not back."""
    mark = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"{mark}{upper}*{lower}+{suffix}|{mark}{upper}+{lower}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_NEWLINES}|{_SPACES}"
    )


# Spelt \x{...} where a letter would turn into another one under NFC.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    r"Ὀ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ"
    r"\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_NEWLINES}|{_SPACES}"
)
_CL100K = _words(r"\p{N}{1,3}")

_GROUPS: dict[str, PreTokenizer] = {
    "gpt-2 phi-2 olmo mpt jais exaone4 mellum gigachat a.x-4.0 trillion granite-docling": (
        PreTokenizer((_GPT2,))
    ),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": (
        PreTokenizer((_GPT2,), single_digits=True)
    ),
    "command-r": PreTokenizer((_GPT2,), single_digits=True, nfc=True),
    "llama-bpe llama3 llama-v3 lfm2 falcon3 falcon-h1 pixtral midm-2.0": (
        PreTokenizer((_CL100K,), ignore_merges=True, add_bos=True)
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer((_CL100K,)),
    "qwen2 deepseek-r1-qwen megrez": PreTokenizer((_words(r"\p{N}"),), nfc=True),
    "stablelm2 hunyuan solar-open grok-2": PreTokenizer((_words(r"\p{N}"),)),
    "qwen35": PreTokenizer((_words(r"\p{N}", r"\p{L}\p{M}"),), nfc=True),
    "gpt-4o llama4 kanana2 minimax-m2": (
        PreTokenizer((_cased_words(r"\p{N}{1,3}", f"{_SUFFIX}?"),))
    ),
    "tekken": PreTokenizer((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))
    ),
    "deepseek-v3 hunyuan-dense joyai-llm": (
        PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_V3))
    ),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def _by_name() -> Iterator[tuple[str, PreTokenizer]]:
    for names, pre_tokenizer in _GROUPS.items():
        for name in names.split():
            yield name, pre_tokenizer


PRE_TOKENIZERS = dict(_by_name())
