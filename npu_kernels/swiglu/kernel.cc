// SwiGLU: silu(gate) * up, over a tile of n values, a multiple of 16.
#include "float32.hpp"

extern "C" void swiglu(const float *gate, const float *up, float *y, int32_t n) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t i = 0; i < n; i += 16) {
        const auto g = aie::load_v<16>(gate + i);
        const auto silu = float32::product(g, float32::sigmoid(g));
        aie::store_v(y + i, float32::product(silu, aie::load_v<16>(up + i)));
    }
}
