#pragma once

// Mamba, Falcon-Mamba and Mamba-2 in a GGUF file, with the keys, names and shapes that llama.cpp's
// converter gives them.

#include "checkpoint/model_tensors.h"
#include "checkpoint/stated_config.h"
#include "gguf/gguf_file.h"

namespace adder {

/// What the metadata say about the model. Falcon-Mamba is architecture `mamba` with
/// `ssm.dt_b_c_rms`; there is no key for the epsilon of its norms on dt, B and C, which is that of
/// all norms, as llama.cpp computes. Throws adder::Error for what is missing, of another type or
/// out of range, and for models that Adder does not run.
StatedConfig read_gguf_config(const GgufFile& file);

/// Adds the tensors of a model of `architecture` under canonical names and in their usual shapes:
/// the file has D and A of Mamba-2 as columns, and the weight of its gated norm as a row for each
/// group. Throws adder::Error for a name that no such model has.
void add_gguf_tensors(ModelTensors& tensors, const GgufFile& file, Architecture architecture);

}  // namespace adder
