#!/usr/bin/env python3
"""What other tools' 4-bit formats cost on the same weights and text: rows for docs/accuracy.md.

    pip install onnx onnxruntime onnx_ir tokenizers numpy gguf xllamacpp        (torch for HQQ)
    bench/compare/accuracy_peers.py MODEL_DIR TEXT [--windows N] [--only ort|llama]

MODEL_DIR holds model.onnx (a Llama with past keys and values, as PyTorch exports it), tokenizer.json and config.json.
The protocol is that of `quern compare`: windows of 256 tokens, each scored on its own, the next token of every position
counted; perplexity, KL divergence from the fp32 model in nats, share of equal most likely tokens. ONNX Runtime runs its
own quantized graphs; llama.cpp (by way of the shared library in the xllamacpp wheel) runs GGUF files that are made here of
the same weights. Bits are those of all weights as stored, for each weight of the model; ONNX Runtime keeps a tied head
twice.
"""
import argparse
import json
import logging
import math
import pathlib
import re
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from tokenizers import Tokenizer

import llama_cpp

CONTEXT = 256


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


class Score:
    def __init__(self):
        self.nll, self.reference_nll, self.count, self.same = 0.0, 0.0, 0, 0
        self.kl = []

    def add(self, reference, candidate, targets):
        p, q = log_softmax(reference), log_softmax(candidate)
        rows = np.arange(len(targets))
        self.reference_nll -= p[rows, targets].sum()
        self.nll -= q[rows, targets].sum()
        self.kl.extend((np.exp(p) * (p - q)).sum(axis=-1))
        self.same += int((p.argmax(-1) == q.argmax(-1)).sum())
        self.count += len(targets)

    def row(self, name, bits):
        perplexity = math.exp(self.nll / self.count)
        change = perplexity / math.exp(self.reference_nll / self.count) - 1
        return (f"| {name} | {bits:.2f} | {perplexity:.3f} | {100 * change:+.3f}% | {np.mean(self.kl):.2e} "
                f"| {np.quantile(self.kl, 0.99):.2e} | {100 * self.same / self.count:.2f}% |")


class OnnxModel:
    def __init__(self, model):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        source = model if isinstance(model, (str, bytes)) else model.SerializeToString()
        self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def logits(self, ids):
        feeds = {}
        for tensor in self.session.get_inputs():
            if tensor.name.startswith("past"):
                feeds[tensor.name] = np.zeros([1, tensor.shape[1], 0, tensor.shape[3]], np.float32)
        feeds["input_ids"] = np.array([ids], np.int64)
        feeds["attention_mask"] = np.ones([1, len(ids)], np.int64)
        feeds["position_ids"] = np.arange(len(ids), dtype=np.int64)[None]
        known = {tensor.name for tensor in self.session.get_inputs()}
        return self.session.run(["logits"], {k: v for k, v in feeds.items() if k in known})[0][0]


def unique_parameters(weights):
    return sum(weights[name].size for name in weights if name != "output.weight")


def stored_bits(model, parameters):
    bytes_ = sum(len(numpy_helper.to_array(i).tobytes()) if i.data_type not in (21, 22) else len(i.raw_data)
                 for i in model.graph.initializer)
    return 8 * bytes_ / parameters


def ort_candidates(path):
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits
    from onnxruntime.quantization.quant_utils import QuantFormat

    def quantize(config):
        quantizer = nbits.MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
        quantizer.process()
        return quantizer.model.model

    def default(symmetric):
        # Gather would need opset 21, to which the quantizer does not convert the rest of the graph.
        return nbits.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, accuracy_level=0,
                                                  quant_format=QuantFormat.QOperator, op_types_to_quantize=("MatMul",))

    yield "ONNX Runtime, MatMulNBits, blocks of 32, symmetric; embedding in fp32", lambda: quantize(default(True))
    yield "ONNX Runtime, MatMulNBits, blocks of 32, asymmetric; embedding in fp32", lambda: quantize(default(False))
    yield "ONNX Runtime, k-quant; embedding in fp32", lambda: quantize(nbits.KQuantWeightOnlyQuantConfig())
    yield "ONNX Runtime, HQQ, blocks of 32; embedding in fp32", lambda: quantize(
        nbits.HQQWeightOnlyQuantConfig(block_size=32, quant_format=QuantFormat.QOperator))


# ---- llama.cpp


def llama_weights(path):
    """Weights by GGUF's names, [outputs, inputs]."""
    graph = onnx.load(path).graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    projections = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
                   "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    weights = {}
    for node in graph.node:
        layer = re.search(r"layers\.(\d+)/", node.name)
        for name, short in projections.items():
            if node.op_type == "MatMul" and layer and name in node.name:
                weights[f"blk.{layer[1]}.{short}.weight"] = constants[node.input[1]].T.copy()
    for name, value in constants.items():
        if name.endswith("embed_tokens.weight"):
            weights["token_embd.weight"] = value
        elif norm := re.search(r"layers\.(\d+)\.(input|post_attention)_layernorm\.weight$", name):
            weights[f"blk.{norm[1]}.{'attn_norm' if norm[2] == 'input' else 'ffn_norm'}.weight"] = value
        elif re.search(r"(^|\.)norm\.weight$", name):
            weights["output_norm.weight"] = value
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=1 << 30)
    parser.add_argument("--only", choices=["ort", "llama"])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    path = str(arguments.model / "model.onnx")
    ids = Tokenizer.from_file(str(arguments.model / "tokenizer.json")).encode(arguments.text.read_text()).ids
    windows = [ids[i:i + CONTEXT + 1] for i in range(0, len(ids) - CONTEXT, CONTEXT)][:arguments.windows]
    reference = OnnxModel(path)
    weights = llama_weights(path)
    parameters = unique_parameters(weights)

    def measure(name, bits, candidate):
        score = Score()
        for window in windows:
            score.add(reference.logits(window[:-1]), candidate.logits(window[:-1]), np.array(window[1:]))
        print(score.row(name, bits), flush=True)

    print("| weights | bits per weight | perplexity | change | KL mean | KL 99% | top-1 |\n|---|---|---|---|---|---|---|")
    if arguments.only != "llama":
        for name, make in ort_candidates(path):
            try:
                model = make()
                measure(name, stored_bits(model, parameters), OnnxModel(model))
            except Exception as error:  # a method may need packages that are not there
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
    if arguments.only != "ort":
        config = json.loads((arguments.model / "config.json").read_text())
        llama = llama_cpp.Llama()
        with tempfile.TemporaryDirectory() as folder:
            for mixture in ("F32", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M"):
                target = pathlib.Path(folder) / f"{mixture}.gguf"
                bytes_ = llama_cpp.write_gguf(target, llama, weights, config, mixture, CONTEXT)
                llama.load(target, config["vocab"], CONTEXT, 1)
                measure(f"llama.cpp, {mixture}", 8 * bytes_ / parameters, llama)


if __name__ == "__main__":
    main()
