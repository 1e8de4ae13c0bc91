#!/usr/bin/env bash
# Build the documentation site into build/site; a broken link or reference is an error:
#   scripts/docs.sh [OPTIONS of mkdocs build]
# Or build it into the branch gh-pages, beside the versions that are there:
#   scripts/docs.sh --publish VERSION [ALIAS] [--push]
# (VERSION is dev for main, 0.1 for a release; ALIAS is latest for the newest one, which is then shown first.)
set -euo pipefail
cd "$(dirname "$0")/.."
export NO_MKDOCS_2_WARNING=1  # (a notice of the theme)
if [ "${1:-}" != --publish ]; then
  mkdir -p build
  # (Not with --quiet, which drops warnings before they are counted, so that nothing would be an error.)
  .venv/bin/python -m mkdocs build --strict "$@" >build/docs.log 2>&1 || { cat build/docs.log >&2; exit 1; }
  exit
fi
shift
export PATH=$PWD/.venv/bin:$PATH  # where mike looks for mkdocs
push=() names=()
for argument in "$@"; do
  if [ "$argument" = --push ]; then push=(--push); else names+=("$argument"); fi
done
[ ${#names[@]} != 0 ] || { echo "scripts/docs.sh --publish VERSION [ALIAS] [--push]" >&2; exit 2; }
mike deploy --update-aliases "${push[@]}" "${names[@]}"
# The first version is shown first until there is a latest one.
if [ "${names[1]:-}" = latest ] || [ "$(mike list | wc -l)" = 1 ]; then
  mike set-default "${push[@]}" "${names[-1]}"
fi
