#!/usr/bin/env bash
# Sets up, builds, and runs every test.
#   scripts/test.sh          release build, all tests
#   scripts/test.sh --asan   the same under AddressSanitizer and UBSan
#   scripts/test.sh --fuzz   each fuzz target for 30 seconds (QUERN_FUZZ_SECONDS changes that)
# Warnings are errors with CI=true in the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:-}
# Said in full, since a build folder keeps what an earlier configuration (scripts/demo.sh's, say) left out.
options=(-DQUERN_TESTS=ON -DQUERN_BENCH=ON -DQUERN_WERROR=OFF -DQUERN_TEST_PCH=OFF)
[ "${CI:-}" = true ] && options+=(-DQUERN_WERROR=ON -DQUERN_TEST_PCH=ON)
case "$mode" in
  "") preset=release ;;
  --asan) preset=asan ;;
  --fuzz) exec scripts/fuzz.sh ;;
  *) echo "usage: scripts/test.sh [--asan|--fuzz]" >&2; exit 2 ;;
esac

scripts/build.sh "$preset" "${options[@]}"
ctest --preset "$preset" -j "$(nproc)" --no-tests=error
