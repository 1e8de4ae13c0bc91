#include "spans.hpp"

#include "clock.hpp"

namespace foreload {

Current& current() {
  thread_local Current current;
  return current;
}

Measure::Measure(Stage stage, uint64_t samples, uint64_t weight)
    : lane_(current().lane), stage_(stage), samples_(samples), weight_(weight) {
  if (lane_ == nullptr) return;
  Current& now = current();
  around_ = std::exchange(now.inner, {});
  with_cpu_ = lane_->cpu_rate(stage).due();
  begin_ = now_ns();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

void Measure::end() {
  Lane* const lane = std::exchange(lane_, nullptr);
  if (lane == nullptr) return;
  Current& now = current();
  const uint64_t cpu_end = with_cpu_ ? thread_cpu_ns() : 0, end = now_ns();
  const Inner inner = now.inner;
  const int64_t wall = difference(end, begin_), own = wall - inner.wall;
  CpuRate& rate = lane->cpu_rate(stage_);
  const int64_t cpu =
      inner.cpu + (with_cpu_ ? rate.observe(own, difference(cpu_end, cpu_) - inner.cpu) : rate.estimate(own));
  const auto weight = static_cast<int64_t>(weight_);
  const uint64_t each = paced_ ? 1 : weight_;
  if (paced_) lane->pace(stage_).observe(wall);
  // Less what is within all the spans that this one stands for, of which each was measured or not by itself.
  lane->add({begin_, end, stage_, now.batch, static_cast<uint32_t>(samples_), bytes_},
            {each, static_cast<uint64_t>(weight * wall - inner.all_wall),
             static_cast<uint64_t>(weight * cpu - inner.all_cpu), each * samples_, each * bytes_});
  now.inner = {around_.wall + wall, around_.cpu + cpu, around_.all_wall + weight * wall,
               around_.all_cpu + weight * cpu};
}

PacedMeasure::PacedMeasure(Stage stage, uint64_t samples) : stage_(stage), samples_(samples) {
  Lane* const lane = current().lane;
  if (lane == nullptr) return;
  before_ = current().inner;
  if (const uint32_t weight = lane->pace(stage).weight(); weight > 0) {
    measure_.emplace(stage, samples, weight);
    measure_->paced_ = true;
  }
}

PacedMeasure::~PacedMeasure() {
  Lane* const lane = current().lane;
  if (measure_) {
    measure_->add_bytes(bytes_);
  } else if (lane != nullptr) {
    const Inner inner = std::exchange(current().inner, before_);
    lane->count(stage_, {1, static_cast<uint64_t>(before_.all_wall - inner.all_wall),
                         static_cast<uint64_t>(before_.all_cpu - inner.all_cpu), samples_, bytes_});
  }
}

void Laps::begin(bool needed) {
  Lane* const lane = current().lane;
  weight_ = lane == nullptr || needed ? 1 : lane->pace(Stage::decode).weight();
  if (weight_ == 0) return;
  with_cpu_ =
      lane != nullptr && (lane->cpu_rate(Stage::decode).due() || lane->cpu_rate(Stage::transform).due());
  first_ = last_ = now_ns();
  if (with_cpu_) cpu_ = thread_cpu_ns();
}

double Laps::end(Stage stage, uint64_t bytes) {
  if (weight_ == 0) {
    current().lane->count(stage, {1, 0, 0, 1, bytes});
    return 0;
  }
  const uint64_t begin = last_;
  last_ = now_ns();
  const int64_t wall = difference(last_, begin);
  Current& now = current();
  if (now.lane != nullptr) {
    CpuRate& rate = now.lane->cpu_rate(stage);
    int64_t cpu;
    if (with_cpu_) {
      const uint64_t cpu_begin = std::exchange(cpu_, thread_cpu_ns());
      cpu = rate.observe(wall, difference(cpu_, cpu_begin));
    } else {
      cpu = rate.estimate(wall);
    }
    now.lane->add({begin, last_, stage, now.batch, 1, bytes},
                  {1, static_cast<uint64_t>(weight_ * wall), static_cast<uint64_t>(weight_ * cpu), 1, bytes});
    now.lane->pace(Stage::decode).observe(difference(last_, first_));
    now.inner.wall += wall;
    now.inner.cpu += cpu;
    now.inner.all_wall += weight_ * wall;
    now.inner.all_cpu += weight_ * cpu;
  }
  return static_cast<double>(wall) * 1e-9;
}

}  // namespace foreload
