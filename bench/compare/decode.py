#!/usr/bin/env python3
"""Speed of quern and of other runtimes on the same weights: prefill and decode, tokens/s, on this machine.

  bench/compare/decode.py MODEL.onnx [--weights int8,int4] [--prompt 128] [--generate 64] [--threads N] [--rounds 3]
                          [--gguf FILE.gguf] [--quern build/cli/quern]

The model is converted by quern to each of --weights, and exported for ONNX Runtime (MatMulNBits with 8-bit activations,
`--accuracy-level 4`, and, of int8, MatMulInteger). With --gguf, llama.cpp decodes that file, if the package llama-cpp-python
is there; its weights are that file's own. Runs are interleaved, so that what else the machine does meets all alike; printed
are medians, and the least and greatest in brackets.

Needs `pip install onnxruntime==1.32.0 numpy==2.4.6`, and for --gguf `pip install llama-cpp-python==0.3.16`.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime


def quern_runner(arguments, artifact):
    def run():
        words = [arguments.quern, "bench", artifact, "-p", arguments.prompt, "-n", arguments.generate, "-t", arguments.threads, "--json"]
        answer = json.loads(subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout)
        return answer["prefill"]["tokens_per_second"], answer["decode"]["tokens_per_second"]
    return run


def onnxruntime_runner(arguments, path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {value.name: value for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]

    def step(ids, past):
        before = next(iter(past.values())).shape[2] if past else 0
        feeds = {"input_ids": ids, "attention_mask": np.ones([1, before + ids.shape[1]], np.int64)}
        if "position_ids" in inputs:
            feeds["position_ids"] = np.arange(before, before + ids.shape[1])[None]
        for name, value in inputs.items():
            if name.startswith("past_key_values"):
                feeds[name] = past.get(name, np.zeros([1, value.shape[1], 0, value.shape[3]], np.float32))
        results = dict(zip(outputs, session.run(None, feeds)))
        return results["logits"], {name.replace("present", "past_key_values"): x for name, x in results.items() if name != "logits"}

    def run():
        ids = np.arange(1, arguments.prompt + 1)[None] % 97 + 3
        start = time.perf_counter()
        logits, past = step(ids, {})
        middle = time.perf_counter()
        for _ in range(arguments.generate):
            logits, past = step(logits[:, -1:].argmax(-1), past)
        end = time.perf_counter()
        return arguments.prompt / (middle - start), arguments.generate / (end - middle)
    return run


def llama_runner(arguments):
    import llama_cpp
    model = llama_cpp.Llama(str(arguments.gguf), n_ctx=arguments.prompt + arguments.generate + 1, n_threads=arguments.threads,
                            n_threads_batch=arguments.threads, verbose=False)

    def run():
        model.reset()
        ids = [i % 97 + 3 for i in range(1, arguments.prompt + 1)]
        start = time.perf_counter()
        model.eval(ids)
        middle = time.perf_counter()
        for _ in range(arguments.generate):
            model.eval([model.sample(temp=0)])
        end = time.perf_counter()
        return arguments.prompt / (middle - start), arguments.generate / (end - middle)
    return run


def runners(arguments, folder):
    def quern(*words):
        subprocess.run([str(word) for word in (arguments.quern, *words, "--quiet")], check=True, stderr=subprocess.PIPE)

    for weights in arguments.weights.split(","):
        artifact = folder / f"{weights}.quern"
        quern("convert", arguments.model, "-o", artifact, "--weights", weights)
        yield f"quern, {weights}", quern_runner(arguments, artifact)
        styles = [("MatMulNBits", "nbits")] + ([("MatMulInteger", "qoperator")] if weights == "int8" else [])
        for name, style in styles:
            path = folder / f"{weights}-{style}.onnx"
            quern("export", artifact, "-o", path, "--style", style, *(["--accuracy-level", 4] if style == "nbits" else []))
            yield f"onnxruntime, {weights}, {name}", onnxruntime_runner(arguments, path)
    if arguments.gguf:
        yield f"llama.cpp, {arguments.gguf.name}", llama_runner(arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--weights", default="int8,int4")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--quern", default="build/cli/quern")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entries = list(runners(arguments, pathlib.Path(folder)))
        figures = {name: [] for name, _ in entries}
        for _ in range(arguments.rounds):
            for name, run in entries:
                figures[name].append(run())
    print(f"{arguments.prompt} tokens of prompt, {arguments.generate} generated, threads: {arguments.threads}\n")
    print("| runtime, weights | prefill, tokens/s | decode, tokens/s |\n|---|---|---|")
    for name, pairs in figures.items():
        cells = [f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" for values in zip(*pairs)]
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
