#!/bin/sh
# Builds the native module for development, incrementally, and puts it beside the Python sources.
# PYTHON chooses the interpreter (default: python3); JOBS the parallel compilations (default: 2).
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-python3}
bin=$(dirname "$("$python" -c 'import sys; print(sys.executable)')")
PATH="$bin:$PATH"
build="$root/build/dev"
cmake -S "$here" -B "$build" -G Ninja -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" \
  -DCMAKE_BUILD_TYPE=Release "$@" > /dev/null
cmake --build "$build" -j "${JOBS:-2}"
cp -p "$build"/_native*.so "$root/src/octavo/"
