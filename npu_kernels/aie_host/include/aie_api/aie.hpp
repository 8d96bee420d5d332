// The part of aie_api that our kernels use, for a host compiler: AIE2P's arithmetic, functionally.
//
// What real cores leave to luck traps here: misaligned loads and stores, reads of memory that nobody
// wrote, lanes out of range. What AIE2P lacks does not compile (products of floats). Coarse
// intrinsics are 1 % off, so that a kernel that trusts them fails its test. Conversions round as
// the mode says, down unless a kernel sets it. Products of bfloat16 are exact, sums are float32's;
// denormals are zero. The order in which silicon adds within an mmul is not known to us: a tree.
#pragma once

#include "aie_host/scalar.hpp"

#include "aie_host/vector.hpp"

#include "aie_host/accum.hpp"

#include "aie_host/arithmetic.hpp"

#include "aie_host/bfp16.hpp"

#include "aie_host/mmul.hpp"

#define AIE_PREPARE_FOR_PIPELINING
#define AIE_LOOP_RANGE(...)
#define AIE_LOOP_MIN_ITERATION_COUNT(...)
#define AIE_LOOP_MAX_ITERATION_COUNT(...)
#define AIE_LOOP_UNROLL(...)
#define AIE_LOOP_UNROLL_FULL
#define chess_prepare_for_pipelining
#define chess_loop_range(...)
#define chess_flatten_loop
#define chess_storage(...)

inline void event0() {}
inline void event1() {}
