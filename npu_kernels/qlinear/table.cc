// The table of activations that qlinear and qlinear8 read: 256 of them, in place `number`.
#include "table.hpp"

extern "C" void qlinear_table(const float *x, int8_t *table, int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    table += 576 * number;
    auto *mantissas = (int16_t *)table;
    auto *sums = (int32_t *)(table + 512);
    auto *scales = (uint16_t *)(table + 544);
    for (int32_t block = 0; block < 8; ++block) {
        const auto low = aie::load_v<16>(x + 32 * block);
        const auto high = aie::load_v<16>(x + 32 * block + 16);
        const auto all = aie::concat(low, high);
        const int32_t largest = aie::reduce_max(aie::bit_and(0x7FFFFFFF, all.cast_to<int32>()));
        // The largest becomes a mantissa of 15 bits. Beyond these exponents nothing is a number
        // of any use: less is zero, more is cut.
        int32_t exponent = largest >> 23;
        exponent = exponent < 40 ? 40 : exponent > 220 ? 220 : exponent;
        const auto up = aie::broadcast<int32, 32>((268 - exponent) << 23).cast_to<float>();
        const auto fixed = float32::scaled(all, float32::narrowed(up));
        const auto cut = aie::min(aie::max(fixed, -32767.0f), 32767.0f);
        const auto whole = aie::to_fixed<int32>(cut);
        aie::store_v(mantissas + 32 * block, whole.pack());
        sums[block] = aie::reduce_add(whole);
        scales[block] = (uint16_t)((exponent - 14) << 7);
    }
    for (int32_t i = 560; i < 576; ++i)
        table[i] = 0;
}
