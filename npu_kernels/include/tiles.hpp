// 8 by 8 tiles, row after row, and their products: of floats in high and low parts, or of bfloat16s.
#pragma once

#include "float32.hpp"

namespace tiles {

using floats = float32::floats<64>;
using parts = float32::parts<64>;
using halves = aie::vector<bfloat16, 64>;
using product = aie::mmul<8, 8, 8, bfloat16, bfloat16>;

inline product zero() { return product(aie::zeros<float, 64>()); }

inline halves load_halves(const bfloat16 *from) {
    return aie::concat(aie::load_v<32>(from), aie::load_v<32>(from + 32));
}

inline parts load_parts(const bfloat16 *from) { return {load_halves(from), load_halves(from + 64)}; }

inline void store_parts(bfloat16 *to, const parts &v) {
    for (int32_t half = 0; half < 2; ++half) {
        aie::store_v(to + 32 * half, v.high.extract<32>(half));
        aie::store_v(to + 64 + 32 * half, v.low.extract<32>(half));
    }
}

inline floats load(const float *from) {
    return aie::concat(aie::load_v<16>(from), aie::load_v<16>(from + 16), aie::load_v<16>(from + 32),
                       aie::load_v<16>(from + 48));
}

inline void store(float *to, const floats &v) {
    for (int32_t pair = 0; pair < 4; ++pair)
        aie::store_v(to + 16 * pair, v.extract<16>(pair));
}

// Out of a matrix of float32s with rows of `width`.
inline floats load_rows(const float *from, int32_t width) {
    floats v;
    for (int32_t row = 0; row < 8; ++row)
        v.insert(row, aie::load_v<8>(from + row * width));
    return v;
}

inline void store_rows(float *to, int32_t width, const floats &v) {
    for (int32_t row = 0; row < 8; ++row)
        aie::store_v(to + row * width, v.extract<8>(row));
}

inline void mac(product &sum, const halves &a, const parts &b) {
    sum.mac(a, b.low);
    sum.mac(a, b.high);
}

inline void mac(product &sum, const parts &a, const parts &b) {
    sum.mac(a.low, b.high);
    sum.mac(a.high, b.low);
    sum.mac(a.high, b.high);
}

inline floats times(const parts &a, const parts &b) {
    auto sum = zero();
    mac(sum, a, b);
    return sum.to_vector<float>();
}

// Two rows' factors, in the lanes of those rows.
inline float32::floats<16> of_rows(const float *factors) {
    return aie::concat(aie::broadcast<float, 8>(factors[0]), aie::broadcast<float, 8>(factors[1]));
}

// Eight columns' factors, in the lanes of two rows.
inline float32::floats<16> of_columns(const float *factors) {
    const auto eight = aie::load_v<8>(factors);
    return aie::concat(eight, eight);
}

// Each row by its factor.
inline floats rows_scaled(floats v, const float *factors) {
    for (int32_t pair = 0; pair < 4; ++pair)
        v.insert(pair, float32::product(v.extract<16>(pair), of_rows(factors + 2 * pair)));
    return v;
}

} // namespace tiles
