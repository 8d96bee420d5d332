// QLinear, 4 bits: 32 rows by chunk `number` of 256 columns; y is begun by the first.
// Chunk: scales and minimums, bfloat16 [8 blocks][16 even, 16 odd rows], then the codes as mmul takes
// them, [32 k / 8][2][8 k][8 pairs of rows]: even row in the low nibble, odd row in the high one.
#include "float32.hpp"
#include "table.hpp"

extern "C" void qlinear(const uint8_t *chunk, const int8_t *table, float *y, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    auto even = aie::zeros<accfloat, 16>(), odd = aie::zeros<accfloat, 16>();
    if (number) {
        const auto [a, b] = aie::interleave_unzip(aie::load_v<16>(y), aie::load_v<16>(y + 16), 1);
        even.from_vector(a);
        odd.from_vector(b);
    }
    const auto sixteenth = aie::broadcast<bfloat16, 16>(bfloat16(0.0625f));
    const auto *scales = (const bfloat16 *)chunk;
    const auto *minimums = scales + 256;
    const uint8_t *codes = chunk + 1024;
    const auto x = activations(table, number);
    for (int32_t block = 0; block < 8; ++block) {
        const auto mantissas = aie::load_v<32>(x.mantissas + 32 * block);
        const int32_t sum = x.sums[block];
        using product = aie::mmul<4, 8, 8, int16, uint8>;
        const product low(aie::broadcast<int32, 32>(-8 * sum));
        const product high(aie::broadcast<int32, 32>(-128 * sum));
        product lows[2] = {low, low}, highs[2] = {high, high};
        for (int32_t k = 0; k < 4; ++k) {
            const auto a = aie::shuffle_down(mantissas, 8 * k); // only its first row counts
            for (int32_t half = 0; half < 2; ++half) {
                const auto pairs = aie::load_v<64>(codes + 64 * (2 * (4 * block + k) + half));
                lows[half].mac(a, aie::bit_and(uint8(0x0F), pairs));
                highs[half].mac(a, aie::bit_and(uint8(0xF0), pairs));
            }
        }
        const auto scale = aie::broadcast<bfloat16, 16>(x.scales[block]);
        const auto total = float32::split(aie::to_float<float>(aie::broadcast<int32, 16>(sum)));
        const auto dot = [](const product *sums) {
            return float32::split(aie::to_float<float>(
                aie::concat(sums[0].to_vector<int32>().extract<8>(0),
                            sums[1].to_vector<int32>().extract<8>(0))));
        };
        const bfloat16 *d = scales + 32 * block, *m = minimums + 32 * block;
        even = plus_block(even, dot(lows), aie::load_v<16>(d), total, aie::load_v<16>(m),
                          scale, scale);
        odd = plus_block(odd, dot(highs), aie::load_v<16>(d + 16), total,
                         aie::load_v<16>(m + 16), scale,
                         aie::mul(scale, sixteenth).to_vector<bfloat16>());
    }
    const auto [first, second] =
        aie::interleave_zip(even.to_vector<float>(), odd.to_vector<float>(), 1);
    aie::store_v(y, first);
    aie::store_v(y + 16, second);
}
