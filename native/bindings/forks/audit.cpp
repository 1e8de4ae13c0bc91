#include <dlfcn.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "bindings.hpp"

namespace {

using Hook = int (*)(const char* event, PyObject* arguments, void* data);

struct Auditor {
  std::set<std::string, std::less<>> events;
  nb::callable told;
};

int audit(const char* event, PyObject* arguments, void* data) {
  const auto& auditor = *static_cast<const Auditor*>(data);
  if (!auditor.events.contains(std::string_view(event))) return 0;
  try {
    auditor.told(event, nb::handle(arguments));
    return 0;
  } catch (nb::python_error& error) {
    error.restore();
    return -1;
  }
}

void add_auditor(const nb::list& events, nb::callable told) {
  // (It is not declared where extensions keep to the stable interface, but exported all the same.)
  auto* const add = reinterpret_cast<int (*)(Hook, void*)>(dlsym(RTLD_DEFAULT, "PySys_AddAuditHook"));
  if (add == nullptr) throw std::runtime_error("this Python has no PySys_AddAuditHook");
  auto auditor = std::make_unique<Auditor>();
  for (const nb::handle event : events) auditor->events.insert(nb::cast<std::string>(event));
  auditor->told = std::move(told);
  if (add(audit, auditor.get()) < 0) throw nb::python_error();
  auditor.release();  // It lasts as long as the process: a hook cannot be removed.
}

}  // namespace

void bind_audit(nb::module_& module) {
  module.def(
      "add_auditor", &add_auditor, nb::arg("events"), nb::arg("told"),
      "Call a function with the name and the arguments of each of some events that Python audits (PEP 578),\n"
      "from now on. All other events cost next to nothing, unlike with sys.addaudithook().");
}
