#!/usr/bin/env bash
# Run the fast tests against an installed wheel, as whoever has only the wheel would: in an environment of its own, beside a
# copy of the tree without src/ and native/, and on a path without a compiler.
#   scripts/test_wheel.sh [--python PYTHON] [--wheel FILE] [--keep] [PYTEST OPTIONS...]
# --python: the interpreter (python3 by default).  --wheel: a wheel that is there; by default scripts/wheel.sh builds one.
# --keep: leave the environment and the copy where they are, and say where.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3 wheel='' keep=''
while [ $# != 0 ]; do
  case "$1" in
    --python) python=$2; shift 2 ;;
    --wheel) wheel=$2; shift 2 ;;
    --keep) keep=yes; shift ;;
    *) break ;;
  esac
done

# Left out, since they are about the tree itself, which is not there:
left_out=(
  --ignore=tests/test_structure.py  # who imports whom, sizes of files in src/ and native/
  --ignore=tests/test_stubs.py      # the native module's stub against its bindings, by the compiler's tools
  --deselect=tests/test_documents.py::test_what_a_document_names_is_there  # files of src/ and native/
)

if [ -z "$wheel" ]; then
  scripts/wheel.sh "$python"
  version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/foreload/__init__.py)
  fitting=build/fitting
  rm -rf "$fitting"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-index --find-links dist \
    --only-binary :all: --dest "$fitting" "foreload==$version"
  wheel=$(echo "$fitting"/foreload-*.whl)
fi
wheel=$(realpath "$wheel")

folder=$(mktemp -d "${TMPDIR:-/tmp}/foreload-wheel-XXXXXX")
if [ -n "$keep" ]; then echo "==> $folder"; else trap 'rm -rf "$folder"' EXIT; fi
env=$folder/env tree=$folder/tree programs=$folder/programs
mkdir "$tree" "$programs"
tar -c --anchored --exclude=./{src,native,build,dist,data,.git,.venv,env,venv,.ci} --no-anchored --exclude=__pycache__ \
  --exclude='.*_cache' --exclude=.hypothesis . | tar -x -C "$tree"

# All programs of this machine but those that compile and link.
compilers='^(.*-)?(cc|c89|c99|gcc|g\+\+|c\+\+|clang|clang\+\+|cpp|tcc|ld|as|gold|lld|nvcc|gcc-[a-z]+|cmake|ninja|make)(\.[a-z]+)?(-[0-9.]+)?$'
for file in /usr/local/bin/* /usr/bin/* /bin/* /usr/local/sbin/* /usr/sbin/* /sbin/*; do
  name=${file##*/}
  [[ $name =~ $compilers || $name =~ ^(python|pip) || -e $programs/$name ]] || ln -s "$file" "$programs/$name"
done
path=$env/bin:$programs

echo "==> $(basename "$wheel") with $("$python" -V), in $folder"
"$python" -m venv "$env"
env PATH="$path" "$env/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: \
  -c constraints.txt torch==2.13.0 "${wheel}[cli,plots,serve,test]"

cd "$tree"
clean=(env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE -u VIRTUAL_ENV -u CC -u CXX PATH="$path" OMP_WAIT_POLICY=PASSIVE)
"${clean[@]}" "$env/bin/python" - <<'PYTHON'
import shutil
import sys
from pathlib import Path

import foreload
import foreload._native
import foreload.cli.commands  # compiled before many processes import it at once

for module in (foreload, foreload._native):
    assert Path(module.__file__).is_relative_to(sys.prefix), f"{module.__file__} is not the installed one"
for compiler in ("cc", "gcc", "g++", "c++", "clang", "clang++", "ld", "as", "cmake", "ninja", "make"):
    assert shutil.which(compiler) is None, f"{shutil.which(compiler)} is on the path"
print(f"==> {foreload.__file__}; no compiler on the path", flush=True)
PYTHON
# (The patterns of pyproject.toml are taken to be of the tree: what cannot be imported without Triton or Ray.)
left_out+=(--ignore-glob="$env/*kernel.py" --ignore-glob="$env/*/workers/ray/*")
"${clean[@]}" "$env/bin/python" -m pytest "${left_out[@]}" -m "not slow" -n "$((2 * $(nproc)))" "$@" tests --pyargs foreload
