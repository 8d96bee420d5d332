// QLinear of many tokens, 8 bits in blocks of 16: 32 rows by one chunk of 256 columns
// (qlinear8/by16.cc). x and sums: as kernel.cc has them.
#include "weights.hpp"

extern "C" void qgemm8_by16(const uint8_t *chunk, const bfloat16 *x, float *sums, int32_t tokens,
                            int32_t start) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto *scales = (const bfloat16 *)chunk;
    for (int32_t pair = 0; pair < 8; ++pair) {
        alignas(64) bfloat16 weights[2 * WEIGHTS];
        for (int32_t part = 0; part < 8; ++part) {
            const int32_t block = 2 * pair + (part >> 2), eight = part & 3;
            weights_of(chunk + 1024 + 512 * block + 64 * eight, scales + 32 * block + 8 * eight,
                       nullptr, 2, weights + 512 * (part >> 2) + 64 * eight);
        }
        add_block(sums, x, weights, tokens, pair, !start && !pair);
    }
}
