#!/usr/bin/env bash
# Tests sanitize_gpu.sh with stand-ins for the tools and the tests.
set -euo pipefail

script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/sanitize_gpu.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/bin" "$scratch/tests/deep" "$scratch/empty"
status=0

program() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}

# Does what $scratch/behaviour says, and notes its arguments.
program "$scratch/bin/compute-sanitizer" "
echo \"\$*\" >>'$scratch/calls'
source '$scratch/behaviour'"
program "$scratch/bin/nvidia-smi" "exit \$(cat '$scratch/no_device')"
echo 0 >"$scratch/no_device"
program "$scratch/tests/deep/ssd_forward_cuda_test" 'exit 0'
program "$scratch/tests/one_cuda_test" 'exit 0'
program "$scratch/tests/one_test" 'exit 0'  # not for a GPU

# expect STATUS TEXT ARGUMENTS...: of a run, whose standard output and error hold the text.
expect() {
  local expected=$1 text=$2 got=0 output
  shift 2
  : >"$scratch/calls"
  output=$(CUDA_HOME=$scratch/none PATH=$scratch/bin:$PATH "$script" "$@" 2>&1) || got=$?
  if [[ $got != "$expected" || $output != *"$text"* ]]; then
    printf 'sanitize_gpu.sh %s: status %s, expected %s and "%s" in:\n%s\n' \
      "$*" "$got" "$expected" "$text" "$output" >&2
    status=1
  fi
}

expect_calls() {
  local count
  count=$(wc -l <"$scratch/calls")
  if [[ $count != "$1" ]]; then
    echo "$count runs, expected $1" >&2
    status=1
  fi
}

echo 'echo "========= ERROR SUMMARY: 0 errors"' >"$scratch/behaviour"
expect 0 'passed' "$scratch/tests"
expect_calls 8
expect 0 'memcheck   one_cuda_test                 passed' "$scratch/tests" memcheck
expect_calls 2
grep -q 'ssd_forward_cuda_test --gtest_filter=-\*OffsetsBeyond32Bits\*' "$scratch/calls" || status=1

echo 'echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"' \
  >"$scratch/behaviour"
expect 0 'passed' "$scratch/tests" racecheck
echo 'echo "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"' \
  >"$scratch/behaviour"
expect 1 'FAILED: findings' "$scratch/tests" racecheck
echo 'echo "========= Invalid read"; echo "========= ERROR SUMMARY: 3 errors"; exit 86' \
  >"$scratch/behaviour"
expect 1 'Invalid read' "$scratch/tests" memcheck
expect 1 'sanitize_gpu: 2 runs failed' "$scratch/tests" memcheck
echo 'echo "[  FAILED  ] A.B"; echo "========= ERROR SUMMARY: 0 errors"; exit 1' \
  >"$scratch/behaviour"
expect 1 'FAILED: exit status 1' "$scratch/tests" memcheck
echo 'exit 0' >"$scratch/behaviour"  # a tool that says nothing has not looked
expect 1 'FAILED: the tool has not summed up' "$scratch/tests" memcheck

expect 2 'usage' ''
expect 2 'is not a folder' "$scratch/missing"
expect 2 "there is no tool 'leakcheck'" "$scratch/tests" leakcheck
expect 2 'holds no program *_cuda_test' "$scratch/empty"
echo 9 >"$scratch/no_device"
expect 2 'there is no CUDA device here' "$scratch/tests"
rm "$scratch/bin/compute-sanitizer"
expect 2 'there is no compute-sanitizer' "$scratch/tests"
exit "$status"
