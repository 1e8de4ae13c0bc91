#!/usr/bin/env bash
# Makes .venv with everything that the other scripts use: the pinned packages and foreload itself, built from
# this tree. Does nothing where nothing has changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.foreload-setup
inputs() { cat pyproject.toml constraints.txt CMakeLists.txt scripts/setup.sh && find native src -name '*.[ch]pp' -print0 | sort -z | xargs -0 cat; }
now=$(inputs | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ]; then
  exit 0
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "set-up needs Python 3.11 or newer; this is $("$python" -V). Say which: make PYTHON=python3.12 ..." >&2
  exit 1
}

if [ ! -e /usr/include/jpeglib.h ] && command -v apt-get >/dev/null; then
  echo "==> libjpeg-turbo headers"
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  { $as_root apt-get install -y -qq libjpeg62-turbo-dev >/dev/null 2>&1 ||
    { $as_root apt-get update -qq && $as_root apt-get install -y -qq libjpeg62-turbo-dev >/dev/null; }; } ||
    echo "    not installed (apt install libjpeg62-turbo-dev): JPEGs will be decoded by Pillow, several times slower" >&2
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "==> packages"
.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
  torch==2.13.0 scikit-build-core nanobind ninja \
  $(command -v cmake >/dev/null || echo cmake)
echo "==> foreload"
.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation \
  --editable '.[cli,plots,serve,test,lint]'
echo "$now" >"$stamp"
