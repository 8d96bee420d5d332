// Attention, before the first block: query [4][width] times scale as mmul takes it, bfloat16
// [width / 8][high, low][4][8], and an empty state.
#include "state.hpp"

// scale is the bits of a float32.
extern "C" void attention_start(const float *query, bfloat16 *operands, float *state, int32_t width,
                                int32_t scale) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto factor = float32::constant<32>(scale);
    for (int32_t d = 0; d < width; d += 8) {
        const float *place = query + d;
        const auto q = float32::split(float32::product(
            aie::concat(aie::load_v<8>(place), aie::load_v<8>(place + width),
                        aie::load_v<8>(place + 2 * width), aie::load_v<8>(place + 3 * width)),
            factor));
        aie::store_v(operands + 8 * d, q.high);
        aie::store_v(operands + 8 * d + 32, q.low);
        store_tile(state + 4 * d, aie::zeros<float, 32>());
    }
    store_tile(state + 4 * width, aie::broadcast<float, 32>(-1e30f));
    store_tile(state + 4 * width + 32, aie::zeros<float, 32>());
}
