// Some tokens' keys or queries, 512 values in rows of `width`, times a factor, as tiles of operands
// (prepare.cc): of the rows from `first` on, keys being 0 to 31 and queries 32 to 63.
#include "float32.hpp"

// factor is the bits of a float32.
extern "C" void gated_delta_rows(const float *rows, bfloat16 *operands, int32_t width,
                                 int32_t first, int32_t factor) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto by = float32::split(float32::constant<16>(factor));
    int32_t row = first, d = 0;
    for (int32_t i = 0; i < 512; i += 16) {
        const auto value = float32::split(aie::load_v<16>(rows + i));
        const auto scaled = float32::narrowed(float32::product(value, by));
        bfloat16 *to = operands + 8 * (row >> 3) * width + 8 * d + 8 * (row & 7);
        aie::store_v(to, scaled.extract<8>(0));
        aie::store_v(to + 64, scaled.extract<8>(1));
        d += 16;
        if (d == width) {
            d = 0;
            ++row;
        }
    }
}
