// Native paths whose instructions are counted. Each makes its data itself, always the same, and works on all
// of it once per pass; what a second pass adds is the cost of its items, without that of starting.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace counts {

using Pass = std::function<void()>;

struct Path {
  std::string name;
  size_t items;                   // of a pass
  std::function<Pass()> prepare;  // in an empty current folder
};

std::vector<Path> image_paths();
std::vector<Path> small_image_paths();
std::vector<Path> row_paths();
std::vector<Path> order_paths();
std::vector<Path> plan_paths();
std::vector<Path> cache_paths();
std::vector<Path> file_paths();
std::vector<Path> tar_paths();
std::vector<Path> text_paths();

}  // namespace counts
