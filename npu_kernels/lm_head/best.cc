// The best of kernel.cc's candidates, in every lane: its value [16], then its row [16], below 2^24. Of
// equals, the one that comes first.
#include "float32.hpp"

extern "C" void lm_head_best(const int32_t *best, float *found) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto top = aie::load_v<16>((const float *)best);
    const auto value = aie::broadcast<float, 16>(aie::reduce_max(top));
    const auto none = aie::broadcast<int32, 16>(0x7FFFFFFF);
    const auto rows = aie::select(none, aie::load_v<16>(best + 16), aie::ge(top, value));
    aie::store_v(found, value);
    const auto row = aie::broadcast<int32, 16>(aie::reduce_min(rows));
    aie::store_v(found + 16, aie::to_float<float>(row));
}
