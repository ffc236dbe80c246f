#!/usr/bin/env python3
"""Compares quern with the framework on a model that export.py made: logits in fp32, and the tokens decoded greedily.

  bench/models/check.py FOLDER [QUERN]

Exit status 1 where logits differ by more than fp32 explains or a greedy token differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx

TOLERANCE = 1e-3  # of the largest logit's size; the sums run over at most some thousand terms


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def graph_inputs(model, reference):
    """The reference's inputs, and an empty past for each cache."""
    feeds = {}
    length = reference["input_ids"].shape[1]
    for value in onnx.load(model, load_external_data=False).graph.input:
        shape = [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        if value.name in reference:
            feeds[value.name] = reference[value.name]
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones_like(reference["input_ids"])
        elif value.name == "position_ids":
            feeds[value.name] = np.arange(length)[None]
        else:
            feeds[value.name] = np.zeros([1, shape[1], 0, shape[3]], np.float32)
    return feeds


def compare(name, expected, computed):
    error = float(np.max(np.abs(expected - computed)))
    scale = float(np.max(np.abs(expected)))
    agree = float(np.mean(expected.argmax(-1) == computed.argmax(-1)))
    print(f"{name}: largest difference {error:.2e} of values up to {scale:.1f}; the largest is in the same place in {100 * agree:.2f}%")
    return error <= TOLERANCE * scale


def main():
    folder, quern = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "build/cli/quern"
    model = folder / "model.onnx"
    reference = dict(np.load(folder / "reference.npz"))
    output = "logits" if "logits" in reference else "last_hidden_state"
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(f"{scratch}/in.npz", **graph_inputs(model, reference))
        run(quern, "run", model, "--inputs", f"{scratch}/in.npz", "--output", f"{scratch}/out", "--quiet")
        same = compare(output, reference[output], np.load(f"{scratch}/out/{output}.npy"))
    if "greedy" in reference:
        ids = ",".join(map(str, reference["input_ids"][0]))
        greedy = reference["greedy"].tolist()
        answer = json.loads(run(quern, "generate", model, "--ids", ids, "-n", len(greedy), "--json", "--quiet"))
        agreed = next((i for i, (a, b) in enumerate(zip(greedy, answer["ids"])) if a != b), len(answer["ids"]))
        print(f"greedy: {agreed} of {len(greedy)} tokens in a row are the framework's")
        print(f"text: {answer['text']}")
        same = same and answer["ids"] == greedy[: len(answer["ids"])]
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
