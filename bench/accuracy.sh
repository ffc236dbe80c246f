#!/usr/bin/env bash
# The rows of docs/accuracy.md: converts a model by every scheme and validates each against the original.
#   bench/accuracy.sh MODEL_DIR TEXT [QUERN]     MODEL_DIR holds model.onnx and tokenizer.json
set -euo pipefail
model=$1 text=$2 quern=${3:-build/cli/quern}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "| weights | bits per weight | perplexity | change | KL mean | KL 99% | top-1 |"
echo "|---|---|---|---|---|---|---|"
row() {
  local name=$1
  shift
  "$quern" convert "$model/model.onnx" -o "$work/m.quern" --quiet "$@"
  "$quern" validate "$model/model.onnx" "$work/m.quern" --data "$text" --quiet --json >"$work/v.json" || [ $? -eq 1 ]
  python3 - "$name" "$work/v.json" <<'PYTHON'
import json, sys
name, v = sys.argv[1], json.load(open(sys.argv[2]))
ref, cand = v["reference"]["perplexity"], v["candidate"]["perplexity"]
print(f"| {name} | {v['candidate']['bits_per_weight']:.2f} | {cand:.3f} | {100 * (cand / ref - 1):+.3f}% "
      f"| {v['kl']['mean']:.2e} | {v['kl']['p99']:.2e} | {100 * v['top1']:.2f}% |", flush=True)
PYTHON
}

for weights in fp32 fp16 bf16; do row "$weights" --weights "$weights"; done
for weights in int8 int4; do
  for symmetry in symmetric asymmetric; do
    row "$weights, per channel, $symmetry" --weights "$weights" --granularity channel "--$symmetry"
    for group in 32 128; do
      row "$weights, groups of $group, $symmetry" --weights "$weights" --granularity group --group-size "$group" \
        "--$symmetry"
    done
  done
done
