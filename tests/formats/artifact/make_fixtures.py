#!/usr/bin/env python3
"""Writes version1.quern by SPEC.md alone, without quern: a second implementation of the format.

Needs protobuf==7.36.2 and protoc. Usage: make_fixtures.py FOLDER
The file is never to be made anew: it shows that later readers load what version 1 wrote.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[3] / "formats/artifact/artifact.proto"


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def messages():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set"
        subprocess.run(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", PROTO.name], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName("quern.artifact.proto." + name))


def main() -> None:
    message = messages()
    body = bytearray(64)
    manifest = message("Manifest")(producer="make_fixtures.py")

    def section(data: bytes, name: str) -> int:
        body.extend(bytes(-len(body) % 64))
        manifest.sections.add(offset=len(body), size=len(data), crc32c=crc32c(data), name=name)
        body.extend(data)
        return len(manifest.sections) - 1

    # y = Mul(Add(x [batch, 2*s + 1, anonymous], w), If(c) {then: scale, else: Neg(scale)}), w [300] in a section
    manifest.symbols.extend(["batch", "s", ""])
    graph = manifest.graph
    graph.name, graph.first_value, graph.input_count = "example", 1, 2
    x = graph.values.add(name="x")
    x.type.element_type = 1
    x.type.shape.dims.add().terms.add(coefficient=1, symbols=[0])
    x.type.shape.dims.add(offset=1).terms.add(coefficient=2, symbols=[1])
    x.type.shape.dims.add().terms.add(coefficient=1, symbols=[2])
    c = graph.values.add(name="c")
    c.type.element_type = 23
    c.type.shape.SetInParent()
    w = graph.values.add(name="w").constant.tensor
    w.element_type, w.dims[:] = 1, [300]
    w.section = section(struct.pack("<300f", *range(300)), "w")
    scale = graph.values.add(name="scale").constant.tensor
    scale.element_type, scale.data = 1, struct.pack("<f", 0.5)
    scale.dims[:] = []
    codes = graph.values.add(name="q").constant.quantized
    codes.scheme.code, codes.scheme.symmetric, codes.scheme.granularity, codes.scheme.axis = 15, True, 1, 0
    codes.codes.element_type, codes.codes.dims[:], codes.codes.data = 15, [2, 2], bytes([0x21, 0x8F])
    codes.scales.element_type, codes.scales.dims[:], codes.scales.data = 1, [2], struct.pack("<2f", 1, 2)
    for name in ["sum", "factor", "y"]:
        graph.values.add(name=name).type.element_type = 1
    graph.nodes.add(op="Add", version=14, name="add", inputs=[1, 3], outputs=[6])
    choice = graph.nodes.add(op="If", version=16, name="choose", inputs=[2], outputs=[7])
    for branch, first in [("else_branch", 9), ("then_branch", 10)]:
        attribute = choice.attributes.add(name=branch)
        inner = attribute.graph
        inner.name, inner.first_value, inner.input_count = branch, first, 0
        inner.values.add(name="factor").type.element_type = 1
        inner.nodes.add(op="Neg" if first == 9 else "Identity", version=13, inputs=[4], outputs=[first])
        inner.outputs.add(value=first, name="factor")
    graph.nodes.add(op="Mul", version=14, name="mul", inputs=[6, 7], outputs=[8])
    graph.outputs.add(value=8, name="y")
    graph.operator_sets.add(domain="", version=17)
    graph.metadata.add(key="author", value="nobody")
    manifest.attachments.add(name="recipe.json", section=section(b"{}", "recipe.json"))
    manifest.source.add(name="model.onnx", size=3, sha256="00" * 32)

    data = manifest.SerializeToString(deterministic=True)
    body.extend(bytes(-len(body) % 64))
    offset = len(body)
    body.extend(data)
    head = b"\x89QUERN\n\x1a" + struct.pack("<IIQQQI16x", 1, 64, len(body), offset, len(data), crc32c(data))
    body[:64] = head + struct.pack("<I", crc32c(head))
    (pathlib.Path(sys.argv[1]) / "version1.quern").write_bytes(body)


if __name__ == "__main__":
    main()
