// mmul<M, K, N>: C [M][N] += A [M][K] by B [K][N], each row after row in one register. bfp16 takes
// B turned, for its blocks run along K.
#pragma once

#include "aie_host/arithmetic.hpp"
#include "aie_host/bfp16.hpp"

namespace aie_host {

template <typename A, typename B> constexpr bool has_shape(unsigned m, unsigned k, unsigned n) {
    const auto is = [&](unsigned a, unsigned b, unsigned c) { return m == a && k == b && n == c; };
    if constexpr (std::is_same_v<A, bfp16ebs8>)
        return is(8, 8, 8);
    else if constexpr (is_bfloat16_v<A> && is_bfloat16_v<B>)
        return is(4, 8, 8) || is(8, 8, 8) || is(8, 1, 8) || is(4, 8, 4) || is(8, 8, 4);
    else if constexpr (sizeof(A) == 1 && sizeof(B) == 1)
        return is(8, 8, 8) || is(4, 8, 8) || is(2, 8, 8) || is(4, 16, 8);
    else if constexpr (sizeof(A) == 2 && sizeof(B) == 1)
        return is(4, 8, 8) || is(8, 4, 8) || is(2, 16, 8);
    else if constexpr (sizeof(A) == 2 && sizeof(B) == 2)
        return is(4, 4, 8) || is(8, 2, 8) || is(4, 4, 4);
    else
        return false;
}

template <typename A, typename B, typename Tag> constexpr auto mmul_tag() {
    if constexpr (!std::is_same_v<Tag, accauto>)
        return std::type_identity<Tag>();
    else if constexpr (std::is_same_v<A, bfp16ebs8>)
        return std::type_identity<accfloat>();
    else if constexpr (std::is_integral_v<A> && sizeof(A) == 2)
        return std::type_identity<acc64>();
    else
        return product_tag<A, B>();
}

template <typename T, unsigned N> struct operand { using type = aie::vector<T, N>; };
template <unsigned N> struct operand<bfp16ebs8, N> {
    using type = aie::block_vector<bfp16ebs8, N>;
};

} // namespace aie_host

namespace aie {

template <unsigned M, unsigned K, unsigned N, typename A, typename B = A, typename Tag = accauto>
struct mmul {
    static_assert(!aie_host::is_float_v<A> && !aie_host::is_float_v<B>,
                  "AIE2P has no product of floats: split them into bfloat16 high and low parts");
    static_assert(aie_host::has_shape<A, B>(M, K, N), "AIE2P has no mmul of this shape");
    static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;
    using accum_type =
        accum<typename decltype(aie_host::mmul_tag<A, B, Tag>())::type, size_C>;
    using vector_A_type = typename aie_host::operand<A, size_A>::type;
    using vector_B_type = typename aie_host::operand<B, size_B>::type;

    mmul() = default; // what it holds is undefined until mul
    mmul(const accum_type &start) : sum(start) {}
    template <typename T>
    mmul(const vector<T, size_C> &start, int shift = 0) : sum(start, shift) {}

    void mul(const vector_A_type &a, const vector_B_type &b) {
        for (auto &lane : sum.lanes)
            lane = 0;
        mac(a, b);
    }
    void mac(const vector_A_type &a, const vector_B_type &b) {
        using number = std::conditional_t<accum_type::floats, float, std::int32_t>;
        number left[size_A], right[N * K];
        for (unsigned i = 0; i < size_A; ++i)
            left[i] = lane(a, i);
        for (unsigned k = 0; k < K; ++k)
            for (unsigned n = 0; n < N; ++n)
                right[k * N + n] = std::is_same_v<B, bfp16ebs8> ? lane(b, n * K + k)
                                                                : lane(b, k * N + n);
        for (unsigned m = 0; m < M; ++m) {
            number products[K][N];
            for (unsigned k = 0; k < K; ++k)
                for (unsigned n = 0; n < N; ++n)
                    products[k][n] = left[m * K + k] * right[k * N + n];
            for (unsigned half = K / 2; half; half /= 2)
                for (unsigned k = 0; k < half; ++k)
                    for (unsigned n = 0; n < N; ++n)
                        products[k][n] += products[k + half][n];
            for (unsigned n = 0; n < N; ++n)
                sum.lanes[m * N + n] += products[0][n];
        }
    }

    accum_type to_accum() const { return sum; }
    template <typename T> vector<T, size_C> to_vector(int shift = 0) const {
        return sum.template to_vector<T>(shift);
    }

  private:
    accum_type sum;

    template <typename V> static auto lane(const V &v, unsigned index) {
        if constexpr (requires { v.blocks; })
            return v.value(index);
        else if constexpr (accum_type::floats)
            return static_cast<float>(v.lanes[index]);
        else
            return std::int32_t(v.lanes[index]);
    }
};

} // namespace aie
