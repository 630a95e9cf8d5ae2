#!/usr/bin/env bash
# Shows that check_layers.sh accepts a good tree and reports each kind of violation.
set -euo pipefail
check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_layers.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect PATTERN FILE LINE...: a tree with only FILE is reported with a line that matches PATTERN;
# an empty PATTERN means that the tree is accepted.
expect() {
  local pattern=$1 file=$2 output status=0
  shift 2
  rm -rf "$work/tree"
  mkdir -p "$work/tree/$(dirname "$file")"
  printf '%s\n' "$@" >"$work/tree/$file"
  output=$("$check" "$work/tree" 2>&1) || status=$?
  if [[ -z $pattern && $status == 0 && -z $output ]]; then return; fi
  if [[ -n $pattern && $status == 1 && $output =~ $pattern ]]; then return; fi
  echo "FAILED: $file with '$1': exit $status, output '$output', expected '${pattern:-nothing}'"
  failures=$((failures + 1))
}

# The layers, downwards and upwards.
expect '' src/core/a.cc '#include "core/b.h"' '#include "adder/dtype.h"' '#include <vector>'
expect 'core includes "ops/' src/core/a.cc '#include "ops/rms_norm/rms_norm.h"'
expect 'core includes "adder/model.h" of runtime' src/core/a.cc '#include "adder/model.h"'
expect 'core includes "adder/ops/' src/core/a.cc '#include "adder/ops/rms_norm/rms_norm.h"'
expect 'ops includes "backend/' src/ops/x/x.cc '#include "backend/backend.h"'
expect 'ops includes "bench/' src/ops/x/x.cc '#include "bench/op_benchmark.h"'
expect 'ops includes "tests/' src/ops/x/cpu.cc '#include "tests/support/compare.h"'
expect '' src/ops/x/bench.cc '#include "bench/op_benchmark.h"'
expect '' src/ops/x/bench_cuda.cc '#include "bench/device_benchmark.h"' '#include "cuda/memory.h"'
expect '' src/ops/x/bench_device.h '#include "bench/device_data.h"' '#include "ops/x/x.h"'
expect '' src/ops/x/test.cc '#include "tests/support/compare.h"'
expect '' src/ops/x/test_case.h '#include "tests/support/compare.h"'
expect '' src/ops/x/edge_test.cc '#include "tests/support/compare.h"'
expect 'only kernels files' src/ops/x/cpu.cc '#include "simd/simd.h"'
expect 'checkpoint includes "tokenizer/' src/checkpoint/a.cc '#include "tokenizer/bpe.h"'
expect 'models includes "runtime/' src/models/a.cc '  # include "runtime/session.h"'
expect '' src/models/a.cc '#include "backend/backend.h"' '#include "checkpoint/safetensors.h"'
expect '' src/runtime/a.cc '#include "models/mamba2.h"' '#include "tokenizer/bpe.h"'
expect 'runtime includes "train/' src/runtime/a.cc '#include "train/loss.h"'
expect '' tools/adder/a.cc '#include "runtime/session.h"' '#include "bench/op_benchmark.h"'
expect 'in no layer' src/misc/a.cc '// nothing'
expect 'is relative' src/core/a.cc '#include "b.h"'
expect '' tools/adder/a.cc '#include "b.h"'
expect 'public header includes "core/' include/adder/a.h '#include "core/check.h"'
expect 'public header includes "ops/' src/ops/x/x.h '#include "ops/y/y.h"'
expect '' src/ops/x/x.h '#include "adder/ops/y/y.h"'
expect '' src/ops/x/helper.h '#include "ops/y/y.h"'
expect '' include/adder/model.h '#include "adder/tokenizer.h"'
expect 'tokenizer includes "adder/model.h"' include/adder/tokenizer.h '#include "adder/model.h"'

# CUDA stays in its folders.
expect '<cuda_runtime.h> is included' src/core/a.cc '#include <cuda_runtime.h>'
expect '<cub/cub.cuh> is included' src/ops/x/cpu.cc '#include <cub/cub.cuh>'
expect '' src/ops/x/cuda.cu '#include <cuda_runtime.h>'
expect '' src/backend/cuda/a.cc '#include <cublasLt.h>' '#include "cuda/stream.h"' \
  '#include "backend/cuda/b.h"'
expect 'backend includes "backend/cuda/' src/backend/cpu/a.cc '#include "backend/cuda/b.h"'
expect '<cuda.h> is included' src/backend/cpu/a.cc '#include <cuda.h>'
expect 'backend includes "cuda/' src/backend/cpu/a.cc '#include "cuda/stream.h"'

# Files that are compiled once per instruction-set tier.
expect '' src/ops/x/kernels.cc '#include "ops/x/kernels.h"' '#include <cmath>' \
  '#include "simd/simd.h"'
expect 'kernels.cc includes <vector>' src/ops/x/kernels.cc '#include <vector>'
expect 'kernels.cc includes <algorithm>' src/ops/x/kernels.cc '#include <algorithm>'
expect 'kernels_amx.cc includes <vector>' src/ops/x/kernels_amx.cc '#include <vector>'
expect 'kernels.cc includes "core/tensor.h"' src/ops/x/kernels.cc '#include "core/tensor.h"'

# Sizes.
hundred=$(printf 'x%.0s' {1..100})
expect '' src/core/a.h "$hundred" "${hundred:1}²"
expect 'a.h:1: the line has 101 columns' src/core/a.h "${hundred}²"
mapfile -t lines < <(seq 601)
expect '' src/core/a.h "${lines[@]:1}"
expect 'a.h:601: the file is longer than 600' src/core/a.h "${lines[@]}"

if ((failures > 0)); then exit 1; fi
echo "check_layers.sh reports every violation"
