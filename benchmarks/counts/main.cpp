// Runs one native path, for a tool that counts what it does (check.py).
//   counts              prints, as JSON, how this program was made, what it runs on, and the items of each
//   path counts PATH PASSES  works on the items of a path so many times
#include <gnu/libc-version.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "jpeg.hpp"
#include "path.hpp"
#include "rows.hpp"

namespace {

#if defined(__clang__)
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

std::vector<counts::Path> all_paths() {
  std::vector<counts::Path> all;
  for (const auto paths :
       {counts::image_paths, counts::small_image_paths, counts::row_paths, counts::order_paths,
        counts::plan_paths, counts::cache_paths, counts::file_paths, counts::tar_paths, counts::text_paths}) {
    for (auto& path : paths()) all.push_back(std::move(path));
  }
  return all;
}

void describe() {
  std::printf("{\"compiler\": \"%s\", \"flags\": \"%s\", \"libc\": \"glibc %s\", \"jpeg\": \"%s\", ",
              kCompiler, FORELOAD_FLAGS, gnu_get_libc_version(), foreload::jpeg_library().c_str());
  std::printf("\"kernels\": \"%s\", \"paths\": {", foreload::row_kernels().isa);
  const char* separator = "";
  for (const auto& path : all_paths()) {
    std::printf("%s\"%s\": %zu", separator, path.name.c_str(), path.items);
    separator = ", ";
  }
  std::printf("}}\n");
}

int run(std::string_view name, int passes) {
  for (const auto& path : all_paths()) {
    if (path.name != name) continue;
    const counts::Pass pass = path.prepare();
    for (int i = 0; i < passes; ++i) pass();
    return 0;
  }
  std::fprintf(stderr, "there is no path %.*s\n", static_cast<int>(name.size()), name.data());
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    describe();
    return 0;
  }
  if (count != 3) {
    std::fprintf(stderr, "usage: counts [PATH PASSES]\n");
    return 2;
  }
  try {
    return run(arguments[1], std::atoi(arguments[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[1], error.what());
    return 1;
  }
}
