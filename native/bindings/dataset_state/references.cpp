#include <cstddef>

#include "bindings.hpp"

namespace {

bool is_at(const PyObject* object, int64_t address) {
  return reinterpret_cast<intptr_t>(object) == static_cast<intptr_t>(address);
}

// Borrowed; no code of Python's runs.
PyObject* item(const nb::list& list, size_t place) {
  return PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(place));
}

bool holds(const nb::list& list, const int64_t* addresses, size_t size) {
  if (list.size() != size) return false;
  for (size_t place = 0; place < size; ++place) {
    if (!is_at(item(list, place), addresses[place])) return false;
  }
  return true;
}

bool holds(const nb::dict& dict, const int64_t* addresses, size_t size) {
  if (dict.size() != size) return false;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t place = 0;
  for (size_t number = 0; PyDict_Next(dict.ptr(), &place, &key, &value) != 0; ++number) {
    if (!is_at(key, addresses[number]) || !is_at(value, addresses[size + number])) return false;
  }
  return true;
}

bool are_contents(const nb::list& containers, Indices sizes, Indices addresses) {
  check_length(sizes.size(), containers.size(), "sizes");
  size_t begin = 0;
  for (size_t number = 0; number < containers.size(); ++number) {
    const nb::object container = nb::borrow(item(containers, number));
    const nb::ft_object_guard guard(container);
    const size_t size = static_cast<size_t>(sizes.data()[number]);
    const bool is_dict = nb::isinstance<nb::dict>(container);
    const size_t end = begin + (is_dict ? 2 * size : size);
    if (end > addresses.size()) return false;
    const int64_t* const first = addresses.data() + begin;
    if (is_dict ? !holds(nb::cast<nb::dict>(container), first, size)
                : !holds(nb::cast<nb::list>(container), first, size)) {
      return false;
    }
    begin = end;
  }
  return begin == addresses.size();
}

bool are_variables(const nb::list& dicts, const nb::list& names, Indices addresses) {
  check_length(names.size(), dicts.size(), "names");
  check_length(addresses.size(), dicts.size(), "addresses");
  for (size_t number = 0; number < dicts.size(); ++number) {
    PyObject* const value = PyDict_GetItemWithError(item(dicts, number), item(names, number));
    if (value == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (!is_at(value, addresses.data()[number])) return false;
  }
  return true;
}

bool are_attributes(const nb::list& owners, const nb::list& names, Indices addresses) {
  check_length(names.size(), owners.size(), "names");
  check_length(addresses.size(), owners.size(), "addresses");
  for (size_t number = 0; number < owners.size(); ++number) {
    PyObject* const value = PyObject_GetAttr(item(owners, number), item(names, number));
    if (value == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // an interrupt, say
      PyErr_Clear();
      return false;
    }
    const bool is_same = is_at(value, addresses.data()[number]);
    nb::steal(value).reset();
    if (!is_same) return false;
  }
  return true;
}

}  // namespace

// Objects are compared by address, so whoever calls these has to hold those that were there before.
void bind_references(nb::module_& module) {
  module.def(
      "are_contents", &are_contents, nb::arg("containers"), nb::arg("sizes"), nb::arg("addresses"),
      "Whether lists and dicts hold these objects, and no others: of a dict, all keys, then all values.");
  module.def("are_variables", &are_variables, nb::arg("dicts"), nb::arg("names"), nb::arg("addresses"),
             "Whether each dict has this object under the name; 0: it has none.");
  module.def("are_attributes", &are_attributes, nb::arg("owners"), nb::arg("names"), nb::arg("addresses"),
             "Whether the attribute of each owner is this object.");
}
