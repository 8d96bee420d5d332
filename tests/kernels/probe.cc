// What the tests of the header ask of it, by number. values and out hold 64 lanes of any type.
#include <aie_api/aie.hpp>

#include "float32.hpp"

template <unsigned M, unsigned K, unsigned N, typename A, typename B, typename C>
static void multiply(const void *values, void *out) {
    const auto *a = static_cast<const A *>(values);
    const auto *b = reinterpret_cast<const B *>(a + M * K);
    aie::mmul<M, K, N, A, B> product;
    product.mul(aie::load_unaligned_v<M * K>(a), aie::load_unaligned_v<K * N>(b));
    product.mac(aie::load_unaligned_v<M * K>(a), aie::load_unaligned_v<K * N>(b));
    aie::store_unaligned_v(static_cast<C *>(out), product.template to_vector<C>());
}

extern "C" void probe(const float *values, float *out, int32_t which, int32_t mode, int32_t number) {
    if (mode >= 0)
        aie::set_rounding(aie::rounding_mode(mode));
    const auto *ints = (const int32_t *)values;
    auto *ints_out = (int32_t *)out;
    switch (which) {
    case 0: // floats to bfloat16
        for (int i = 0; i < 64; i += 16)
            aie::store_v((bfloat16 *)out + i, aie::accum<accfloat, 16>(aie::load_v<16>(values + i))
                                                  .to_vector<bfloat16>());
        break;
    case 1: // integers shifted down, to int16 by a saturation mode
        aie::set_saturation(aie::saturation_mode(number >> 8));
        for (int i = 0; i < 64; i += 16)
            aie::store_v((int16_t *)out + i, aie::accum<acc64, 16>(aie::load_v<16>(ints + i))
                                                 .to_vector<int16>(number & 255));
        break;
    case 2: // floats to integers
        for (int i = 0; i < 64; i += 16)
            aie::store_v(ints_out + i, aie::to_fixed<int32>(aie::load_v<16>(values + i), number));
        break;
    case 3: { // floats to bfp16 and as they come back from a product with the unit matrix
        aie::accum<accfloat, 64> all, unit = aie::zeros<accfloat, 64>();
        for (int i = 0; i < 64; i += 16)
            all.insert<16>(i / 16, aie::accum<accfloat, 16>(aie::load_v<16>(values + i)));
        for (int i = 0; i < 8; ++i)
            unit.lanes[9 * i] = 1;
        aie::mmul<8, 8, 8, bfp16ebs8, bfp16ebs8> product;
        product.mul(all.to_vector<bfp16ebs8>(), unit.to_vector<bfp16ebs8>());
        aie::store_unaligned_v(out, product.to_vector<float>());
        aie::block_vector_output_buffer_stream<bfp16ebs8, 64> stream((bfp16ebs8 *)(out + 64));
        stream.push(all.to_vector<bfp16ebs8>());
        break;
    }
    case 4: // coarse intrinsics
        aie::store_v(out, aie::inv(aie::load_v<16>(values)));
        aie::store_v(out + 16, aie::invsqrt(aie::load_v<16>(values)));
        aie::store_v((bfloat16 *)(out + 32), aie::exp2<bfloat16>(aie::load_v<16>(values)));
        aie::store_v((bfloat16 *)(out + 48), aie::tanh<bfloat16>(aie::load_v<16>(values)));
        break;
    case 5: multiply<4, 8, 8, bfloat16, bfloat16, float>(values, out); break;
    case 6: multiply<8, 8, 8, bfloat16, bfloat16, float>(values, out); break;
    case 7: multiply<8, 8, 8, int8, int8, int32>(values, out); break;
    case 8: multiply<4, 8, 8, int16, uint8, int32>(values, out); break;
    case 9: multiply<4, 8, 8, int16, int8, int32>(values, out); break;
    case 10: multiply<4, 4, 8, int16, int16, int32>(values, out); break;
    case 11: // what nobody wrote, or not aligned
        aie::store_v(out, aie::load_v<16>(values + number));
        break;
    case 12: aie::store_v(out, aie::load_v<32>(values)); break;
    case 13: out[number] = 1; break;
    case 14: ints_out[0] = int(aie::get_rounding()); break;
    case 15: ints_out[0] = aie::load_v<16>(ints).get(number); break;
    case 16: // denormals
        aie::store_v(out, aie::mul(aie::load_v<16>((const bfloat16 *)values),
                                   aie::load_v<16>((const bfloat16 *)values))
                              .to_vector<float>());
        break;
    case 17: {
        alignas(64) float room[64];
        room[0] = 1;
        aie::store_v(out, aie::load_v<16>(room + 16));
        break;
    }
    case 18: // moving lanes
        aie::store_v(ints_out, aie::filter_even(aie::concat(aie::load_v<16>(ints),
                                                            aie::load_v<16>(ints + 16)), number));
        aie::store_v(ints_out + 16,
                     aie::interleave_zip(aie::load_v<16>(ints), aie::load_v<16>(ints + 16), number)
                         .first);
        aie::store_v(ints_out + 32, aie::transpose(aie::load_v<16>(ints), 2, 8));
        aie::store_v(ints_out + 48, aie::shuffle_down_rotate(aie::load_v<16>(ints), number));
        break;
    case 19: // the exponential, reciprocal, and its root that kernels share
        aie::store_v(out, float32::exponential(aie::load_v<16>(values)));
        aie::store_v(out + 16, float32::reciprocal(aie::load_v<16>(values)));
        aie::store_v(out + 32, float32::reciprocal_root(aie::load_v<16>(values)));
        aie::store_v(out + 48, float32::sigmoid(aie::load_v<16>(values)));
        break;
    case 20: // lanes shifted down
        for (int i = 0; i < 64; i += 16)
            aie::store_v(ints_out + i, aie::downshift(aie::load_v<16>(ints + i), unsigned(number)));
        break;
    }
}
