#pragma once

#include "float32.hpp"

// y = x / sqrt(mean(x^2) + epsilon) * weight over n values, a multiple of 16.
inline void normalise(const float *x, const float *weight, float *y, int32_t n,
                      int32_t inverse_count, int32_t epsilon) {
    auto sum = aie::zeros<accfloat, 16>();
    for (int32_t i = 0; i < n; i += 16) {
        const auto part = float32::split(aie::load_v<16>(x + i));
        sum = float32::mac(sum, part, part);
    }
    const auto total = aie::broadcast<float, 16>(aie::reduce_add(sum.to_vector<float>()));
    const auto mean = float32::product(total, float32::constant<16>(inverse_count));
    const auto root =
        float32::reciprocal_root(aie::add(mean, float32::constant<16>(epsilon)));
    const auto factor = float32::split(root);
    for (int32_t i = 0; i < n; i += 16) {
        const auto normed = float32::product(float32::split(aie::load_v<16>(x + i)), factor);
        aie::store_v(y + i, float32::product(normed, aie::load_v<16>(weight + i)));
    }
}
