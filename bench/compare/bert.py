#!/usr/bin/env python3
"""Times an encoder of BERT-base's shape with random weights in quern and in ONNX Runtime, in turns.

    bench/compare/bert.py --quern build/cli/quern [--batch 1 --tokens 128 --threads 2 --rounds 5]

Needs the packages onnx, onnxruntime and numpy. The model is written as PyTorch's exporter spells it (MatMul and Add,
Erf for the GELU), 12 layers of width 768 unless told otherwise, converted to an fp32 artifact, and run by both on the
same ids. Prints the fastest time of each round, the ratio of the best ones, and how far the outputs are apart.
"""
import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


class Builder:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name, *shape):
        scale = 0.5 / np.sqrt(shape[0]) if len(shape) > 1 else 0.1
        return self.constant(name, (self.random.standard_normal(shape) * scale).astype(np.float32))

    def add(self, op, inputs, **attributes):
        name = f"/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name + "_output"], name=name, **attributes))
        return name + "_output"

    def linear(self, x, name, k, n):
        return self.add("Add", [self.add("MatMul", [x, self.weight(name + ".weight", k, n)]),
                                self.weight(name + ".bias", n)])

    def norm(self, x, name, width):
        ones = self.constant(name + ".weight", np.ones(width, np.float32))
        return self.add("LayerNormalization", [x, ones, self.weight(name + ".bias", width)], axis=-1, epsilon=1e-12)

    def gelu(self, x):
        half = self.constant_once("half", 0.5)
        one = self.constant_once("one", 1.0)
        erf = self.add("Erf", [self.add("Div", [x, self.constant_once("sqrt2", 1.4142135)])])
        return self.add("Mul", [self.add("Mul", [x, self.add("Add", [erf, one])]), half])

    def constant_once(self, name, value):
        if not any(c.name == name for c in self.constants):
            self.constant(name, np.array(value, np.float32))
        return name


def make_model(path, layers, width, heads, vocabulary=30522, positions=512):
    b = Builder(1)
    size = width // heads
    ids = "input_ids"
    words = b.add("Gather", [b.weight("embeddings.word", vocabulary, width), ids])
    length = b.add("Gather", [b.add("Shape", [ids]), b.constant("one_index", np.array(1, np.int64))], axis=0)
    place = b.add("Range", [b.constant("zero", np.array(0, np.int64)), length, b.constant("step", np.array(1, np.int64))])
    x = b.add("Add", [words, b.add("Gather", [b.weight("embeddings.position", positions, width), place])])
    x = b.norm(x, "embeddings.norm", width)
    kept = b.add("Cast", [b.add("Unsqueeze", ["attention_mask", b.constant("axes", np.array([1, 2], np.int64))])], to=1)
    hidden = b.add("Mul", [b.add("Sub", [b.constant_once("one", 1.0), kept]), b.constant_once("lowest", -10000.0)])
    split = b.constant("split", np.array([0, 0, heads, size], np.int64))
    merge = b.constant("merge", np.array([0, 0, width], np.int64))

    def heads_of(x, perm):
        return b.add("Transpose", [b.add("Reshape", [x, split])], perm=perm)

    for i in range(layers):
        name = f"layer.{i}."
        q = heads_of(b.linear(x, name + "q", width, width), [0, 2, 1, 3])
        k = heads_of(b.linear(x, name + "k", width, width), [0, 2, 3, 1])
        v = heads_of(b.linear(x, name + "v", width, width), [0, 2, 1, 3])
        scores = b.add("Div", [b.add("MatMul", [q, k]), b.constant_once("scale", float(np.sqrt(size)))])
        weights = b.add("Softmax", [b.add("Add", [scores, hidden])], axis=-1)
        a = b.add("Reshape", [b.add("Transpose", [b.add("MatMul", [weights, v])], perm=[0, 2, 1, 3]), merge])
        x = b.norm(b.add("Add", [b.linear(a, name + "o", width, width), x]), name + "norm1", width)
        m = b.linear(b.gelu(b.linear(x, name + "up", width, 4 * width)), name + "down", 4 * width, width)
        x = b.norm(b.add("Add", [m, x]), name + "norm2", width)
    b.nodes[-1].output[0] = "last_hidden_state"
    shape = ["batch", "sequence"]
    graph = helper.make_graph(
        b.nodes, "bert",
        [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in (ids, "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape + [width])], b.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quern", default="build/cli/quern")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "bert.onnx", options.layers, options.width, options.heads)
        subprocess.run([options.quern, "convert", folder / "bert.onnx", "-o", folder / "bert.quern", "--weights", "fp32",
                        "-q"], check=True)
        shape = (options.batch, options.tokens)
        feeds = {"input_ids": np.random.default_rng(2).integers(0, 30522, shape),
                 "attention_mask": np.ones(shape, np.int64)}
        np.savez(folder / "inputs.npz", **feeds)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        session = onnxruntime.InferenceSession(str(folder / "bert.onnx"), settings, providers=["CPUExecutionProvider"])
        best = {"quern": float("inf"), "onnxruntime": float("inf")}
        for _ in range(options.rounds):
            done = subprocess.run([options.quern, "run", folder / "bert.quern", "--inputs", folder / "inputs.npz", "-o",
                                   folder / "out", "--repeat", str(options.repeat), "--json"],
                                  check=True, capture_output=True, text=True)
            ours = json.loads(done.stdout)["seconds"]
            theirs = float("inf")
            for _ in range(options.repeat):
                start = time.perf_counter()
                expected = session.run(None, feeds)[0]
                theirs = min(theirs, time.perf_counter() - start)
            best = {"quern": min(best["quern"], ours), "onnxruntime": min(best["onnxruntime"], theirs)}
            print(f"quern {1e3 * ours:8.1f} ms   onnxruntime {1e3 * theirs:8.1f} ms")
        found = np.load(next((folder / "out").glob("*.npy")))
        print(f"best: quern / onnxruntime = {best['quern'] / best['onnxruntime']:.2f}; "
              f"outputs differ by {np.abs(found - expected).max():.2g} at most")


if __name__ == "__main__":
    main()
