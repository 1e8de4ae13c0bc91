#include <algorithm>
#include <cstdint>
#include <vector>

#include "bindings.hpp"

namespace {

// The table of functions by which a library's tensors can be looked at, as DLPack 1.2 and later define it
// (DLPackExchangeAPI in dlpack.h). Only the ones that are called here have their types.
struct ExchangeFunctions {
  struct {
    uint32_t major, minor;
  } version;
  const void* previous;
  void (*allocate)();
  void (*export_managed)();
  void (*import_managed)();
  int (*look)(void* tensor, nb::dlpack::dltensor* view);
  void (*current_stream)();
};

constexpr uint32_t kMajorVersion = 1;

// Memory, and how it is read.
struct View {
  void* data;
  nb::dlpack::device device;
  nb::dlpack::dtype dtype;
  std::vector<int64_t> shape, strides;
};

bool is_of(const nb::dlpack::dltensor& tensor, const View& view) {
  return tensor.data == view.data && tensor.byte_offset == 0 && tensor.dtype == view.dtype &&
         tensor.device.device_type == view.device.device_type &&
         tensor.device.device_id == view.device.device_id &&
         std::equal(tensor.shape, tensor.shape + tensor.ndim, view.shape.begin(), view.shape.end()) &&
         std::equal(tensor.strides, tensor.strides + tensor.ndim, view.strides.begin(), view.strides.end());
}

// The views of some tensors, which the caller keeps.
class TensorViews {
 public:
  TensorViews(const nb::object& functions, nb::type_object kind, const nb::tuple& tensors)
      : kind_(std::move(kind)), requires_grad_(nb::str("requires_grad")) {
    const void* table = PyCapsule_GetPointer(functions.ptr(), "dlpack_exchange_api");
    if (table == nullptr) throw nb::python_error();
    functions_ = static_cast<const ExchangeFunctions*>(table);
    is_known_ = functions_->version.major == kMajorVersion && functions_->look != nullptr;
    for (size_t place = 0; is_known_ && place < tensors.size(); ++place) {
      nb::dlpack::dltensor seen;
      const nb::object tensor = tensors[place];
      is_known_ = look(tensor.ptr(), seen);
      if (!is_known_) break;
      views_.push_back({seen.data,
                        seen.device,
                        seen.dtype,
                        {seen.shape, seen.shape + seen.ndim},
                        {seen.strides, seen.strides + seen.ndim}});
    }
  }

  bool are_of(const nb::object& tensors) const {
    if (!is_known_ || !nb::isinstance<nb::tuple>(tensors)) return false;
    if (static_cast<size_t>(PyTuple_Size(tensors.ptr())) != views_.size()) return false;
    for (size_t place = 0; place < views_.size(); ++place) {
      PyObject* const tensor = PyTuple_GetItem(tensors.ptr(), static_cast<Py_ssize_t>(place));
      nb::dlpack::dltensor seen;
      if (!look(tensor, seen) || !is_of(seen, views_[place]) || requires_grad(tensor)) return false;
    }
    return true;
  }

 private:
  // What is no tensor of the class itself is not known, nor is one that the library cannot show.
  bool look(PyObject* tensor, nb::dlpack::dltensor& view) const {
    if (!nb::handle(tensor).type().is(kind_)) return false;
    if (functions_->look(tensor, &view) == 0) return true;
    PyErr_Clear();
    return false;
  }

  bool requires_grad(PyObject* tensor) const {
    PyObject* const value = PyObject_GetAttr(tensor, requires_grad_.ptr());
    if (value == nullptr) throw nb::python_error();
    const nb::object held = nb::steal(value);
    return !held.is(nb::bool_(false));
  }

  nb::type_object kind_;
  nb::str requires_grad_;
  const ExchangeFunctions* functions_ = nullptr;
  bool is_known_ = false;
  std::vector<View> views_;
};

}  // namespace

void bind_tensors(nb::module_& module) {
  nb::class_<TensorViews>(module, "TensorViews",
                          "The memory of tensors of this class, and how it is read: seen by the functions of "
                          "a capsule, __dlpack_c_exchange_api__.")
      .def(nb::init<const nb::object&, nb::type_object, const nb::tuple&>(), nb::arg("functions"),
           nb::arg("kind"), nb::arg("tensors"))
      .def("are_of", &TensorViews::are_of, nb::arg("tensors"),
           "Whether this is a tuple of tensors of the class with the same views, none of which requires a "
           "gradient; False too if that cannot be seen.");
}
