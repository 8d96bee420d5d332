// A head of a token, number `slot` of its block, turned; its angles are in `record` values.
#include "rotary.hpp"

// rotary is a multiple of 16.
extern "C" void rotary_turn(const float *line, const float *angles, float *y, int32_t width,
                            int32_t rotary, int32_t slot, int32_t record) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t d = 0; d < width; d += 16)
        aie::store_v(y + d, turned_at(line, d, rotary, angles + slot * record));
}
