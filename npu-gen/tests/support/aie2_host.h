// The intrinsics of npu-gen/src/peano/product.h for the host: what AIE2 computes, by loops. A core's memory is an array, its locks are functions of
// core_host.cc.

#pragma once

#include <cstdint>
#include <cstdlib>

alignas(64) inline unsigned char core_memory[64 << 10];
#define MEMORY core_memory
#define main core_main

struct v32acc32 { int32_t of[32]; };
struct v32int16 { int16_t of[32]; };
struct v32int8 { int8_t of[32]; };
struct v64int8 { int8_t of[64]; };
struct v128int4 { uint8_t pairs[64]; };

// What a core's registers hold before its program sets them is not known: neither of these is right.
inline unsigned rounding = 99;
inline bool saturates = true;
inline void set_rnd(unsigned mode) { rounding = mode; }
inline void clr_sat() { saturates = false; }

void acquire_greater_equal(unsigned lock, unsigned count);
void release(unsigned lock, int count);

inline v32int16 broadcast_to_v32int16(short value) {
  v32int16 all;
  for (auto &one : all.of) one = value;
  return all;
}

inline v32acc32 ups_to_v32acc32(v32int16 values, int shift) {
  v32acc32 sums;
  for (int i = 0; i < 32; i++) sums.of[i] = int32_t(values.of[i]) * (1 << shift);
  return sums;
}

inline v32int16 srs_to_v32int16(v32acc32 sums, int shift) {
  // 0 rounds down.
  if (rounding != 0 || saturates) abort();
  v32int16 values;
  for (int i = 0; i < 32; i++) values.of[i] = int16_t(sums.of[i] >> shift);
  return values;
}

inline v32int16 unpack(v32int8 values, bool is_signed) {
  if (!is_signed) abort();
  v32int16 wide;
  for (int i = 0; i < 32; i++) wide.of[i] = values.of[i];
  return wide;
}

inline v32acc32 mac_elem_32(v32int16 a, v32int16 b, v32acc32 sums) {
  for (int i = 0; i < 32; i++) sums.of[i] = int32_t(uint32_t(sums.of[i]) + uint32_t(int32_t(a.of[i]) * b.of[i]));
  return sums;
}

// 4×16 · 16×8, both by rows; of two codes in a byte, the first is the lower.
inline v32acc32 mac_4x16_16x8_conf(v64int8 a, bool a_signed, v128int4 b, bool b_signed, v32acc32 sums, int zero, int shift16, int sub_mul,
                                   int sub_sums) {
  if (!a_signed || !b_signed || zero || shift16 || sub_mul || sub_sums) abort();
  for (int row = 0; row < 4; row++)
    for (int col = 0; col < 8; col++)
      for (int k = 0; k < 16; k++) {
        const int at = 8 * k + col, nibble = b.pairs[at / 2] >> (at % 2 * 4) & 15;
        sums.of[8 * row + col] += a.of[16 * row + k] * (nibble < 8 ? nibble : nibble - 16);
      }
  return sums;
}
