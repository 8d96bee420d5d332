"""Golden vectors of 32 tokens, over a state that is not empty. Keys are bfloat16 already: the state
is nearly exact.
"""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import rounded, value_of
from npu_kernels.columns import columns_of
from npu_kernels.gated_delta.reference import gates, pack
from npu_kernels.gated_delta_chunk.reference import TOKENS, constants, gated_delta_chunk
from npu_kernels.golden import Expected, Golden, spread

STATE_ERROR_MAX = 1e-3


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    keys, heads, width = (parameters[name] for name in ("KH", "H", "W"))
    scale = value_of(parameters["SCALE"])
    query, key = (random.standard_normal((TOKENS, keys, width)) for _ in range(2))
    query, key = (
        rounded(each / np.linalg.norm(each, axis=2, keepdims=True)) for each in (query, key)
    )
    value = spread(random, TOKENS, heads, width)
    a, b = (spread(random, TOKENS, heads) for _ in range(2))
    bias, rate = spread(random, heads), -np.exp(random.uniform(-6, 0, heads)).astype(np.float32)
    state = random.standard_normal((heads, width, width)).astype(np.float32)
    decay, beta = gates(*(each.astype(np.float64) for each in (a, b, bias, rate)))
    y, after = np.empty(value.shape), np.empty(state.shape)
    for head in range(heads):
        shared = head // (heads // keys)
        vectors = query[:, shared], key[:, shared], value[:, head]
        fall = np.log(decay[:, head]), beta[:, head]
        y[:, head], after[head] = gated_delta_chunk(*vectors, *fall, state[head], scale)
    inputs = [*map(np.ravel, (query, key, value, a, b)), np.zeros(16, np.float32)]
    before = [
        np.concatenate(inputs),
        constants(bias, rate, columns_of(keys)),
        pack(state),
        np.zeros(value.shape, np.float32),
    ]
    state_after = Expected("state", pack(after), STATE_ERROR_MAX)
    return Golden(before, [Expected("y", y), state_after])
