#!/usr/bin/env bash
# Builds the fuzz targets with clang++ and runs each for a while. A finding ends the run with status 1; the input that
# causes it is named, and belongs into tests/fuzz/regressions/<target>/ together with the fix.
#   scripts/fuzz.sh [target...]      all targets, 30 seconds each (QUERN_FUZZ_SECONDS changes that)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${QUERN_FUZZ_SECONDS:-30}
build=build-fuzz
scripts/install-packages.sh build fuzz

# Optimized no more than pays within a run of minutes: the build is most of the time.
cmake -G Ninja -S . -B "$build" -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
      -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -gline-tables-only" -DQUERN_FUZZ=ON -DQUERN_TESTS=OFF -DQUERN_BENCH=OFF >/dev/null
cmake --build "$build" --target fuzzers -j "$(nproc)"

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for program in "$build"/tests/fuzz/fuzz_*; do
    [ -x "$program" ] && targets+=("$(basename "$program" | sed 's/^fuzz_//')")
  done
fi

mkdir -p "$build/findings"
failed=0
for target in "${targets[@]}"; do
  work="$build/corpus/$target"
  mkdir -p "$work"
  seeds=()
  for folder in "tests/fuzz/corpus/$target" "tests/fuzz/regressions/$target"; do
    [ -d "$folder" ] && seeds+=("$folder")
  done
  echo "fuzzing $target for $seconds s"
  log="$build/findings/$target.log"
  if ! "$build/tests/fuzz/fuzz_$target" "$work" "${seeds[@]}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
       -malloc_limit_mb=512 -max_len=65536 -artifact_prefix="$build/findings/$target-" -print_final_stats=1 >"$log" 2>&1; then
    tail -40 "$log"
    failed=1
  else
    grep -E 'stat::number_of_executed_units|stat::peak_rss_mb' "$log"
  fi
done
exit $failed
