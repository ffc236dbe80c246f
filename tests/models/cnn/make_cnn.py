#!/usr/bin/env python3
"""Makes the files beside this script: a small convolutional network as exporters write them, samples to calibrate it
with, others to measure it with, and what ONNX Runtime computes of those in floats.

  pip install onnx==1.22.0 onnxruntime==1.32.0 numpy==2.4.6; python make_cnn.py
"""
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
RANDOM = np.random.default_rng(5)
SIZE = 8


class Net:
    def __init__(self):
        self.nodes, self.weights, self.value = [], [], "image"

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def add(self, op, *inputs, **attributes):
        output = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.value, *inputs], [output], name=f"/{output}", **attributes))
        self.value = output
        return output

    def conv(self, name, shape, bias=False, op="Conv", **attributes):
        outputs = shape[1] if op == "ConvTranspose" else shape[0]
        inputs = shape[0] if op == "ConvTranspose" else shape[1] * np.prod(shape[2:])
        # Channels differ in size, as those of trained networks do.
        spread = np.exp(RANDOM.normal(0, 0.7, outputs)).reshape([1, -1, 1, 1] if op == "ConvTranspose" else [-1, 1, 1, 1])
        given = [self.weight(name + ".weight", RANDOM.normal(0, np.sqrt(2 / inputs), shape) * spread)]
        if bias:
            given.append(self.weight(name + ".bias", RANDOM.normal(0, 0.2, outputs)))
        self.add(op, *given, kernel_shape=list(shape[2:]), **attributes)

    def norm(self, name, channels):
        statistics = dict(scale=RANDOM.uniform(0.5, 1.5, channels), bias=RANDOM.normal(0, 0.3, channels),
                          mean=RANDOM.normal(0, 0.3, channels), var=RANDOM.uniform(0.3, 2, channels))
        self.add("BatchNormalization", *(self.weight(f"{name}.{part}", values) for part, values in statistics.items()),
                 epsilon=1e-5)

    def gemm(self, name, outputs, inputs):
        self.add("Gemm", self.weight(name + ".weight", RANDOM.normal(0, np.sqrt(2 / inputs), (outputs, inputs))),
                 self.weight(name + ".bias", RANDOM.normal(0, 0.2, outputs)), transB=1)


def build():
    net = Net()
    net.conv("stem", (8, 3, 3, 3), pads=[1, 1, 1, 1])
    net.norm("stem.norm", 8)
    net.add("Relu")
    pooled = net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv("depthwise", (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1])
    net.norm("depthwise.norm", 8)
    net.weights.append(numpy_helper.from_array(np.float32(0), "zero"))
    net.weights.append(numpy_helper.from_array(np.float32(6), "six"))
    net.add("Clip", "zero", "six")
    net.conv("pointwise", (16, 8, 1, 1))
    net.norm("pointwise.norm", 16)
    branch, net.value = net.value, pooled
    net.conv("skip", (16, 8, 1, 1), bias=True)
    net.add("Add", branch)
    net.add("Relu")
    net.conv("up", (16, 8, 2, 2), op="ConvTranspose", strides=[2, 2])
    net.norm("up.norm", 8)
    net.add("Relu")
    net.conv("down", (12, 8, 3, 3), bias=True, strides=[2, 2], pads=[1, 1, 1, 1])
    net.add("Relu")
    net.conv("last", (12, 12, 3, 3), bias=True, pads=[1, 1, 1, 1])
    net.add("Relu")
    net.add("GlobalAveragePool")
    net.add("Flatten")
    net.gemm("hidden", 16, 12)
    net.add("Relu")
    net.gemm("head", 5, 16)
    graph = helper.make_graph(net.nodes, "cnn", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
                              [helper.make_tensor_value_info(net.value, TensorProto.FLOAT, ["batch", 5])], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="make_cnn")
    onnx.checker.check_model(model, full_check=True)
    return model


def images(count):
    """Blobs of light on a background, from 0 to 1."""
    grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE)), -1)
    at = RANDOM.uniform(0, SIZE, (count, 3, 1, 1, 2))
    wide = RANDOM.uniform(1, 4, (count, 3, 1, 1))
    light = np.exp(-((grid - at) ** 2).sum(-1) / wide**2) + RANDOM.uniform(0, 0.2, (count, 3, SIZE, SIZE))
    return (light / 1.2).round(3).astype(np.float32)


def main():
    model = build()
    onnx.save(model, HERE / "cnn.onnx")
    np.savez(HERE / "seen.npz", image=images(24))
    unseen = images(8)
    np.savez(HERE / "unseen.npz", image=unseen)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.save(HERE / "unseen_logits.npy", session.run(None, dict(image=unseen))[0])


if __name__ == "__main__":
    main()
