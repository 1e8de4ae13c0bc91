// Compiled once per instruction set, with FORELOAD_ISA naming it. Nothing here may come from a header that
// defines inline functions: the linker could keep the copy that was compiled for a newer processor.
#include "rows.hpp"

#include "streaming.hpp"

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

inline uint16_t load_pair(const uint8_t* from) {
  uint16_t pair;
  __builtin_memcpy(&pair, from, sizeof(pair));
  return pair;
}

inline uint16_t weigh(uint16_t high, uint16_t weight) {
  return static_cast<uint16_t>((uint32_t{high} * weight) >> 16);
}

template <int taps>
void blend_few(const uint8_t* __restrict rows, size_t stride, const uint16_t* weights, size_t count,
               uint8_t* __restrict out) {
  uint16_t weight[taps];
  for (int k = 0; k < taps; ++k) weight[k] = weights[k];
  // Two bytes at a time, each weighed where it lies in 16 bits: widening bytes, and packing them, takes
  // longer.
  for (size_t i = 0; i < count / 2; ++i) {
    uint16_t low = rounding(taps), high = rounding(taps);
#pragma GCC unroll 16
    for (int k = 0; k < taps; ++k) {
      const uint16_t pair = load_pair(rows + static_cast<size_t>(k) * stride + 2 * i);
      low = static_cast<uint16_t>(low + weigh(static_cast<uint16_t>(pair << 8), weight[k]));
      high = static_cast<uint16_t>(high + weigh(static_cast<uint16_t>(pair & 0xff00), weight[k]));
    }
    const auto both = static_cast<uint16_t>((low >> 8) | (high & 0xff00));
    __builtin_memcpy(out + 2 * i, &both, sizeof(both));
  }
  if (count % 2 != 0) {
    uint16_t sum = rounding(taps);
    for (int k = 0; k < taps; ++k) {
      const uint8_t last = rows[static_cast<size_t>(k) * stride + count - 1];
      sum = static_cast<uint16_t>(sum + weigh(static_cast<uint16_t>(last << 8), weight[k]));
    }
    out[count - 1] = static_cast<uint8_t>(sum >> 8);
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

// Transposes 16 x 16 bytes in four rounds of interleaving row i with row i + 8, the perfect shuffle; and as
// many such blocks side by side as registers of the instruction set are wide, each in a lane of its own.
constexpr size_t kBlock = 16;
using Lane = uint8_t __attribute__((vector_size(kBlock)));
#if defined(__AVX2__)
using Lanes = uint8_t __attribute__((vector_size(2 * kBlock)));
#else
using Lanes = Lane;
#endif

inline void interleave(const Lane (&in)[kBlock], Lane (&out)[kBlock]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[2 * i] =
        __builtin_shufflevector(in[i], in[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    out[2 * i + 1] = __builtin_shufflevector(in[i], in[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                             14, 30, 15, 31);
  }
}

#if defined(__AVX2__)
inline void interleave(const Lanes (&in)[kBlock], Lanes (&out)[kBlock]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kBlock / 2; ++i) {
    out[2 * i] = __builtin_shufflevector(in[i], in[i + 8], 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7,
                                         39, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55);
    out[2 * i + 1] =
        __builtin_shufflevector(in[i], in[i + 8], 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15,
                                47, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  }
}
#endif

inline void load(const uint8_t* from, size_t, Lane& row) {
  __builtin_memcpy(&row, from, sizeof(row));
}

#if defined(__AVX2__)
inline void load(const uint8_t* from, size_t stride, Lanes& row) {
  Lane low, high;
  load(from, stride, low);
  load(from + kBlock * stride, stride, high);
  row = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}
#endif

template <typename Bytes>
inline void transpose_block(const uint8_t* in, size_t stride, uint8_t* out, size_t out_stride) {
  Bytes rows[kBlock], other[kBlock];
#pragma GCC unroll 16
  for (size_t i = 0; i < kBlock; ++i) load(in + i * stride, stride, rows[i]);
  interleave(rows, other);
  interleave(other, rows);
  interleave(rows, other);
  interleave(other, rows);
#pragma GCC unroll 16
  for (size_t i = 0; i < kBlock; ++i) __builtin_memcpy(out + i * out_stride, &rows[i], sizeof(Bytes));
}

// Blocks cover the whole; the last ones overlap those before. A side may be shorter than any block.
void transpose(const uint8_t* in, size_t stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  if (rows < kBlock || columns < kBlock) {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) out[c * out_stride + r] = in[r * stride + c];
    }
    return;
  }
  const bool is_tall = rows >= sizeof(Lanes);
  const size_t height = is_tall ? sizeof(Lanes) : kBlock;
  for (size_t begin = 0; begin < rows; begin += height) {
    const size_t r = begin + height <= rows ? begin : rows - height;
    for (size_t start = 0; start < columns; start += kBlock) {
      const size_t c = start + kBlock <= columns ? start : columns - kBlock;
      const uint8_t* const from = in + r * stride + c;
      uint8_t* const to = out + c * out_stride + r;
      is_tall ? transpose_block<Lanes>(from, stride, to, out_stride)
              : transpose_block<Lane>(from, stride, to, out_stride);
    }
  }
}

void normalise(const uint8_t* __restrict in, size_t count, const float* __restrict scale,
               const float* __restrict bias, float* __restrict out) {
  const bool streams = count * sizeof(float) >= kStreamedBytes;
  alignas(64) float part[kPeriod];
  for (size_t start = 0; start < count; start += kPeriod) {
    const size_t size = count - start < kPeriod ? count - start : kPeriod;
    float* __restrict const to = streams ? part : out + start;
    for (size_t i = 0; i < size; ++i) to[i] = static_cast<float>(in[start + i]) * scale[i] + bias[i];
    if (streams) stream(part, size, out + start);
  }
  if (streams) end_streaming();
}

}  // namespace

extern const RowKernels FORELOAD_NAME(FORELOAD_ISA);
const RowKernels FORELOAD_NAME(FORELOAD_ISA) = {FORELOAD_TEXT(FORELOAD_ISA), blend, transpose, normalise};

}  // namespace foreload
