#!/usr/bin/env bash
# Checks who includes whom, as docs/architecture.md has it: a room includes itself and the rooms named here.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A may=(
  [ir]=""
  [formats]="ir"
  [runtime]="ir formats/artifact formats/file"
  [calibrate]="ir formats runtime"
  [passes]="ir formats runtime calibrate"
  [cli]="ir formats runtime calibrate passes"
)

status=0
complain() {
  echo "check-rooms: $1" >&2
  status=1
}

for room in "${!may[@]}"; do
  while IFS=: read -r file line include; do
    target=$(sed -E 's/.*"(.*)".*/\1/' <<<"$include")
    top=${target%%/*}
    [[ -v may[$top] ]] || [ "$top" = tests ] || continue
    [ "$top" = "$room" ] && continue
    allowed=false
    for other in ${may[$room]}; do
      [[ "$target" == "$other"/* ]] && allowed=true
    done
    $allowed || complain "$file:$line includes $target, which $room may not"
  done < <(grep -rnE '^#include "' "$room" --include='*.h' --include='*.cpp' --include='*.cu' --include='*.inc' || true)
done

while IFS=: read -r file line _; do
  case "$file" in
    formats/onnx/* | tests/*) ;;
    *) complain "$file:$line uses libonnx; only formats/onnx may" ;;
  esac
done < <(grep -rnE '^#include <onnx/' ir formats runtime calibrate passes cli tests --include='*.h' --include='*.cpp' || true)

exit $status
