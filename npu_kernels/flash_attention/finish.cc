// After the last block: eight rows, number `eight`, of y [rows][width].
#include "rows.hpp"

extern "C" void flash_attention_finish(const float *state, float *y, int32_t width,
                                       int32_t eight) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const float *o = state + eight * state_size(width);
    const auto share = float32::split(float32::reciprocal(tiles::load(o + 8 * width + 64)));
    for (int32_t d = 0; d < width; d += 8)
        tiles::store_rows(y + 8 * eight * width + d, width,
                          float32::product(float32::split(tiles::load(o + 8 * d)), share));
}
