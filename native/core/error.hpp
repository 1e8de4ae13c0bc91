// The one exception type of the core. Bindings map its kind to a Python exception.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace foreload {

enum class ErrorKind {
  value,   // an argument makes no sense
  index,   // an index lies outside its source
  system,  // the operating system refused; `code` is errno, `file` the path
  decode,  // the bytes are not the image that they claim to be; `file` the path
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string file = {}, int code = 0)
      : std::runtime_error(message), kind(kind), file(std::move(file)), code(code) {}

  ErrorKind kind;
  std::string file;
  int code;
};

}  // namespace foreload
