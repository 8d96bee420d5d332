#pragma once

#include "tiles.hpp"

constexpr int32_t WEIGHTS = 4 * 4 * 64; // of a block: their high parts, then their low ones

// Half a tile of weights.
inline void put_weights(bfloat16 *to, const aie::accum<accfloat, 32> &weights) {
    const auto p = float32::split(weights.to_vector<float>());
    aie::store_v(to, p.high);
    aie::store_v(to + WEIGHTS, p.low);
}

// sums, tiles [tokens / 8][4][8][8], are begun, or x's block of 32 columns by weights added: x tiles
// [tokens / 8][32 k / 8][8][8], weights tiles [high, low][4 k / 8][4][8][8].
inline void add_block(float *sums, const bfloat16 *x, const bfloat16 *weights, int32_t tokens,
                      int32_t block, bool begin) {
    for (int32_t eight = 0; eight < tokens / 8; ++eight)
        for (int32_t part = 0; part < 4; ++part) {
            float *place = sums + 64 * (4 * eight + part);
            auto sum = begin ? tiles::zero() : tiles::product(tiles::load(place));
            for (int32_t k = 0; k < 4; ++k) {
                const bfloat16 *tile = weights + 64 * (4 * k + part);
                tiles::mac(sum, tiles::load_halves(x + 64 * (32 * eight + 4 * block + k)),
                           tiles::parts{tiles::load_halves(tile), tiles::load_halves(tile + WEIGHTS)});
            }
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

inline aie::vector<bfloat16, 32> low_above_128(const aie::vector<uint16, 32> &bytes) {
    return above_128(aie::bit_and(uint16(0x0F), bytes));
}

// A downshift rounds, so what it drops is zeros.
inline aie::vector<bfloat16, 32> high_above_128(const aie::vector<uint16, 32> &bytes) {
    return above_128(aie::downshift(aie::bit_and(uint16(0xF0), bytes), 4));
}
