#include "process_mutex.hpp"

#include <cerrno>

namespace foreload {

void ProcessMutex::format() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
#ifdef __linux__
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
#endif
  pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

ProcessMutex::Lock::Lock(ProcessMutex& mutex, std::atomic<uint32_t>& orphaned) : mutex_(mutex) {
  if (pthread_mutex_lock(&mutex_.mutex_) == EOWNERDEAD) {
    orphaned.store(1);
#ifdef __linux__
    pthread_mutex_consistent(&mutex_.mutex_);
#endif
  }
}

}  // namespace foreload
