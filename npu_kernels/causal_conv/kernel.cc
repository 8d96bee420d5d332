// CausalConv of one token or some over n channels, a multiple of 16: of each the taps' sum, or silu of it.
// rows: the tail, oldest first, then the tokens, [taps - 1 + tokens][n]; weight [taps][n].
#include "float32.hpp"

extern "C" void causal_conv(const float *rows, const float *weight, float *y, float *next_tail,
                            int32_t n, int32_t taps, int32_t tokens, int32_t silu) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t i = 0; i < n; i += 16) {
        for (int32_t token = 0; token < tokens; ++token) {
            auto sum = aie::zeros<accfloat, 16>();
            for (int32_t tap = 0; tap < taps; ++tap)
                sum = float32::mac(sum,
                                   float32::split(aie::load_v<16>(rows + (token + tap) * n + i)),
                                   float32::split(aie::load_v<16>(weight + tap * n + i)));
            const auto total = sum.to_vector<float>();
            aie::store_v(y + token * n + i,
                         silu ? float32::product(total, float32::sigmoid(total)) : total);
        }
        for (int32_t tap = 0; tap + 1 < taps; ++tap)
            aie::store_v(next_tail + tap * n + i, aie::load_v<16>(rows + (tokens + tap) * n + i));
    }
}
