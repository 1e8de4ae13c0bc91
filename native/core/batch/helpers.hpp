// Threads that help the calling one with short work, such as copying the rows of a batch.
//
// To start a thread, or to wake one up, takes longer than such work. So nobody waits for a helper that has
// not come: parts are taken one after the other, by the calling thread too, and a helper that finds none
// looks for more for some microseconds before it sleeps.
#pragma once

#include <cstddef>
#include <functional>

namespace foreload {

// Calls part(number) for each number below `parts`, from the calling thread and from up to `helpers` others,
// and returns when all calls have returned. `part` must not throw. Of threads that call this at once, one
// gets help. After a fork, the child has helpers of its own.
void share_out(size_t parts, size_t helpers, const std::function<void(size_t)>& part);

}  // namespace foreload
