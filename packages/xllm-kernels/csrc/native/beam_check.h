// Checks a step of beams before anything is computed.
#pragma once

#include "kv_cache.h"
#include "xllm/kernels/native/beams.h"

namespace xllm::kernels::native {

// Throws std::invalid_argument that names what does not fit.
void check_beam_step(const BeamStepArgs& args, const DecoderShape& shape, const KVCache& cache, const BeamCache& beams,
                     int64_t num_positions);

}  // namespace xllm::kernels::native
