#include <memory>
#include <random>

#include "gather.hpp"
#include "path.hpp"

namespace counts {

namespace {

Path path(std::string name, size_t rows, size_t row_bytes, size_t count) {
  return {std::move(name), count, [=] {
            struct Data {
              std::vector<uint8_t> source, out;
              std::vector<int64_t> indices;
            };
            const auto data = std::make_shared<Data>();
            data->source.assign(rows * row_bytes, 1);
            data->out.resize(count * row_bytes);
            std::mt19937 random(1);
            for (size_t i = 0; i < count; ++i) data->indices.push_back(static_cast<int64_t>(random() % rows));
            return [=] {
              const auto all = static_cast<int64_t>(rows);
              foreload::check_indices(data->indices.data(), count, all);
              foreload::gather(data->source.data(), all, row_bytes, data->indices.data(), count,
                               data->out.data());
            };
          }};
}

}  // namespace

std::vector<Path> row_paths() {
  return {path("row of 8 bytes gathered", 1 << 16, 8, 1 << 14),
          path("row of 400 bytes gathered", 1 << 14, 400, 1 << 12),
          path("row of 16 KiB gathered", 1 << 10, 1 << 14, 1 << 8)};
}

}  // namespace counts
