// One token's key and value, row [2][width], put into a block of 16 tokens at `slot`; the others are
// copied. Block, bfloat16: keys turned, [width / 8][2][8 d][8 tokens], then values,
// [2][width / 8][8 tokens][8 d].
#include "float32.hpp"

extern "C" void append_rows(const float *row, const uint16_t *before, uint16_t *after,
                            int32_t width, int32_t slot) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const int32_t eight = slot >> 3, token = slot & 7;
    for (int32_t i = 0; i < 32 * width; i += 32)
        aie::store_v(after + i, aie::load_v<32>(before + i));
    uint16_t *values = after + 16 * width + 8 * eight * width + 8 * token;
    for (int32_t d = 0; d < width; d += 16) {
        const auto key = float32::narrowed(aie::load_v<16>(row + d)).cast_to<uint16>();
        const auto value = float32::narrowed(aie::load_v<16>(row + width + d));
        for (int32_t i = 0; i < 16; ++i)
            after[128 * ((d + i) >> 3) + 64 * eight + 8 * ((d + i) & 7) + token] = key.get(i);
        aie::store_v(values + 8 * d, value.extract<8>(0).cast_to<uint16>());
        aie::store_v(values + 8 * d + 64, value.extract<8>(1).cast_to<uint16>());
    }
}
