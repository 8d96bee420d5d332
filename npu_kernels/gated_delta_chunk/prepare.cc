// GatedDelta of 32 tokens, what all value columns of a head share.
// opened: as gates.cc leaves it, the head's is a lane of it. operands: bfloat16 tiles [8][8],
// keys and queries, [4][width / 8] each, as rows.cc leaves them; then, written here, [4][4][high, low]
// each, the inverse of what the tokens' changes have to do with one another, by beta, and the scores:
// nothing above the diagonal. factors: what is left of the state at each token [32], and of each
// token's change after the last [32]; what the state loses in all, in 16 lanes.
#include "tiles.hpp"

inline tiles::floats dots(const bfloat16 *a, const bfloat16 *b, int32_t width) {
    auto sum = tiles::zero();
    for (int32_t d = 0; d < 8 * width; d += 64)
        sum.mac(tiles::load_halves(a + d), aie::transpose(tiles::load_halves(b + d), 8, 8));
    return sum.to_vector<float>();
}

// 1 / (1 + a), a being nothing on and above the diagonal: (1 - a)(1 + a^2)(1 + a^4).
inline tiles::parts inverted(const tiles::parts &a) {
    const auto square = float32::split(tiles::times(a, a));
    const auto fourth = float32::split(tiles::times(square, square));
    auto one = aie::zeros<float, 64>();
    for (int32_t i = 0; i < 8; ++i)
        one.set(1.0f, 9 * i);
    auto x = aie::sub(aie::sub(one, float32::widened(a.high)), float32::widened(a.low));
    x = aie::add(x, tiles::times(float32::split(x), square));
    return float32::split(aie::add(x, tiles::times(float32::split(x), fourth)));
}

// Row by row of tiles, in its place: the inverse of one and what lies below its diagonal.
inline void invert(bfloat16 *matrix) {
    const auto at = [&](int32_t row, int32_t column) { return matrix + 128 * (4 * row + column); };
    for (int32_t row = 0; row < 4; ++row) {
        const auto own = inverted(tiles::load_parts(at(row, row)));
        for (int32_t column = 0; column < row; ++column) {
            auto sum = tiles::zero();
            for (int32_t i = column; i < row; ++i)
                tiles::mac(sum, tiles::load_parts(at(row, i)), tiles::load_parts(at(i, column)));
            const auto found = tiles::times(own, float32::split(sum.to_vector<float>()));
            tiles::store_parts(at(row, column),
                               float32::split(aie::sub(aie::zeros<float, 64>(), found)));
        }
        tiles::store_parts(at(row, row), own);
    }
}

extern "C" void gated_delta_prepare(const float *opened, bfloat16 *operands, float *factors,
                                    int32_t width, int32_t head) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const auto zero = aie::zeros<float, 16>();
    alignas(64) float fallen[32], beta[32];
    for (int32_t token = 0; token < 32; ++token) {
        fallen[token] = opened[16 * token + head];
        beta[token] = opened[512 + 16 * token + head];
    }
    const auto last = aie::broadcast<float, 16>(fallen[31]);
    for (int32_t i = 0; i < 32; i += 16) {
        const auto sums = aie::load_v<16>(fallen + i);
        aie::store_v(factors + i, float32::exponential(sums));
        aie::store_v(factors + 32 + i, float32::exponential(aie::sub(last, sums)));
    }
    aie::store_v(factors + 64,
                 aie::sub(aie::broadcast<float, 16>(1.0f), float32::exponential(last)));

    const bfloat16 *keys = operands, *queries = keys + 32 * width;
    bfloat16 *inverse = operands + 64 * width, *scores = inverse + 2048;
    for (int32_t row = 0; row < 4; ++row)
        for (int32_t column = 0; column <= row; ++column) {
            const bfloat16 *others = keys + 8 * column * width;
            auto alike = dots(keys + 8 * row * width, others, width);
            auto asked = dots(queries + 8 * row * width, others, width);
            for (int32_t pair = 0; pair < 4; ++pair) {
                const float *place = fallen + 8 * row + 2 * pair;
                const auto between =
                    aie::sub(tiles::of_rows(place), tiles::of_columns(fallen + 8 * column));
                const auto left = float32::exponential(aie::min(between, 0.0f));
                const auto followed =
                    float32::product(left, tiles::of_rows(beta + 8 * row + 2 * pair));
                auto a = float32::product(alike.extract<16>(pair), followed);
                auto s = float32::product(asked.extract<16>(pair), left);
                if (row == column) {
                    const uint32_t own = 0x0201u << 2 * pair, under = own - 0x0101u;
                    a = aie::select(zero, a, aie::mask<16>::from_uint32(under));
                    s = aie::select(zero, s, aie::mask<16>::from_uint32(own | under));
                }
                alike.insert(pair, a);
                asked.insert(pair, s);
            }
            tiles::store_parts(inverse + 128 * (4 * row + column), float32::split(alike));
            tiles::store_parts(scores + 128 * (4 * row + column), float32::split(asked));
        }
    invert(inverse);
    for (int32_t row = 0; row < 4; ++row)
        for (int32_t column = 0; column <= row; ++column) {
            bfloat16 *place = inverse + 128 * (4 * row + column);
            const auto v = tiles::load_parts(place);
            auto sum = aie::add(float32::widened(v.high), float32::widened(v.low));
            for (int32_t pair = 0; pair < 4; ++pair)
                sum.insert(pair, float32::product(sum.extract<16>(pair),
                                                  tiles::of_columns(beta + 8 * column)));
            tiles::store_parts(place, float32::split(sum));
        }
}
