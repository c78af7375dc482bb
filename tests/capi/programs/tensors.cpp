// Recommendations of embeddings in place of tokens: of the model argv[1], an encoder-decoder for argv[2] = "encoder", else
// a language model, whose embeddings, 4 rows of argv[3] floats, come on standard input. Prints the paths of every way in.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <xllm/xllm.hpp>
#include <xllm/xllm_compat.h>

#include "check.h"

namespace {

constexpr std::int64_t kNumRows = 4;

struct Embeddings {
    std::vector<float> values;
    std::vector<std::int64_t> shape;

    xllm_tensor named(const char *name) const {
        return {name, XLLM_TENSOR_FLOAT32, 2, shape.data(), values.data()};
    }
};

Embeddings read_embeddings(std::int64_t hidden) {
    Embeddings read{std::vector<float>(static_cast<std::size_t>(kNumRows * hidden)), {kNumRows, hidden}};
    CHECK(std::fread(read.values.data(), sizeof(float), read.values.size(), stdin) == read.values.size());
    return read;
}

void print(const char *title, const xllm::Recommendations &found) {
    std::printf("%s", title);
    for (std::size_t i = 0; i < found.size(); ++i) {
        std::printf(" ");
        for (const std::int32_t token : found.token_ids(i)) std::printf("%d,", token);
        std::printf("%.6f", found.score(i));
    }
    std::printf("\n");
}

void check_fields(xllm_engine *engine, const Embeddings &embeddings) {
    const std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40}, negative[] = {4, -1}, zero[] = {0, 8};
    struct Case {
        const char *message;
        std::function<void(xllm_tensor &)> spoil;
    };
    const Case cases[] = {
        {"tensors[1].name must not be NULL", [](xllm_tensor &tensor) { tensor.name = nullptr; }},
        {"tensors[1].name is not valid UTF-8", [](xllm_tensor &tensor) { tensor.name = "\xff"; }},
        {"(decoder_context_embedding).dtype is 3", [](xllm_tensor &tensor) { tensor.dtype = 3; }},
        {".rank must be", [](xllm_tensor &tensor) { tensor.rank = 0; }},
        {".rank must be", [](xllm_tensor &tensor) { tensor.rank = 4; }},
        {".shape must not be NULL", [](xllm_tensor &tensor) { tensor.shape = nullptr; }},
        {".values must not be NULL", [](xllm_tensor &tensor) { tensor.values = nullptr; }},
        {".shape[1] must be above 0, not -1", [&](xllm_tensor &tensor) { tensor.shape = negative; }},
        {".shape[0] must be above 0, not 0", [&](xllm_tensor &tensor) { tensor.shape = zero; }},
        {".shape[0] makes the tensor larger", [&](xllm_tensor &tensor) { tensor.shape = huge; }},
    };
    xllm_recommendations *found = nullptr;
    for (const auto &[message, spoil] : cases) {
        xllm_tensor tensors[] = {embeddings.named("sparse_embedding"), embeddings.named("decoder_context_embedding")};
        spoil(tensors[1]);
        CHECK_STATUS(xllm_recommend_tensors(engine, nullptr, 0, tensors, 2, nullptr, &found),
                     XLLM_ERROR_INVALID_ARGUMENT);
        CHECK_MESSAGE(message);
    }
    const std::int32_t token_id = 1;
    const xllm_tensor tensor = embeddings.named("sparse_embedding");
    CHECK_STATUS(xllm_recommend_tensors(engine, &token_id, 0, &tensor, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_recommend_tensors(engine, nullptr, 1, &tensor, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("token_ids");
    CHECK_STATUS(xllm_recommend_tensors(engine, nullptr, 0, nullptr, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_recommend_tensors(engine, nullptr, 0, &tensor, 0, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("tensors");
    CHECK_STATUS(xllm_recommend_tensors(nullptr, nullptr, 0, &tensor, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("engine");
}

void check_refusals(xllm::Engine &engine, const Embeddings &embeddings) {
    const xllm_tensor sparse = embeddings.named("sparse_embedding"), other = embeddings.named("other");
    Embeddings narrow = embeddings;
    narrow.shape = {2 * kNumRows, embeddings.shape[1] / 2};
    xllm::Status status;
    const auto refuses = [&](const std::vector<std::int32_t> &token_ids, const std::vector<xllm_tensor> &tensors,
                             const char *message) {
        CHECK(!engine.recommend_tensors(token_ids, tensors, {}, status));
        CHECK(status.code == XLLM_ERROR_INVALID_REQUEST);
        CHECK_MESSAGE(message);
    };
    refuses({}, {other}, "tensors holds other");
    refuses({}, {sparse, sparse}, "twice");
    refuses({1, 2}, {sparse}, "not both");
    refuses({}, {narrow.named("sparse_embedding")}, "shape");
    refuses({}, {embeddings.named("decoder_context_embedding")}, "prompt");
}

void recommend_of_encoder(const char *model, const Embeddings &embeddings) {
    xllm::EngineOptions options;
    options.model = model;
    xllm::Engine engine(options);
    check_fields(engine.c(), embeddings);
    check_refusals(engine, embeddings);
    xllm::RecommendOptions search;
    search.beam_width = 16;
    const xllm_tensor sparse = embeddings.named("sparse_embedding");
    const xllm_tensor context = embeddings.named("decoder_context_embedding");
    print("sparse", engine.recommend_tensors({}, {sparse}, search));
    print("both", engine.recommend_tensors({}, {sparse, context}, search));
    print("context", engine.recommend_tensors({65, 66, 67}, {context}, search));
}

// ---- The earlier names

constexpr std::int32_t kHistory[] = {65, 66, 67, 68, 69, 70, 71, 72};
constexpr std::size_t kHistorySize = std::size(kHistory);

XLLM_Tensor matrix(XLLM_DataType dtype, const void *data, std::int64_t rows, std::int64_t columns) {
    return {dtype, {2, {static_cast<int>(rows), static_cast<int>(columns)}}, data};
}

XLLM_MM_Value single(const XLLM_Tensor &tensor) {
    XLLM_MM_Value value{};
    value.is_single_tensor = true;
    value.data.tensor = tensor;
    return value;
}

XLLM_MM_Item item(const XLLM_Tensor &tensor, std::uint32_t offset, std::uint32_t length) {
    return {XLLM_MM_TYPE_EMBEDDING, single(tensor), {{offset, length}}};
}

XLLM_MM_DictEntry entry(const char *key, const XLLM_Tensor &tensor) {
    XLLM_MM_DictEntry made{};
    std::strncpy(made.key, key, sizeof made.key);
    made.value = single(tensor);
    return made;
}

XLLM_MM_Data items(std::vector<XLLM_MM_Item> &entries) {
    XLLM_MM_Data data{};
    data.type_mask = XLLM_MM_TYPE_EMBEDDING;
    data.data.items = {entries.data(), entries.size()};
    return data;
}

XLLM_MM_Data dictionary(std::vector<XLLM_MM_DictEntry> &entries) {
    XLLM_MM_Data data{};
    data.is_dict = true;
    data.data.dict = {entries.data(), entries.size()};
    return data;
}

struct Compat {
    XLLM_REC_Handler *handler;

    XLLM_Response *call(const XLLM_MM_Data &data, bool has_tokens) const {
        XLLM_RequestParams params;
        xllm_rec_request_params_default(&params);
        params.beam_width = 16;
        const std::int32_t *token_ids = has_tokens ? kHistory : nullptr;
        return xllm_rec_multimodal_completions(handler, "model", token_ids, has_tokens ? kHistorySize : 0, &data, 0,
                                               &params);
    }

    void show(const char *title, const XLLM_MM_Data &data, bool has_tokens) const {
        XLLM_Response *response = call(data, has_tokens);
        if (response->status_code != kSuccess) std::fprintf(stderr, "%s: %s\n", title, response->error_info);
        CHECK(response->status_code == kSuccess);
        std::printf("%s", title);
        for (std::size_t i = 0; i < response->choices.entries_size; ++i) {
            const XLLM_Choice &choice = response->choices.entries[i];
            double score = 0;
            std::printf(" ");
            for (std::size_t j = 0; j < choice.token_size; ++j) {
                std::printf("%d,", choice.token_ids[j]);
                score += static_cast<double>(choice.logprobs.entries[j].logprob);
            }
            std::printf("%.6f", score);
        }
        std::printf("\n");
        xllm_rec_free_response(response);
    }

    void refuses(const XLLM_MM_Data &data, const char *message) const {
        XLLM_Response *response = call(data, true);
        if (std::strstr(response->error_info, message) == nullptr) std::fprintf(stderr, "%s\n", response->error_info);
        CHECK(response->status_code == kInvalidRequest && std::strstr(response->error_info, message) != nullptr);
        xllm_rec_free_response(response);
    }
};

void check_compat_fields(const Compat &compat, const XLLM_Tensor &rows, std::vector<float> &values) {
    struct Case {
        const char *message;
        std::function<void(XLLM_MM_Item &)> spoil;
    };
    const Case cases[] = {
        {"entries[1].type is 1", [](XLLM_MM_Item &wrong) { wrong.type = XLLM_MM_TYPE_IMAGE; }},
        {"entries[1].state.token_pos", [](XLLM_MM_Item &wrong) { wrong.state.token_pos.offset = 7; }},
        {"entries[1].state.token_pos", [](XLLM_MM_Item &wrong) { wrong.state.token_pos = {0xffffffff, 0xffffffff}; }},
        {"entries[1].state.token_pos", [](XLLM_MM_Item &wrong) { wrong.state.token_pos.length = 0; }},
        {"shape [3, hidden]", [](XLLM_MM_Item &wrong) { wrong.state.token_pos.length = 3; }},
        {"dims.rank must be from 1 to 3, not 9", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dims.rank = 9; }},
        {"dims.dim[0] must be above 0", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dims.dim[0] = -2; }},
        {"dims.dim[1] makes the tensor larger", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dims.dim[1] = 1 << 30; }},
        {"hidden size", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dims.dim[1] -= 1; }},
        {"entries[1].data must not be NULL", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.data = nullptr; }},
        {"dtype is 14", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dtype = XLLM_DTYPE_STRING; }},
        {"dtype is 10", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dtype = XLLM_DTYPE_UINT16; }},
        {"must hold floats", [](XLLM_MM_Item &wrong) { wrong.value.data.tensor.dtype = XLLM_DTYPE_INT16; }},
        {"holds 0 tensors", [](XLLM_MM_Item &wrong) { wrong.value = {}; }},
    };
    for (const auto &[message, spoil] : cases) {
        std::vector<XLLM_MM_Item> both{item(rows, 0, 2), item(rows, 2, 2)};
        spoil(both[1]);
        compat.refuses(items(both), message);
    }
    compat.refuses(XLLM_MM_Data{}, "mm_data.items.entries");
    XLLM_MM_Data empty{};
    empty.is_dict = true;
    compat.refuses(empty, "mm_data.dict.entries");
    std::vector<XLLM_MM_Item> overlapping{item(rows, 1, 2), item(rows, 2, 2)};
    compat.refuses(items(overlapping), "different places");
    std::vector<XLLM_MM_DictEntry> unknown{entry("sparse_embedding", rows)};
    unknown[0].value.data.tensor.dims.dim[1] = 0;
    compat.refuses(dictionary(unknown), "mm_data.dict.entries[0] (sparse_embedding).dims.dim[1]");
    unknown[0] = entry("sparse_embedding", rows);
    std::memset(unknown[0].key, 'x', sizeof unknown[0].key);
    compat.refuses(dictionary(unknown), "xxxx");
    values[0] = NAN;
    std::vector<XLLM_MM_Item> broken{item(rows, 0, 2)};
    xllm_rec_free_response(compat.call(items(broken), true));  // whatever it brings, the engine goes on
}

// The same embeddings, two rows at a time, in every kind that holds them.
void recommend_of_language_model(const char *model, Embeddings embeddings) {
    const Compat compat{xllm_rec_create()};
    CHECK(xllm_rec_initialize(compat.handler, model, nullptr));
    std::vector<float> &values = embeddings.values;
    const std::int64_t hidden = embeddings.shape[1];
    const std::vector<double> doubles(values.begin(), values.end());
    std::vector<std::uint16_t> halves, bfloats;
    for (const float value : values) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        bfloats.push_back(static_cast<std::uint16_t>(bits >> 16));
        const std::uint32_t exponent = bits >> 23 & 0xff;
        const std::uint32_t half = value == 0 ? 0 : (exponent - 112) << 10 | (bits >> 13 & 0x3ff);
        halves.push_back(static_cast<std::uint16_t>((bits >> 16 & 0x8000) | half));
    }
    const std::size_t second = static_cast<std::size_t>(2 * hidden);
    std::vector<XLLM_MM_Item> mixed{
        item(matrix(XLLM_DTYPE_FLOAT64, doubles.data(), 2, hidden), 5, 2),
        item(matrix(XLLM_DTYPE_FLOAT16, halves.data() + second, 2, hidden), 0, 2),
    };
    compat.show("items", items(mixed), true);
    std::vector<XLLM_MM_DictEntry> entries{
        entry("LLM_REC_INPUT_TOKENS", {XLLM_DTYPE_INT32, {1, {static_cast<int>(kHistorySize)}}, kHistory}),
        entry("LLM_REC_INPUT_EMBEDDING", matrix(XLLM_DTYPE_BFLOAT16, bfloats.data(), kNumRows, hidden)),
    };
    const std::int8_t places[] = {5, 6, 0, 1};
    entries.push_back(entry("LLM_REC_INPUT_INDICES", {XLLM_DTYPE_INT8, {1, {4}}, places}));
    compat.show("dictionary", dictionary(entries), false);
    check_compat_fields(compat, matrix(XLLM_DTYPE_FLOAT32, values.data(), 2, hidden), values);
    compat.show("again", items(mixed), true);
    xllm_rec_destroy(compat.handler);
}

}  // namespace

int main(int, char **argv) {
    const Embeddings embeddings = read_embeddings(std::atoi(argv[3]));
    if (std::strcmp(argv[2], "encoder") == 0) {
        recommend_of_encoder(argv[1], embeddings);
    } else {
        recommend_of_language_model(argv[1], embeddings);
    }
    return 0;
}
