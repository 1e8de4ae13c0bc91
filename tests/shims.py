"""Libraries that stand between a program and the C library (LD_PRELOAD), without io_uring."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["build_shim"]

_BEGIN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static int ends(int fd, const char* end) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path), m = strlen(end);
  return n > m && !memcmp(path + n - m, end, m);
}
long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  if (number == SYS_io_uring_setup) { errno = ENOSYS; return -1; }
  va_list all;
  va_start(all, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(all, long);
  va_end(all);
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""


def build_shim(folder: Path, functions: str) -> Path:
    """Compile C functions that replace those of the C library; they may ask whether ``ends(fd, ".suffix")``."""
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(_BEGIN + functions)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return shim
