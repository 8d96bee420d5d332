"""Pictures made fit for a model, and cut as its tower takes them: each kind of sight in its way."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from flm.core.picture import Picture, Sight, View
from flm.text.sight import cells, slices, square, windows

Array = npt.NDArray[Any]


class Cutter(Protocol):
    """One kind, a module here."""

    def fitted(self, picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Picture: ...
    def views(self, picture: Picture, sight: Sight, number: int) -> tuple[View, ...]: ...
    def inputs(self, picture: Picture, sight: Sight) -> Mapping[str, Array]: ...


CUTTERS: Mapping[str, Cutter] = {
    "cells": cells,
    "slices": slices,
    "square": square,
    "windows": windows,
}


def fitted(picture: Picture, sight: Sight, *, tokens_max: int, place: str) -> Picture:
    """As the model sees it, no more than `tokens_max` tokens. Raises BadRequest for one that is far
    too long.
    """
    return CUTTERS[sight.kind].fitted(picture, sight, tokens_max=tokens_max, place=place)


def views(picture: Picture, sight: Sight, number: int) -> tuple[View, ...]:
    """Of a fitted picture, the conversation's `number`th from 0: what stands in a prompt for it."""
    return CUTTERS[sight.kind].views(picture, sight, number)


def inputs(picture: Picture, sight: Sight) -> Mapping[str, Array]:
    """Of a view: what the tower's graph takes, by name."""
    return CUTTERS[sight.kind].inputs(picture, sight)
