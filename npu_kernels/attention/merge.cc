// Attention over two spans of tokens: `other` is merged into state.
#include "state.hpp"

extern "C" void attention_merge(const float *other, float *state, int32_t width) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const int32_t maximum = 4 * width, sum = maximum + 32;
    const auto m0 = load_tile(state + maximum), m1 = load_tile(other + maximum);
    const auto now = aie::max(m0, m1);
    const auto f0 = float32::split(float32::exponential(aie::sub(m0, now)));
    const auto f1 = float32::split(float32::exponential(aie::sub(m1, now)));
    const auto merged = [&](int32_t place) {
        const auto sums = float32::product(float32::split(load_tile(state + place)), f0);
        const aie::accum<accfloat, 32> mine(sums);
        const auto both = float32::mac(mine, float32::split(load_tile(other + place)), f1);
        store_tile(state + place, both.to_vector<float>());
    };
    for (int32_t d = 0; d < width; d += 8)
        merged(4 * d);
    merged(sum);
    store_tile(state + maximum, now);
}
