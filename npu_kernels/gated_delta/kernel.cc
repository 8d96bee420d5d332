// GatedDelta of one token and one value head over 16 of its value columns, number `slice`. Columns do
// not depend on one another, so the state is read once and written once.
// vectors: queries [keys][width], keys [keys][width], values [heads][width]; gates as gates.cc leaves
// them; state [width][16]; of y [heads][width] the slice of `head` is written. The head reads key
// head `key`, and its gates are number `gate`. width is at most 128.
#include "float32.hpp"

// scale is the bits of a float32.
extern "C" void gated_delta(const float *vectors, const float *gates, const float *before,
                            float *after, float *y, int32_t width, int32_t keys, int32_t key,
                            int32_t head, int32_t gate, int32_t slice, int32_t scale) {
    aie::set_rounding(aie::rounding_mode::conv_even);
    const float *query = vectors + key * width, *own = query + keys * width;
    const float *values = vectors + (2 * keys + head) * width;
    alignas(64) bfloat16 parts[4 * 128]; // of the query and the key: high and low
    for (int32_t i = 0; i < width; i += 16) {
        const auto q = float32::split(aie::load_v<16>(query + i));
        const auto k = float32::split(aie::load_v<16>(own + i));
        aie::store_v(parts + i, q.high);
        aie::store_v(parts + 128 + i, q.low);
        aie::store_v(parts + 256 + i, k.high);
        aie::store_v(parts + 384 + i, k.low);
    }
    const auto lane = [&](int32_t place) {
        return float32::parts<16>{aie::broadcast<bfloat16, 16>(parts[place]),
                                  aie::broadcast<bfloat16, 16>(parts[place + 128])};
    };
    const float *open = gates + 16 * gate;
    const auto decay = aie::broadcast<float, 16>(open[0]);
    // What is lost is small, and so is the error of its product: states live for hundreds of tokens.
    const auto loss = float32::split(aie::sub(aie::broadcast<float, 16>(1.0f), decay));
    const auto beta = float32::split(aie::broadcast<float, 16>(open[1]));

    auto read = aie::zeros<accfloat, 16>();
    for (int32_t i = 0; i < width; ++i)
        read = float32::mac(read, float32::split(aie::load_v<16>(before + 16 * i)), lane(256 + i));
    const auto held = float32::product(read.to_vector<float>(), decay);
    const auto value = aie::load_v<16>(values + 16 * slice);
    const auto change = float32::split(float32::product(float32::split(aie::sub(value, held)), beta));

    auto out = aie::zeros<accfloat, 16>();
    for (int32_t i = 0; i < width; ++i) {
        const auto row = aie::load_v<16>(before + 16 * i);
        const aie::accum<accfloat, 16> kept(
            aie::sub(row, float32::product(float32::split(row), loss)));
        const auto now = float32::mac(kept, change, lane(256 + i)).to_vector<float>();
        aie::store_v(after + 16 * i, now);
        out = float32::mac(out, float32::split(now), lane(i));
    }
    aie::store_v(y + head * width + 16 * slice,
                 float32::product(out.to_vector<float>(), float32::constant<16>(scale)));
}
