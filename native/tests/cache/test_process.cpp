// Handlers of many signals run one within the other on the stack that a thread is given for them.
#include <pthread.h>
#include <signal.h>

#include <cstdlib>

#include "check.hpp"
#include "process.hpp"

namespace {

volatile sig_atomic_t handled = 0;

void count(int) {
  // As much as a handler that formats a message takes up.
  volatile char room[4096];
  room[0] = 1;
  room[sizeof(room) - 1] = 1;
  handled = handled + room[0];
}

void handlers_of_all_signals_at_once() {
  // One as small as systems have it, of which the handlers take up many times as much.
  static char small[16 << 10];
  stack_t stack{};
  stack.ss_sp = small;
  stack.ss_size = sizeof(small);
  CHECK(sigaltstack(&stack, nullptr) == 0);
  foreload::widen_signal_stack();
  CHECK(sigaltstack(nullptr, &stack) == 0);
  CHECK(stack.ss_size >= (1 << 20));
  sigset_t signals;
  sigemptyset(&signals);
  int sent = 0;
  struct sigaction action{};
  action.sa_handler = count;
  action.sa_flags = SA_ONSTACK;
  for (const int number :
       {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGIO}) {
    sigaddset(&signals, number);
    CHECK(sigaction(number, &action, nullptr) == 0);
    ++sent;
  }
  CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&signals, number) == 1) CHECK(raise(number) == 0);
  }
  CHECK(handled == 0);
  CHECK(pthread_sigmask(SIG_UNBLOCK, &signals, nullptr) == 0);  // which begins them all
  CHECK(handled == sent);
}

}  // namespace

int main() {
  handlers_of_all_signals_at_once();
  return 0;
}
