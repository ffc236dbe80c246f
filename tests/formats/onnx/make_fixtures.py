#!/usr/bin/env python3
"""Writes the .onnx files of this folder's tests with ONNX itself (onnx==1.23.2, numpy==2.4.6, ml_dtypes==0.6.0).

Usage: make_fixtures.py FOLDER
"""

import pathlib
import sys

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(model: onnx.ModelProto, path: pathlib.Path) -> None:
    path.write_bytes(model.SerializeToString(deterministic=True))


def element_types(out: pathlib.Path) -> None:
    """Every element type, holding 0 to 5 (or what it can of that), in raw_data and in the typed fields."""
    skip = {"UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128", "FLOAT6E2M3", "FLOAT6E3M2"}
    initializers = []
    for name, number in TensorProto.DataType.items():
        if name in skip:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(number)
        if name == "BOOL":
            values = np.array([0, 1, 0, 1, 0], dtype=bool)
        elif name in ("UINT2", "INT2"):
            values = np.array([0, 1, 0, 1, 1]).astype(dtype)
        elif name == "FLOAT8E8M0":
            values = np.array([1, 2, 4, 8, 16], dtype=np.float32).astype(dtype)
        else:
            values = np.array([0, 1, 2, 3, 4], dtype=np.float32).astype(dtype)
        raw = numpy_helper.from_array(values, f"{name}.raw")
        typed = helper.make_tensor(f"{name}.typed", number, [5], values)
        assert raw.HasField("raw_data") and not typed.HasField("raw_data")
        initializers += [raw, typed]
    initializers.append(helper.make_tensor("STRING.typed", TensorProto.STRING, [2], [b"a", "žluť".encode()]))
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "types",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        initializers,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]), out / "element_types.onnx")


def functions(out: pathlib.Path) -> None:
    """Functions that call functions, attributes passed on, defaults, an omitted input, overloads, a sub-graph."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"])
    ref = leaky.attribute.add()
    ref.name, ref.ref_attr_name, ref.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    inner = helper.make_function(
        "local", "inner", ["a", "b"], ["t"], [leaky], opsets, attribute_protos=[helper.make_attribute("slope", 0.25)]
    )
    call = helper.make_node("inner", ["x"], ["h"], domain="local")
    ref = call.attribute.add()
    ref.name, ref.ref_attr_name, ref.type = "slope", "given", onnx.AttributeProto.FLOAT
    branch = helper.make_graph(
        [helper.make_node("Add", ["h", "x"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["t"])], "else", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    outer = helper.make_function(
        "local",
        "outer",
        ["x", "condition"],
        ["y", "h"],
        [call, helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=other)],
        opsets,
        attributes=["given"],
    )
    overloads = [
        helper.make_function("local", "op", ["x"], ["y"], [helper.make_node(op, ["x"], ["y"])], opsets, overload=name)
        for name, op in [("", "Abs"), ("two", "Exp")]
    ]
    graph = helper.make_graph(
        [
            helper.make_node("outer", ["x", "c"], ["y", "h"], "first", domain="local", given=0.5),
            helper.make_node("outer", ["y", "c"], ["z"], "second", domain="local"),
            helper.make_node("op", ["z"], ["a"], domain="local"),
            helper.make_node("op", ["a"], ["out"], domain="local", overload="two"),
        ],
        "main",
        [helper.make_tensor_value_info("x", 1, ["n"]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("out", 1, ["n"]), helper.make_tensor_value_info("h", 1, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=[inner, outer, *overloads])
    onnx.checker.check_model(model)
    save(model, out / "functions.onnx")


def external(out: pathlib.Path) -> None:
    """External data as ONNX's own saver lays it out."""
    weights = {f"w{i}": np.arange(16 * (i + 1), dtype=np.float32) for i in range(3)}
    weights["half"] = np.arange(7, dtype=np.float16)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w0"], ["y"])],
        "external",
        [],
        [helper.make_tensor_value_info("y", 1, [16])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save_model(
        model, out / "external.onnx", save_as_external_data=True, location="external.weights", size_threshold=0
    )


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    element_types(folder)
    functions(folder)
    external(folder)
