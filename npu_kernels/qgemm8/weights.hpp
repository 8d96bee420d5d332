// What chunks of 8 bits (qlinear8/dots.hpp) become for products: (code - 128) * d + minimum.
#pragma once

#include "products.hpp"

// Eight rows' weights of `count` eights of columns, in tiles [count][., 8][8]; scale and minimum
// (none: zeros) are the rows'.
inline void weights_of(const uint8_t *codes, const bfloat16 *scale, const bfloat16 *minimum,
                       int32_t count, bfloat16 *to) {
    const auto d = four_times(scale);
    const auto d16 = aie::mul(d, aie::broadcast<bfloat16, 32>(bfloat16(16.0f))).to_vector<bfloat16>();
    const auto m = minimum ? four_times(minimum) : aie::zeros<bfloat16, 32>();
    // Nibbles come with 128 each, and 128 is in the middle of their codes.
    const auto least = aie::msc(aie::accum<accfloat, 32>(m), d,
                                aie::broadcast<bfloat16, 32>(bfloat16(2304.0f)));
    for (int32_t k = 0; k < count; ++k) {
        const auto eight = aie::bit_xor(uint8(128), aie::load_v<64>(codes + 256 * k));
        for (int32_t half = 0; half < 2; ++half) {
            const auto code = eight.extract<32>(half).unpack();
            const auto high = aie::mac(least, high_above_128(code), d16);
            put_weights(to + 256 * k + 32 * half, aie::mac(high, low_above_128(code), d));
        }
    }
}
