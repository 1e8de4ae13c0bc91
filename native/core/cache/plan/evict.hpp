// The classic eviction policies, which look back instead of ahead: plans of what they would have kept.
#pragma once

#include "plan.hpp"

namespace foreload {

void evict(const Trace& trace, Policy policy, int64_t budget, bool tail, uint64_t seed, const Plan& plan);

}  // namespace foreload
