// Eight tokens' activations x [8][256] as the tiles that products take, bfloat16 [32 k / 8][8][8]:
// number `eight` of those.
#include "float32.hpp"

extern "C" void qgemm_rows(const float *x, bfloat16 *tiles, int32_t eight) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t row = 0; row < 8; ++row)
        for (int32_t k = 0; k < 256; k += 16) {
            const auto values = float32::narrowed(aie::load_v<16>(x + 256 * row + k));
            bfloat16 *to = tiles + 2048 * eight + 8 * k + 8 * row;
            aie::store_v(to, values.extract<8>(0));
            aie::store_v(to + 64, values.extract<8>(1));
        }
}
