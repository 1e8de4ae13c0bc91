// A mutex in memory that processes share, which survives the death of a process that holds it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace foreload {

class ProcessMutex {
 public:
  // Once, in zeroed memory.
  void format();

  // Holds the mutex until the end of the scope. Sets `orphaned` if a process died while it held the mutex:
  // what that guards may be half changed.
  class Lock {
   public:
    Lock(ProcessMutex& mutex, std::atomic<uint32_t>& orphaned);
    ~Lock() { pthread_mutex_unlock(&mutex_.mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    ProcessMutex& mutex_;
  };

 private:
  pthread_mutex_t mutex_;
};

}  // namespace foreload
