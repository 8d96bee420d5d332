// Activations as integers, 576 bytes for 256 of them: int16 mantissas [8 blocks][32], their sums
// int32 [8], power-of-two scales bfloat16 [8], 16 bytes of nothing.
#pragma once

#include "float32.hpp"

struct activation_blocks {
    const int16_t *mantissas;
    const int32_t *sums;
    const bfloat16 *scales;
};

inline activation_blocks activations(const int8_t *table, int32_t chunk) {
    const int8_t *place = table + 576 * chunk;
    return {(const int16_t *)place, (const int32_t *)(place + 512), (const bfloat16 *)(place + 544)};
}

// so_far + (dot * scales * unit + total * minimums * power): products with unit and power, which
// are powers of two, are exact.
inline aie::accum<accfloat, 16>
plus_block(aie::accum<accfloat, 16> so_far, const float32::parts<16> &dot,
           const aie::vector<bfloat16, 16> &scales, const float32::parts<16> &total,
           const aie::vector<bfloat16, 16> &minimums, const aie::vector<bfloat16, 16> &power,
           const aie::vector<bfloat16, 16> &unit) {
    const auto scaled = aie::mul(scales, unit).to_vector<bfloat16>();
    const auto least = aie::mul(minimums, power).to_vector<bfloat16>();
    so_far = aie::mac(so_far, dot.low, scaled);
    so_far = aie::mac(so_far, total.low, least);
    so_far = aie::mac(so_far, total.high, least);
    return aie::mac(so_far, dot.high, scaled);
}

// so_far + dot * scales * unit, a power of two.
inline aie::accum<accfloat, 16> plus_dot(const aie::accum<accfloat, 16> &so_far,
                                         const float32::parts<16> &dot,
                                         const aie::vector<bfloat16, 16> &scales,
                                         const aie::vector<bfloat16, 16> &unit) {
    const auto scaled = aie::mul(scales, unit).to_vector<bfloat16>();
    return aie::mac(aie::mac(so_far, dot.low, scaled), dot.high, scaled);
}
