#!/usr/bin/env bash
# Installs the build, builds app/ against the installed package and decodes with it.
#   install_test.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# README.md shows this very program.
python3 - "$source" <<'PYTHON'
import pathlib, sys
source = pathlib.Path(sys.argv[1])
program = (source / "tests/install/app/main.cpp").read_text().split("\n", 1)[1].strip()
if program not in (source / "README.md").read_text():
    sys.exit("README.md's embedding example is not tests/install/app/main.cpp")
PYTHON

cmake --install "$build" --prefix "$work/prefix" >/dev/null
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name 'libquern_runtime.so' | head -n 1)")
export LD_LIBRARY_PATH=$lib

"$prefix/bin/quern" convert "$source/examples/storyteller/model.onnx" --weights int8 -o "$work/m.quern" --quiet

cmake -S "$source/tests/install/app" -B "$work/app" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/app" >/dev/null
text=$("$work/app/app" "$work/m.quern" "The old man")
echo "$text"
expected=$("$prefix/bin/quern" generate "$work/m.quern" -p "The old man" -n 16 --json --quiet |
  python3 -c 'import json, sys; print("The old man" + json.load(sys.stdin)["text"])')
[ "$text" = "$expected" ] || { echo "the binary says: $expected" >&2; exit 1; }

# The same program through pkg-config.
# shellcheck disable=SC2046
c++ "$source/tests/install/app/main.cpp" -o "$work/plain" \
  $(PKG_CONFIG_PATH="$lib/pkgconfig" pkg-config --cflags --libs quern)
[ "$("$work/plain" "$work/m.quern" "The old man")" = "$text" ]

# What decodes needs no ONNX.
if ldd "$lib/libquern_runtime.so" | grep -i onnx; then
  echo "libquern_runtime needs libonnx" >&2
  exit 1
fi
