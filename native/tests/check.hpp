// Checks that print where they failed, and end the test.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

// Checks that an expression throws an Error of this kind.
#define CHECK_THROWS(expression, expected)                \
  do {                                                    \
    bool thrown = false;                                  \
    try {                                                 \
      (void)(expression);                                 \
    } catch (const foreload::Error& error) {              \
      thrown = true;                                      \
      CHECK(error.kind == foreload::ErrorKind::expected); \
    }                                                     \
    CHECK(thrown);                                        \
  } while (false)

// How often to do what a single thread does: less often under TSan, which takes long and finds nothing there.
constexpr size_t rounds_alone(size_t rounds) {
#ifdef __SANITIZE_THREAD__
  return (rounds + 9) / 10;
#else
  return rounds;
#endif
}
