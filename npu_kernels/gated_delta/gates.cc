// GatedDelta's gates of one token: decay = e^(rate * softplus(a + bias)), beta = sigmoid(b).
// vectors, from start on: a, b, bias and rate, [lanes] each, a multiple of 16; gates [lanes][16]:
// decay, beta, nothing.
#include "softplus.hpp"

extern "C" void gated_delta_gates(const float *vectors, float *gates, int32_t start,
                                  int32_t lanes) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const float *a = vectors + start, *b = a + lanes, *bias = b + lanes, *rate = bias + lanes;
    for (int32_t head = 0; head < lanes; head += 16) {
        const auto opened =
            softplus(aie::add(aie::load_v<16>(a + head), aie::load_v<16>(bias + head)));
        const auto decay =
            float32::exponential(float32::product(aie::load_v<16>(rate + head), opened));
        const auto beta = float32::sigmoid(aie::load_v<16>(b + head));
        for (int32_t lane = 0; lane < 16; ++lane) {
            auto gate = aie::zeros<float, 16>();
            gate.set(decay.get(lane), 0);
            gate.set(beta.get(lane), 1);
            aie::store_v(gates + 16 * (head + lane), gate);
        }
    }
}
