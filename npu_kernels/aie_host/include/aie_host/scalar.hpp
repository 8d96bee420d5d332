// Scalars, the two control registers, rounding, and the trap.
#pragma once

#include <concepts>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

struct bfloat16 {
    std::uint16_t bits;

    bfloat16() = default;
    // A constant: the compiler's conversion, to nearest even, whatever the mode.
    constexpr explicit bfloat16(float value) : bits(nearest(value)) {}

    constexpr explicit operator float() const {
        return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
    }

  private:
    static constexpr std::uint16_t nearest(float value) {
        const auto word = __builtin_bit_cast(std::uint32_t, value);
        return std::uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);
    }
};

struct bfp16ebs8; // eight values in nine bytes: a shared exponent, then eight signed mantissas
struct accfloat;
struct acc32;
struct acc64;
struct accauto;

using int8 = std::int8_t;
using uint8 = std::uint8_t;
using int16 = std::int16_t;
using uint16 = std::uint16_t;
using int32 = std::int32_t;
using uint32 = std::uint32_t;

namespace aie {

enum class rounding_mode {
    floor,
    ceil,
    positive_inf,
    negative_inf,
    symmetric_inf,
    symmetric_zero,
    conv_even,
    conv_odd
};
enum class saturation_mode { none, truncate = none, saturate, symmetric };

} // namespace aie

namespace aie_host {

struct fault {
    char text[200];
};

[[noreturn]] inline void trap(const char *format, ...) {
    fault found{};
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(found.text, sizeof found.text, format, arguments);
    va_end(arguments);
    throw found;
}

// What the core's control registers hold; the driver puts them back before every call, for a
// kernel must not depend on what ran before it.
struct registers {
    aie::rounding_mode rounding = aie::rounding_mode::floor;
    aie::saturation_mode saturation = aie::saturation_mode::none;
};
inline registers control;

// A float out of a vector. Cores have no float unit for scalars: it can be stored and broadcast.
struct float_lane {
    float value;
    operator float() const { return value; }
};
#define AIE_HOST_REFUSED(op)                                                                       \
    template <typename T> void operator op(float_lane, T) = delete;                                \
    template <typename T> void operator op(T, float_lane) = delete;                                \
    inline void operator op(float_lane, float_lane) = delete;
AIE_HOST_REFUSED(+)
AIE_HOST_REFUSED(-)
AIE_HOST_REFUSED(*)
AIE_HOST_REFUSED(/)
AIE_HOST_REFUSED(<)
AIE_HOST_REFUSED(>)
AIE_HOST_REFUSED(<=)
AIE_HOST_REFUSED(>=)
#undef AIE_HOST_REFUSED

template <typename T>
using lane_type = std::conditional_t<std::is_same_v<T, float>, float_lane, T>;

template <typename T> constexpr bool is_float_v = std::is_same_v<T, float>;
template <typename T> constexpr bool is_bfloat16_v = std::is_same_v<T, bfloat16>;
template <typename> constexpr bool never = false;

// Whether a magnitude is rounded up, by what is cut off it and half of a last place.
template <typename T> bool away(bool negative, bool odd, T rest, T half) {
    using mode = aie::rounding_mode;
    switch (control.rounding) {
    case mode::floor: return negative && rest > T(0);
    case mode::ceil: return !negative && rest > T(0);
    case mode::positive_inf: return rest > half || (rest == half && !negative);
    case mode::negative_inf: return rest > half || (rest == half && negative);
    case mode::symmetric_inf: return rest >= half;
    case mode::symmetric_zero: return rest > half;
    case mode::conv_even: return rest > half || (rest == half && odd);
    case mode::conv_odd: return rest > half || (rest == half && !odd);
    }
    return false;
}

inline bfloat16 to_bfloat16(float value) {
    const auto word = __builtin_bit_cast(std::uint32_t, value);
    bfloat16 result;
    if (control.rounding == aie::rounding_mode::conv_even && (word & 0x7F800000) != 0x7F800000) {
        result.bits = std::uint16_t((word + 0x7FFF + (word >> 16 & 1)) >> 16);
        return result;
    }
    result.bits = std::uint16_t(word >> 16);
    if (value != value)
        result.bits |= 0x40;
    else if ((word & 0x7F800000) != 0x7F800000)
        result.bits += away<std::uint32_t>(word >> 31, result.bits & 1, word & 0xFFFF, 0x8000);
    return result;
}

// The nearest integers to value, by the mode.
inline double to_integer(double value) {
    const double magnitude = __builtin_fabs(value), whole = __builtin_floor(magnitude);
    const bool odd = __builtin_fmod(whole, 2.0) != 0.0;
    const double rounded = whole + away<double>(value < 0, odd, magnitude - whole, 0.5);
    return value < 0 ? -rounded : rounded;
}

inline std::int64_t shifted(std::int64_t value, int shift) {
    if (shift <= 0)
        return std::int64_t(std::uint64_t(value) << -shift);
    const bool negative = value < 0;
    const std::uint64_t magnitude = negative ? -std::uint64_t(value) : std::uint64_t(value);
    std::uint64_t whole = magnitude >> shift;
    const std::uint64_t rest = magnitude & ((std::uint64_t{1} << shift) - 1);
    whole += away<std::uint64_t>(negative, whole & 1, rest, std::uint64_t{1} << (shift - 1));
    return std::int64_t(negative ? -whole : whole);
}

template <typename T> T saturated(std::int64_t value) {
    constexpr std::int64_t top = std::int64_t((std::uint64_t{1} << (8 * sizeof(T) -
                                                                    std::is_signed_v<T>)) - 1);
    if (control.saturation == aie::saturation_mode::none)
        return T(value);
    const bool symmetric = control.saturation == aie::saturation_mode::symmetric;
    const std::int64_t bottom = std::is_signed_v<T> ? -top - !symmetric : 0;
    return T(value > top ? top : value < bottom ? bottom : value);
}

} // namespace aie_host

namespace aie {

inline void set_rounding(rounding_mode mode) { aie_host::control.rounding = mode; }
inline rounding_mode get_rounding() { return aie_host::control.rounding; }
inline void set_saturation(saturation_mode mode) { aie_host::control.saturation = mode; }
inline saturation_mode get_saturation() { return aie_host::control.saturation; }

} // namespace aie
