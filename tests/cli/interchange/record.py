#!/usr/bin/env python3
"""Records what ONNX Runtime computes with models that quern exported, for interchange_test.cpp.

  tests/cli/interchange/record.py [QUERN]     QUERN: the program, build/cli/quern if left out

Each case is converted and exported, run by ONNX Runtime, and written to records.json: the logits (or the output of an
encoder) and the SHA-256 of the exported file, by which the test knows that it looks at the same file. Run it again where a
change of quern changes what it exports.

Needs `pip install onnx==1.22.0 onnxruntime==1.32.0 numpy==2.4.6`.
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FAMILIES = "tests/models/families/{}.onnx"
PROMPT = [[1, 17, 5, 40, 22, 9, 33, 60, 2, 11], [3, 8, 61, 19, 19, 4, 50, 27, 35, 6]]
STEPS = 2  # of the prompt's last tokens, decoded one at a time

# For decoders with attention masks and positions of all kinds.
DECODERS = ["llama", "gemma2", "gemma3", "qwen3", "gpt2", "gpt_neox", "gptj", "phi", "mpt", "mistral", "olmo2", "phi3_long",
            "smollm3", "stablelm"]
ENCODERS = ["bert", "distilbert", "roberta", "vit"]
# Weights of all kinds, as options of `quern convert`, with the styles that have a form for them.
SCHEMES = {
    "fp16": ("--weights fp16", ["plain"]),
    "bf16": ("--weights bf16", ["plain"]),
    "fp8": ("--weights fp8-e4m3", ["plain", "qdq"]),
    "int8": ("--weights int8", ["plain", "nbits", "qdq", "qoperator"]),
    "int8-asymmetric": ("--weights int8 --asymmetric", ["nbits", "qdq", "qoperator"]),
    "int8-tensor": ("--weights int8 --granularity tensor", ["nbits", "qdq", "qoperator"]),
    "int8-group": ("--weights int8 --granularity group --group-size 16", ["nbits", "qdq"]),
    "int8-dynamic": ("--weights int8 --activations dynamic", ["qoperator"]),
    "int4": ("--weights int4", ["plain", "nbits", "qdq"]),
    "int4-asymmetric": ("--weights int4 --asymmetric --group-size 16", ["nbits", "qdq"]),
    "int4-channel": ("--weights int4 --granularity channel", ["nbits", "qdq", "qoperator"]),
    "int3": ("--weights int3 --group-size 16", ["nbits", "qdq"]),
    "int2": ("--weights int2 --group-size 16", ["nbits", "qdq"]),
}
# A convolutional network, with data to calibrate it.
CNN = "tests/models/cnn/cnn.onnx"
STATIC = "--weights int8 --activations static --calibration-data tests/models/cnn/seen.npz"
CNN_SCHEMES = [
    ("--weights fp32", ["plain"]),
    ("--weights int8", ["plain", "nbits", "qdq", "qoperator"]),
    (STATIC, ["qdq", "qoperator"]),
    (STATIC + " --activation-codes int8", ["qdq", "qoperator"]),
    (STATIC + " --activation-codes uint8-asymmetric", ["qdq", "qoperator"]),
    ("--weights int8 --activations dynamic", ["qoperator"]),
    ("--weights int8 --granularity tensor --asymmetric", ["qdq", "qoperator"]),
    ("--weights int4 --asymmetric", ["qdq"]),
    ("--weights fp16", ["plain"]),
]


def cases():
    for name in DECODERS:
        for operators in ("fused", "onnx"):
            yield dict(model=FAMILIES.format(name), convert="--weights fp32", export=f"--style plain --operators {operators}")
    for name in ENCODERS:
        yield dict(model=FAMILIES.format(name), convert="--weights fp32", export="--style plain")
        for style in ("nbits", "qdq", "qoperator"):
            yield dict(model=FAMILIES.format(name), convert="--weights int8", export=f"--style {style} --operators onnx")
    for options, styles in SCHEMES.values():
        for style in styles:
            yield dict(model=FAMILIES.format("llama"), convert=options, export=f"--style {style}")
    for options, styles in CNN_SCHEMES:
        for style in styles:
            yield dict(model=CNN, convert=options, export=f"--style {style}")
    yield dict(model=CNN, convert=STATIC, export="--style qoperator --operators onnx")
    yield dict(model=FAMILIES.format("gpt2"), convert="--weights fp8-e4m3", export="--style qdq")  # a tied table
    for style, options in [("nbits", "--weights int4"), ("qdq", "--weights int8")]:
        yield dict(model="examples/storyteller/model.onnx", convert=options, export=f"--style {style}")


def quern(*words):
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/cli/quern")
    subprocess.run([program, *map(str, words), "--quiet"], check=True, cwd=ROOT, stderr=subprocess.PIPE)


def exported(case, folder):
    quern("convert", case["model"], "-o", folder / "model.quern", *case["convert"].split())
    quern("export", folder / "model.quern", "-o", folder / "model.onnx", *case["export"].split())
    return folder / "model.onnx"


def open_session(path, as_written):
    options = onnxruntime.SessionOptions()
    if as_written:  # else the runtime fuses what rounds, and rounds biases and more
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Else DequantizeLinear with MatMul becomes a MatMulNBits on 8-bit activations.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def numbers(array):
    return [float(f"{x:.7g}") for x in np.asarray(array, np.float32).ravel()]


def decoder_step(session, ids, past):
    batch, length = ids.shape
    before = next(iter(past.values())).shape[2] if past else 0
    feeds = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            feeds[value.name] = ids
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones([batch, before + length], np.int64)
        elif value.name == "position_ids":
            feeds[value.name] = np.tile(np.arange(before, before + length), [batch, 1])
        else:
            feeds[value.name] = past.get(value.name, np.zeros([batch, value.shape[1], 0, value.shape[3]], np.float32))
    outputs = dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds)))
    logits = outputs.pop("logits")
    return logits, {name.replace("present", "past_key_values"): value for name, value in outputs.items()}


def record_decoder(session):
    """Logits of the last token: of a prefill of both prompts, then of single tokens behind it."""
    ids = np.array(PROMPT, np.int64)
    logits, past = decoder_step(session, ids[:, :-STEPS], {})
    record = [numbers(logits[:, -1])]
    for i in range(-STEPS, 0):
        logits, past = decoder_step(session, ids[:, [i]], past)
        record.append(numbers(logits[:, -1]))
    return dict(prompt=PROMPT, steps=STEPS, logits=record)


def record_encoder(session):
    feeds, shapes = {}, {}
    for number, value in enumerate(session.get_inputs()):
        if value.name == "pixel_values":
            feeds[value.name] = np.random.default_rng(1).standard_normal([1, 3, 16, 16]).astype(np.float32).round(2)
        elif value.name == "image":
            feeds[value.name] = np.load(ROOT / "tests/models/cnn/unseen.npz")["image"]
        elif value.name == "input_ids":
            feeds[value.name] = np.array(PROMPT, np.int64)
        else:
            feeds[value.name] = np.full([2, len(PROMPT[0])], int(value.name == "attention_mask"), np.int64)
        shapes[value.name] = list(feeds[value.name].shape)
    if "attention_mask" in feeds:
        feeds["attention_mask"][1, -3:] = 0
    outputs = session.run(None, feeds)
    inputs = {name: dict(shape=shapes[name], type="f32" if array.dtype == np.float32 else "i64",
                         values=numbers(array) if array.dtype == np.float32 else array.ravel().tolist())
              for name, array in feeds.items()}
    return dict(inputs=inputs, outputs={value.name: numbers(array) for value, array in zip(session.get_outputs(), outputs)})


def main():
    records = []
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            path = exported(case, pathlib.Path(folder))
            # Fused norms stand in ai.onnx, where the checker knows none of that name.
            if case["model"] == CNN or "--operators onnx" in case["export"]:
                onnx.checker.check_model(str(path), full_check=True)
            session = open_session(path, case["model"] == CNN)
            decoder = any(value.name.startswith("past_key_values") for value in session.get_inputs())
            large = path.stat().st_size > 1 << 20
            record = record_decoder(session) if decoder else record_encoder(session)
            if large:  # the vocabulary is large: every 64th logit
                record["logits"] = [np.array(step).reshape(2, -1)[:, ::64].ravel().tolist() for step in record["logits"]]
                record["every"] = 64
            records.append({**case, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **record})
            print(case["model"], case["convert"], case["export"], path.stat().st_size)
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    (HERE / "records.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
