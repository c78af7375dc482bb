#include "recommendations.hpp"

#include <ctime>
#include <memory>
#include <utility>

namespace libxllm {

namespace {

// One path's C form with what its pointers lead to.
struct PathView {
    explicit PathView(const Path &path)
        : document_ids(pointers(path.document_ids)), item_types(pointers(path.item_types)) {
        view.score = path.score;
        view.text = path.text.c_str();
        view.token_ids = path.token_ids.data();
        view.logprobs = path.logprobs.data();
        view.num_token_ids = path.token_ids.size();
        view.item_ids = path.item_ids.data();
        view.num_item_ids = path.item_ids.size();
        view.document_ids = document_ids.empty() ? nullptr : document_ids.data();
        view.item_types = item_types.empty() ? nullptr : item_types.data();
    }

    static std::vector<const char *> pointers(const std::vector<std::string> &texts) {
        std::vector<const char *> pointers;
        for (const std::string &text : texts) pointers.push_back(text.c_str());
        return pointers;
    }

    std::vector<const char *> document_ids;
    std::vector<const char *> item_types;
    xllm_recommendation view{};
};

// What stands behind an xllm_recommendations.
struct RecommendationsStorage : xllm_recommendations {
    Paths found;
    std::string request_name;
    std::string model_name;
    std::vector<PathView> views;
    std::vector<const xllm_recommendation *> pointers;
};

}  // namespace

xllm_recommendations *to_recommendations(Paths paths, Usage usage, const std::string &request_id,
                                         const std::string &model) {
    auto storage = std::make_unique<RecommendationsStorage>();
    storage->found = std::move(paths);
    storage->request_name = request_id;
    storage->model_name = model;
    // Reserved, so that the pointers into it stay valid.
    storage->views.reserve(storage->found.paths.size());
    for (const Path &path : storage->found.paths) {
        storage->pointers.push_back(&storage->views.emplace_back(path).view);
    }
    xllm_recommendations *recommendations = storage.get();
    recommendations->request_id = storage->request_name.c_str();
    recommendations->model = storage->model_name.c_str();
    recommendations->created_s = std::time(nullptr);
    recommendations->paths = storage->pointers.data();
    recommendations->num_paths = storage->pointers.size();
    recommendations->num_prompt_tokens = usage.num_prompt_tokens;
    recommendations->num_cached_tokens = usage.num_cached_tokens;
    recommendations->catalogue_version = storage->found.catalogue_version;
    return static_cast<xllm_recommendations *>(storage.release());
}

void free_recommendations(xllm_recommendations *recommendations) noexcept {
    delete static_cast<RecommendationsStorage *>(recommendations);
}

}  // namespace libxllm
