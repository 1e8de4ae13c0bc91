// Threads that help the calling one with short work, such as copying the rows of a batch.
//
// To start a thread, or to wake one up, takes longer than such work does. So parts are taken one after the
// other, by the calling thread too; a helper that finds none looks for more for some microseconds before it
// sleeps, and helpers that sleep are left to it unless work comes that often, or is long.
#pragma once

#include <cstddef>

namespace foreload {

// Calls part(context, number) for each number below `parts`, from the calling thread and from up to `helpers`
// others, of which there are seven at most, and returns when all calls have returned. Of threads that call
// this at once, one gets help. After a fork, the child has helpers of its own. `part` must not throw.
//
// `is_long`: whether the work takes so long that helpers are worth waking.
void share_out(size_t parts, size_t helpers, bool is_long, void (*part)(const void*, size_t),
               const void* context);

// The same with part(number).
template <typename Part>
void share_out(size_t parts, size_t helpers, bool is_long, const Part& part) {
  const auto call = [](const void* context, size_t number) { (*static_cast<const Part*>(context))(number); };
  share_out(parts, helpers, is_long, call, &part);
}

}  // namespace foreload
