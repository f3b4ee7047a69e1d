// What a core of a matrix product computes, for Peano's C++ compiler (for aie2-none-unknown-elf), which includes its header of AIE2
// intrinsics by itself. The same text is compiled for the host by a test, with a header that defines these intrinsics in plain C++.
//
// Defined before this text: ROWS, COLS, DEPTH (a core's tile), SHIFT, HALF (rounding of a group's sum), MULTIPLIER_SHIFT, MULTIPLIER_HALF (of the product
// of both multipliers), REGISTER_ROWS, REGISTER_COLS (blocks of sums in registers), ACTIVATION (0 scales only, 1 SiLU · up, 2 GELU by tanh · up). Layouts are drawn in kernels/src/npu/tile.rs; the twin is
// kernels/src/npu/twin.rs.
//
// Sources of the intrinsics: headers of Xilinx/llvm-aie (clang/lib/Headers/aiev2) and AMD's aie_api for the matrix unit's 4×16 · 16×8.

typedef unsigned char Byte;

static constexpr unsigned BLOCK_ROWS = 4, BLOCK_COLS = 8, BLOCK_DEPTH = 16, BLOCK_BYTES = 64, BLOCK_SUMS = 32;
static constexpr unsigned STEPS = DEPTH / BLOCK_DEPTH, ACROSS = COLS / BLOCK_COLS, DOWN = ROWS / BLOCK_ROWS;
static constexpr unsigned MULTIPLIERS_AT = COLS * DEPTH / 2, COLUMN_SCALES_AT = MULTIPLIERS_AT + ACROSS * BLOCK_SUMS;
static constexpr unsigned ROW_MULTIPLIERS_AT = ROWS * DEPTH, ROW_SCALES_AT = ROW_MULTIPLIERS_AT + DOWN / REGISTER_ROWS * BLOCK_SUMS;
static constexpr unsigned OUTPUTS = ACTIVATION ? COLS / 2 : COLS;

// Loads and stores of objects stay between the acquire and the release of their lock.
static inline void fence() { __asm__ volatile("" ::: "memory"); }

static inline void clear(Byte *sums) {
  const v32acc32 zero = ups_to_v32acc32(broadcast_to_v32int16(0), 0);
  for (unsigned block = 0; block < DOWN * ACROSS; block++) *(v32acc32 *)(sums + 4 * BLOCK_SUMS * block) = zero;
}

static inline v32int16 numbers(const Byte *bytes) { return unpack(*(const v32int8 *)bytes, true); }

// Adds the products of two objects to the sums: groups of 8-bit · 4-bit products, rounded to 16 bits, times the product of the column's multiplier and the
// row's, rounded to 16 bits, too. The blocks in registers, one below the other, have the same of rows.
static inline void add_products(const Byte *activations, const Byte *weights, Byte *sums) {
  const v32acc32 half = ups_to_v32acc32(broadcast_to_v32int16(HALF), 0);
  const v32acc32 multiplier_half = ups_to_v32acc32(broadcast_to_v32int16(MULTIPLIER_HALF), 0);
  for (unsigned down = 0; down < DOWN; down += REGISTER_ROWS) {
    const v32int16 of_rows = numbers(activations + ROW_MULTIPLIERS_AT + BLOCK_SUMS * (down / REGISTER_ROWS));
    for (unsigned across = 0; across < ACROSS; across += REGISTER_COLS) {
      v32acc32 group[REGISTER_ROWS][REGISTER_COLS];
      for (unsigned row = 0; row < REGISTER_ROWS; row++)
        for (unsigned col = 0; col < REGISTER_COLS; col++) group[row][col] = half;
      for (unsigned step = 0; step < STEPS; step++) {
        v128int4 codes[REGISTER_COLS];
        for (unsigned col = 0; col < REGISTER_COLS; col++)
          codes[col] = *(const v128int4 *)(weights + BLOCK_BYTES * ((across + col) * STEPS + step));
        for (unsigned row = 0; row < REGISTER_ROWS; row++) {
          const v64int8 values = *(const v64int8 *)(activations + BLOCK_BYTES * ((down + row) * STEPS + step));
          for (unsigned col = 0; col < REGISTER_COLS; col++)
            group[row][col] = mac_4x16_16x8_conf(values, true, codes[col], true, group[row][col], 0, 0, 0, 0);
        }
      }
      for (unsigned col = 0; col < REGISTER_COLS; col++) {
        const v32int16 of_columns = numbers(weights + MULTIPLIERS_AT + BLOCK_SUMS * (across + col));
        const v32int16 multipliers = srs_to_v32int16(mac_elem_32(of_columns, of_rows, multiplier_half), MULTIPLIER_SHIFT);
        for (unsigned row = 0; row < REGISTER_ROWS; row++) {
          v32acc32 *sum = (v32acc32 *)(sums + 4 * BLOCK_SUMS * ((down + row) * ACROSS + across + col));
          *sum = mac_elem_32(srs_to_v32int16(group[row][col], SHIFT), multipliers, *sum);
        }
      }
    }
  }
}

static inline void keep_scales(const Byte *activations, const Byte *weights, Byte *scales) {
  for (unsigned at = 0; at < 4 * ROWS; at += 32) *(v32int8 *)(scales + at) = *(const v32int8 *)(activations + ROW_SCALES_AT + at);
  for (unsigned at = 0; at < 4 * COLS; at += 32)
    *(v32int8 *)(scales + 4 * ROWS + at) = *(const v32int8 *)(weights + COLUMN_SCALES_AT + at);
}

// 2 to the power of a whole number from -126 to 127.
static inline float power_of_two(int exponent) {
  const unsigned bits = (unsigned)(exponent + 127) << 23;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// e to the power of x: 2^n · e^r with |r| up to ln 2 / 2, by the series up to r^7, whose next term is below 2^-27.
static inline float exponential(float x) {
  if (x < -87.0f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float wide = x * 1.44269504f;
  const int n = (int)(wide < 0.0f ? wide - 0.5f : wide + 0.5f);
  const float r = x - (float)n * 0.693145752f - (float)n * 1.42860677e-6f;
  float sum = 1.0f / 5040.0f;
  const float terms[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
  for (unsigned term = 0; term < 7; term++) sum = sum * r + terms[term];
  return sum * power_of_two(n);
}

static inline float activated(float x) {
  // GELU's ½ (1 + tanh(y)) is 1 / (1 + e^-2y), SiLU's factor 1 / (1 + e^-x).
  const float y = ACTIVATION == 1 ? x : 1.59576912f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exponential(-y));
}

// Bits of a bf16, rounded to nearest, ties to even.
static inline unsigned short rounded(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(bits >> 16 | 0x40);
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// Output object `piece`, four rows of the sums.
static inline void finish(const Byte *sums, const Byte *scales, unsigned piece, Byte *output) {
  const int *block = (const int *)(sums + 4 * BLOCK_SUMS * ACROSS * piece);
  const float *row_scales = (const float *)scales + BLOCK_ROWS * piece, *column_scales = (const float *)scales + ROWS;
  unsigned short *out = (unsigned short *)output;
  const auto scaled = [&](unsigned row, unsigned col) {
    const int sum = block[col / BLOCK_COLS * BLOCK_SUMS + row * BLOCK_COLS + col % BLOCK_COLS];
    return (float)sum * column_scales[col] * row_scales[row];
  };
  for (unsigned row = 0; row < BLOCK_ROWS; row++) {
    for (unsigned at = 0; at < OUTPUTS; at++) {
      float value;
      if constexpr (ACTIVATION) {
        const unsigned gate = at / BLOCK_COLS * 2 * BLOCK_COLS + at % BLOCK_COLS;
        value = activated(scaled(row, gate)) * scaled(row, gate + BLOCK_COLS);
      } else {
        value = scaled(row, at);
      }
      out[row * OUTPUTS + at] = rounded(value);
    }
  }
}
