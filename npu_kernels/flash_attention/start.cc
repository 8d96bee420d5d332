// Eight rows, number `eight`, of queries [rows][width], turned already, times scale, as operands:
// bfloat16 [width / 8][high, low][8][8]; and an empty state.
#include "rows.hpp"

// scale is the bits of a float32.
extern "C" void flash_attention_start(const float *query, bfloat16 *operands, float *state,
                                      int32_t width, int32_t eight, int32_t scale) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto factor = float32::split(float32::constant<64>(scale));
    bfloat16 *to = operands + 16 * eight * width;
    float *o = state + eight * state_size(width);
    for (int32_t d = 0; d < width; d += 8) {
        const auto rows = float32::split(tiles::load_rows(query + 8 * eight * width + d, width));
        tiles::store_parts(to + 16 * d, float32::split(float32::product(rows, factor)));
        tiles::store(o + 8 * d, aie::zeros<float, 64>());
    }
    tiles::store(o + 8 * width, aie::broadcast<float, 64>(-1e30f));
    tiles::store(o + 8 * width + 64, aie::zeros<float, 64>());
}
