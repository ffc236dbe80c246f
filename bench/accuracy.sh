#!/usr/bin/env bash
# The rows of docs/accuracy.md: converts a model by every scheme and compares all of them with the original.
#   bench/accuracy.sh MODEL_DIR TEXT CALIBRATION [QUERN]
# MODEL_DIR holds model.onnx and tokenizer.json; TEXT is held out; CALIBRATION is other text or .jsonl, such as what the
# model was trained on.
set -euo pipefail
model=$1 text=$2 calibration=$3 quern=${4:-build/cli/quern}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=() files=()
row() {
  local name=$1
  shift
  files+=("$work/${#files[@]}.quern")
  names+=("$name")
  "$quern" convert "$model/model.onnx" -o "${files[-1]}" --quiet "$@"
}
gptq=(--method gptq --calibration-data "$calibration" --calibration-samples 64)

for weights in fp32 fp16 bf16 fp8-e4m3 fp8-e5m2; do row "$weights" --weights "$weights"; done
for weights in int8 int4 int3; do
  row "$weights, per channel" --weights "$weights" --granularity channel
  for group in 32 128; do
    for symmetry in symmetric asymmetric; do
      row "$weights, groups of $group, $symmetry" --weights "$weights" --granularity group --group-size "$group" \
        "--$symmetry"
    done
  done
done
row "int8, per channel, gptq" --weights int8 "${gptq[@]}"
row "int8, per channel, activations dynamic" --weights int8 --activations dynamic
row "int4, groups of 32, activations dynamic" --weights int4 --activations dynamic
for weights in int4 int3; do
  for clip in percentile:99.9 mse kl; do row "$weights, groups of 32, clip $clip" --weights "$weights" --clip "$clip"; done
  for method in lsq hqq; do row "$weights, groups of 32, $method" --weights "$weights" --method "$method"; done
  row "$weights, groups of 32, lsq weighted" --weights "$weights" --method lsq --calibration-data "$calibration"
  row "$weights, groups of 32, gptq, no propagation" --weights "$weights" "${gptq[@]}" --propagate 0
  row "$weights, groups of 32, gptq" --weights "$weights" "${gptq[@]}"
  row "$weights, groups of 32, gptq, asymmetric" --weights "$weights" "${gptq[@]}" --asymmetric
done
row "chosen among int3, int4, int8 for 4.5 bits, gptq" "${gptq[@]}" --target-bits 4.5

"$quern" compare "$model/model.onnx" "${files[@]}" --data "$text" --quiet --json >"$work/table.json"
printf '%s\n' "${names[@]}" >"$work/names"
python3 - "$work/names" "$work/table.json" <<'PYTHON'
import json, sys
names, table = open(sys.argv[1]).read().splitlines(), json.load(open(sys.argv[2]))
print(f"perplexity of the original {table['original']['perplexity']:.3f}\n")
print("| weights | bits per weight | perplexity | change | KL mean | KL 99% | top-1 |\n|---|---|---|---|---|---|---|")
for name, c in zip(names, table["candidates"]):
    print(f"| {name} | {c['bits_per_weight']:.2f} | {c['perplexity']:.3f} | {100 * c['perplexity_increase']:+.3f}% "
          f"| {c['kl']['mean']:.2e} | {c['kl']['p99']:.2e} | {100 * c['top1']:.2f}% |")
PYTHON
