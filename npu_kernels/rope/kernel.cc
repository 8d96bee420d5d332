// Rotary positions of one token's heads, x [heads][width], after a norm of each head if it is wanted.
// position: cos then sin, [rotary / 2] each, then the norm's weight [width] if it is wanted; pairs are
// halves apart. rotary / 2 and width are multiples of 16.
#include "norm.hpp"

// inverse_width and epsilon are the bits of float32s.
extern "C" void rope(const float *x, const float *position, float *y, int32_t heads,
                     int32_t width, int32_t rotary, int32_t normed,
                     int32_t inverse_width, int32_t epsilon) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const int32_t half = rotary / 2;
    for (int32_t head = 0; head < heads; ++head) {
        const float *from = x + head * width;
        float *to = y + head * width;
        if (normed) {
            normalise(from, position + rotary, to, width, inverse_width, epsilon);
            from = to;
        }
        for (int32_t i = 0; i < half; i += 16) {
            const auto a = float32::split(aie::load_v<16>(from + i));
            const auto b = float32::split(aie::load_v<16>(from + half + i));
            const auto cos = float32::split(aie::load_v<16>(position + i));
            const auto sin = float32::split(aie::load_v<16>(position + half + i));
            const auto minus = float32::product(b, sin);
            const aie::accum<accfloat, 16> plus(float32::product(a, sin));
            aie::store_v(to + i, aie::sub(float32::product(a, cos), minus));
            aie::store_v(to + half + i, float32::mac(plus, b, cos).to_vector<float>());
        }
        for (int32_t i = rotary; i < width; i += 16)
            aie::store_v(to + i, aie::load_v<16>(from + i));
    }
}
