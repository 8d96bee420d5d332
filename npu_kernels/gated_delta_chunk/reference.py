"""GatedDelta of 32 tokens of a head at once: the same sums as token by token, in matrices.

With left[t] = what is left at token t of the state before the chunk, change[t] of the state at
token t is a solution of

    change[t] + beta[t] * sum over s < t of left[t] / left[s] * (key[t] . key[s]) * change[s]
        = beta[t] * (value[t] - left[t] * key[t] . state)

The kernels round queries and keys to bfloat16, as matrix products before them do; all else is in
high and low parts.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

TOKENS = 32
COLUMNS = 16  # of a head's state, to a slice
PART = 512  # values: what is not state comes in parts of so many
LANES, COLUMNS_MAX = 16, 8


def gated_delta_chunk(
    query: Array, key: Array, value: Array, fall: Array, beta: Array, state: Array, scale: float
) -> tuple[Array, Array]:
    """query, key and value [tokens, width], fall (the decays' logarithms) and beta [tokens], state
    [width, width] by key and value: y [tokens, width] and the next state."""
    fallen = np.cumsum(fall)
    left = np.exp(fallen)[:, None]
    between = np.exp(np.minimum(fallen[:, None] - fallen[None, :], 0))
    coupled = np.tril(beta[:, None] * between * (key @ key.T), -1)
    wanted = beta[:, None] * (value - left * (key @ state))
    change = np.linalg.solve(np.eye(len(key)) + coupled, wanted)
    scores = np.tril(between * (query @ key.T))
    y = (left * (query @ state) + scores @ change) * scale
    lasting = np.exp(fallen[-1] - fallen)[:, None] * change
    return y, state * left[-1] + key.T @ lasting


def constants(bias: Array, rate: Array, columns: int) -> Array:
    """[heads] each to [8, 512]: of the heads of each of the array's columns, in 16 lanes."""
    packed = np.zeros((COLUMNS_MAX, PART), np.float32)
    for own, *both in zip(
        packed, *(np.split(each, columns) for each in (bias, rate)), strict=False
    ):
        for start, part in zip((0, LANES), both, strict=True):
            own[start : start + len(part)] = part
    return packed
