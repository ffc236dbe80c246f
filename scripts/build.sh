#!/usr/bin/env bash
# Configures and builds one CMake preset: scripts/build.sh [release|debug|asan] [cmake option...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
packages=(build)
[[ " $* " == *" -DQUERN_TESTS=OFF "* ]] || packages+=(test)
scripts/install-packages.sh "${packages[@]}"
cmake --preset "$preset" "$@" >/dev/null
cmake --build --preset "$preset" -j "$(nproc)"
