// Accumulators, lane products, and conversions.
#pragma once

#include "aie_host/vector.hpp"

namespace aie {

template <typename T, unsigned N> struct block_vector;

template <typename Tag, unsigned N> struct accum {
    static constexpr bool floats = std::is_same_v<Tag, accfloat>;
    using value_type = std::conditional_t<
        floats, float, std::conditional_t<std::is_same_v<Tag, acc32>, std::int32_t, std::int64_t>>;
    static constexpr unsigned size() { return N; }

    alignas(64) value_type lanes[N];

    accum() = default;
    template <typename T> explicit accum(const vector<T, N> &v, int shift = 0) {
        from_vector(v, shift);
    }

    template <typename T> void from_vector(const vector<T, N> &v, int shift = 0) {
        static_assert(floats == !std::is_integral_v<T>);
        for (unsigned i = 0; i < N; ++i)
            if constexpr (floats)
                lanes[i] = static_cast<float>(v.lanes[i]);
            else
                lanes[i] = value_type(std::uint64_t(std::int64_t(v.lanes[i])) << shift);
    }

    template <typename T> auto to_vector(int shift = 0) const {
        if constexpr (std::is_same_v<T, bfp16ebs8>) {
            static_assert(floats);
            return block_vector<bfp16ebs8, N>::of(lanes);
        } else {
            vector<T, N> result;
            for (unsigned i = 0; i < N; ++i)
                if constexpr (floats && aie_host::is_bfloat16_v<T>)
                    result.lanes[i] = aie_host::to_bfloat16(lanes[i]);
                else if constexpr (floats)
                    result.lanes[i] = static_cast<T>(lanes[i]);
                else
                    result.lanes[i] = aie_host::saturated<T>(aie_host::shifted(lanes[i], shift));
            static_assert(!floats || aie_host::is_float_v<T> || aie_host::is_bfloat16_v<T>,
                          "use to_fixed");
            return result;
        }
    }

    template <unsigned M> accum<Tag, M> extract(unsigned index) const {
        accum<Tag, M> part;
        if (index >= N / M)
            aie_host::trap("part %u of %u", index, N / M);
        std::memcpy(part.lanes, lanes + M * index, sizeof part.lanes);
        return part;
    }
    template <unsigned M> accum &insert(unsigned index, const accum<Tag, M> &part) {
        if (index >= N / M)
            aie_host::trap("part %u of %u", index, N / M);
        std::memcpy(lanes + M * index, part.lanes, sizeof part.lanes);
        return *this;
    }
};

} // namespace aie

namespace aie_host {

template <typename A, typename B> constexpr auto product_tag() {
    static_assert(!is_float_v<A> && !is_float_v<B>,
                  "AIE2P has no product of floats: split them into bfloat16 high and low parts");
    if constexpr (is_bfloat16_v<A> && is_bfloat16_v<B>)
        return std::type_identity<accfloat>();
    else {
        static_assert(std::is_integral_v<A> && std::is_integral_v<B>);
        if constexpr (sizeof(A) + sizeof(B) <= 3)
            return std::type_identity<acc32>();
        else
            return std::type_identity<acc64>();
    }
}
template <typename A, typename B>
using product_t = typename decltype(product_tag<A, B>())::type;

template <typename Acc, typename A, typename B> typename Acc::value_type product(A a, B b) {
    if constexpr (Acc::floats)
        return static_cast<float>(a) * static_cast<float>(b);
    else
        return typename Acc::value_type(std::int64_t(a) * std::int64_t(b));
}

} // namespace aie_host

namespace aie {

template <typename A, typename B, unsigned N>
auto mul(const vector<A, N> &a, const vector<B, N> &b) {
    accum<aie_host::product_t<A, B>, N> result;
    for (unsigned i = 0; i < N; ++i)
        result.lanes[i] = aie_host::product<decltype(result)>(a.lanes[i], b.lanes[i]);
    return result;
}
template <typename A, unsigned N, std::same_as<A> E> auto mul(const vector<A, N> &a, E b) {
    return mul(a, broadcast<A, N>(b));
}

template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> mac(accum<Tag, N> sum, const vector<A, N> &a, const vector<B, N> &b) {
    static_assert(accum<Tag, N>::floats == std::is_same_v<aie_host::product_t<A, B>, accfloat>);
    for (unsigned i = 0; i < N; ++i)
        sum.lanes[i] += aie_host::product<decltype(sum)>(a.lanes[i], b.lanes[i]);
    return sum;
}
template <typename Tag, typename A, typename B, unsigned N>
accum<Tag, N> msc(accum<Tag, N> sum, const vector<A, N> &a, const vector<B, N> &b) {
    static_assert(accum<Tag, N>::floats == std::is_same_v<aie_host::product_t<A, B>, accfloat>);
    for (unsigned i = 0; i < N; ++i)
        sum.lanes[i] -= aie_host::product<decltype(sum)>(a.lanes[i], b.lanes[i]);
    return sum;
}
template <typename Tag, typename A, unsigned N, std::same_as<A> E>
accum<Tag, N> mac(accum<Tag, N> sum, const vector<A, N> &a, E b) {
    return mac(sum, a, broadcast<A, N>(b));
}

template <typename Tag, unsigned N>
accum<Tag, N> add(accum<Tag, N> a, const accum<Tag, N> &b) {
    for (unsigned i = 0; i < N; ++i)
        a.lanes[i] += b.lanes[i];
    return a;
}
template <typename Tag, unsigned N>
accum<Tag, N> sub(accum<Tag, N> a, const accum<Tag, N> &b) {
    for (unsigned i = 0; i < N; ++i)
        a.lanes[i] -= b.lanes[i];
    return a;
}
template <typename Tag, typename T, unsigned N>
accum<Tag, N> add(const accum<Tag, N> &a, const vector<T, N> &b) {
    return add(a, accum<Tag, N>(b));
}
template <typename Tag, typename T, unsigned N>
accum<Tag, N> sub(const accum<Tag, N> &a, const vector<T, N> &b) {
    return sub(a, accum<Tag, N>(b));
}

template <typename T, unsigned N> auto zeros() {
    if constexpr (std::is_same_v<T, accfloat> || std::is_same_v<T, acc32> ||
                  std::is_same_v<T, acc64>) {
        accum<T, N> result;
        for (auto &lane : result.lanes)
            lane = 0;
        return result;
    } else
        return broadcast<T, N>(T(0));
}

template <typename To = float, typename T, unsigned N>
vector<To, N> to_float(const vector<T, N> &v, int shift = 0) {
    static_assert(std::is_integral_v<T> && aie_host::is_float_v<To>);
    return lanes_of<To, N>([&](unsigned i) { return To(__builtin_ldexp(double(v.lanes[i]), -shift)); });
}

// Rounds by the mode. A value that does not fit is undefined on silicon.
template <typename To, typename T, unsigned N>
vector<To, N> to_fixed(const vector<T, N> &v, int shift = 0) {
    static_assert(std::is_integral_v<To> && !std::is_integral_v<T>);
    return lanes_of<To, N>([&](unsigned i) {
        const double value = static_cast<float>(v.lanes[i]);
        const double whole = aie_host::to_integer(__builtin_ldexp(value, shift));
        if (!(__builtin_fabs(whole) < 9e18) || std::int64_t(whole) != To(std::int64_t(whole)))
            aie_host::trap("to_fixed: %g does not fit %d bits", whole, int(8 * sizeof(To)));
        return To(whole);
    });
}

} // namespace aie
