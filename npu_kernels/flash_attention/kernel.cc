// Attention of rows of queries over block `number` of 16 tokens: online softmax. The rows are those of
// `heads` heads for each token from `position` on, and see no later ones. Block, bfloat16: keys,
// [width / 8][2][8 d][8 tokens], then values, [2][width / 8][8 tokens][8 d].
#include "rows.hpp"

extern "C" void flash_attention(const bfloat16 *block, const bfloat16 *operands, float *state,
                                int32_t width, int32_t rows, int32_t heads, int32_t position,
                                int32_t number) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const bfloat16 *values = block + 16 * width;
    int32_t seen = position + 1 - 16 * number, of_token = heads;
    for (int32_t eight = 0; eight < rows / 8; ++eight) {
        uint32_t few[2] = {0, 0}, more[2] = {0, 0};
        for (int32_t row = 0; row < 8; ++row) {
            const uint32_t counted = (1u << (seen < 0 ? 0 : seen > 16 ? 16 : seen)) - 1;
            few[row >> 2] |= (counted & 0xFF) << 8 * (row & 3);
            more[row >> 2] |= (counted >> 8) << 8 * (row & 3);
            if (--of_token == 0) {
                of_token = heads;
                ++seen;
            }
        }
        auto first = tiles::zero(), second = tiles::zero();
        for (int32_t d = 0; d < width; d += 8) {
            const auto query = tiles::load_parts(operands + 16 * (eight * width + d));
            const auto k0 = tiles::load_halves(block + 16 * d);
            const auto k1 = tiles::load_halves(block + 16 * d + 64);
            first.mac(query.low, k0);
            first.mac(query.high, k0);
            second.mac(query.low, k1);
            second.mac(query.high, k1);
        }
        const auto only = [](const tiles::floats &v, const uint32_t *those, float other) {
            return by_halves([&](int32_t half) {
                return aie::select(aie::broadcast<float, 32>(other), v.extract<32>(half),
                                   aie::mask<32>::from_uint32(those[half]));
            });
        };
        const auto s0 = only(first.to_vector<float>(), few, -1e30f);
        const auto s1 = only(second.to_vector<float>(), more, -1e30f);

        float *o = state + eight * state_size(width), *maximum = o + 8 * width;
        const auto before = tiles::load(maximum);
        const auto here = across(aie::max(s0, s1), [](auto a, auto b) { return aie::max(a, b); });
        const auto now = aie::max(before, here);
        const auto w0 = only(power(aie::sub(s0, now)), few, 0.0f);
        const auto w1 = only(power(aie::sub(s1, now)), more, 0.0f);
        const auto shrunk = float32::split(power(aie::sub(before, now)));
        const auto added = across(aie::add(w0, w1), [](auto a, auto b) { return aie::add(a, b); });
        const auto kept = float32::product(float32::split(tiles::load(maximum + 64)), shrunk);
        tiles::store(maximum, now);
        tiles::store(maximum + 64, aie::add(kept, added));

        const auto p0 = float32::split(w0), p1 = float32::split(w1);
        for (int32_t d = 0; d < width; d += 8) {
            const auto so_far = float32::split(tiles::load(o + 8 * d));
            tiles::product sum(float32::product(so_far, shrunk));
            const auto v0 = tiles::load_halves(values + 8 * d);
            const auto v1 = tiles::load_halves(values + 8 * width + 8 * d);
            sum.mac(p0.low, v0);
            sum.mac(p1.low, v1);
            sum.mac(p0.high, v0);
            sum.mac(p1.high, v1);
            tiles::store(o + 8 * d, sum.to_vector<float>());
        }
    }
}
