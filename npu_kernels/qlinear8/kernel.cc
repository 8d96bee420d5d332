// QLinear, 8 bits: 32 rows by chunk `number` of 256 columns; y is begun by the first.
// Chunk: scales and minimums, bfloat16 [8 blocks][32 rows], then codes.
#include "dots.hpp"

extern "C" void qlinear8(const uint8_t *chunk, const int8_t *table, float *y, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    aie::accum<accfloat, 16> rows[2];
    begin(rows, y, number);
    const auto *scales = (const bfloat16 *)chunk;
    const auto *minimums = scales + 256;
    const auto *codes = (const int8_t *)(chunk + 1024);
    const auto x = activations(table, number);
    for (int32_t block = 0; block < 8; ++block) {
        float32::parts<16> halves[2];
        dots(codes + 1024 * block, aie::load_v<32>(x.mantissas + 32 * block), 0, 4, halves);
        const auto unit = aie::broadcast<bfloat16, 16>(x.scales[block]);
        const auto total =
            float32::split(aie::to_float<float>(aie::broadcast<int32, 16>(x.sums[block])));
        for (int32_t half = 0; half < 2; ++half) {
            const int32_t place = 32 * block + 16 * half;
            rows[half] = plus_block(rows[half], halves[half], aie::load_v<16>(scales + place), total,
                                    aie::load_v<16>(minimums + place), unit, unit);
        }
    }
    leave(rows, y);
}
