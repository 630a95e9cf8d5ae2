#!/usr/bin/env bash
# Checks the object files that are compiled for one instruction-set tier: none of them may define a
# weak (inline) function outside a namespace of that tier. The linker keeps one copy of such a
# function for the whole program; were it the AVX-512 one, other CPUs would stop at it.
# Usage: check_kernel_symbols.sh BUILD_FOLDER. Optimized builds only: others inline too little.
set -euo pipefail

build=${1:?usage: check_kernel_symbols.sh BUILD_FOLDER}
objects=()
mapfile -t objects < <(find "$build" -path '*_kernels_*' -name '*.o' ! -path '*_kernels_baseline*')
if ((${#objects[@]} == 0)); then
  if [[ $(uname -m) != x86_64 ]]; then exit 0; fi
  echo "check_kernel_symbols: $build holds no kernel objects, expected some" >&2
  exit 2
fi

status=0
for object in "${objects[@]}"; do
  shared=$(nm --defined-only -C "$object" | awk '$2 == "W" && !/tier_/')
  if [[ -n $shared ]]; then
    printf '%s defines functions that other code may share:\n%s\n' "$object" "$shared"
    status=1
  fi
done
exit "$status"
