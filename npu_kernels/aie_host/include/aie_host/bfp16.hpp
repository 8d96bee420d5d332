// bfp16ebs8: nine bytes for eight values, the largest's exponent and eight mantissas m:
// m * 2^(exponent - 127 - 6), cut by the rounding mode.
#pragma once

#include "aie_host/accum.hpp"

namespace aie {

template <unsigned N> struct block_vector<bfp16ebs8, N> {
    static_assert(N % 8 == 0);
    std::uint8_t blocks[N / 8][9];

    static block_vector of(const float *values) {
        block_vector result;
        for (unsigned block = 0; block < N / 8; ++block)
            convert(values + 8 * block, result.blocks[block]);
        return result;
    }
    float value(unsigned index) const {
        const std::uint8_t *block = blocks[index / 8];
        return __builtin_ldexp(float(std::int8_t(block[1 + index % 8])), block[0] - 127 - 6);
    }

  private:
    static void convert(const float *values, std::uint8_t *block) {
        int exponent = 0;
        for (unsigned i = 0; i < 8; ++i) {
            const int own = __builtin_bit_cast(std::uint32_t, values[i]) >> 23 & 0xFF;
            exponent = own > exponent ? own : exponent;
        }
        for (unsigned i = 0; i < 8; ++i) {
            const double scaled = __builtin_ldexp(double(values[i]), 127 + 6 - exponent);
            const double whole = aie_host::to_integer(scaled);
            block[1 + i] = std::uint8_t(std::int8_t(whole > 127 ? 127 : whole));
        }
        block[0] = std::uint8_t(exponent);
    }
};

template <typename T, unsigned N> class block_vector_input_buffer_stream {
  public:
    explicit block_vector_input_buffer_stream(const T *from)
        : next(reinterpret_cast<const std::uint8_t *>(from)) {}
    block_vector<T, N> pop() {
        block_vector<T, N> result;
        aie_host::check_written(next, sizeof result.blocks);
        std::memcpy(result.blocks, next, sizeof result.blocks);
        next += sizeof result.blocks;
        return result;
    }

  private:
    const std::uint8_t *next;
};

template <typename T, unsigned N> class block_vector_output_buffer_stream {
  public:
    explicit block_vector_output_buffer_stream(T *to)
        : next(reinterpret_cast<std::uint8_t *>(to)) {}
    void push(const block_vector<T, N> &v) {
        std::memcpy(next, v.blocks, sizeof v.blocks);
        next += sizeof v.blocks;
    }

  private:
    std::uint8_t *next;
};

} // namespace aie
