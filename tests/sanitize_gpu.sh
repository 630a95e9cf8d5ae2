#!/usr/bin/env bash
# Runs the tests of CUDA kernels under compute-sanitizer: a line for each tool and test, and failure
# if a tool finds anything, a test fails, or a run takes longer than it may.
# Usage: sanitize_gpu.sh FOLDER [TOOL...]. FOLDER holds programs *_cuda_test, at any depth.
# Tools are memcheck, racecheck, initcheck and synccheck: all, unless some are named. The working
# directory is the repository's root. What the tools print goes to FOLDER/sanitize_gpu.
set -euo pipefail

readonly usage='usage: sanitize_gpu.sh FOLDER [memcheck|racecheck|initcheck|synccheck...]'
readonly all_tools=(memcheck racecheck initcheck synccheck)
# A run takes up to two minutes; one that takes as long as this hangs.
readonly most_seconds=600

die() {
  echo "sanitize_gpu: $*" >&2
  exit 2
}

# Tests that are left out, as a gtest pattern.
left_out() {
  local tool=$1 test=$2
  # More than 2^31 elements: gigabytes of memory, and as much again for the tool's notes on it.
  local patterns='*OffsetsBeyond32Bits*'
  case $test in
    bench_cuda_test)
      # Seconds of full load, which a tool makes hours.
      patterns+=':*MeasuresThePeaks*:*ChecksAndTimes*'
      ;;
    ssd_activations_cuda_test)
      # A minute of the host's time around kernels that ssd_forward_cuda_test calls in more ways.
      patterns+=':*ByEveryChoice*'
      ;;
    ssd_forward_cuda_test)
      # Likewise: many tokens through the same kernels.
      patterns+=':*FinalStatesAreClose:*FinalStatesThatForget*:*FinalStatesOfPositive*'
      # Thousands of calls for tails and options. They decide which addresses are touched, which is
      # for memcheck and initcheck to see, and not how threads wait for each other.
      if [[ $tool == racecheck || $tool == synccheck ]]; then
        patterns+=':*EveryTailOfHeadAndState*:*TakesEveryOption*:*AnySeqIdx*:*WindowsChangeNothing*'
      fi
      ;;
  esac
  echo "$patterns"
}

# Kernels that a tool does not check, as its options.
kernels_left_out() {
  # racecheck follows an arrival at an mbarrier only for the thread that arrives, and not for the
  # warp that it has synchronized with before, and loses track at a barrier of a part of the block:
  # it reports hazards in kernels of a few lines that have none. Fused kernels and programs of
  # steps consist of both.
  if [[ $1 == racecheck ]]; then
    printf '%s\n' --kernel-name-exclude kns=18ssd_forward_kernel \
      --kernel-name-exclude kns=29ssd_forward_end_to_end_kernel \
      --kernel-name-exclude kns=14program_kernel
  fi
}

find_sanitizer() {
  command -v compute-sanitizer && return
  local installed=${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer
  [[ -x $installed ]] && echo "$installed"
}

# Tools end with a line "ERROR SUMMARY: 0 errors", racecheck with "RACECHECK SUMMARY: 0 hazards".
# verdict_of LOG: that of a run whose program says that all is well.
verdict_of() {
  local summaries
  if ! summaries=$(grep -E '(ERROR|RACECHECK) SUMMARY:' "$1"); then
    echo 'FAILED: the tool has not summed up'
  elif grep -qvE 'SUMMARY: 0 (errors|hazards)' <<<"$summaries"; then
    echo 'FAILED: findings'
  else
    echo passed
  fi
}

# run TOOL PROGRAM: prints its line; false if there is something to look at.
run() {
  local tool=$1 program=$2 test start=$SECONDS status=0 verdict log excluded
  test=$(basename "$program")
  log=$logs/$test.$tool.log
  mapfile -t excluded < <(kernels_left_out "$tool")
  timeout "$most_seconds" "$sanitizer" --tool "$tool" "${excluded[@]}" --error-exitcode 86 \
    "$program" --gtest_filter="-$(left_out "$tool" "$test")" >"$log" 2>&1 || status=$?
  case $status in
    0) verdict=$(verdict_of "$log") ;;
    86) verdict='FAILED: findings' ;;
    124) verdict="FAILED: not done after $most_seconds s" ;;
    *) verdict="FAILED: exit status $status" ;;
  esac
  printf '%-9s  %-28s  %s (%d s)\n' "$tool" "$test" "$verdict" $((SECONDS - start))
  if [[ $verdict == passed ]]; then return; fi
  grep -E '^=========|\[  FAILED  \]|: Failure' "$log" | head -n 12 | sed 's/^/    /'
  echo "    all of it: $log"
  return 1
}

folder=${1:-}
[[ -n $folder ]] || die "$usage"
shift
[[ -d $folder ]] || die "$folder is not a folder; $usage"
tools=("$@")
if ((${#tools[@]} == 0)); then tools=("${all_tools[@]}"); fi
for tool in "${tools[@]}"; do
  [[ " ${all_tools[*]} " == *" $tool "* ]] || die "there is no tool '$tool'; $usage"
done
mapfile -t programs < <(find "$folder" -name '*_cuda_test' -type f -perm -u+x | sort)
((${#programs[@]} > 0)) ||
  die "$folder holds no program *_cuda_test, expected a build with the CUDA toolkit"
sanitizer=$(find_sanitizer) ||
  die "there is no compute-sanitizer on the PATH or in ${CUDA_HOME:-/usr/local/cuda}/bin," \
    "expected that of the CUDA toolkit"
nvidia-smi -L >/dev/null 2>&1 ||
  die "there is no CUDA device here (nvidia-smi -L lists none), expected one to run the tests on"

logs=$folder/sanitize_gpu
mkdir -p "$logs"
failures=0
for tool in "${tools[@]}"; do
  for program in "${programs[@]}"; do
    run "$tool" "$program" || failures=$((failures + 1))
  done
done
((failures == 0)) || { echo "sanitize_gpu: $failures runs failed" >&2; exit 1; }
