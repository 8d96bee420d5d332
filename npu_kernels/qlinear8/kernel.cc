// QLinear, 8 bits: 32 rows by chunk `number` of 256 columns; y is begun by the first.
// Chunk: scales and minimums, bfloat16 [8 blocks][32 rows], then codes less 128, int8, as mmul takes
// them: [32 k / 8][4][8 k][8 rows].
#include "table.hpp"

extern "C" void qlinear8(const uint8_t *chunk, const int8_t *table, float *y, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    aie::accum<accfloat, 16> rows[2] = {aie::zeros<accfloat, 16>(), aie::zeros<accfloat, 16>()};
    if (number)
        for (int32_t half = 0; half < 2; ++half)
            rows[half].from_vector(aie::load_v<16>(y + 16 * half));
    const auto *scales = (const bfloat16 *)chunk;
    const auto *minimums = scales + 256;
    const auto *codes = (const int8_t *)(chunk + 1024);
    const auto x = activations(table, number);
    for (int32_t block = 0; block < 8; ++block) {
        const auto mantissas = aie::load_v<32>(x.mantissas + 32 * block);
        using product = aie::mmul<4, 8, 8, int16, int8>;
        const product none(aie::zeros<int32, 32>());
        product sums[4] = {none, none, none, none};
        for (int32_t k = 0; k < 4; ++k) {
            const auto a = aie::shuffle_down(mantissas, 8 * k); // only its first row counts
            for (int32_t eight = 0; eight < 4; ++eight)
                sums[eight].mac(a, aie::load_v<64>(codes + 64 * (4 * (4 * block + k) + eight)));
        }
        const auto scale = aie::broadcast<bfloat16, 16>(x.scales[block]);
        const auto total =
            float32::split(aie::to_float<float>(aie::broadcast<int32, 16>(x.sums[block])));
        for (int32_t half = 0; half < 2; ++half) {
            const auto dot = float32::split(aie::to_float<float>(
                aie::concat(sums[2 * half].to_vector<int32>().extract<8>(0),
                            sums[2 * half + 1].to_vector<int32>().extract<8>(0))));
            const int32_t place = 32 * block + 16 * half;
            rows[half] =
                plus_block(rows[half], dot, aie::load_v<16>(scales + place), total,
                           aie::load_v<16>(minimums + place), scale, scale);
        }
    }
    for (int32_t half = 0; half < 2; ++half)
        aie::store_v(y + 16 * half, rows[half].to_vector<float>());
}
