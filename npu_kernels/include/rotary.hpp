// Positions that turn heads, and rows put into blocks of 16 tokens: bfloat16, keys,
// [width / 8][2][8 d][8 tokens], then values, [2][width / 8][8 tokens][8 d].
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

// Values d to d + 15 of a head, turned if d < rotary; cos and sin as a position's record has them.
inline float32::floats<16> turned_at(const float *head, int32_t d, int32_t rotary,
                                     const float *cos) {
    const auto values = aie::load_v<16>(head + d);
    if (d >= rotary)
        return values;
    const auto partners = aie::concat(aie::load_v<8>(head + partner(d, rotary)),
                                      aie::load_v<8>(head + partner(d + 8, rotary)));
    return turned(values, partners, aie::load_v<16>(cos + d), aie::load_v<16>(cos + rotary + d));
}

inline void copy_block(const uint16_t *from, uint16_t *to, int32_t width) {
    for (int32_t i = 0; i < 32 * width; i += 32)
        aie::store_v(to + i, aie::load_v<32>(from + i));
}

// The small ones in steps of 2^-24: so bfloat16 has nothing that float16 has not, and rows are the same
// after a host has kept them in that.
inline float32::floats<16> in_steps(const float32::floats<16> &v) {
    const auto far = aie::broadcast<float, 16>(0.75f); // where float32 has such steps
    const auto stepped = aie::sub(aie::add(v, far), far);
    const auto size = aie::max(v, aie::sub(aie::zeros<float, 16>(), v));
    return aie::select(stepped, v, aie::ge(size, aie::broadcast<float, 16>(6.10351562e-5f)));
}

// Values d to d + 15 of a token's key and value.
inline void put(uint16_t *block, int32_t width, int32_t slot, int32_t d,
                const float32::floats<16> &key, const float32::floats<16> &value) {
    const int32_t eight = slot >> 3, token = slot & 7;
    uint16_t *values = block + 16 * width + 8 * eight * width + 8 * token + 8 * d;
    const auto k = float32::narrowed(in_steps(key)).cast_to<uint16>();
    const auto v = float32::narrowed(in_steps(value));
    for (int32_t i = 0; i < 16; ++i)
        block[128 * ((d + i) >> 3) + 64 * eight + 8 * ((d + i) & 7) + token] = k.get(i);
    aie::store_v(values, v.extract<8>(0).cast_to<uint16>());
    aie::store_v(values + 64, v.extract<8>(1).cast_to<uint16>());
}
