// The failures of a batch, which several workers make.
#pragma once

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings.hpp"

class Failures {
 public:
  void add(size_t position, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    all_.emplace_back(position, std::move(error));
  }
  // With the GIL: errors may hold Python objects.
  void clear() { all_.clear(); }

  // Returns (position, exception), in order, and forgets them: the traceback of one that is raised leads back
  // to the batch, and Python's collector does not see this part of the circle. If a sample failed twice, the
  // last failure counts: that its shard has changed is why it could not be read.
  std::vector<std::pair<size_t, nb::object>> take() {
    const std::lock_guard lock(mutex_);
    const auto position = [](const auto& failure) { return failure.first; };
    std::ranges::reverse(all_);
    std::ranges::stable_sort(all_, {}, position);
    const auto again = std::ranges::unique(all_, {}, position);
    all_.erase(again.begin(), again.end());
    std::vector<std::pair<size_t, nb::object>> failures;
    for (const auto& [where, error] : all_) failures.emplace_back(where, to_python(error));
    all_.clear();
    return failures;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<size_t, std::exception_ptr>> all_;
};
