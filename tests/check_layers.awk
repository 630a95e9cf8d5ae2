# The rules of check_layers.sh. Runs under mawk and gawk with LC_ALL=C.

BEGIN {
  # Layer -> the layers that it may include.
  uses["core"] = "core"
  uses["simd"] = "simd core"
  uses["cuda"] = "cuda core"
  uses["ops"] = "ops simd cuda core"
  uses["gguf"] = "gguf core"
  uses["checkpoint"] = "checkpoint gguf core"
  uses["tokenizer"] = "tokenizer gguf core"
  uses["backend"] = "backend ops checkpoint core"
  uses["backend/cuda"] = "backend/cuda backend ops cuda checkpoint core"
  uses["models"] = "models backend ops checkpoint core"
  uses["runtime"] = "runtime models backend ops checkpoint tokenizer core"
  uses["train"] = "train models backend ops checkpoint tokenizer core"
  uses["tune"] = "tune backend ops core"
  uses["bench"] = "bench tune ops simd cuda core"
  uses["ops bench"] = "bench ops cuda core"
  uses["public"] = "public"
  uses["top"] = "any"

  # Public headers and the layers they belong to; those not listed are of the topmost, runtime.
  split("cuda_device cuda_stream dtype error matrix_rows quantized_matrix tensor_view " \
        "thread_pool weight_format", list, " ")
  for (i in list) public_layer["adder/" list[i] ".h"] = "core"
  public_layer["adder/model_config.h"] = "checkpoint"
  public_layer["adder/tokenizer.h"] = "tokenizer"
  public_layer["adder/sampling.h"] = "ops"
  public_layer["adder/tuning.h"] = "tune"

  split("cassert cfloat climits cmath cstddef cstdint cstring bit limits type_traits immintrin.h " \
        "arm_neon.h arm_sve.h", list, " ")
  for (i in list) kernel_system[list[i]] = 1
}

function report(line, text) {
  printf "%s:%d: %s\n", FILENAME, line, text
  violations++
}

# The layer of a file of this tree, or of an include path ("ops/rms_norm/kernels.h").
function layer_of(path,    parts, n) {
  sub(/^src\//, "", path)
  if (path ~ /^include\/adder\//) return layer_of(substr(path, 9))
  if (path ~ /^adder\/ops\//) return "ops"
  if (path ~ /^adder\//) return path in public_layer ? public_layer[path] : "runtime"
  if (path ~ /^backend\/cuda\//) return "backend/cuda"
  n = split(path, parts, "/")
  return n > 1 ? parts[1] : "top"
}

function is_test(path) {
  return path ~ /^tests\// || path ~ /\/(test|fuzz)(_[a-z0-9_]+)?\.(h|cc|cu)$/ || \
         path ~ /_(test|fuzz)\.(h|cc|cu)$/
}

# The contract of an operation, src/ops/<op>/<op>.h: installed like the headers in include/adder.
function is_public(path,    parts, n) {
  n = split(path, parts, "/")
  return path ~ /^include\// || (path ~ /^src\/ops\// && n == 4 && parts[4] == parts[3] ".h")
}

FNR == 1 {
  n = split(FILENAME, parts, "/")
  name = parts[n]
  layer = layer_of(FILENAME)
  if (FILENAME ~ /^src\/ops\/.*\/bench(_[a-z]+)?\.(cc|h)$/) layer = "ops bench"
  if (!(layer in uses)) {
    layer = "top"
    if (FILENAME ~ /^src\/./ && n > 2) {
      report(1, "src/" parts[2] " is in no layer, expected one that tests/check_layers.sh names")
    }
  }
  if (FILENAME ~ /^(tools|python|tests|bench|examples)\//) layer = "top"
  cuda_allowed = FILENAME ~ /^src\/(cuda|backend\/cuda)\// || name ~ /\.cuh?$/
}

FNR == 601 { report(601, "the file is longer than 600 lines, expected it to be split") }

{
  columns = $0
  gsub(/[\200-\277]/, "", columns)  # continuation bytes of UTF-8
  if (length(columns) > 100) {
    report(FNR, "the line has " length(columns) " columns, expected at most 100")
  }
}

/^[ \t]*#[ \t]*include[ \t]*[<"]/ && name ~ /\.(h|cc|cu|cuh)$/ {
  quoted = $0 ~ /include[ \t]*"/
  header = $0
  sub(/^[^<"]*[<"]/, "", header)
  sub(/[>"].*$/, "", header)
  check_include(header, quoted)
}

# Files that are compiled for an instruction-set tier.
function is_kernels(name) { return name ~ /^kernels(_[a-z0-9]+)?\.cc$/ }

function is_cuda_header(header) {
  return header ~ /^(cuda|cublas|cusparse|curand|cufft|cudnn|nccl|nvml|nvtx|nvrtc)/ || \
         header ~ /^(cub|cute|cutlass|thrust)\//
}

function check_include(header, quoted,    target) {
  if (!quoted && !cuda_allowed && is_cuda_header(header)) {
    report(FNR, "<" header "> is included, expected CUDA headers only under src/cuda, " \
           "src/backend/cuda and in *.cu")
    return
  }
  if (is_kernels(name) && !quoted && !(header in kernel_system)) {
    report(FNR, name " includes <" header ">, expected no header whose inline functions the " \
           "linker could share with code for lesser CPUs")
  }
  if (!quoted) return
  if (FILENAME ~ /^(tools|examples)\// && header !~ /\//) return  # the program's own
  if (header ~ /^\./ || header !~ /\//) {
    report(FNR, "\"" header "\" is relative, expected a path from src or include")
    return
  }
  target = layer_of(header)
  if (is_kernels(name) && !kernel_header(header)) {
    report(FNR, name " includes \"" header "\", expected simd/, ops/, bench/, " \
           "adder/dtype.h or core/half.h")
  }
  if (is_public(FILENAME) && header !~ /^adder\//) {
    report(FNR, "a public header includes \"" header "\", expected only adder/ headers")
    return
  }
  if (target == "tests" && is_test(FILENAME)) return
  if (target == "simd" && layer == "ops" && name !~ /(^kernels.*\.cc|\.h)$/) {
    report(FNR, "\"" header "\" is included, expected only kernels files to include simd/")
    return
  }
  if (uses[layer] != "any" && index(" " uses[layer] " ", " " target " ") == 0) {
    report(FNR, layer " includes \"" header "\" of " target ", expected one of: " uses[layer])
  }
}

function kernel_header(header) {
  return header ~ /^(simd|ops|bench)\// || header == "adder/dtype.h" || header == "core/half.h"
}

END { exit violations > 0 }
