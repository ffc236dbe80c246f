#!/usr/bin/env bash
# The rows of docs/accuracy.md: converts a model by every scheme and compares all of them with the original.
#   bench/accuracy.sh MODEL_DIR TEXT CALIBRATION [QUERN]
# MODEL_DIR holds model.onnx and tokenizer.json; TEXT is held out; CALIBRATION is other text or .jsonl, such as what the
# model was trained on. In the environment: WINDOWS=N scores the first N windows of TEXT alone, ROWS=REGEX takes the rows
# whose name has a match, CALIBRATION_WINDOWS (64) and CALIBRATION_CONTEXT (256) say how much of CALIBRATION is seen.
set -euo pipefail
model=$1 text=$2 calibration=$3 quern=${4:-build/cli/quern}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=() files=()
row() {
  local name=$1
  shift
  [[ $name =~ ${ROWS:-.} ]] || return 0
  files+=("$work/${#files[@]}.quern")
  names+=("$name")
  "$quern" convert "$model/model.onnx" -o "${files[-1]}" --quiet "$@"
}
data=(--calibration-data "$calibration" --calibration-samples "${CALIBRATION_WINDOWS:-64}"
  --calibration-context "${CALIBRATION_CONTEXT:-256}")
gptq=(--method gptq "${data[@]}")

for weights in fp32 fp16 bf16 fp8-e4m3 fp8-e5m2; do row "$weights" --weights "$weights"; done
for kv in fp16 int8 int4; do row "fp32, keys and values $kv" --weights fp32 --kv "$kv" "${data[@]}"; done
row "fp32, keys and values int4, no data" --weights fp32 --kv int4
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
for activations in dynamic dynamic-token dynamic-tensor; do
  row "int8, per channel, activations $activations" --weights int8 --activations "$activations"
done
row "int8, per channel, smooth, activations dynamic" --weights int8 --activations dynamic --method smooth "${data[@]}"
for codes in int8 uint8-asymmetric; do
  for method in rtn smooth gptq; do
    row "int8, per channel, $method, activations static $codes" --weights int8 --activations static \
      --activation-codes "$codes" --method "$method" "${data[@]}"
  done
done
for clip in percentile:99.99 mse kl; do
  row "int8, per channel, smooth, activations static int8, clip $clip" --weights int8 --activations static \
    --activation-clip "$clip" --method smooth "${data[@]}"
done
row "int4, groups of 32, activations dynamic" --weights int4 --activations dynamic
row "int4, groups of 32, smooth, activations static" --weights int4 --activations static --method smooth "${data[@]}"
for weights in int4 int3; do
  for clip in percentile:99.9 mse kl; do row "$weights, groups of 32, clip $clip" --weights "$weights" --clip "$clip"; done
  row "$weights, groups of 32, clip error" --weights "$weights" --clip error "${data[@]}"
  row "$weights, groups of 32, clip error, asymmetric" --weights "$weights" --asymmetric --clip error "${data[@]}"
  row "$weights, groups of 32, awq, clip error" --weights "$weights" --method awq --clip error "${data[@]}"
  for method in lsq hqq; do row "$weights, groups of 32, $method" --weights "$weights" --method "$method"; done
  row "$weights, groups of 32, lsq weighted" --weights "$weights" --method lsq "${data[@]}"
  for method in smooth awq awq+gptq; do row "$weights, groups of 32, $method" --weights "$weights" --method "$method" "${data[@]}"; done
  row "$weights, groups of 32, gptq, no propagation" --weights "$weights" "${gptq[@]}" --propagate 0
  row "$weights, groups of 32, gptq" --weights "$weights" "${gptq[@]}"
  row "$weights, groups of 32, gptq, asymmetric" --weights "$weights" "${gptq[@]}" --asymmetric
done
row "chosen among int3, int4, int8 for 4.5 bits, gptq" "${gptq[@]}" --target-bits 4.5

"$quern" compare "$model/model.onnx" "${files[@]}" --data "$text" ${WINDOWS:+--samples "$WINDOWS"} --quiet --json >"$work/table.json"
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
