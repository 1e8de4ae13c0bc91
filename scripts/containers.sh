#!/usr/bin/env bash
# Run what the services of compose.yaml run, as the containers' user, in a clean Debian without a compiler; for
# machines that have no engine for containers. As root:
#   scripts/containers.sh FOLDER WHEEL
# FOLDER: Debian 12 is installed there by debootstrap (from MIRROR, if that is set), unless it is there already.
# WHEEL: foreload for Python 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(realpath -m "${1:?containers.sh FOLDER WHEEL}") wheel=$(realpath "${2:?containers.sh FOLDER WHEEL}")
# (In a mount namespace of its own, so that nothing stays mounted.)
[ -n "${FORELOAD_MOUNTS:-}" ] ||
  FORELOAD_MOUNTS=own exec unshare --mount --propagation private "$0" "$root" "$wheel"

packages=python3,python3-venv,linux-perf,ca-certificates
[ -e "$root/etc/debian_version" ] ||
  debootstrap --variant=minbase --include="$packages" bookworm "$root" ${MIRROR:+"$MIRROR"}
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o size=1g,mode=1777 shm "$root/dev/shm"
cp /etc/resolv.conf "$root/etc/"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
mkdir -p "$root/opt/foreload/scripts" "$root/opt/wheel"
cp "$wheel" constraints.txt "$root/opt/wheel/"
cp scripts/flame_graph.py scripts/perf_analysis.sh "$root/opt/foreload/scripts/"
path=/opt/foreload/bin:/usr/bin:/bin
in_root() { chroot "$root" env PATH=/usr/sbin:/sbin:"$path" "$@"; }
in_root id foreload >/dev/null 2>&1 || in_root useradd --uid 1000 --create-home foreload
in_root install --directory --owner=1000 --group=1000 /results
in_root python3 -m venv /opt/foreload
in_root bash -euc "pip install -q --only-binary :all: -c /opt/wheel/constraints.txt \
  torch '/opt/wheel/$(basename "$wheel")[cli,plots,serve]'"

# As the containers' user, in its folder; the words are the command.
as_user() {
  chroot --userspec=1000:1000 "$root" env -i HOME=/home/foreload PATH="$path" LANG=C.UTF-8 \
    bash -euc 'cd /results && exec "$@"' as_user "$@"
}
# Prints the command of a service of compose.yaml, a word a line.
command_of() {
  sed -n "/^  $1:/,/command:/s/.*command: \[\(.*\)\].*/\1/p" compose.yaml | tr -d '",' | tr ' ' '\n'
}
for compiler in cc gcc g++ clang; do
  ! as_user which "$compiler" || { echo "$compiler is in $root, which is not clean" >&2; exit 1; }
done

echo "==> benchmark"
mapfile -t words < <(command_of benchmark)
as_user "${words[@]}" --images 100 --seeds 1
[ -s "$root/results/bench.json" ] && [ -s "$root/results/bench.png" ]

echo "==> perf-analysis"
as_user /opt/foreload/scripts/perf_analysis.sh /results --images 40 --seeds 1
[ -s "$root/results/flame-graph.html" ]

echo "==> webapp"
mapfile -t words < <(command_of webapp)
as_user bash -c 'echo $$ >pid && exec "$@"' webapp "${words[@]}" >"$root/results/webapp.log" &
trap 'kill "$(cat "$root/results/pid")"' EXIT
for _ in {1..120}; do
  grep -q http "$root/results/webapp.log" && break
  sleep 0.5
done
token=$(grep -o '?token=[^ ]*' "$root/results/webapp.log" | head -1)
# With the token, the page answers with a cookie, and leads to itself.
answer() { curl -s -L -c "$root/results/cookies" -o /dev/null -w '%{http_code}' "http://127.0.0.1:5000/$1"; }
for expected in 401: "200:$token"; do
  found=$(answer "${expected#*:}")
  [ "$found" = "${expected%%:*}" ] || { echo "webapp answered $found, not ${expected%%:*}" >&2; exit 1; }
done
echo "all services run"
