// The sums of kernel.cc as y [tokens][32].
#include "float32.hpp"

extern "C" void qgemm8_finish(const float *sums, float *y, int32_t tokens) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t token = 0; token < tokens; ++token)
        for (int32_t part = 0; part < 4; ++part)
            aie::store_v(y + 32 * token + 8 * part,
                         aie::load_v<8>(sums + 256 * (token >> 3) + 64 * part + 8 * (token & 7)));
}
