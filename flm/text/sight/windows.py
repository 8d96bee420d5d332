"""As `cells`, but that a tower's patches have no table of places, and at most layers attend only to
those of their window, a square of the picture.

Source: transformers, get_vision_window_index. There patches are brought into the order of their
windows, and rows out of it; here each window says which patches it has.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flm.core.picture import CELLS, COUNTS, SEATS, WINDOWS, Picture, Sight
from flm.text.sight import cells

Array = npt.NDArray[Any]
fitted, views = cells.fitted, cells.views


def inputs(picture: Picture, sight: Sight) -> Mapping[str, Array]:
    """Of N patches of a fitted picture, `patches` and `cells` (flm/text/sight/cells.py); of W
    windows the numbers of their patches, `windows` [W, S], as many as the largest has, of which
    `counts` [W] come first and the others count for nothing; and where among all of these each
    patch is, `seats` [N].
    """
    found = cells.cut(picture, sight)
    rows, columns = (found[CELLS] // sight.side).T
    window = rows * (columns.max() + 1) + columns  # of each patch
    order, counts = np.argsort(window, kind="stable"), np.bincount(window)
    within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    seats, windows = np.empty_like(order), np.zeros((len(counts), counts.max()), np.int64)
    seats[order] = window[order] * counts.max() + within
    windows.reshape(-1)[seats] = np.arange(len(seats))
    return {**found, WINDOWS: windows, COUNTS: counts.astype(np.int32), SEATS: seats}
