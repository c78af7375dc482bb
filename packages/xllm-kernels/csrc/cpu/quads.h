// Products of 8-bit integers, four to a 32-bit lane, for the instruction set that this file is compiled for. As in
// vector.h, lanes are outputs: a vector of quads holds 4 inputs for each of Vec::width outputs.
//
// Each csrc/cpu/quads/*.h provides
//   Quads, load_quads(p), low_nibbles(a), high_nibbles(a) (each byte's half, as a byte), broadcast_quad(p): 4 bytes to
//   every lane;
//   NibbleSums: zero_nibble_sums(), add_products(sums, weights in [0, 15], inputs in [-127, 127]) for at most 8 quads,
//   to_float(sums);
//   ByteSums: zero_byte_sums(), prepare_bytes(quads) -> ByteWeights, add_products(sums, byte weights, inputs),
//   to_float(sums, count) with count the sum of all inputs that were multiplied.
// The results are exact integers.
#pragma once

#include <stdint.h>

#include "vector.h"

#if defined(__AVX512F__)
#include "quads/avx512.h"
#elif defined(__AVX2__)
#include "quads/avx2.h"
#elif defined(__aarch64__)
#include "quads/neon.h"
#else
#include "quads/portable.h"
#endif
