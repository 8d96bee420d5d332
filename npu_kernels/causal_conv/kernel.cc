// CausalConv of one token over n channels, a multiple of 16: the taps' sum, or silu of it.
// past: the tail, [taps - 1][n], oldest first, then the weights [taps][n].
#include "float32.hpp"

extern "C" void causal_conv(const float *x, const float *past, float *y, float *next_tail,
                            int32_t n, int32_t taps, int32_t silu) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const float *weight = past + (taps - 1) * n;
    for (int32_t i = 0; i < n; i += 16) {
        auto sum = aie::zeros<accfloat, 16>();
        for (int32_t tap = 0; tap < taps; ++tap) {
            const float *from = tap + 1 < taps ? past + tap * n : x;
            const auto value = aie::load_v<16>(from + i);
            sum = float32::mac(sum, float32::split(value),
                               float32::split(aie::load_v<16>(weight + tap * n + i)));
            if (tap)
                aie::store_v(next_tail + (tap - 1) * n + i, value);
        }
        const auto total = sum.to_vector<float>();
        aie::store_v(y + i,
                     silu ? float32::product(total, float32::sigmoid(total)) : total);
    }
}
