// Attention, before the first block: the queries of a record, turned and scaled, as mmul takes them,
// bfloat16 [width / 8][high, low][4][8], and an empty state.
#include "record.hpp"
#include "state.hpp"

// scale is the bits of a float32; rotary is a multiple of 16.
extern "C" void attention_start(const float *record, bfloat16 *operands, float *state,
                                int32_t width, int32_t rotary, int32_t scale) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto factor = float32::constant<32>(scale);
    const auto eights = [](const float *place, int32_t step) {
        return aie::concat(aie::load_v<8>(place), aie::load_v<8>(place + step),
                           aie::load_v<8>(place + 2 * step), aie::load_v<8>(place + 3 * step));
    };
    const float *cos = record + 6 * width, *sin = cos + rotary;
    for (int32_t d = 0; d < width; d += 8) {
        auto query = eights(record + d, width);
        if (d < rotary)
            query = turned(query, eights(record + partner(d, rotary), width), eights(cos + d, 0),
                           eights(sin + d, 0));
        const auto q = float32::split(float32::product(query, factor));
        aie::store_v(operands + 8 * d, q.high);
        aie::store_v(operands + 8 * d + 32, q.low);
        store_tile(state + 4 * d, aie::zeros<float, 32>());
    }
    store_tile(state + 4 * width, aie::broadcast<float, 32>(-1e30f));
    store_tile(state + 4 * width + 32, aie::zeros<float, 32>());
}
