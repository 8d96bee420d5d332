// Keys or queries of 32 tokens, [32][width], times a factor, as tiles of operands (prepare.cc): keys
// have place 0, queries place 1.
#include "float32.hpp"

// factor is the bits of a float32.
extern "C" void gated_delta_rows(const float *rows, bfloat16 *operands, int32_t width,
                                 int32_t place, int32_t factor) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto by = float32::split(float32::constant<16>(factor));
    bfloat16 *tiles = operands + 32 * place * width;
    for (int32_t row = 0; row < 32; ++row)
        for (int32_t d = 0; d < width; d += 16) {
            const auto value = float32::split(aie::load_v<16>(rows + row * width + d));
            const auto scaled = float32::narrowed(float32::product(value, by));
            bfloat16 *to = tiles + 8 * (row >> 3) * width + 8 * d + 8 * (row & 7);
            aie::store_v(to, scaled.extract<8>(0));
            aie::store_v(to + 64, scaled.extract<8>(1));
        }
}
