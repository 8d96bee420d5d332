// What attention of many tokens carries from block to block for eight rows of queries, float32: o,
// tiles [width / 8][8][8], then the scores' maximum m and the sum of weights l, each in a row's eight
// lanes.
#pragma once

#include "tiles.hpp"

inline int32_t state_size(int32_t width) { return 8 * width + 128; }

// f of each row's eight lanes, in all eight.
template <typename F> inline tiles::floats across(const tiles::floats &v, F f) {
    const auto four = f(aie::filter_even(v, 1), aie::filter_odd(v, 1));
    const auto two = f(aie::filter_even(four, 1), aie::filter_odd(four, 1));
    const auto one = f(aie::filter_even(two, 1), aie::filter_odd(two, 1));
    const auto twice = [](const auto &each) {
        const auto [low, high] = aie::interleave_zip(each, each, 1);
        return aie::concat(low, high);
    };
    return twice(twice(twice(one)));
}

// f of the first four rows, then of the others.
template <typename F> inline tiles::floats by_halves(F f) { return aie::concat(f(0), f(1)); }

inline tiles::floats power(const tiles::floats &v) {
    return by_halves([&](int32_t half) { return float32::exponential(v.extract<32>(half)); });
}
