// GatedDelta of 32 tokens over 16 value columns of a head. operands and factors: as prepare.cc leaves
// them; values and y [32][16], state [width][16].
#include "tiles.hpp"

extern "C" void gated_delta_chunk(const bfloat16 *operands, const float *factors,
                                  const float *values, const float *before, float *after, float *y,
                                  int32_t width) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const bfloat16 *keys = operands, *queries = keys + 32 * width;
    const bfloat16 *inverse = queries + 32 * width, *scores = inverse + 2048;
    const float *left = factors, *after_last = factors + 32;
    const auto loss = float32::split(
        aie::concat(aie::load_v<16>(factors + 64), aie::load_v<16>(factors + 64),
                    aie::load_v<16>(factors + 64), aie::load_v<16>(factors + 64)));
    for (int32_t n = 0; n < 16; n += 8) {
        tiles::parts missing[4], changes[4], lasting[4];
        for (int32_t row = 0; row < 4; ++row) {
            auto held = tiles::zero(), recalled = tiles::zero();
            for (int32_t d = 0; d < width; d += 8) {
                const auto state = float32::split(tiles::load_rows(before + 16 * d + n, 16));
                const int32_t place = 8 * row * width + 8 * d;
                tiles::mac(held, tiles::load_halves(keys + place), state);
                tiles::mac(recalled, tiles::load_halves(queries + place), state);
            }
            missing[row] = float32::split(
                aie::sub(tiles::load_rows(values + 128 * row + n, 16),
                         tiles::rows_scaled(held.to_vector<float>(), left + 8 * row)));
            auto change = tiles::zero();
            for (int32_t i = 0; i <= row; ++i)
                tiles::mac(change, tiles::load_parts(inverse + 128 * (4 * row + i)), missing[i]);
            const auto changed = change.to_vector<float>();
            changes[row] = float32::split(changed);
            lasting[row] = float32::split(tiles::rows_scaled(changed, after_last + 8 * row));
            tiles::product out(tiles::rows_scaled(recalled.to_vector<float>(), left + 8 * row));
            for (int32_t i = 0; i <= row; ++i)
                tiles::mac(out, tiles::load_parts(scores + 128 * (4 * row + i)), changes[i]);
            tiles::store_rows(y + 128 * row + n, 16, out.to_vector<float>());
        }
        for (int32_t d = 0; d < width; d += 8) {
            const auto state = tiles::load_rows(before + 16 * d + n, 16);
            tiles::product now(aie::sub(state, float32::product(float32::split(state), loss)));
            for (int32_t row = 0; row < 4; ++row) {
                const auto key = tiles::load_halves(keys + 8 * row * width + 8 * d);
                tiles::mac(now, aie::transpose(key, 8, 8), lasting[row]);
            }
            tiles::store_rows(after + 16 * d + n, 16, now.to_vector<float>());
        }
    }
}
