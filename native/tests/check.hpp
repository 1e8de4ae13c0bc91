// A failed check says where and ends the test.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

// The error of kind `kind` that the expression must throw.
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
