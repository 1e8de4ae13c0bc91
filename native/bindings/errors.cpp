#include <new>
#include <string>

#include "bindings.hpp"

using foreload::Error;
using foreload::ErrorKind;

nb::object to_python(const Error& error) {
  const nb::module_ builtins = nb::module_::import_("builtins");
  // File names are bytes; Python's file system encoding keeps those that are not UTF-8.
  const nb::object file = nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(error.file.data(), static_cast<Py_ssize_t>(error.file.size())));
  switch (error.kind) {
    case ErrorKind::index:
      return builtins.attr("IndexError")(error.what());
    case ErrorKind::system:
      return error.file.empty() ? builtins.attr("OSError")(error.code, error.what())
                                : builtins.attr("OSError")(error.code, error.what(), file);
    case ErrorKind::decode: {
      const nb::object message = error.file.empty() ? nb::object(nb::str(error.what()))
                                                    : file + nb::str(": ") + nb::str(error.what());
      return nb::module_::import_("foreload.errors").attr("DecodeError")(message);
    }
    default:
      return builtins.attr("ValueError")(error.what());
  }
}

nb::object to_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const nb::python_error& python) {
    return nb::borrow(python.value());
  } catch (const Error& own) {
    return to_python(own);
  } catch (const std::bad_alloc&) {
    return nb::module_::import_("builtins").attr("MemoryError")("no memory left for a decoded image");
  } catch (const std::exception& other) {
    return nb::module_::import_("builtins").attr("RuntimeError")(other.what());
  }
}

nb::object owned(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

void check_length(size_t length, size_t expected, const char* name) {
  if (length == expected) return;
  throw Error(ErrorKind::value, std::string(name) + " must have " + std::to_string(expected) +
                                    " entries, got " + std::to_string(length));
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& own) {
      const nb::object exception = to_python(own);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
  });
}
