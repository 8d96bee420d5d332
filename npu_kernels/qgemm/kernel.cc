// QLinear of many tokens, 4 bits: 32 rows by one chunk of 256 columns (qlinear/kernel.cc).
// x: bfloat16 tiles [tokens / 8][32 k / 8][8][8]; sums: float32 tiles [tokens / 8][4][8][8], of
// tokens by even rows up to 16, even rows from there on, odd rows, odd rows; begun where start is 0,
// else added to.
#include "products.hpp"

// A block's weights of eight pairs' rows, even ones or odd ones: 32 columns in tiles [4][., 8][8].
inline void weights_of(const uint8_t *codes, const bfloat16 *scale, const bfloat16 *minimum,
                       bool odd, bfloat16 *to) {
    const auto d = four_times(scale);
    // Codes come with 128, and 8 is in their middle.
    const auto least = aie::msc(aie::accum<accfloat, 32>(four_times(minimum)), d,
                                aie::broadcast<bfloat16, 32>(bfloat16(136.0f)));
    for (int32_t k = 0; k < 4; ++k) {
        const auto pairs = aie::load_v<64>(codes + 128 * k);
        for (int32_t half = 0; half < 2; ++half) {
            const auto both = pairs.extract<32>(half).unpack();
            const auto code = odd ? high_above_128(both) : low_above_128(both);
            put_weights(to + 256 * k + 32 * half, aie::mac(least, code, d));
        }
    }
}

extern "C" void qgemm(const uint8_t *chunk, const bfloat16 *x, float *sums, int32_t tokens,
                      int32_t start) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto *scales = (const bfloat16 *)chunk, *minimums = scales + 256;
    for (int32_t block = 0; block < 8; ++block) {
        alignas(64) bfloat16 weights[2 * WEIGHTS];
        for (int32_t part = 0; part < 4; ++part) {
            const int32_t place = 32 * block + 8 * part;
            weights_of(chunk + 1024 + 512 * block + 64 * (part & 1), scales + place,
                       minimums + place, part >> 1, weights + 64 * part);
        }
        add_block(sums, x, weights, tokens, block, !start && !block);
    }
}
