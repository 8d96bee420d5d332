// The key, turned, and the value of a record, put into a block of 16 tokens as the last of `tokens`
// in all; the block's others are copied.
#include "record.hpp"

// rotary is a multiple of 16.
extern "C" void attention_append(const float *record, const uint16_t *before, uint16_t *after,
                                 int32_t width, int32_t rotary, int32_t tokens) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    copy_block(before, after, width);
    const float *key = record + 4 * width, *cos = record + 6 * width;
    for (int32_t d = 0; d < width; d += 16)
        put(after, width, tokens - 1 & 15, d, turned_at(key, d, rotary, cos),
            aie::load_v<16>(key + width + d));
}
