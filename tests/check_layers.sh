#!/usr/bin/env bash
# Checks the shape of the source tree, with nothing but bash, find and awk:
#   - a folder includes only from its own layer and those below it;
#   - CUDA headers appear only under src/cuda, src/backend/cuda and in *.cu and *.cuh;
#   - kernels.cc and kernels_<tier>.cc, compiled for instruction-set tiers, include nothing that
#     would put shared inline functions into their object files;
#   - no file is longer than 600 lines, no line is wider than 100 columns.
# Usage: check_layers.sh [ROOT]. Prints every violation as FILE:LINE: SENTENCE; exits 1 if any.
set -euo pipefail
rules=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_layers.awk
export LC_ALL=C  # bytes: the awk program counts the columns of UTF-8 itself

cd "${1:-.}"
folders=()
for folder in include src tools python tests bench examples; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done
if ((${#folders[@]} == 0)); then
  echo "check_layers: $PWD holds no source folder, expected include, src, ..." >&2
  exit 2
fi

names=(-false)
for suffix in h cc cu cuh sh awk; do names+=(-o -name "*.$suffix"); done
find "${folders[@]}" -type f \( "${names[@]}" -o -name CMakeLists.txt \) -print0 | sort -z |
  xargs -0 awk -f "$rules" || exit 1
