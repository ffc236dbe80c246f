#!/usr/bin/env python3
"""Writes the .npy and .npz files of this folder's tests with NumPy itself (numpy==2.4.6).

Usage: make_fixtures.py FOLDER. The same NumPy writes the same bytes, except for the time stamps of .npz members.
"""

import pathlib
import sys

import numpy as np


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    base = np.arange(6).reshape(2, 3)
    for name in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]:
        np.save(out / f"{name}.npy", base.astype(name))
    np.save(out / "bool.npy", base % 2 == 1)
    np.save(out / "big_endian.npy", base.astype(">i4"))
    np.save(out / "fortran.npy", np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)))
    np.save(out / "scalar.npy", np.float32(1.5))
    np.save(out / "empty.npy", np.zeros((0, 3), np.float32))
    np.save(out / "vector.npy", np.arange(5, dtype=np.int64))
    np.save(out / "text.npy", np.array(["a", "žluť", "", "😀b"]))
    np.save(out / "bytes.npy", np.array([b"ab", b"", b"xyz"]))
    np.save(out / "complex.npy", np.zeros(2, np.complex64))
    np.save(out / "record.npy", np.zeros(2, [("a", "f4"), ("b", "i4")]))
    np.save(out / "object.npy", np.array([None, {}], dtype=object), allow_pickle=True)
    arrays = {"x": base.astype(np.float32), "žluť": np.arange(300, dtype=np.int64) % 7}
    np.savez(out / "stored.npz", **arrays)
    np.savez_compressed(out / "deflated.npz", **arrays)


if __name__ == "__main__":
    main()
