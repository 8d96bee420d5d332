// What decode attention carries from block to block for four query heads, float32: o, [width / 8]
// tiles [4][8], then the scores' maximum m and the sum of weights l, each head's in eight lanes.
#pragma once

#include "float32.hpp"

using tile = aie::vector<float, 32>;

inline tile load_tile(const float *from) {
    return aie::concat(aie::load_v<16>(from), aie::load_v<16>(from + 16));
}

inline void store_tile(float *to, const tile &v) {
    aie::store_v(to, v.extract<16>(0));
    aie::store_v(to + 16, v.extract<16>(1));
}

inline aie::vector<bfloat16, 64> load_operand(const bfloat16 *from) {
    return aie::concat(aie::load_v<32>(from), aie::load_v<32>(from + 32));
}

// f of each row's eight lanes, in all eight.
template <typename F> inline tile across(const tile &v, F f) {
    const auto four = f(aie::filter_even(v, 1), aie::filter_odd(v, 1));
    const auto two = f(aie::filter_even(four, 1), aie::filter_odd(four, 1));
    const auto one = f(aie::filter_even(two, 1), aie::filter_odd(two, 1));
    const auto twice = [](const auto &each) {
        const auto [low, high] = aie::interleave_zip(each, each, 1);
        return aie::concat(low, high);
    };
    return twice(twice(twice(one)));
}
