#pragma once

#include "float32.hpp"

// log(1 + e^v): beyond the larger of v and 0 only e^-|v| counts, at most 1, by atanh's series.
inline float32::floats<16> softplus(const float32::floats<16> &v) {
    const auto zero = aie::zeros<float, 16>();
    const auto power = float32::exponential(aie::min(v, aie::sub(zero, v)));
    const auto above = aie::add(power, aie::broadcast<float, 16>(2.0f));
    const auto s = float32::product(power, float32::reciprocal(above));
    const auto square = float32::split(float32::product(s, s));
    auto sum = aie::broadcast<float, 16>(0.0909090909f);
    const auto step = [&](float coefficient) {
        const aie::accum<accfloat, 16> next(aie::broadcast<float, 16>(coefficient));
        sum = float32::mac(next, float32::split(sum), square).to_vector<float>();
    };
    step(0.111111111f);
    step(0.142857143f);
    step(0.2f);
    step(0.333333333f);
    step(1.0f);
    const auto half = float32::product(s, sum);
    return aie::add(aie::max(v, zero), aie::add(half, half));
}
