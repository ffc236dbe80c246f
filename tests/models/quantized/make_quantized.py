#!/usr/bin/env python3
"""Models that ONNX Runtime's quantizers wrote, with what ONNX Runtime computes with them, for quantized_models_test.cpp.

  tests/models/quantized/make_quantized.py [NAME...]

The models are the tiny Llama and BERT of tests/models/families, a small convolutional network and a product; each is
quantized dynamically, statically (QDQ and QOperator), and in blocks. Every file becomes NAME.onnx, with inputs and outputs
in NAME.json.

Needs `pip install torch==2.7.1 onnx==1.23.2 onnxruntime==1.23.2 numpy==2.4.6` (torch for HQQ).
"""
import json
import logging
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, matmul_nbits_quantizer,
                                      quantize_dynamic, quantize_static)
from onnxruntime.quantization.shape_inference import quant_pre_process

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = HERE.parent / "families"
PROMPT = [[1, 17, 5, 40, 22, 9, 33, 60, 2, 11], [3, 8, 61, 19, 19, 4, 50, 27, 35, 6]]
random = np.random.default_rng(7)


def convolutional(path):
    """Convolutions with batch normalization, Relu and Clip; a depthwise and a pointwise one, a residual sum, pooling."""
    nodes, weights = [], []

    def constant(name, array):
        weights.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def block(name, x, shape, activation, **attributes):
        w = constant(f"{name}.weight", random.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5)
        nodes.append(helper.make_node("Conv", [x, w], [f"{name}.conv"], name=f"{name}.Conv", **attributes))
        channels = shape[0]
        norm = [constant(f"{name}.{part}", values) for part, values in [
            ("gamma", random.uniform(0.5, 1.5, channels)), ("beta", random.uniform(-0.2, 0.2, channels)),
            ("mean", random.uniform(-0.2, 0.2, channels)), ("var", random.uniform(0.5, 1.5, channels))]]
        nodes.append(helper.make_node("BatchNormalization", [f"{name}.conv", *norm], [f"{name}.norm"], name=f"{name}.Norm"))
        if activation == "Relu":
            nodes.append(helper.make_node("Relu", [f"{name}.norm"], [f"{name}.out"], name=f"{name}.Relu"))
        elif activation == "Clip":
            nodes.append(helper.make_node("Clip", [f"{name}.norm", "zero", "six"], [f"{name}.out"], name=f"{name}.Clip"))
        else:
            return f"{name}.norm"
        return f"{name}.out"

    constant("zero", 0.0), constant("six", 6.0)
    x = block("stem", "image", [8, 3, 3, 3], "Relu", pads=[1, 1, 1, 1], strides=[2, 2])
    y = block("depthwise", x, [8, 1, 3, 3], "Clip", pads=[1, 1, 1, 1], group=8)
    y = block("pointwise", y, [8, 8, 1, 1], "none")
    nodes.append(helper.make_node("Add", [x, y], ["sum"], name="Add"))
    nodes.append(helper.make_node("MaxPool", ["sum"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2], name="MaxPool"))
    nodes.append(helper.make_node("GlobalAveragePool", ["pooled"], ["averaged"], name="GlobalAveragePool"))
    nodes.append(helper.make_node("Flatten", ["averaged"], ["flat"], name="Flatten"))
    constant("head.weight", random.standard_normal([10, 8]) * 0.3), constant("head.bias", random.standard_normal(10) * 0.1)
    nodes.append(helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["scores"], transB=1, name="Gemm"))
    graph = helper.make_graph(nodes, "cnn",
                              [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def product(path):
    """Wide enough for k-quants, whose blocks are of 128."""
    weight = numpy_helper.from_array(random.standard_normal([256, 24]).astype(np.float32) * 0.2, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="MatMul")], "product",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 256])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 24])], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def feeds_of(session, seed):
    values = np.random.default_rng(seed)
    ids = np.array(PROMPT, np.int64) if seed == 0 else values.integers(0, 64, [2, 10])
    feeds = {}
    for value in session.get_inputs():
        if value.name == "image":
            feeds[value.name] = values.standard_normal([2, 3, 16, 16]).astype(np.float32).round(2)
        elif value.name == "x":
            feeds[value.name] = values.standard_normal([3, 256]).astype(np.float32).round(2)
        elif value.name == "input_ids":
            feeds[value.name] = ids
        elif value.name == "position_ids":
            feeds[value.name] = np.tile(np.arange(10), [2, 1])
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones([2, 10], np.int64)
        elif value.name == "token_type_ids":
            feeds[value.name] = np.zeros([2, 10], np.int64)
        else:
            feeds[value.name] = np.zeros([2, value.shape[1], 0, value.shape[3]], np.float32)
    return feeds


class Reader(CalibrationDataReader):
    def __init__(self, path):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.batches = iter([feeds_of(session, seed) for seed in range(1, 9)])

    def get_next(self):
        return next(self.batches, None)


def static(source, target, quant_format, **options):
    quantize_static(source, target, Reader(source), quant_format=quant_format, calibrate_method=CalibrationMethod.MinMax, **options)


def blocks(source, target, bits=4, algorithm=None, quant_format=QuantFormat.QOperator, symmetric=True):
    model = onnx.load(source)
    config = {
        "hqq": lambda: matmul_nbits_quantizer.HQQWeightOnlyQuantConfig(block_size=16, bits=bits),
        "k_quant": lambda: matmul_nbits_quantizer.KQuantWeightOnlyQuantConfig(),
        None: lambda: matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
            block_size=16, is_symmetric=symmetric, bits=bits, quant_format=quant_format,
            op_types_to_quantize=("MatMul", "Gather") if quant_format == QuantFormat.QOperator and bits == 4 else ("MatMul",)),
    }[algorithm]()
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(model, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(target)


# reduce_range: weights of 7 bits where integer kernels run, whose sums of u8 by s8 saturate at 16 bits on AVX2.
QDQ, QOPERATOR, INT8, UINT8 = QuantFormat.QDQ, QuantFormat.QOperator, QuantType.QInt8, QuantType.QUInt8
CASES = {
    "llama_dynamic_int8": ("llama", lambda s, t: quantize_dynamic(s, t, weight_type=INT8, reduce_range=True)),
    "llama_dynamic_uint8_channel": ("llama", lambda s, t: quantize_dynamic(s, t, weight_type=UINT8, per_channel=True)),
    "llama_static_qdq": ("llama", lambda s, t: static(s, t, QDQ, weight_type=INT8, activation_type=UINT8, per_channel=True,
                                                      op_types_to_quantize=["MatMul"])),
    "llama_nbits4": ("llama", lambda s, t: blocks(s, t)),
    "llama_nbits4_asymmetric": ("llama", lambda s, t: blocks(s, t, symmetric=False)),
    "llama_nbits8": ("llama", lambda s, t: blocks(s, t, bits=8)),
    "llama_nbits4_qdq": ("llama", lambda s, t: blocks(s, t, quant_format=QDQ)),
    "llama_hqq": ("llama", lambda s, t: blocks(s, t, algorithm="hqq")),
    "product_k_quant": ("product", lambda s, t: blocks(s, t, algorithm="k_quant")),
    "bert_dynamic": ("bert", lambda s, t: quantize_dynamic(s, t, weight_type=INT8, per_channel=True, reduce_range=True)),
    "bert_static_qdq": ("bert", lambda s, t: static(s, t, QDQ, weight_type=INT8, activation_type=UINT8)),
    "bert_static_qdq_channel": ("bert", lambda s, t: static(s, t, QDQ, weight_type=INT8, activation_type=INT8, per_channel=True)),
    "bert_static_qoperator": ("bert", lambda s, t: static(s, t, QOPERATOR, weight_type=INT8, activation_type=UINT8, reduce_range=True)),
    "cnn_dynamic": ("cnn", lambda s, t: quantize_dynamic(s, t, weight_type=UINT8)),
    "cnn_static_qdq": ("cnn", lambda s, t: static(s, t, QDQ, weight_type=INT8, activation_type=UINT8)),
    "cnn_static_qdq_channel": ("cnn", lambda s, t: static(s, t, QDQ, weight_type=INT8, activation_type=INT8, per_channel=True)),
    "cnn_static_qoperator": ("cnn", lambda s, t: static(s, t, QOPERATOR, weight_type=INT8, activation_type=UINT8, reduce_range=True)),
    "cnn_static_qoperator_channel": ("cnn", lambda s, t: static(s, t, QOPERATOR, weight_type=INT8, activation_type=UINT8, reduce_range=True, per_channel=True)),
}


def numbers(array):
    return [float(f"{x:.7g}") for x in array.ravel()] if array.dtype == np.float32 else array.ravel().tolist()


def record(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    # Fusions keep sums that the file rounds to 8 bits; what is recorded is what the file says.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = feeds_of(session, 0)
    outputs = dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds)))
    kept = {name: array for name, array in outputs.items() if not name.startswith("present")}
    entry = lambda array: dict(shape=list(array.shape), type="f32" if array.dtype == np.float32 else "i64", data=numbers(array))
    return dict(inputs={name: entry(array) for name, array in feeds.items()},
                outputs={name: entry(array) for name, array in kept.items()})


def main():
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        convolutional(folder / "cnn.raw.onnx")
        product(folder / "product.raw.onnx")
        for name in ("llama", "bert", "cnn", "product"):
            made_here = folder / f"{name}.raw.onnx"
            source = made_here if made_here.exists() else FAMILIES / f"{name}.onnx"
            quant_pre_process(str(source), str(folder / f"{name}.onnx"), skip_symbolic_shape=True, skip_optimization=name != "cnn")
        for name, (source, make) in CASES.items():
            if len(sys.argv) > 1 and name not in sys.argv[1:]:
                continue
            make(str(folder / f"{source}.onnx"), str(folder / "out.onnx"))
            onnx.save(onnx.load(folder / "out.onnx"), HERE / f"{name}.onnx")
            (HERE / f"{name}.json").write_text(json.dumps(record(HERE / f"{name}.onnx"), separators=(",", ":")) + "\n")
            print(name, (HERE / f"{name}.onnx").stat().st_size)


if __name__ == "__main__":
    main()
