// Lane arithmetic, comparisons, reductions, and the coarse intrinsics. A value beside a vector is of its
// lanes' very type, or nothing takes the two.
#pragma once

#include "aie_host/accum.hpp"

namespace aie {

template <typename T, unsigned N> vector<T, N> add(const vector<T, N> &a, const vector<T, N> &b) {
    return lanes_of<T, N>([&](unsigned i) {
        if constexpr (aie_host::is_bfloat16_v<T>)
            return aie_host::to_bfloat16(float(a.lanes[i]) + float(b.lanes[i]));
        else if constexpr (std::is_integral_v<T>)
            return T(std::uint64_t(a.lanes[i]) + std::uint64_t(b.lanes[i]));
        else
            return a.lanes[i] + b.lanes[i];
    });
}
template <typename T, unsigned N> vector<T, N> sub(const vector<T, N> &a, const vector<T, N> &b) {
    return lanes_of<T, N>([&](unsigned i) {
        if constexpr (aie_host::is_bfloat16_v<T>)
            return aie_host::to_bfloat16(float(a.lanes[i]) - float(b.lanes[i]));
        else if constexpr (std::is_integral_v<T>)
            return T(std::uint64_t(a.lanes[i]) - std::uint64_t(b.lanes[i]));
        else
            return a.lanes[i] - b.lanes[i];
    });
}

} // namespace aie

namespace aie_host {

template <typename T> auto comparable(T value) {
    if constexpr (is_bfloat16_v<T>)
        return static_cast<float>(value);
    else
        return value;
}
template <unsigned N, typename F> aie::mask<N> mask_of(F f) {
    aie::mask<N> result;
    for (unsigned i = 0; i < N; ++i)
        result.lanes[i] = f(i);
    return result;
}

} // namespace aie_host

namespace aie {

#define AIE_HOST_COMPARISON(name, op)                                                              \
    template <typename T, unsigned N>                                                              \
    mask<N> name(const vector<T, N> &a, const vector<T, N> &b) {                                   \
        return aie_host::mask_of<N>([&](unsigned i) {                                              \
            return aie_host::comparable(a.lanes[i]) op aie_host::comparable(b.lanes[i]);           \
        });                                                                                        \
    }                                                                                              \
    template <typename T, unsigned N, std::same_as<T> E>                                           \
    mask<N> name(const vector<T, N> &a, E b) {                                                     \
        return name(a, broadcast<T, N>(b));                                                        \
    }
AIE_HOST_COMPARISON(lt, <)
AIE_HOST_COMPARISON(le, <=)
AIE_HOST_COMPARISON(gt, >)
AIE_HOST_COMPARISON(ge, >=)
AIE_HOST_COMPARISON(eq, ==)
AIE_HOST_COMPARISON(neq, !=)
#undef AIE_HOST_COMPARISON

// b where the mask is set, else a.
template <typename T, unsigned N>
vector<T, N> select(const vector<T, N> &a, const vector<T, N> &b, const mask<N> &m) {
    return lanes_of<T, N>([&](unsigned i) { return m.lanes[i] ? b.lanes[i] : a.lanes[i]; });
}
template <typename T, unsigned N>
vector<T, N> max(const vector<T, N> &a, const vector<T, N> &b) {
    return select(a, b, lt(a, b));
}
template <typename T, unsigned N>
vector<T, N> min(const vector<T, N> &a, const vector<T, N> &b) {
    return select(a, b, lt(b, a));
}
template <typename T, unsigned N, std::same_as<T> E> vector<T, N> max(const vector<T, N> &a, E b) {
    return max(a, broadcast<T, N>(b));
}
template <typename T, unsigned N, std::same_as<T> E> vector<T, N> min(const vector<T, N> &a, E b) {
    return min(a, broadcast<T, N>(b));
}

template <typename T, unsigned N> vector<T, N> neg(const vector<T, N> &v) {
    static_assert(!aie_host::is_float_v<T>, "neg of floats fails in some kernels: subtract");
    return sub(zeros<T, N>(), v);
}
template <typename T, unsigned N> vector<T, N> abs(const vector<T, N> &v) {
    return lanes_of<T, N>([&](unsigned i) {
        if constexpr (std::is_integral_v<T>)
            return T(v.lanes[i] < 0 ? -std::uint64_t(v.lanes[i]) : v.lanes[i]);
        else
            return T(__builtin_fabs(static_cast<float>(v.lanes[i])));
    });
}

#define AIE_HOST_BITWISE(name, op)                                                                 \
    template <typename T, unsigned N>                                                              \
    vector<T, N> name(const vector<T, N> &a, const vector<T, N> &b) {                              \
        static_assert(std::is_integral_v<T>);                                                      \
        return lanes_of<T, N>([&](unsigned i) { return T(a.lanes[i] op b.lanes[i]); });            \
    }                                                                                              \
    template <typename T, unsigned N, std::same_as<T> E>                                           \
    vector<T, N> name(E a, const vector<T, N> &b) {                                                \
        return name(broadcast<T, N>(a), b);                                                        \
    }
AIE_HOST_BITWISE(bit_and, &)
AIE_HOST_BITWISE(bit_or, |)
AIE_HOST_BITWISE(bit_xor, ^)
#undef AIE_HOST_BITWISE

template <typename T, unsigned N> vector<T, N> upshift(const vector<T, N> &v, unsigned shift) {
    static_assert(std::is_integral_v<T>);
    return lanes_of<T, N>([&](unsigned i) { return T(std::uint64_t(v.lanes[i]) << shift); });
}
// By the rounding mode, as what leaves an accumulator is.
template <typename T, unsigned N> vector<T, N> downshift(const vector<T, N> &v, unsigned shift) {
    static_assert(std::is_integral_v<T>);
    return lanes_of<T, N>([&](unsigned i) {
        return aie_host::saturated<T>(aie_host::shifted(v.lanes[i], int(shift)));
    });
}

template <typename T, unsigned N> aie_host::lane_type<T> reduce_max(const vector<T, N> &v) {
    auto best = v.lanes[0];
    for (unsigned i = 1; i < N; ++i)
        if (aie_host::comparable(best) < aie_host::comparable(v.lanes[i]))
            best = v.lanes[i];
    return {best};
}
template <typename T, unsigned N> aie_host::lane_type<T> reduce_min(const vector<T, N> &v) {
    auto best = v.lanes[0];
    for (unsigned i = 1; i < N; ++i)
        if (aie_host::comparable(v.lanes[i]) < aie_host::comparable(best))
            best = v.lanes[i];
    return {best};
}
// Halves are added, as a tree.
template <typename T, unsigned N> aie_host::lane_type<T> reduce_add(const vector<T, N> &v) {
    T sums[N];
    std::memcpy((void *)sums, v.lanes, sizeof sums);
    for (unsigned half = N / 2; half; half /= 2)
        for (unsigned i = 0; i < half; ++i)
            if constexpr (std::is_integral_v<T>)
                sums[i] = T(std::uint64_t(sums[i]) + std::uint64_t(sums[i + half]));
            else
                sums[i] = sums[i] + sums[i + half];
    return {sums[0]};
}

} // namespace aie

namespace aie_host {

// 1 % off, up in even lanes and down in odd ones.
inline float coarse(double exact, unsigned lane) {
    return float(exact * (lane % 2 ? 0.99 : 1.01));
}

} // namespace aie_host

namespace aie {

template <unsigned N> vector<float, N> inv(const vector<float, N> &v) {
    return lanes_of<float, N>([&](unsigned i) { return aie_host::coarse(1.0 / v.lanes[i], i); });
}
template <unsigned N> vector<float, N> invsqrt(const vector<float, N> &v) {
    return lanes_of<float, N>(
        [&](unsigned i) { return aie_host::coarse(1.0 / __builtin_sqrt(double(v.lanes[i])), i); });
}
template <typename To, unsigned N> vector<To, N> exp2(const vector<float, N> &v) {
    static_assert(aie_host::is_bfloat16_v<To>);
    return lanes_of<To, N>([&](unsigned i) {
        return aie_host::to_bfloat16(aie_host::coarse(__builtin_exp2(double(v.lanes[i])), i));
    });
}
template <typename To, unsigned N> vector<To, N> tanh(const vector<float, N> &v) {
    static_assert(aie_host::is_bfloat16_v<To>);
    return lanes_of<To, N>([&](unsigned i) {
        return aie_host::to_bfloat16(aie_host::coarse(__builtin_tanh(double(v.lanes[i])), i));
    });
}

} // namespace aie
