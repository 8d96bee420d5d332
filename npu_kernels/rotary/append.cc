// A turned key and a value put into a block of 16 tokens, which the first of them copies. Tokens
// before `first` stay as they are.
#include "rotary.hpp"

extern "C" void rotary_append(const float *key, const float *line, const uint16_t *before,
                              uint16_t *after, int32_t width, int32_t token, int32_t first) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const int32_t slot = token & 15;
    if (slot == 0)
        copy_block(before, after, width);
    if (token < first)
        return;
    for (int32_t d = 0; d < width; d += 16)
        put(after, width, slot, d, aie::load_v<16>(key + d), aie::load_v<16>(line + d));
}
