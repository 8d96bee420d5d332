// RMSNorm of one token.
#include "norm.hpp"

// inverse_count and epsilon are the bits of float32s.
extern "C" void rms_norm(const float *x, const float *weight, float *y, int32_t n,
                         int32_t inverse_count, int32_t epsilon) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    normalise(x, weight, y, n, inverse_count, epsilon);
}
