// Vectors and masks, loads and stores, and moving lanes about.
#pragma once

#include "aie_host/scalar.hpp"

namespace aie {

template <typename T, unsigned N> struct vector {
    static_assert(sizeof(T) * N >= 16 && sizeof(T) * N <= 512, "no register of this size");
    using value_type = T;
    static constexpr unsigned size() { return N; }
    static constexpr unsigned bits() { return 8 * sizeof(T) * N; }
    static constexpr unsigned bytes() { return sizeof(T) * N; }

    alignas(bytes() < 64 ? bytes() : 64) T lanes[N];

    aie_host::lane_type<T> get(unsigned index) const { return {lanes[checked(index, N)]}; }
    aie_host::lane_type<T> operator[](unsigned index) const { return get(index); }
    void set(T value, unsigned index) { lanes[checked(index, N)] = value; }

    template <unsigned M> vector<T, M> extract(unsigned index) const {
        vector<T, M> part;
        std::memcpy(part.lanes, lanes + M * checked(index, N / M), sizeof part.lanes);
        return part;
    }
    template <unsigned M> vector &insert(unsigned index, const vector<T, M> &part) {
        std::memcpy(lanes + M * checked(index, N / M), part.lanes, sizeof part.lanes);
        return *this;
    }
    template <unsigned M> vector<T, M> grow() const {
        vector<T, M> wide;
        std::memset((void *)wide.lanes, 0xFE, sizeof wide.lanes); // undefined on silicon
        return wide.template insert<N>(0, *this);
    }
    template <typename U> vector<U, N * sizeof(T) / sizeof(U)> cast_to() const {
        return __builtin_bit_cast(vector<U, N * sizeof(T) / sizeof(U)>, *this);
    }

    // Integers of half the width, by the saturation mode, and of twice it.
    auto pack() const {
        static_assert(std::is_integral_v<T>);
        using narrow = std::conditional_t<
            std::is_signed_v<T>, std::conditional_t<sizeof(T) == 4, int16, int8>,
            std::conditional_t<sizeof(T) == 4, uint16, uint8>>;
        vector<narrow, N> result;
        for (unsigned i = 0; i < N; ++i)
            result.lanes[i] = aie_host::saturated<narrow>(lanes[i]);
        return result;
    }
    auto unpack() const {
        static_assert(std::is_integral_v<T>);
        using wide = std::conditional_t<
            std::is_signed_v<T>, std::conditional_t<sizeof(T) == 1, int16, int32>,
            std::conditional_t<sizeof(T) == 1, uint16, uint32>>;
        vector<wide, N> result;
        for (unsigned i = 0; i < N; ++i)
            result.lanes[i] = lanes[i];
        return result;
    }

  private:
    static unsigned checked(unsigned index, unsigned count) {
        if (index >= count)
            aie_host::trap("lane or part %u of %u", index, count);
        return index;
    }
};

template <unsigned N> struct mask {
    bool lanes[N];
    static mask from_uint32(std::uint32_t bits) {
        static_assert(N <= 32);
        mask result;
        for (unsigned i = 0; i < N; ++i)
            result.lanes[i] = bits >> i & 1;
        return result;
    }
    bool test(unsigned index) const { return lanes[index]; }
    bool empty() const { return !count(); }
    bool full() const { return count() == N; }
    unsigned count() const {
        unsigned sum = 0;
        for (bool lane : lanes)
            sum += lane;
        return sum;
    }
};

} // namespace aie

namespace aie_host {

// What memory holds that nobody wrote: a NaN as bfloat16 and as float, which no arithmetic gives;
// and what the compiler fills stack arrays with. Bytes may be any: codes of weights are.
constexpr std::uint16_t poison = 0xFFA5;
constexpr std::uint64_t poison_word = 0xFFA5FFA5FFA5FFA5, stack_word = 0xFEFEFEFEFEFEFEFE;

template <typename T> void check_written(const T *from, unsigned bytes) {
    if constexpr (sizeof(T) == 1)
        return;
    const auto *place = reinterpret_cast<const unsigned char *>(from);
    bool unwritten = false;
    for (unsigned i = 0; i + 8 <= bytes; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, place + i, 8);
        unwritten |= word == poison_word || word == stack_word;
    }
    if constexpr (is_float_v<T>)
        for (unsigned i = 0; i < bytes; i += 4) {
            std::uint32_t word;
            std::memcpy(&word, place + i, 4);
            unwritten |= word == std::uint32_t(poison_word);
        }
    if constexpr (is_bfloat16_v<T>)
        for (unsigned i = 0; i < bytes; i += 2) {
            std::uint16_t word;
            std::memcpy(&word, place + i, 2);
            unwritten |= word == poison;
        }
    if (unwritten)
        trap("load of %u bytes that nobody wrote", bytes);
}

template <typename T, unsigned N> void check_aligned(const T *place) {
    constexpr unsigned bytes = sizeof(T) * N, wanted = bytes < 128 ? bytes : 128;
    if (reinterpret_cast<std::uintptr_t>(place) % wanted)
        trap("access of %u bytes is not aligned to %u", bytes, wanted);
}

} // namespace aie_host

namespace aie {

template <unsigned N, typename T> vector<T, N> load_unaligned_v(const T *from, unsigned = 1) {
    aie_host::check_written(from, sizeof(T) * N);
    vector<T, N> result;
    std::memcpy((void *)result.lanes, from, sizeof result.lanes);
    return result;
}
template <unsigned N, typename T> vector<T, N> load_v(const T *from) {
    aie_host::check_aligned<T, N>(from);
    return load_unaligned_v<N>(from);
}
template <typename T, unsigned N>
void store_unaligned_v(T *to, const vector<T, N> &v, unsigned = 1) {
    std::memcpy((void *)to, v.lanes, sizeof v.lanes);
}
template <typename T, unsigned N> void store_v(T *to, const vector<T, N> &v) {
    aie_host::check_aligned<T, N>(to);
    store_unaligned_v(to, v);
}

// Lane i of the result is f(i).
template <typename T, unsigned N, typename F> vector<T, N> lanes_of(F f) {
    vector<T, N> result;
    for (unsigned i = 0; i < N; ++i)
        result.lanes[i] = f(i);
    return result;
}

template <typename T, unsigned N> vector<T, N> broadcast(std::type_identity_t<T> value) {
    return lanes_of<T, N>([&](unsigned) { return value; });
}

template <typename T, unsigned N, typename... Rest>
auto concat(const vector<T, N> &first, const Rest &...rest) {
    constexpr unsigned count = 1 + sizeof...(rest);
    vector<T, N * count> result;
    result.template insert<N>(0, first);
    unsigned index = 0;
    (result.template insert<N>(++index, rest), ...);
    return result;
}

template <typename T, unsigned N> vector<T, N / 2> filter_even(const vector<T, N> &v, unsigned step = 1) {
    return lanes_of<T, N / 2>([&](unsigned i) { return v.lanes[i / step * 2 * step + i % step]; });
}
template <typename T, unsigned N> vector<T, N / 2> filter_odd(const vector<T, N> &v, unsigned step = 1) {
    return lanes_of<T, N / 2>(
        [&](unsigned i) { return v.lanes[i / step * 2 * step + step + i % step]; });
}

template <typename T, unsigned N> struct vector_pair {
    vector<T, N> first, second;
};

template <typename T, unsigned N>
vector_pair<T, N> interleave_zip(const vector<T, N> &a, const vector<T, N> &b,
                                                     unsigned step = 1) {
    const auto lane = [&](unsigned i) {
        return (i / step % 2 ? b : a).lanes[i / (2 * step) * step + i % step];
    };
    return {lanes_of<T, N>(lane), lanes_of<T, N>([&](unsigned i) { return lane(i + N); })};
}
template <typename T, unsigned N>
vector_pair<T, N> interleave_unzip(const vector<T, N> &a, const vector<T, N> &b,
                                                       unsigned step = 1) {
    const auto both = concat(a, b);
    return {filter_even(both, step), filter_odd(both, step)};
}

template <typename T, unsigned N>
vector<T, N> transpose(const vector<T, N> &v, unsigned rows, unsigned columns) {
    return lanes_of<T, N>([&](unsigned i) { return v.lanes[i % rows * columns + i / rows]; });
}
template <typename T, unsigned N> vector<T, N> reverse(const vector<T, N> &v) {
    return lanes_of<T, N>([&](unsigned i) { return v.lanes[N - 1 - i]; });
}

// Lanes that nothing moves into are undefined on silicon.
template <typename T, unsigned N> vector<T, N> shuffle_down(const vector<T, N> &v, unsigned n) {
    vector<T, N> result;
    std::memset((void *)result.lanes, 0xFE, sizeof result.lanes);
    for (unsigned i = 0; i + n < N; ++i)
        result.lanes[i] = v.lanes[i + n];
    return result;
}
template <typename T, unsigned N> vector<T, N> shuffle_up(const vector<T, N> &v, unsigned n) {
    vector<T, N> result;
    std::memset((void *)result.lanes, 0xFE, sizeof result.lanes);
    for (unsigned i = n; i < N; ++i)
        result.lanes[i] = v.lanes[i - n];
    return result;
}
template <typename T, unsigned N>
vector<T, N> shuffle_down_rotate(const vector<T, N> &v, unsigned n) {
    return lanes_of<T, N>([&](unsigned i) { return v.lanes[(i + n) % N]; });
}
template <typename T, unsigned N>
vector<T, N> shuffle_up_rotate(const vector<T, N> &v, unsigned n) {
    return lanes_of<T, N>([&](unsigned i) { return v.lanes[(i + N - n % N) % N]; });
}

} // namespace aie
