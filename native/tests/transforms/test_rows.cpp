// Every instruction set that this processor has, against a few lines without one.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "rows.hpp"

using foreload::RowKernels;

namespace {

std::mt19937 generator(3);

std::vector<uint8_t> noise(size_t size) {
  std::vector<uint8_t> out(size);
  for (auto& value : out)
    value = static_cast<uint8_t>(generator() % 3 == 0 ? generator() % 2 * 255 : generator());
  return out;
}

void check_blend(const RowKernels& kernels, int taps, size_t count) {
  const size_t stride = count + generator() % 70;
  const auto rows = noise(stride * static_cast<size_t>(taps));
  std::vector<uint16_t> weights(static_cast<size_t>(taps));
  long left = 65536;
  for (int k = 0; k < taps; ++k) {
    const long weight =
        k + 1 == taps ? left : std::min<long>(left, 2 * 65536 / taps * (generator() % 100) / 100);
    weights[static_cast<size_t>(k)] = static_cast<uint16_t>(std::min(weight, 65535L));
    left -= weight;
  }
  std::vector<uint8_t> out(count + 1, 77);
  kernels.blend(rows.data(), stride, weights.data(), taps, count, out.data());
  CHECK(out[count] == 77);
  for (size_t i = 0; i < count; ++i) {
    double exact = 0;
    for (int k = 0; k < taps; ++k) {
      exact += rows[static_cast<size_t>(k) * stride + i] * (weights[static_cast<size_t>(k)] / 65536.0);
    }
    CHECK(std::abs(out[i] - exact) <= 0.5 + (taps + 2) / 512.0);
  }
}

void check_transpose(const RowKernels& kernels, size_t rows, size_t columns) {
  const size_t stride = columns + generator() % 5, out_stride = rows + generator() % 5;
  const auto in = noise(rows * stride);
  std::vector<uint8_t> out(columns * out_stride, 9);
  kernels.transpose(in.data(), stride, rows, columns, out.data(), out_stride);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) CHECK(out[c * out_stride + r] == in[r * stride + c]);
  }
}

// `offset` floats after a multiple of 64 bytes.
void check_normalise(const RowKernels& kernels, size_t count, size_t offset) {
  const auto in = noise(count);
  std::vector<float> scale(foreload::kPeriod), bias(foreload::kPeriod), memory(count + offset + 17, 77);
  for (size_t i = 0; i < foreload::kPeriod; ++i) {
    scale[i] = 0.01F * static_cast<float>(i + 1);
    bias[i] = -static_cast<float>(i);
  }
  float* out = memory.data();
  while (reinterpret_cast<uintptr_t>(out) % 64 != 0) ++out;
  out += offset;
  kernels.normalise(in.data(), count, scale.data(), bias.data(), out);
  for (size_t i = 0; i < count; ++i) {
    const size_t k = i % foreload::kPeriod;
    const volatile float product = static_cast<float>(in[i]) * scale[k];  // rounded before the sum
    CHECK(out[i] == product + bias[k]);
  }
  for (const float* rest = out + count; rest != memory.data() + memory.size(); ++rest) CHECK(*rest == 77);
  for (const float* before = memory.data(); before != out; ++before) CHECK(*before == 77);
}

}  // namespace

int main() {
  const RowKernels* available[3];
  const size_t variants = foreload::available_row_kernels(available);
  for (size_t i = 0; i < variants; ++i) {
    const RowKernels* kernels = available[i];
    for (int taps : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 100, 255, 300}) {
      for (size_t count : {1, 3, 15, 16, 17, 64, 100, 511, 513, 1030}) check_blend(*kernels, taps, count);
    }
    for (size_t count : {1, 3, 15, 16, 17, 100, 513, 1600, 32767, 32768, 50001}) {
      for (size_t offset : {0, 1, 8, 15}) check_normalise(*kernels, count, offset);
    }
    for (size_t rows : {1, 2, 15, 16, 17, 31, 33, 50}) {
      for (size_t columns : {1, 5, 16, 18, 48, 49}) check_transpose(*kernels, rows, columns);
    }
    std::printf("%s\n", kernels->isa);
  }
  CHECK(&foreload::row_kernels() == available[variants - 1]);
}
