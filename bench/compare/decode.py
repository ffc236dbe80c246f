#!/usr/bin/env python3
"""Speed of quern and of other runtimes: prefill and decode, tokens/s, as shares of what this machine's memory gives.

  bench/compare/decode.py MODEL.onnx [--weights int8,int4] [--prompt 128] [--generate 64] [--threads N] [--rounds 3]
                          [--peers onnxruntime,openvino,llama.cpp] [--quern build/cli/quern]

The model is converted by quern to each of --weights, with activations in 16 bits (the default) and in 8 (--activations
dynamic), which is what the others round them to. ONNX Runtime and OpenVINO decode what quern exports of it (MatMulNBits,
`--accuracy-level 4`; of int8 also MatMulInteger for ONNX Runtime). llama.cpp decodes random weights of the same shape,
which take it the same time: Q8_0 beside int8; Q4_0 and Q4_K_M beside int4. Runs are interleaved, so that what else the machine does
meets all alike; the memory's rate is measured in each round, too. Printed are medians, and the least and greatest.

Needs `pip install numpy==2.4.6 onnxruntime==1.32.0 openvino==2026.4.1 gguf==0.19.0 xllamacpp==2026.10.11549`, of those the
ones whose peers are asked for.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np


def ids_of(arguments):
    return [i % 97 + 3 for i in range(1, arguments.prompt + 1)]


def rates(arguments, start, middle, end):
    return arguments.prompt / (middle - start), arguments.generate / (end - middle)


def quern_json(arguments, *words):
    words = [str(word) for word in (arguments.quern, *words, "--json")]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def quern_runner(arguments, artifact):
    def run():
        answer = quern_json(arguments, "bench", artifact, "-p", arguments.prompt, "-n", arguments.generate, "-t", arguments.threads, "-r", 1)
        return answer["prefill"]["tokens_per_second"], answer["decode"]["tokens_per_second"]
    return run


class OnnxRuntime:
    """A decoder with keys and values as inputs and outputs, which stay where ONNX Runtime put them."""

    def __init__(self, path, threads):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value.shape for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]

    def begin(self):
        self.past = {name: self.value(np.zeros([1, shape[1], 0, shape[3]], np.float32))
                     for name, shape in self.inputs.items() if name.startswith("past_key_values")}

    def step(self, ids, before):
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones([1, before + len(ids)], np.int64),
                 "position_ids": np.arange(before, before + len(ids))[None]}
        feeds = {name: self.value(value) for name, value in feeds.items() if name in self.inputs}
        results = dict(zip(self.outputs, self.session.run_with_ort_values(self.outputs, feeds | self.past)))
        self.past = {name.replace("present", "past_key_values"): x for name, x in results.items() if name != "logits"}
        return int(results["logits"].numpy()[0, -1].argmax())


class OpenVino:
    """As above; of two requests each reads what the other wrote."""

    def __init__(self, path, threads):
        import openvino
        core = openvino.Core()
        self.model = core.compile_model(core.read_model(str(path)), "CPU",
                                        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
        self.tensor = openvino.Tensor
        self.inputs = {port.get_any_name(): port.get_partial_shape() for port in self.model.inputs}
        self.outputs = [port.get_any_name() for port in self.model.outputs]

    def begin(self):
        self.requests = [self.model.create_infer_request(), self.model.create_infer_request()]
        self.past = {name: self.tensor(np.zeros([1, shape[1].get_length(), 0, shape[3].get_length()], np.float32))
                     for name, shape in self.inputs.items() if name.startswith("past_key_values")}

    def step(self, ids, before):
        request = self.requests[0]
        self.requests.reverse()
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones([1, before + len(ids)], np.int64),
                 "position_ids": np.arange(before, before + len(ids))[None]}
        for name, value in feeds.items():
            if name in self.inputs:
                request.set_tensor(name, self.tensor(value))
        for name, value in self.past.items():
            request.set_tensor(name, value)
        request.infer()
        self.past = {name.replace("present", "past_key_values"): request.get_tensor(name)
                     for name in self.outputs if name != "logits"}
        return int(request.get_tensor("logits").data[0, -1].argmax())


class LlamaCpp:
    def __init__(self, library, path, arguments, vocabulary):
        self.llama = library
        self.llama.load(path, vocabulary, arguments.prompt + arguments.generate + 1, arguments.threads)

    def begin(self):
        self.llama.forget()

    def step(self, ids, before):
        return int(self.llama.append(ids, before, 1)[0].argmax())


def runner(arguments, decoder):
    def run():
        decoder.begin()
        start = time.perf_counter()
        token = decoder.step(ids_of(arguments), 0)
        middle = time.perf_counter()
        for i in range(arguments.generate):
            token = decoder.step([token], arguments.prompt + i)
        return rates(arguments, start, middle, time.perf_counter())
    return run


def llama_runners(arguments, folder, weights, artifact):
    import llama_cpp
    shape = quern_json(arguments, "inspect", artifact)["decoder"]
    config = {"dim": shape["width"], "layers": shape["layers"], "ffn": shape["feed_forward"], "heads": shape["heads"],
              "kv_heads": shape["kv_heads"], "theta": 10000.0, "eps": 1e-5, "vocab": shape["vocabulary"]}
    context = arguments.prompt + arguments.generate + 1
    for mixture in {"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_K_M")}[weights]:
        library = llama_cpp.Llama()
        path = folder / f"{mixture}.gguf"
        size = llama_cpp.write_gguf(path, library, llama_cpp.random_weights(config), config, mixture, context)
        # Of the embedding a row is read, which is a rounding error.
        head = config["vocab"] * config["dim"]
        yield f"llama.cpp, {mixture}", size * (1 - head / (head + parameters_of(config))), runner(arguments, LlamaCpp(library, path, arguments, config["vocab"]))


def parameters_of(config):
    """Those that are read for each token."""
    dim, keys = config["dim"], config["dim"] // config["heads"] * config["kv_heads"]
    return config["layers"] * dim * (2 * dim + 2 * keys + 3 * config["ffn"]) + config["vocab"] * dim


def runners(arguments, folder):
    """Name, bytes of weights that a token reads, and what measures."""
    def quern(*words):
        subprocess.run([str(word) for word in (arguments.quern, *words, "--quiet")], check=True, stderr=subprocess.PIPE)

    for weights in arguments.weights.split(","):
        for activations in ("none", "dynamic"):
            artifact = folder / f"{weights}-{activations}.quern"
            quern("convert", arguments.model, "-o", artifact, "--weights", weights, "--activations", activations)
            size = quern_json(arguments, "bench", artifact, "-p", 1, "-n", 2, "-r", 1)["streamed_bytes_per_token"]
            bits = {"none": 16, "dynamic": 8}[activations]
            yield f"quern, {weights}, {bits}-bit activations", size, quern_runner(arguments, artifact)
        peers = arguments.peers.split(",")
        nbits = folder / f"{weights}-nbits.onnx"
        quern("export", artifact, "-o", nbits, "--style", "nbits", "--accuracy-level", 4)
        if "onnxruntime" in peers:
            yield f"ONNX Runtime, {weights}, MatMulNBits", size, runner(arguments, OnnxRuntime(nbits, arguments.threads))
            if weights == "int8":
                path = folder / f"{weights}-qoperator.onnx"
                quern("export", artifact, "-o", path, "--style", "qoperator")
                yield f"ONNX Runtime, {weights}, MatMulInteger", size, runner(arguments, OnnxRuntime(path, arguments.threads))
        if "openvino" in peers:
            yield f"OpenVINO, {weights}, MatMulNBits", size, runner(arguments, OpenVino(nbits, arguments.threads))
        if "llama.cpp" in peers:
            yield from llama_runners(arguments, folder, weights, artifact)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--weights", default="int8,int4")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="onnxruntime,openvino,llama.cpp")
    parser.add_argument("--quern", default="build/cli/quern")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entries = list(runners(arguments, pathlib.Path(folder)))
        figures = {name: [] for name, _, _ in entries}
        for _ in range(arguments.rounds):
            machine = quern_json(arguments, "bench", "--machine", "-t", arguments.threads)
            for name, size, run in entries:
                prefill, decode = run()
                figures[name].append((prefill, decode, decode * size / 1e9 / machine["machine"]["read_gbps"]))
    print(f"{arguments.prompt} tokens of prompt, {arguments.generate} generated, threads: {arguments.threads}\n")
    print("| runtime, weights | prefill, tokens/s | decode, tokens/s | of the memory's rate |\n|---|---|---|---|")
    for name, rounds in figures.items():
        prefill, decode, share = ([statistics.median(v), min(v), max(v)] for v in zip(*rounds))
        print(f"| {name} | {prefill[0]:.1f} ({prefill[1]:.1f} to {prefill[2]:.1f}) | {decode[0]:.1f} ({decode[1]:.1f} to {decode[2]:.1f}) "
              f"| {100 * share[0]:.0f}% |")


if __name__ == "__main__":
    main()
