// QLinear of many tokens, 8 bits: 32 rows by one chunk of 256 columns (qlinear8/kernel.cc).
// x: bfloat16 tiles [tokens / 8][32 k / 8][8][8]; sums: float32 tiles [tokens / 8][32 rows / 8][8][8],
// begun where start is 0, else added to.
#include "products.hpp"

// A block's weights of eight rows: 32 columns in tiles [4][., 8][8].
inline void weights_of(const uint8_t *codes, const bfloat16 *scale, const bfloat16 *minimum,
                       bfloat16 *to) {
    const auto d = four_times(scale);
    const auto d16 = aie::mul(d, aie::broadcast<bfloat16, 32>(bfloat16(16.0f))).to_vector<bfloat16>();
    // Nibbles come with 128 each, and 128 is in the middle of their codes.
    const auto least = aie::msc(aie::accum<accfloat, 32>(four_times(minimum)), d,
                                aie::broadcast<bfloat16, 32>(bfloat16(2304.0f)));
    for (int32_t k = 0; k < 4; ++k) {
        const auto eight = aie::bit_xor(128, aie::load_v<64>(codes + 256 * k));
        for (int32_t half = 0; half < 2; ++half) {
            const auto code = eight.extract<32>(half).unpack();
            const auto high = aie::mac(least, above_128(aie::downshift(code, 4)), d16);
            const auto both = aie::mac(high, above_128(aie::bit_and(15, code)), d);
            aie::store_v(to + 256 * k + 32 * half, both.to_vector<bfloat16>());
        }
    }
}

extern "C" void qgemm8(const uint8_t *chunk, const bfloat16 *x, float *sums, int32_t tokens,
                       int32_t start) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto *scales = (const bfloat16 *)chunk, *minimums = scales + 256;
    for (int32_t block = 0; block < 8; ++block) {
        alignas(64) bfloat16 weights[4 * 4 * 64];
        for (int32_t part = 0; part < 4; ++part) {
            const int32_t place = 32 * block + 8 * part;
            weights_of(chunk + 1024 + 1024 * block + 64 * part, scales + place, minimums + place,
                       weights + 64 * part);
        }
        add_block(sums, x, weights, tokens, block, !start && !block);
    }
}
