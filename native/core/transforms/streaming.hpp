// Writing floats past the caches: what is written whole need not be read first, nor push out what is needed.
// For files that are compiled once per instruction set: nothing here is seen by the linker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foreload {

namespace {

// So much at once is a large image: a batch of them is larger than the caches of the core that makes it.
constexpr size_t kStreamedBytes = 128 << 10;

#if defined(__AVX512F__)
using Written = float __attribute__((vector_size(64)));
#elif defined(__AVX__)
using Written = float __attribute__((vector_size(32)));
#else
using Written = float __attribute__((vector_size(16)));
#endif

inline void write_past(Written value, float* to) {
#if defined(__clang__)
  __builtin_nontemporal_store(value, reinterpret_cast<Written*>(to));
#elif defined(__AVX512F__)
  __builtin_ia32_movntps512(to, value);
#elif defined(__AVX__)
  __builtin_ia32_movntps256(to, value);
#elif defined(__SSE__)
  __builtin_ia32_movntps(to, value);
#else
  __builtin_memcpy(to, &value, sizeof(value));
#endif
}

// Copies floats; other threads see them after end_streaming().
inline void stream(const float* from, size_t count, float* to) {
  size_t i = 0;
  while (i < count && reinterpret_cast<uintptr_t>(to + i) % sizeof(Written) != 0) {
    to[i] = from[i];
    ++i;
  }
#pragma GCC unroll 4
  for (; i + sizeof(Written) / sizeof(float) <= count; i += sizeof(Written) / sizeof(float)) {
    Written value;
    __builtin_memcpy(&value, from + i, sizeof(value));
    write_past(value, to + i);
  }
  for (; i < count; ++i) to[i] = from[i];
}

inline void end_streaming() {
#if defined(__SSE__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace

}  // namespace foreload
