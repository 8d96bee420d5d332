// float32 arithmetic on AIE2P, which multiplies bfloat16 only: a float is the sum of a high and a low
// part, a product the sum of three. Relative error about 2^-16. Nothing relies on coarse intrinsics.
#pragma once

#include <aie_api/aie.hpp>

namespace float32 {

template <unsigned N> using floats = aie::vector<float, N>;

template <unsigned N> struct parts {
    aie::vector<bfloat16, N> high, low;
};

template <unsigned N> inline floats<N> widened(const aie::vector<bfloat16, N> &v) {
    return aie::accum<accfloat, N>(v).template to_vector<float>();
}

template <unsigned N> inline aie::vector<bfloat16, N> narrowed(const floats<N> &v) {
    return aie::accum<accfloat, N>(v).template to_vector<bfloat16>();
}

template <unsigned N> inline parts<N> split(const floats<N> &v) {
    const auto high = narrowed(v);
    return {high, narrowed(aie::sub(v, widened(high)))};
}

template <unsigned N>
inline aie::accum<accfloat, N> mac(aie::accum<accfloat, N> sum, const parts<N> &a,
                                   const parts<N> &b) {
    sum = aie::mac(sum, a.low, b.high);
    sum = aie::mac(sum, a.high, b.low);
    return aie::mac(sum, a.high, b.high);
}

template <unsigned N> inline floats<N> product(const parts<N> &a, const parts<N> &b) {
    return mac(aie::zeros<accfloat, N>(), a, b).template to_vector<float>();
}

template <unsigned N> inline floats<N> product(const floats<N> &a, const floats<N> &b) {
    return product(split(a), split(b));
}

// v by a bfloat16: exact to the low part's last place.
template <unsigned N>
inline floats<N> scaled(const floats<N> &v, const aie::vector<bfloat16, N> &by) {
    const auto p = split(v);
    return aie::mac(aie::mul(p.low, by), p.high, by).template to_vector<float>();
}

// A float32 that comes as the bits of an int32 argument, in every lane.
template <unsigned N> inline floats<N> constant(int32_t bits) {
    return aie::broadcast<int32, N>(bits).template cast_to<float>();
}

// 1 / sqrt(v): a seed and two Newton steps.
template <unsigned N> inline floats<N> reciprocal_root(const floats<N> &v) {
    const auto half = scaled(v, aie::broadcast<bfloat16, N>(bfloat16(0.5f)));
    auto root = aie::invsqrt(v);
    for (int step = 0; step < 2; ++step) {
        const auto square = product(root, root);
        const auto factor = aie::sub(aie::broadcast<float, N>(1.5f), product(half, square));
        root = product(root, factor);
    }
    return root;
}

// 1 / v: a seed and two Newton steps.
template <unsigned N> inline floats<N> reciprocal(const floats<N> &v) {
    auto inverse = aie::inv(v);
    for (int step = 0; step < 2; ++step) {
        const auto factor = aie::sub(aie::broadcast<float, N>(2.0f), product(v, inverse));
        inverse = product(inverse, factor);
    }
    return inverse;
}

// e^v, for v cut to [-87, 88]: 2^n by a polynomial of the rest, at most ln(2) / 2.
template <unsigned N> inline floats<N> exponential(floats<N> v) {
    v = aie::min(aie::max(v, -87.0f), 88.0f);
    const auto turns = product(v, aie::broadcast<float, N>(1.44269504f));
    const auto whole = aie::to_fixed<int32>(turns);
    const auto n = narrowed(aie::to_float<float>(whole)); // at most 127: exact
    aie::accum<accfloat, N> rest(v);
    rest = aie::msc(rest, n, aie::broadcast<bfloat16, N>(bfloat16(0.69140625f)));
    rest = aie::msc(rest, n, aie::broadcast<bfloat16, N>(bfloat16(0.00173950195f)));
    rest = aie::msc(rest, n, aie::broadcast<bfloat16, N>(bfloat16(1.43051147e-06f)));
    const auto r = split(rest.template to_vector<float>());
    auto sum = aie::broadcast<float, N>(0.00138888889f);
    const auto step = [&](float coefficient) {
        const aie::accum<accfloat, N> next(aie::broadcast<float, N>(coefficient));
        sum = mac(next, split(sum), r).template to_vector<float>();
    };
    step(0.00833333333f);
    step(0.0416666667f);
    step(0.166666667f);
    step(0.5f);
    step(1.0f);
    step(1.0f);
    const auto power = aie::upshift(aie::add(whole, aie::broadcast<int32, N>(127)), 23);
    return scaled(sum, narrowed(power.template cast_to<float>()));
}

// 1 / (1 + e^-v).
template <unsigned N> inline floats<N> sigmoid(const floats<N> &v) {
    const auto minus = aie::max(aie::sub(aie::zeros<float, N>(), v), -80.0f);
    const auto power = exponential(aie::min(minus, 80.0f));
    return reciprocal(aie::add(power, aie::broadcast<float, N>(1.0f)));
}

} // namespace float32
