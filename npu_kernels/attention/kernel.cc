// Attention of four query heads over block `number` of 16 tokens, of which those from token `first` up
// to token `last` count, of all that there are: online softmax. Block: as append.cc has it.
#include "state.hpp"

extern "C" void attention(const bfloat16 *block, const bfloat16 *operands, float *state,
                          int32_t width, int32_t number, int32_t first, int32_t last) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    using product = aie::mmul<4, 8, 8, bfloat16, bfloat16>;
    const product none(aie::zeros<float, 32>());
    product scores[2] = {none, none};
    for (int32_t d = 0; d < width; d += 8) {
        const auto high = aie::load_v<32>(operands + 8 * d);
        const auto low = aie::load_v<32>(operands + 8 * d + 32);
        for (int32_t eight = 0; eight < 2; ++eight) {
            const auto keys = load_operand(block + 16 * d + 64 * eight);
            scores[eight].mac(low, keys);
            scores[eight].mac(high, keys);
        }
    }
    const auto within = [&](int32_t token) {
        const int32_t here = token - 16 * number;
        return here < 0 ? 0 : here > 16 ? 16 : here;
    };
    const int32_t end = within(last), begin = within(first) < end ? within(first) : end;
    const uint32_t counted = (1u << end) - (1u << begin);
    const auto few = aie::mask<32>::from_uint32((counted & 0xFF) * 0x01010101u);
    const auto more = aie::mask<32>::from_uint32((counted >> 8) * 0x01010101u);
    const auto least = aie::broadcast<float, 32>(-1e30f);
    const auto s0 = aie::select(least, scores[0].to_vector<float>(), few);
    const auto s1 = aie::select(least, scores[1].to_vector<float>(), more);

    float *maximum = state + 4 * width, *sum = maximum + 32;
    const auto before = load_tile(maximum);
    const auto here = across(aie::max(s0, s1), [](auto a, auto b) { return aie::max(a, b); });
    const auto now = aie::max(before, here);
    const auto none_counted = aie::zeros<float, 32>();
    const auto weight = [&](const tile &score, const aie::mask<32> &those) {
        return aie::select(none_counted, float32::exponential(aie::sub(score, now)), those);
    };
    const auto w0 = weight(s0, few), w1 = weight(s1, more);
    const auto shrunk = float32::split(float32::exponential(aie::sub(before, now)));
    const auto added = across(aie::add(w0, w1), [](auto a, auto b) { return aie::add(a, b); });
    const auto kept = float32::product(float32::split(load_tile(sum)), shrunk);
    store_tile(maximum, now);
    store_tile(sum, aie::add(kept, added));

    const auto p0 = float32::split(w0), p1 = float32::split(w1);
    const bfloat16 *values = block + 16 * width;
    for (int32_t d = 0; d < width; d += 8) {
        product o(float32::product(float32::split(load_tile(state + 4 * d)), shrunk));
        const auto v0 = load_operand(values + 8 * d);
        const auto v1 = load_operand(values + 8 * width + 8 * d);
        o.mac(p0.low, v0);
        o.mac(p1.low, v1);
        o.mac(p0.high, v0);
        o.mac(p1.high, v1);
        store_tile(state + 4 * d, o.to_vector<float>());
    }
}
