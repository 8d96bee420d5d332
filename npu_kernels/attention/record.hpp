// What one token brings to a KV head, float32: the queries of four heads, its key, its value, [width]
// each; then of its position cos and sin, [rotary] each: cos twice, sin once with its sign turned.
#pragma once

#include "float32.hpp"

// The other of each pair: halves of `rotary` apart.
inline int32_t partner(int32_t d, int32_t rotary) {
    const int32_t half = rotary / 2;
    return d < half ? d + half : d - half;
}

template <unsigned N>
inline float32::floats<N> turned(const float32::floats<N> &v, const float32::floats<N> &partners,
                                 const float32::floats<N> &cos, const float32::floats<N> &sin) {
    const aie::accum<accfloat, N> sum(float32::product(partners, sin));
    return float32::mac(sum, float32::split(v), float32::split(cos)).template to_vector<float>();
}
