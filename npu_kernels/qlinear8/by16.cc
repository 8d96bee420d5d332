// QLinear, 8 bits in blocks of 16: 32 rows by chunk `number` of 256 columns; y is begun by the first.
// Chunk: scales, bfloat16 [16 blocks][32 rows], then codes.
#include "dots.hpp"

extern "C" void qlinear8_by16(const uint8_t *chunk, const int8_t *table, float *y, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    aie::accum<accfloat, 16> rows[2];
    begin(rows, y, number);
    const auto *scales = (const bfloat16 *)chunk;
    const auto *codes = (const int8_t *)(chunk + 1024);
    const auto x = activations(table, number);
    for (int32_t block = 0; block < 16; ++block) {
        const int32_t both = block >> 1; // whose activations are of one scale
        const auto mantissas = aie::load_v<32>(x.mantissas + 32 * both);
        const auto unit = aie::broadcast<bfloat16, 16>(x.scales[both]);
        float32::parts<16> halves[2];
        dots(codes + 512 * block, mantissas, 2 * (block & 1), 2, halves);
        for (int32_t half = 0; half < 2; ++half)
            rows[half] = plus_dot(rows[half], halves[half],
                                  aie::load_v<16>(scales + 32 * block + 16 * half), unit);
    }
    leave(rows, y);
}
