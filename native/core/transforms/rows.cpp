// Compiled once per instruction set, with FORELOAD_ISA naming it. Nothing here may come from a header that
// defines inline functions: the linker could keep the copy that was compiled for a newer processor.
#include "rows.hpp"

#define FORELOAD_NAME2(isa) row_kernels_##isa
#define FORELOAD_NAME(isa) FORELOAD_NAME2(isa)
#define FORELOAD_TEXT2(isa) #isa
#define FORELOAD_TEXT(isa) FORELOAD_TEXT2(isa)

namespace foreload {

namespace {

// Each product is truncated to 1/256, so half a unit per tap is lost on average, which is added back with the
// rounding.
constexpr uint16_t rounding(int taps) {
  return static_cast<uint16_t>(128 + (taps < 254 ? taps : 254) / 2);
}

inline uint16_t weigh(uint8_t value, uint16_t weight) {
  const auto high = static_cast<uint16_t>(value << 8);
  return static_cast<uint16_t>((uint32_t{high} * weight) >> 16);
}

template <int taps>
void blend_few(const uint8_t* __restrict rows, size_t stride, const uint16_t* weights, size_t count,
               uint8_t* __restrict out) {
  uint16_t weight[taps];
  for (int k = 0; k < taps; ++k) weight[k] = weights[k];
  for (size_t i = 0; i < count; ++i) {
    uint16_t sum = rounding(taps);
#pragma GCC unroll 16
    for (int k = 0; k < taps; ++k) {
      sum = static_cast<uint16_t>(sum + weigh(rows[static_cast<size_t>(k) * stride + i], weight[k]));
    }
    out[i] = static_cast<uint8_t>(sum >> 8);
  }
}

// Sums of many truncated products would drift, and large reductions are rare: these are summed exactly.
void blend_many(const uint8_t* __restrict rows, size_t stride, const uint16_t* weights, int taps,
                size_t count, uint8_t* __restrict out) {
  constexpr size_t kTile = 512;
  uint32_t sum[kTile];
  for (size_t start = 0; start < count; start += kTile) {
    const size_t width = count - start < kTile ? count - start : kTile;
    for (size_t i = 0; i < width; ++i) sum[i] = 32768;
    int k = 0;
    for (; k + 4 <= taps; k += 4) {
      const uint8_t* row = rows + static_cast<size_t>(k) * stride + start;
      const uint32_t w0 = weights[k], w1 = weights[k + 1], w2 = weights[k + 2], w3 = weights[k + 3];
      for (size_t i = 0; i < width; ++i) {
        sum[i] += row[i] * w0 + row[stride + i] * w1 + row[2 * stride + i] * w2 + row[3 * stride + i] * w3;
      }
    }
    for (; k < taps; ++k) {
      const uint8_t* row = rows + static_cast<size_t>(k) * stride + start;
      const uint32_t weight = weights[k];
      for (size_t i = 0; i < width; ++i) sum[i] += row[i] * weight;
    }
    for (size_t i = 0; i < width; ++i) out[start + i] = static_cast<uint8_t>(sum[i] >> 16);
  }
}

void blend(const uint8_t* rows, size_t stride, const uint16_t* weights, int taps, size_t count,
           uint8_t* out) {
  switch (taps) {
    case 1:
      return blend_few<1>(rows, stride, weights, count, out);
    case 2:
      return blend_few<2>(rows, stride, weights, count, out);
    case 3:
      return blend_few<3>(rows, stride, weights, count, out);
    case 4:
      return blend_few<4>(rows, stride, weights, count, out);
    case 5:
      return blend_few<5>(rows, stride, weights, count, out);
    case 6:
      return blend_few<6>(rows, stride, weights, count, out);
    default:
      return blend_many(rows, stride, weights, taps, count, out);
  }
}

// Transposes 16 x 16 bytes in four rounds of interleaving row i with row i + 8, the perfect shuffle.
using Bytes = uint8_t __attribute__((vector_size(16)));
constexpr size_t kBlock = 16;

inline Bytes load(const uint8_t* from) {
  Bytes bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

inline void interleave(const Bytes (&in)[kBlock], Bytes (&out)[kBlock]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[2 * i] =
        __builtin_shufflevector(in[i], in[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                             14, 30, 15, 31);
  }
}

inline void turn(const uint8_t* in, size_t stride, Bytes (&out)[kBlock]) {
  Bytes other[kBlock];
#pragma GCC unroll 16
  for (size_t i = 0; i < kBlock; ++i) out[i] = load(in + i * stride);
  interleave(out, other);
  interleave(other, out);
  interleave(out, other);
  interleave(other, out);
}

// Calls block(r, c) for 16 x 16 blocks that cover the whole; the last ones overlap those before. If a side is
// shorter than a block, calls single(r, c) for every element instead.
template <typename Block, typename Single>
inline void for_blocks(size_t rows, size_t columns, Block block, Single single) {
  if (rows < kBlock || columns < kBlock) {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) single(r, c);
    }
    return;
  }
  for (size_t r = 0; r < rows; r += kBlock) {
    const size_t row = r + kBlock <= rows ? r : rows - kBlock;
    for (size_t c = 0; c < columns; c += kBlock) {
      block(row, c + kBlock <= columns ? c : columns - kBlock);
    }
  }
}

void transpose(const uint8_t* in, size_t stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  for_blocks(
      rows, columns,
      [&](size_t r, size_t c) {
        Bytes turned[kBlock];
        turn(in + r * stride + c, stride, turned);
#pragma GCC unroll 16
        for (size_t i = 0; i < kBlock; ++i) {
          __builtin_memcpy(out + (c + i) * out_stride + r, &turned[i], sizeof(Bytes));
        }
      },
      [&](size_t r, size_t c) { out[c * out_stride + r] = in[r * stride + c]; });
}

void normalise(const uint8_t* __restrict in, size_t count, const float* __restrict scale,
               const float* __restrict bias, float* __restrict out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]) * scale[i] + bias[i];
}

}  // namespace

extern const RowKernels FORELOAD_NAME(FORELOAD_ISA);
const RowKernels FORELOAD_NAME(FORELOAD_ISA) = {FORELOAD_TEXT(FORELOAD_ISA), blend, transpose, normalise};

}  // namespace foreload
