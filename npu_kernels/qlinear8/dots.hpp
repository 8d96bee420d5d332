// What chunks of 8 bits share: codes less 128, int8, as mmul takes them, [32 k / 8][4][8 k][8 rows].
#pragma once

#include "table.hpp"

// Of 32 rows, in halves, what `count` eights of columns from `codes` on come to by as many of a block's
// mantissas, from eight `first` on.
inline void dots(const int8_t *codes, const aie::vector<int16, 32> &mantissas, int32_t first,
                 int32_t count, float32::parts<16> *halves) {
    using product = aie::mmul<4, 8, 8, int16, int8>;
    const product none(aie::zeros<int32, 32>());
    product sums[4] = {none, none, none, none};
    for (int32_t k = 0; k < count; ++k) {
        const auto a = aie::shuffle_down(mantissas, 8 * (first + k)); // only its first row counts
        for (int32_t eight = 0; eight < 4; ++eight)
            sums[eight].mac(a, aie::load_v<64>(codes + 64 * (4 * k + eight)));
    }
    for (int32_t half = 0; half < 2; ++half)
        halves[half] = float32::split(aie::to_float<float>(
            aie::concat(sums[2 * half].to_vector<int32>().extract<8>(0),
                        sums[2 * half + 1].to_vector<int32>().extract<8>(0))));
}

// 32 rows of y, in halves, as the chunks before `number` have left them: the first begins them.
inline void begin(aie::accum<accfloat, 16> *rows, const float *y, int32_t number) {
    for (int32_t half = 0; half < 2; ++half) {
        rows[half] = aie::zeros<accfloat, 16>();
        if (number)
            rows[half].from_vector(aie::load_v<16>(y + 16 * half));
    }
}

inline void leave(const aie::accum<accfloat, 16> *rows, float *y) {
    for (int32_t half = 0; half < 2; ++half)
        aie::store_v(y + 16 * half, rows[half].to_vector<float>());
}
