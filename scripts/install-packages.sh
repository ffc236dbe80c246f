#!/usr/bin/env bash
# Installs what quern is built and tested with, from the packages of Debian 12 or Ubuntu 24.04.
#   scripts/install-packages.sh [build|test|check|fuzz ...]     default: build test check
# Does nothing where all of it is there. Needs root, or sudo. Asks nothing.
set -euo pipefail

declare -A groups=(
  # README.md says what each library is for.
  [build]="g++ cmake ninja-build ccache libonnx-dev libprotobuf-dev protobuf-compiler libdnnl-dev
           libboost-program-options-dev nlohmann-json3-dev zlib1g-dev libonig-dev libutf8proc-dev"
  [test]="libgtest-dev libonnx-testdata pkg-config python3"
  # The formatter has one version: another lays the same code out differently. Lint checks mean the same in all.
  [check]="git clang-format-14 clang-tidy"
  [fuzz]="clang libclang-rt-dev"
)

[ $# -gt 0 ] || set -- build test check
packages=()
for group in "$@"; do
  [[ -v groups[$group] ]] || { echo "usage: scripts/install-packages.sh [build|test|check|fuzz ...]" >&2; exit 2; }
  read -r -d '' -a names <<<"${groups[$group]}" || true
  packages+=("${names[@]}")
done

command -v dpkg-query >/dev/null || {
  echo "install-packages: not a Debian or Ubuntu system; install by hand what these are there: ${packages[*]}" >&2
  exit 1
}
missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-packages: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
# sudo keeps no environment; needrestart is what asks on Ubuntu.
as_root+=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1)
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update
"${as_root[@]}" apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" </dev/null >/dev/null
