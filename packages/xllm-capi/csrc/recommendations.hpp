// What a search has found, and its form for C. Knows nothing of threads or sockets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answer.hpp"
#include "xllm/xllm.h"

namespace libxllm {

// One path and the items that it stands for; document ids and item types are one an item, or none.
struct Path {
    std::vector<std::int32_t> token_ids;
    std::vector<double> logprobs;
    double score = 0;
    std::vector<std::int64_t> item_ids;
    std::vector<std::string> document_ids;
    std::vector<std::string> item_types;
    std::string text;
};

struct Paths {
    std::int32_t catalogue_version = 0;
    std::vector<Path> paths;
};

// Recommendations that own `paths`. Freed by free_recommendations().
xllm_recommendations *to_recommendations(Paths paths, Usage usage, const std::string &request_id,
                                         const std::string &model);
void free_recommendations(xllm_recommendations *recommendations) noexcept;

}  // namespace libxllm
