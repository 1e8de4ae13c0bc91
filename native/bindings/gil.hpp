// The interpreter's lock, for threads that may be in native code when the interpreter exits.
//
// From then on, Python ends each thread that asks for the lock by pthread_exit(), which unwinds its stack.
// Neither destructors nor nanobind let that pass, and the process would abort. Here such a thread sleeps
// until the process has ended.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

// Calls what may ask for the lock: any code of Python's.
template <typename Function>
auto sleep_if_exiting(Function function) -> decltype(function()) {
#ifdef __GLIBCXX__
  try {
    return function();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  return function();
#endif
}

class AcquireGil {
 public:
  AcquireGil() : state_(sleep_if_exiting(PyGILState_Ensure)) {}
  ~AcquireGil() { PyGILState_Release(state_); }
  AcquireGil(const AcquireGil&) = delete;
  AcquireGil& operator=(const AcquireGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
    sleep_if_exiting([this] { PyEval_RestoreThread(state_); });
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* const state_;
};
