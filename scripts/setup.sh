#!/usr/bin/env bash
# Set up .venv: torch, foreload built from this tree, and the packages of the sets that are named:
#   scripts/setup.sh [demo] [test] [frameworks] [lint] [docs] [bench]        (demo is part of each)
# Does nothing if nothing has changed since the last time. A set is added without building foreload again.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A extras=([demo]=cli,plots [test]=serve,test [frameworks]=frameworks [lint]=lint [docs]=docs [bench]=bench)
sets=(demo)
for name in "$@"; do
  [ -n "${extras[$name]:-}" ] || { echo "set-up knows ${!extras[*]}, not $name" >&2; exit 1; }
  [ "$name" = demo ] || sets+=("$name")
done

requirements() { cat pyproject.toml constraints.txt scripts/setup.sh; }
# (An editable install knows the Python files by name: it is made again when one comes or goes.)
sources() {
  cat CMakeLists.txt src/foreload_command.py && find native -name '*.[ch]pp' -print0 | sort -z | xargs -0 cat
  find src -name '*.py' | sort
}
packages=$(requirements | sha256sum)
build=$({ requirements && sources; } | sha256sum)
stamp() { echo ".venv/.foreload-setup-$1"; }
is_done() { [ -f "$(stamp "$1")" ] && [ "$(cat "$(stamp "$1")")" = "$2" ]; }

missing=()
for name in "${sets[@]}"; do
  is_done "$name" "$packages" || missing+=("$name")
done
if is_done build "$build" && [ ${#missing[@]} = 0 ]; then
  exit 0
fi

pip() { .venv/bin/python -m pip "$1" -q --disable-pip-version-check -c constraints.txt "${@:2}"; }
done_with() { echo "$2" >"$(stamp "$1")"; }

if ! is_done build "$build"; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "set-up needs Python 3.11 or newer; this is $("$python" -V). Name another: make PYTHON=python3.12 ..." >&2
    exit 1
  }
  if [ ! -e /usr/include/jpeglib.h ] && command -v apt-get >/dev/null; then
    echo "==> libjpeg-turbo headers"
    as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    { $as_root apt-get install -y -qq libjpeg-dev >/dev/null 2>&1 ||
      { $as_root apt-get update -qq && $as_root apt-get install -y -qq libjpeg-dev >/dev/null; }; } ||
      echo "    not installed (apt install libjpeg-dev): JPEGs will be decoded by Pillow, several times slower" >&2
  fi
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  pip install scikit-build-core nanobind ninja $(command -v cmake >/dev/null || echo cmake)
  echo "==> foreload"
  pip install --no-deps --no-build-isolation --editable . &  # beside the packages, which it needs only when it runs
  building=$!
fi

if [ ${#missing[@]} != 0 ]; then
  echo "==> packages (${missing[*]})"
  chosen=$(for name in "${missing[@]}"; do echo "${extras[$name]}"; done | paste -sd,)
  # Read from pyproject.toml, because to install foreload[...] would build it again.
  .venv/bin/python - "$chosen" >.venv/requirements.txt <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = [project["optional-dependencies"][name] for name in sys.argv[1].split(",")]
print(*(line for lines in (project["dependencies"], *extras) for line in lines), sep="\n")
PYTHON
  # (Of thousands of files few are ever imported: Python compiles those when they are.)
  pip install --no-compile torch==2.13.0 -r .venv/requirements.txt
  # With all that it requires, it would bring torchvision and what four clouds need.
  [[ " ${missing[*]} " != *" frameworks "* ]] || pip install --no-compile --no-deps mosaicml-streaming
  for name in "${missing[@]}"; do done_with "$name" "$packages"; done
fi

if ! is_done build "$build"; then
  wait "$building"
  # pip compiles what it installs, but not an editable tree; where Python may not write bytecode, each process
  # would compile all of it anew.
  .venv/bin/python -m compileall -q src/foreload
  done_with build "$build"
fi
# One process compiles what all import, before many do at once.
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import foreload.cli.commands"
