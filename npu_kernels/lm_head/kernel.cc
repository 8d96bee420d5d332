// The best logit so far, after QLinear's 32 rows from `row` on: begun where number is 0. Rows from
// `words` on are none. best: values float32 [16], then rows int32 [16], a candidate a lane.
#include "float32.hpp"

extern "C" void lm_head(const float *logits, int32_t *best, int32_t row, int32_t number,
                        int32_t words) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    auto *values = (float *)best;
    alignas(64) int32_t numbers[16];
    for (int32_t lane = 0; lane < 16; ++lane)
        numbers[lane] = row + lane;
    auto here = aie::load_v<16>(numbers);
    auto top = number ? aie::load_v<16>(values) : aie::broadcast<float, 16>(-3.0e38f);
    auto rows = number ? aie::load_v<16>(best + 16) : here;
    for (int32_t half = 0; half < 2; ++half) {
        const int32_t count = words - row - 16 * half;
        const uint32_t valid = count <= 0 ? 0 : count >= 16 ? 0xFFFF : (1u << count) - 1;
        const auto some = aie::mask<16>::from_uint32(valid);
        const auto logit = aie::select(aie::broadcast<float, 16>(-3.0e38f),
                                       aie::load_v<16>(logits + 16 * half), some);
        const auto better = aie::gt(logit, top);
        top = aie::select(top, logit, better);
        rows = aie::select(rows, here, better);
        here = aie::add(here, aie::broadcast<int32, 16>(16));
    }
    aie::store_v(values, top);
    aie::store_v(best + 16, rows);
}
