// GatedRMSNorm of some heads of one token, [heads][width], width a multiple of 16. rest: gate
// [heads][width], then weight [width].
#include "norm.hpp"

// inverse_width and epsilon are the bits of float32s.
extern "C" void gated_rms_norm(const float *x, const float *rest, float *y, int32_t heads,
                               int32_t width, int32_t inverse_width, int32_t epsilon) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const float *weight = rest + heads * width;
    for (int32_t head = 0; head < heads; ++head)
        normalise(x + head * width, weight, y + head * width, width, inverse_width, epsilon);
    for (int32_t i = 0; i < heads * width; i += 16) {
        const auto g = aie::load_v<16>(rest + i);
        const auto silu = float32::product(g, float32::sigmoid(g));
        aie::store_v(y + i, float32::product(aie::load_v<16>(y + i), silu));
    }
}
