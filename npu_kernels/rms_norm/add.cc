// AddRMSNorm of one token: the residual sum, and its norm. rest: residual [n], then weight [n].
#include "norm.hpp"

// inverse_count and epsilon are the bits of float32s.
extern "C" void add_rms_norm(const float *x, const float *rest, float *y, float *sum, int32_t n,
                             int32_t inverse_count, int32_t epsilon) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    for (int32_t i = 0; i < n; i += 16)
        aie::store_v(sum + i, aie::add(aie::load_v<16>(x + i), aie::load_v<16>(rest + i)));
    normalise(sum, rest + n, y, n, inverse_count, epsilon);
}
