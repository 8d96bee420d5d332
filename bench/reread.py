"""What a cache without bounds would have read of the same prompts, in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.workload import Body, conversation
from flm.hub.prepare import prepare_model
from flm.prefix.boundaries import BoundaryFinder
from flm.settings import Settings
from flm.text.template import ChatTemplate
from flm.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of one prompt: all, and those to read from the best cut, or the best token, of any
    earlier prompt. An equal prompt read to its end, with its logits kept, needs none by cuts.
    """

    prompt: int
    by_cuts: int
    by_tokens: int


def unavoidable(
    gguf: Path, prompts: Sequence[tuple[Sequence[Body], Sequence[Body]]], *, native: bool
) -> list[Reading]:
    """Of (messages, tools) in order, rendered as flm serves them; every boundary is a cut."""
    bundle, _ = prepare_model(str(gguf), Settings())
    tokenizer = Tokenizer.load(bundle.folder)
    template = ChatTemplate.load(
        bundle.folder, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )
    finder, now = BoundaryFinder(template, tokenizer), datetime.now()
    earlier: list[tuple[npt.NDArray[np.int32], list[int]]] = []
    readings = []
    for messages, tools in prompts:
        thinking = False if native else None
        prompt = finder.find(conversation(messages, tools, thinking=thinking), now=now)
        tokens = np.array(prompt.tokens, np.int32)
        cut, alike = 0, 0
        for before, cuts in earlier:
            common = _common(tokens, before)
            alike = max(alike, min(common, len(tokens) - 1))
            cut = max([cut, *(at for at in cuts if at <= common)])
        readings.append(Reading(len(tokens), len(tokens) - cut, len(tokens) - alike))
        earlier.append((tokens, [boundary.offset for boundary in prompt.boundaries]))
    return readings


def _common(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
