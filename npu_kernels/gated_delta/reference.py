"""GatedDelta of one token. The kernels round nothing to bfloat16: high and low parts throughout."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

COLUMNS = 16  # of a head's state, to a slice
LANES = 32  # gates come in whole lanes of so many heads


def gates(a: Array, b: Array, bias: Array, rate: Array) -> tuple[Array, Array]:
    """decay and beta [heads]."""
    return np.exp(rate * np.logaddexp(a + bias, 0)), 1 / (1 + np.exp(-b))


def gated_delta(
    query: Array, key: Array, value: Array, decay: Array, beta: Array, state: Array, scale: float
) -> tuple[Array, Array]:
    """query, key and value [heads, width], decay and beta [heads], state [heads, width, width] by
    key and value: y [heads, width] and the next state."""
    kept = state * decay[:, None, None]
    change = (value - np.einsum("hkv,hk->hv", kept, key)) * beta[:, None]
    after = kept + key[:, :, None] * change[:, None, :]
    return np.einsum("hkv,hk->hv", after, query) * scale, after


def together(*parts: Array) -> Array:
    """[heads] each, one after another: each filled up to whole lanes, with zeros."""
    return np.concatenate([np.pad(part, (0, -len(part) % LANES)) for part in parts])


def slices(state: Array) -> Array:
    """A view of [heads, width, width], [heads, width / 16, width, 16]: as cores take them."""
    heads, width = state.shape[:2]
    return state.reshape(heads, width, width // COLUMNS, COLUMNS).transpose(0, 2, 1, 3)


def pack(state: Array) -> Array:
    return np.ascontiguousarray(slices(state))


def unpack(slices: Array) -> Array:
    """The inverse of pack."""
    heads, _, width = slices.shape[:3]
    return slices.transpose(0, 2, 1, 3).reshape(heads, width, width)
