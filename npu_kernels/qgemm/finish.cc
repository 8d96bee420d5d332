// The sums of kernel.cc as y [tokens][32], rows in order.
#include "float32.hpp"

extern "C" void qgemm_finish(const float *sums, float *y, int32_t tokens) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t token = 0; token < tokens; ++token) {
        const float *place = sums + 256 * (token >> 3) + 8 * (token & 7);
        const auto even = aie::concat(aie::load_v<8>(place), aie::load_v<8>(place + 64));
        const auto odd = aie::concat(aie::load_v<8>(place + 128), aie::load_v<8>(place + 192));
        const auto [first, second] = aie::interleave_zip(even, odd, 1);
        aie::store_v(y + 32 * token, first);
        aie::store_v(y + 32 * token + 16, second);
    }
}
