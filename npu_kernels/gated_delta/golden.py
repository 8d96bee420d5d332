"""Golden vectors of one token, over a state that is not empty."""

from collections.abc import Mapping

import numpy as np

from npu_kernels.bf16 import value_of
from npu_kernels.gated_delta import reference
from npu_kernels.golden import Expected, Golden, spread


def golden(design: str, parameters: Mapping[str, int], random: np.random.Generator) -> Golden:
    keys, heads, width = (parameters[name] for name in ("KH", "H", "W"))
    scale = value_of(parameters["SCALE"])
    query, key = (random.standard_normal((keys, width)) for _ in range(2))
    query, key = (
        (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32)
        for each in (query, key)
    )
    value = spread(random, heads, width)
    a, b, bias = (spread(random, heads) for _ in range(3))
    rate = -np.exp(random.uniform(-6, 0, heads)).astype(np.float32)
    state = random.standard_normal((heads, width, width)).astype(np.float32)
    decay, beta = reference.gates(*(each.astype(np.float64) for each in (a, b, bias, rate)))
    q, k = (np.repeat(each.astype(np.float64), heads // keys, axis=0) for each in (query, key))
    y, after = reference.gated_delta(q, k, value, decay, beta, state, scale)
    inputs = np.concatenate([*map(np.ravel, (query, key, value)), reference.together(a, b)])
    before = [
        inputs,
        reference.together(bias, rate),
        reference.pack(state),
        np.zeros((heads, width), np.float32),
    ]
    return Golden(before, [Expected("y", y), Expected("state", reference.pack(after))])
