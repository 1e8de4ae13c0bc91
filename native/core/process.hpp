// What processes that share memory must know of each other: who is alive, and when something has changed.
#pragma once

#include <atomic>
#include <cstdint>

namespace foreload {

uint64_t this_process();

// A process that was killed but not yet waited for is as dead as one that is gone.
bool is_alive(uint64_t process);

// Ends this process, whatever it is doing, as soon as `process` is gone. `pipe` is one end of a pipe whose
// other end that process holds, for systems that cannot watch a process.
void end_with(uint64_t process, int pipe);

// Sleeps while `word`, in shared memory, is what was seen; for some milliseconds at most, since whoever was
// to change it may have been killed.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen);
void wake_all(std::atomic<uint32_t>& word);

// Gives the system back the memory that this process has freed, which the C library keeps for later.
void release_freed();

// From here on the C library keeps what is freed, some tens of MiB of each thread (more exactly, of each of
// its arenas), for who needs memory next. By itself it gives pieces of more than 128 KiB back at once, and
// the next one costs a fault per page.
void reuse_freed();

}  // namespace foreload
