#!/usr/bin/env python3
"""Quantizes the products of a model to 4 bits as ONNX Runtime does, for docs/accuracy.md.

  bench/onnxruntime_4bit.py MODEL.onnx FOLDER

Writes FOLDER/rtn.onnx, rtn-asymmetric.onnx and k-quant.onnx. Needs `pip install onnx==1.23.2 onnxruntime==1.32.0`.
"""
import logging
import pathlib
import sys

import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as quantizer

WAYS = {
    "rtn": lambda: quantizer.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, bits=4),
    "rtn-asymmetric": lambda: quantizer.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False, bits=4),
    "k-quant": quantizer.KQuantWeightOnlyQuantConfig,
}

logging.disable(logging.WARNING)
model, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
for name, way in WAYS.items():
    work = quantizer.MatMulNBitsQuantizer(onnx.load(model), algo_config=way())
    work.process()
    work.model.save_model_to_file(str(folder / f"{name}.onnx"), use_external_data_format=False)
