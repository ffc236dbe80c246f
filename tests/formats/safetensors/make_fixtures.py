#!/usr/bin/env python3
"""Writes the fixture of this folder's tests with the reference implementation (safetensors==0.8.0, numpy==2.4.6,
ml_dtypes==0.6.0). Usage: make_fixtures.py FOLDER."""

import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    base = np.arange(6).reshape(2, 3)
    tensors = {name: base.astype(name) for name in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]}
    tensors["bool"] = base % 2 == 1
    tensors["bf16"] = base.astype(ml_dtypes.bfloat16)
    tensors["scalar"] = np.array(1.5, np.float32)
    tensors["empty"] = np.zeros((0, 3), np.float32)
    save_file(tensors, out / "types.safetensors", metadata={"format": "pt", "žluť": "😀"})


if __name__ == "__main__":
    main()
