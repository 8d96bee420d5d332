// The key, turned, and the value of a record, put into a block of 16 tokens as the last of `tokens`
// in all; the block's others are copied. Block, bfloat16: keys, [width / 8][2][8 d][8 tokens], then
// values, [2][width / 8][8 tokens][8 d].
#include "record.hpp"

// rotary is a multiple of 16.
extern "C" void attention_append(const float *record, const uint16_t *before, uint16_t *after,
                                 int32_t width, int32_t rotary, int32_t tokens) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const int32_t eight = (tokens - 1) >> 3 & 1, token = (tokens - 1) & 7;
    for (int32_t i = 0; i < 32 * width; i += 32)
        aie::store_v(after + i, aie::load_v<32>(before + i));
    const float *keys = record + 4 * width, *cos = record + 6 * width, *sin = cos + rotary;
    uint16_t *values = after + 16 * width + 8 * eight * width + 8 * token;
    for (int32_t d = 0; d < width; d += 16) {
        auto row = aie::load_v<16>(keys + d);
        if (d < rotary) {
            const auto partners = aie::concat(aie::load_v<8>(keys + partner(d, rotary)),
                                              aie::load_v<8>(keys + partner(d + 8, rotary)));
            row = turned(row, partners, aie::load_v<16>(cos + d), aie::load_v<16>(sin + d));
        }
        const auto key = float32::narrowed(row).cast_to<uint16>();
        const auto value = float32::narrowed(aie::load_v<16>(keys + width + d));
        for (int32_t i = 0; i < 16; ++i)
            after[128 * ((d + i) >> 3) + 64 * eight + 8 * ((d + i) & 7) + token] = key.get(i);
        aie::store_v(values + 8 * d, value.extract<8>(0).cast_to<uint16>());
        aie::store_v(values + 8 * d + 64, value.extract<8>(1).cast_to<uint16>());
    }
}
