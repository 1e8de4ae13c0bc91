// Processes that share memory: which of them are alive, and waking those that wait for a change.
#pragma once

#include <atomic>
#include <cstdint>

namespace foreload {

uint64_t this_process();

// A process that was killed but not yet waited for is as dead as one that is gone.
bool is_alive(uint64_t process);

// Ends this process, whatever it is doing, as soon as `process` has ended. `pipe` is one end of a pipe whose
// other end that process holds, for systems that cannot watch a process.
void end_with(uint64_t process, int pipe);

// Gives the calling thread, for good, a signal stack on which the handlers of all signals can begin one
// within the other, as when they were sent while the process was stopped. That of Python's faulthandler,
// which the handlers of other signals use too, has room for about four, with the registers of AVX-512.
void widen_signal_stack();

// Sleeps while `word`, in shared memory, is what was seen; for some milliseconds at most, since the process
// that was to change it may have been killed.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen);
void wake_all(std::atomic<uint32_t>& word);

// Returns memory that this process has freed to the system; the C library would keep it for later.
void release_freed();

// Makes the C library keep what is freed, some tens of MiB of each thread (more exactly, of each of its
// arenas), for the next allocation. By default it returns blocks of more than 128 KiB to the system at once,
// and the next one costs a fault per page.
void reuse_freed();

}  // namespace foreload
