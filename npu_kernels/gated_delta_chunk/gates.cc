// Gates of 32 tokens and 16 heads. part, in turn: constants, bias and rate of each head; a, and b,
// [32][16]. opened: the logarithms of what is left of the state at each token, then beta, [32][16]
// each, then the constants.
#include "softplus.hpp"

extern "C" void gated_delta_chunk_gates(const float *part, float *opened, int32_t turn) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    float *constants = opened + 1024;
    if (turn == 0) {
        aie::store_v(constants, aie::load_v<16>(part));
        aie::store_v(constants + 16, aie::load_v<16>(part + 16));
    } else if (turn == 1) {
        const auto bias = aie::load_v<16>(constants), rate = aie::load_v<16>(constants + 16);
        auto fallen = aie::zeros<float, 16>();
        for (int32_t i = 0; i < 512; i += 16) {
            const auto stride = softplus(aie::add(aie::load_v<16>(part + i), bias));
            fallen = aie::add(fallen, float32::product(rate, stride));
            aie::store_v(opened + i, fallen);
        }
    } else {
        for (int32_t i = 0; i < 512; i += 16)
            aie::store_v(opened + 512 + i, float32::sigmoid(aie::load_v<16>(part + i)));
    }
}
