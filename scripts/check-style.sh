#!/usr/bin/env bash
# Checks formatting (clang-format 14) and, on what is not a test, a whitelist of clang-tidy checks (.clang-tidy).
#   scripts/check-style.sh [--fix] [--no-tidy] [--since REVISION]
# --since: clang-tidy looks only at sources that differ from that revision.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build
rooms=(ir formats runtime calibrate passes cli)

usage() {
  echo "usage: scripts/check-style.sh [--fix] [--no-tidy] [--since REVISION]" >&2
  exit 2
}

fix=false tidy=true since=
while [ $# -gt 0 ]; do
  case "$1" in
    --fix) fix=true ;;
    --no-tidy) tidy=false ;;
    --since) since=${2:-}; [ -n "$since" ] || usage; shift ;;
    *) usage ;;
  esac
  shift
done

check_format() {
  local format sources
  format=$(command -v clang-format-14 || command -v clang-format) ||
    { echo "check-style: no clang-format (scripts/install-packages.sh check)" >&2; exit 1; }
  if ! "$format" --version | grep -q 'version 14\.'; then
    echo "check-style: formatting not checked: it is clang-format 14's, this is $("$format" --version)" >&2
    return
  fi
  mapfile -t sources < <(git ls-files '*.cpp' '*.h')
  if $fix; then
    "$format" -i "${sources[@]}"
  else
    "$format" --dry-run -Werror "${sources[@]}"
    echo "formatting: ${#sources[@]} files are as clang-format would have them"
  fi
}

# What to look at: every source once; a kernel as it is built for AVX2, or for any machine.
tidy_sources() {
  local source stem list=(git ls-files)
  [ -z "$since" ] || list=(git diff --name-only --diff-filter=d "$since")
  "${list[@]}" -- "${rooms[@]/%//*.cpp}" | while read -r source; do
    case "$source" in
      *_kernels.cpp)
        stem=$build/${source%.cpp}
        [ -f "$stem.avx2.cpp" ] && echo "$stem.avx2.cpp" || echo "$stem.portable.cpp"
        ;;
      *) echo "$source" ;;
    esac
  done
}

# Bodies of templates are parsed where they are instantiated alone: half of the time goes into the others, which are
# mostly the standard library's.
check_tidy() {
  local sources
  [ -f "$build/compile_commands.json" ] || { echo "check-style: build first (scripts/build.sh)" >&2; exit 1; }
  mapfile -t sources < <(tidy_sources)
  [ ${#sources[@]} -gt 0 ] || { echo "clang-tidy: nothing to look at"; return; }
  if ! printf '%s\n' "${sources[@]}" |
    xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" --extra-arg=-fdelayed-template-parsing \
      2> >(grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated\.$' >&2); then
    echo "clang-tidy: findings above" >&2
    exit 1
  fi
  echo "clang-tidy: ${#sources[@]} sources are clean"
}

check_format
if $tidy; then check_tidy; fi
