// What one token brings to a KV head, float32: the queries of four heads, its key, its value, [width]
// each; then of its position cos and sin, [rotary] each: cos twice, sin once with its sign turned.
#pragma once

#include "rotary.hpp"
