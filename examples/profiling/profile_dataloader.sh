#!/usr/bin/env bash
# profile_dataloader.sh slow|fast [DATA [ARGUMENTS...]]: where the time goes in one of the two loops.
# DATA (data/profiling) is made where it is not there; ARGUMENTS are those of the script, such as --epochs 5.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

case "${1-}" in
  slow | fast) script=$here/$1_dataloader.py name=$1 ;;
  *)
    echo "usage: profile_dataloader.sh slow|fast [DATA [ARGUMENTS...]]" >&2
    exit 2
    ;;
esac
data=${2:-$root/data/profiling}
shift $(($# < 2 ? $# : 2))

python=$root/.venv/bin/python
[ -x "$python" ] || python=$(command -v python3) || { echo "there is no Python: neither $root/.venv nor python3" >&2; exit 1; }
foreload() { "$python" -c 'from foreload.cli.main import main; main()' "$@"; }

[ -d "$data" ] || "$python" "$here/synthetic_dataset.py" "$data"

if why=$(foreload profile --help 2>&1); then
  echo "==> foreload profile"
  foreload profile "$script" "$data" "$@"
else
  printf '==> foreload profile does not run here, so the script runs alone:\n%s\n' "$why"
  "$python" "$script" "$data" "$@"
fi

if command -v nsys >/dev/null; then
  echo "==> nsys profile"
  nsys profile --trace=cuda,nvtx,osrt --force-overwrite=true --output="$name" "$python" "$script" "$data" "$@"
  echo "open $PWD/$name.nsys-rep in Nsight Systems"
else
  echo "==> no nsys here: no timeline of GPU and operating system (https://developer.nvidia.com/nsight-systems)"
fi
