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

fix=false with_tidy=true since=
while [ $# -gt 0 ]; do
  case "$1" in
    --fix) fix=true ;;
    --no-tidy) with_tidy=false ;;
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
        if [ -f "$stem.avx2.cpp" ]; then
          echo "$stem.avx2.cpp"
        elif [ -f "$stem.portable.cpp" ]; then
          echo "$stem.portable.cpp"
        else
          echo "$source"
        fi
        ;;
      *) echo "$source" ;;
    esac
  done
}

# Bodies of templates are parsed where they are instantiated alone: half of the time goes into the others, which are
# mostly the standard library's. The options are g++'s: clang's warning of those it has never heard of must not be an
# error where the build makes warnings errors.
tidy=(clang-tidy --quiet --extra-arg=-fdelayed-template-parsing --extra-arg=-Wno-error)

# tidy_together SOURCE...: all of a folder as one translation unit, because nine tenths of the time of a single source are
# its headers. Sources that use one name for different things do not compile together: then each half by itself.
tidy_together() {
  local output unit flags
  if [ $# -eq 1 ]; then
    "${tidy[@]}" -p "$build" "$1" 2>/dev/null
    return
  fi
  read -ra flags < <(grep -B1 "\"file\": \"$PWD/$1\"" "$build/compile_commands.json" |
    sed -n 's/.*"command": "[^ ]* //p' | sed 's/ -o .*//')
  unit=$(mktemp --suffix=.cpp)
  printf "#include \"$PWD/%s\"\n" "$@" > "$unit"
  if output=$("${tidy[@]}" "$unit" -- "${flags[@]}" 2>/dev/null); then
    rm "$unit"
  elif rm "$unit"; grep -q 'clang-diagnostic-error' <<< "$output"; then
    local half=$(($# / 2)) status=0
    tidy_together "${@:1:half}" || status=1
    tidy_together "${@:half+1}" || status=1
    return $status
  else
    echo "$output"
    return 1
  fi
}

check_tidy() {
  local sources status=0
  [ -f "$build/compile_commands.json" ] || { echo "check-style: build first (scripts/build.sh)" >&2; exit 1; }
  mapfile -t sources < <(tidy_sources)
  [ ${#sources[@]} -gt 0 ] || { echo "clang-tidy: nothing to look at"; return; }
  local folder folders running=0
  mapfile -t folders < <(printf '%s\n' "${sources[@]}" | xargs -n 1 dirname | sort -u)
  for folder in "${folders[@]}"; do
    local inside=()
    for source in "${sources[@]}"; do [ "$(dirname "$source")" != "$folder" ] || inside+=("$source"); done
    [ $((running += 1)) -le "$(nproc)" ] || wait -n || status=1
    tidy_together "${inside[@]}" &
  done
  while [ -n "$(jobs -p)" ]; do wait -n || status=1; done
  [ $status -eq 0 ] || { echo "clang-tidy: findings above" >&2; exit 1; }
  echo "clang-tidy: ${#sources[@]} sources are clean"
}

check_format
if $with_tidy; then check_tidy; fi
