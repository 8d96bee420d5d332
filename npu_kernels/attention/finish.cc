// Attention, after the last block: y [heads][width], of at most four.
#include "state.hpp"

extern "C" void attention_finish(const float *state, float *y, int32_t width, int32_t heads) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto share = float32::split(float32::reciprocal(load_tile(state + 4 * width + 32)));
    for (int32_t d = 0; d < width; d += 8) {
        const auto o = float32::product(float32::split(load_tile(state + 4 * d)), share);
        for (int32_t head = 0; head < heads; ++head)
            aie::store_v(y + head * width + d, o.extract<8>(head));
    }
}
