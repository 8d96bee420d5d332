#pragma once

#include "tiles.hpp"

// sums, tiles [tokens / 8][4][8][8], are begun, or x's block of 32 columns by weights added: x tiles
// [tokens / 8][32 k / 8][8][8], weights tiles [4 k / 8][4][8][8].
inline void add_block(float *sums, const bfloat16 *x, const bfloat16 *weights, int32_t tokens,
                      int32_t block, bool begin) {
    for (int32_t eight = 0; eight < tokens / 8; ++eight)
        for (int32_t part = 0; part < 4; ++part) {
            float *place = sums + 64 * (4 * eight + part);
            auto sum = begin ? tiles::zero() : tiles::product(tiles::load(place));
            for (int32_t k = 0; k < 4; ++k)
                sum.mac(tiles::load_halves(x + 64 * (32 * eight + 4 * block + k)),
                        tiles::load_halves(weights + 64 * (4 * k + part)));
            tiles::store(place, sum.to_vector<float>());
        }
}

// Eight values, four times.
inline aie::vector<bfloat16, 32> four_times(const bfloat16 *from) {
    const auto eight = aie::load_v<8>(from);
    return aie::concat(eight, eight, eight, eight);
}

// 128 + nibble as bfloat16, which is bits.
inline aie::vector<bfloat16, 32> above_128(const aie::vector<uint16, 32> &nibbles) {
    return aie::bit_or(uint16(0x4300), nibbles).cast_to<bfloat16>();
}
