// Gate: x * sigmoid(gate), over a tile of n values, a multiple of 16.
#include "float32.hpp"

extern "C" void gate(const float *x, const float *gates, float *y, int32_t n) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t i = 0; i < n; i += 16) {
        const auto open = float32::sigmoid(aie::load_v<16>(gates + i));
        aie::store_v(y + i, float32::product(aie::load_v<16>(x + i), open));
    }
}
