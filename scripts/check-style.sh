#!/usr/bin/env bash
# Checks formatting (clang-format), a whitelist of clang-tidy checks, and which room includes which.
#   scripts/check-style.sh [--fix] [--no-tidy]
set -euo pipefail
cd "$(dirname "$0")/.."

fix=false tidy=true
for argument in "$@"; do
  case "$argument" in
    --fix) fix=true ;;
    --no-tidy) tidy=false ;;
    *) echo "usage: scripts/check-style.sh [--fix] [--no-tidy]" >&2; exit 2 ;;
  esac
done

mapfile -t sources < <(git ls-files '*.cpp' '*.h')
if $fix; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run -Werror "${sources[@]}"
  echo "formatting: ${#sources[@]} files are as clang-format would have them"
fi

if $tidy; then
  [ -f build/compile_commands.json ] || { echo "check-style: build first (scripts/build.sh)" >&2; exit 1; }
  git ls-files '*.cpp' | grep -v '^tests/fuzz/' | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build 2>/dev/null
  echo "clang-tidy: clean"
fi
