// Declarations shared by the files of bindings. Each binding converts its arguments, releases the GIL and
// calls the core; errors are mapped to Python's in errors.cpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <exception>

#include "error.hpp"
#include "gil.hpp"
#include "lane.hpp"

namespace nb = nanobind;

using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64s = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64Rows = nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Returns the Python exception for what the core threw.
nb::object to_python(const foreload::Error& error);
nb::object to_python(const std::exception_ptr& error);

// Takes over what a function of Python's returns; throws its exception if that is null.
nb::object owned(PyObject* object);

// Throws Error(value) if the array `name` has another length.
void check_length(size_t length, size_t expected, const char* name);

// Throws Error(value) if there is no such stage.
foreload::Stage stage_of(uint8_t number);

void bind_errors(nb::module_& module);
void bind_order(nb::module_& module);
void bind_lane(nb::module_& module);
void bind_spans(nb::module_& module);
void bind_loop(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_tensors(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_store(nb::module_& module);
void bind_files(nb::module_& module);
void bind_view(nb::module_& module);
void bind_image(nb::module_& module);
void bind_small(nb::module_& module);
void bind_tar(nb::module_& module);
void bind_members(nb::module_& module);
void bind_text(nb::module_& module);
void bind_pieces(nb::module_& module);
void bind_packing(nb::module_& module);
void bind_twisters(nb::module_& module);
void bind_audit(nb::module_& module);
void bind_references(nb::module_& module);
void bind_writes(nb::module_& module);
