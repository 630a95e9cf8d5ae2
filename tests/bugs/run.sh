#!/usr/bin/env bash
# Puts known bugs of state-space implementations into a copy of the tree, one at a time, and checks
# that the tests named by each patch notice. Usage: tests/bugs/run.sh [number ...]   (default: all)
#
# A patch starts with a sentence that tells the bug and a line "Tests: program ...". Every one of
# these programs must pass without the bug and fail with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$root/build/bugs
source=$work/source
build=$work/build

mkdir -p "$source"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  # Only what changed is copied, so that a second run compiles little.
  if [[ -L $file || ! -e $file ]]; then
    [[ -e $file ]] && mkdir -p "$source/$(dirname "$file")" && cp -Pf "$file" "$source/$file"
  elif ! cmp -s "$file" "$source/$file"; then
    mkdir -p "$source/$(dirname "$file")"
    cp -p "$file" "$source/$file"
  fi
done
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DADDER_BUILD_TOOLS=OFF \
  > "$work/configure.log" 2>&1

export GIT_CEILING_DIRECTORIES=$work  # git apply must not take the copy for a part of the tree
apply() { (cd "$source" && git apply "$@"); }
program() { find "$build" -type f -name "$1" -perm -u+x; }
passes() { (cd "$source" && timeout 300 "$(program "$1")" --gtest_brief=1 > "$work/$1.log" 2>&1); }

patches=()
if (($# == 0)); then
  patches=("$root"/tests/bugs/*.patch)
else
  for number in "$@"; do
    patches+=("$root"/tests/bugs/"$(printf '%02d' "$((10#$number))")"-*.patch)
  done
fi

tests=$(sed -n 's/^Tests: //p' "${patches[@]}" | tr ' ' '\n' | sort -u)
echo "building $(wc -w <<< "$tests") test programs without a bug"
# shellcheck disable=SC2086  # one word per test
ninja -C "$build" $tests > "$work/build.log" || { tail -30 "$work/build.log"; exit 1; }
for test in $tests; do
  passes "$test" || { echo "$test fails without a bug: see $work/$test.log"; exit 1; }
done

missed=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  sed -n '1p' "$patch" | sed "s/^/$name: /"
  apply "$patch"
  read -r -a own <<< "$(sed -n 's/^Tests: //p' "$patch")"
  if ! ninja -C "$build" "${own[@]}" > "$work/build.log"; then
    tail -30 "$work/build.log"
    apply -R "$patch"
    exit 1
  fi
  for test in "${own[@]}"; do
    if passes "$test"; then
      echo "  NOT NOTICED by $test"
      missed=$((missed + 1))
    else
      failures=$(grep -c '^\[  FAILED  \]' "$work/$test.log" || true)
      ((failures > 0)) && what="$failures failures" || what="it crashes"
      echo "  noticed by $test: $what"
    fi
  done
  apply -R "$patch"
done
echo "${#patches[@]} bugs, $missed not noticed"
((missed == 0))
