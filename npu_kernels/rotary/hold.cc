// A line of angles, number `number`, put beside the others of a block's tokens.
#include "float32.hpp"

extern "C" void rotary_hold(const float *line, float *angles, int32_t width, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t i = 0; i < width; i += 16)
        aie::store_v(angles + number * width + i, aie::load_v<16>(line + i));
}
