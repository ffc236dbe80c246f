#!/usr/bin/env bash
# From nothing to a story: installs packages, builds quern, converts the example decoder to int8, validates it
# against the original on text that it was not trained on, and lets it write.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$1"; }

step "Packages and build (the first time takes a quarter of an hour or more on two processors)"
scripts/build.sh release -DQUERN_TESTS=OFF -DQUERN_BENCH=OFF

model=examples/storyteller
out=build/demo
quern=build/cli/quern
mkdir -p "$out"

step "Convert: 8-bit weights, one scale per output channel"
"$quern" convert "$model/model.onnx" --weights int8 -o "$out/storyteller-int8.quern"

step "Validate: the artifact against the original, on held-out text"
"$quern" validate "$model/model.onnx" "$out/storyteller-int8.quern" --data "$model/heldout.txt" \
  --max-ppl-increase 1% --report "$out/report.html"

step "Generate"
"$quern" generate "$out/storyteller-int8.quern" -n 120 --temperature 0.8 --top-p 0.95 --seed 7 \
  -p "It was a dark night, and the old man"

printf '\nThe report is %s; the artifact is %s.\n' "$out/report.html" "$out/storyteller-int8.quern"
