#!/usr/bin/env bash
# Installs what quern builds and tests with, from the packages of Debian 12 or Ubuntu 24.04; further packages by argument.
# Does nothing where all of it is there. Needs root, or sudo.
set -euo pipefail

packages=(
  # build
  g++ cmake ninja-build ccache git pkg-config python3
  # libraries; README.md says what each is for
  libonnx-dev libprotobuf-dev protobuf-compiler libdnnl-dev libboost-program-options-dev nlohmann-json3-dev
  zlib1g-dev libonig-dev libutf8proc-dev
  # tests and checks
  libgtest-dev libonnx-testdata clang-format clang-tidy
)

packages+=("$@")

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-packages: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
