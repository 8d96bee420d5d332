// QLinear of many tokens, 8 bits: 32 rows by one chunk of 256 columns (qlinear8/kernel.cc).
// x: bfloat16 tiles [tokens / 8][32 k / 8][8][8]; sums: float32 tiles [tokens / 8][32 rows / 8][8][8],
// begun where start is 0, else added to.
#include "weights.hpp"

extern "C" void qgemm8(const uint8_t *chunk, const bfloat16 *x, float *sums, int32_t tokens,
                       int32_t start) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto *scales = (const bfloat16 *)chunk, *minimums = scales + 256;
    for (int32_t block = 0; block < 8; ++block) {
        alignas(64) bfloat16 weights[2 * WEIGHTS];
        for (int32_t part = 0; part < 4; ++part) {
            const int32_t place = 32 * block + 8 * part;
            weights_of(chunk + 1024 + 1024 * block + 64 * part, scales + place, minimums + place, 4,
                       weights + 64 * part);
        }
        add_block(sums, x, weights, tokens, block, !start && !block);
    }
}
