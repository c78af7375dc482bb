// The receiving half of protocol.hpp.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "protocol.hpp"

namespace libxllm {

namespace {

std::int32_t read_int32(Decoder &decoder) {
    const std::int64_t value = decoder.integer();
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
        throw MalformedMessage();
    }
    return static_cast<std::int32_t>(value);
}

std::uint64_t read_id(Decoder &decoder) { return static_cast<std::uint64_t>(decoder.integer()); }

// Read an array's size and check that it has at least `min_size` fields; later versions may add fields at the end.
std::size_t read_record(Decoder &decoder, std::size_t min_size) {
    const std::size_t size = decoder.array();
    if (size < min_size) throw MalformedMessage();
    return size;
}

void skip_fields(Decoder &decoder, std::size_t num_fields) {
    for (std::size_t i = 0; i < num_fields; ++i) decoder.skip();
}

void read_optional_string(Decoder &decoder, std::string &text) {
    if (decoder.nil()) {
        text.clear();
    } else {
        text.assign(decoder.string());
    }
}

void read_logprobs(Decoder &decoder, Logprobs &logprobs) {
    for (std::size_t num_tokens = decoder.array(); num_tokens > 0; --num_tokens) {
        const std::size_t size = read_record(decoder, 3);
        xllm_token_logprob token{};
        token.token_id = read_int32(decoder);
        token.logprob = decoder.real();
        token.num_alternatives = decoder.array();
        for (std::size_t i = 0; i < token.num_alternatives; ++i) {
            const std::size_t pair_size = read_record(decoder, 2);
            const std::int32_t token_id = read_int32(decoder);
            logprobs.alternatives.push_back({token_id, decoder.real()});
            skip_fields(decoder, pair_size - 2);
        }
        logprobs.tokens.push_back(token);
        skip_fields(decoder, size - 3);
    }
}

Ready read_ready(Decoder &decoder, std::size_t num_fields) {
    if (num_fields < 10) throw MalformedMessage();
    Ready ready;
    ready.protocol_version = decoder.integer();
    ready.model = decoder.string();
    ready.model_impl = decoder.string();
    ready.device = decoder.string();
    ready.dtype = decoder.string();
    ready.max_model_len = read_int32(decoder);
    ready.vocab_size = read_int32(decoder);
    ready.num_blocks = read_int32(decoder);
    ready.block_size = read_int32(decoder);
    ready.process_id = decoder.integer();
    return ready;
}

// How a request has ended: error kind or nil, message or nil, prompt tokens, cached tokens.
std::pair<Outcome, Usage> read_end(Decoder &decoder) {
    Outcome outcome;
    if (!decoder.nil()) outcome.status = status_of_kind(decoder.string());
    read_optional_string(decoder, outcome.message);
    Usage usage;
    usage.num_prompt_tokens = read_int32(decoder);
    usage.num_cached_tokens = read_int32(decoder);
    return {std::move(outcome), usage};
}

// Rows of little-endian floats, which is the order of every machine that the library is built for.
Vectors read_vectors(Decoder &decoder) {
    Vectors vectors;
    const std::int32_t num_dimensions = read_int32(decoder);
    const std::string_view bytes = decoder.binary();
    if (num_dimensions < 0 || bytes.size() % sizeof(float) != 0) throw MalformedMessage();
    vectors.num_dimensions = static_cast<std::size_t>(num_dimensions);
    vectors.values.resize(bytes.size() / sizeof(float));
    if (num_dimensions == 0 ? !bytes.empty() : vectors.values.size() % vectors.num_dimensions != 0) {
        throw MalformedMessage();
    }
    if (!bytes.empty()) std::memcpy(vectors.values.data(), bytes.data(), bytes.size());
    return vectors;
}

std::vector<std::string> read_strings(Decoder &decoder) {
    std::vector<std::string> strings;
    for (std::size_t count = decoder.array(); count > 0; --count) strings.emplace_back(decoder.string());
    return strings;
}

Path read_path(Decoder &decoder) {
    const std::size_t size = read_record(decoder, 7);
    Path path;
    for (std::size_t count = decoder.array(); count > 0; --count) path.token_ids.push_back(read_int32(decoder));
    for (std::size_t count = decoder.array(); count > 0; --count) path.logprobs.push_back(decoder.real());
    path.score = decoder.real();
    for (std::size_t count = decoder.array(); count > 0; --count) path.item_ids.push_back(decoder.integer());
    path.document_ids = read_strings(decoder);
    path.item_types = read_strings(decoder);
    path.text = decoder.string();
    skip_fields(decoder, size - 7);
    const auto fits = [&](const std::vector<std::string> &texts) {
        return texts.empty() || texts.size() == path.item_ids.size();
    };
    if (path.logprobs.size() != path.token_ids.size() || !fits(path.document_ids) || !fits(path.item_types)) {
        throw MalformedMessage();
    }
    return path;
}

Paths read_paths(Decoder &decoder) {
    Paths paths;
    paths.catalogue_version = read_int32(decoder);
    for (std::size_t count = decoder.array(); count > 0; --count) paths.paths.push_back(read_path(decoder));
    return paths;
}

xllm_metrics read_metrics(Decoder &decoder) {
    const std::size_t num_fields = read_record(decoder, 12);
    xllm_metrics metrics{};
    metrics.struct_size = sizeof metrics;
    for (std::int64_t *field : {&metrics.num_running, &metrics.num_waiting, &metrics.num_blocks,
                                &metrics.num_free_blocks, &metrics.num_cached_blocks, &metrics.num_steps,
                                &metrics.num_prompt_tokens, &metrics.num_generated_tokens, &metrics.num_preemptions,
                                &metrics.prefix_cache_queries, &metrics.prefix_cache_hits}) {
        *field = decoder.integer();
    }
    metrics.step_time_s = decoder.real();
    skip_fields(decoder, num_fields - 12);
    return metrics;
}

}  // namespace

void MessageReader::read(std::string_view message, MessageHandler &handler) {
    Decoder decoder(message);
    const std::size_t num_fields = read_record(decoder, 1) - 1;
    const std::string_view kind = decoder.string();
    if (kind == "outputs") {
        read_outputs(decoder, num_fields, handler);
    } else if (kind == "ready") {
        handler.on_ready(read_ready(decoder, num_fields));
    } else if (kind == "failed" && num_fields >= 2) {
        const xllm_status status = status_of_kind(decoder.string());
        handler.on_failed({status, std::string(decoder.string())});
    } else if (kind == "vectors" && num_fields >= 7) {
        const std::uint64_t id = read_id(decoder);
        auto [outcome, usage] = read_end(decoder);
        handler.on_vectors(id, std::move(outcome), usage, read_vectors(decoder));
    } else if (kind == "paths" && num_fields >= 7) {
        const std::uint64_t id = read_id(decoder);
        auto [outcome, usage] = read_end(decoder);
        handler.on_paths(id, std::move(outcome), usage, read_paths(decoder));
    } else if (kind == "stats" && num_fields >= 2) {
        const std::uint64_t id = read_id(decoder);
        handler.on_stats(id, read_metrics(decoder));
    }
}

void MessageReader::read_outputs(Decoder &decoder, std::size_t num_fields, MessageHandler &handler) {
    if (num_fields < 2) throw MalformedMessage();
    for (std::size_t count = decoder.array(); count > 0; --count) {
        const std::uint64_t id = read_delta(decoder);
        handler.on_delta(id, event_);
    }
    for (std::size_t count = decoder.array(); count > 0; --count) {
        const std::size_t size = read_record(decoder, 5);
        const std::uint64_t id = read_id(decoder);
        auto [outcome, usage] = read_end(decoder);
        skip_fields(decoder, size - 5);
        handler.on_finished(id, std::move(outcome), usage);
    }
}

std::uint64_t MessageReader::read_delta(Decoder &decoder) {
    const std::size_t size = read_record(decoder, 7);
    Delta &delta = event_.delta;
    const std::uint64_t id = read_id(decoder);
    delta.index = read_int32(decoder);
    delta.text.assign(decoder.string());
    delta.token_ids.clear();
    for (std::size_t count = decoder.array(); count > 0; --count) delta.token_ids.push_back(read_int32(decoder));
    delta.logprobs.clear();
    delta.has_logprobs = !decoder.nil();
    if (delta.has_logprobs) read_logprobs(decoder, delta.logprobs);
    read_optional_string(decoder, delta.finish_reason);
    read_optional_string(decoder, delta.stop_reason);
    delta.reasoning.clear();
    delta.tool_calls_json.clear();
    if (size > 7) read_optional_string(decoder, delta.reasoning);
    if (size > 8) read_optional_string(decoder, delta.tool_calls_json);
    skip_fields(decoder, size - std::min<std::size_t>(size, 9));
    return id;
}

xllm_status status_of_kind(std::string_view kind) {
    static constexpr std::array<std::pair<std::string_view, xllm_status>, 12> kStatuses{{
        {"invalid_request", XLLM_ERROR_INVALID_REQUEST},
        {"request_too_long", XLLM_ERROR_REQUEST_TOO_LONG},
        {"invalid_config", XLLM_ERROR_INVALID_CONFIG},
        {"model_load", XLLM_ERROR_MODEL_LOAD},
        {"unsupported_model", XLLM_ERROR_UNSUPPORTED_MODEL},
        {"queue_full", XLLM_ERROR_QUEUE_FULL},
        {"shutting_down", XLLM_ERROR_SHUTTING_DOWN},
        {"engine_dead", XLLM_ERROR_ENGINE_DEAD},
        {"request_failed", XLLM_ERROR_REQUEST_FAILED},
        {"deadline_exceeded", XLLM_ERROR_TIMEOUT},
        {"cancelled", XLLM_ERROR_CANCELLED},
        {"unsupported", XLLM_ERROR_UNSUPPORTED},
    }};
    for (const auto &[name, status] : kStatuses) {
        if (name == kind) return status;
    }
    return kind == "out_of_blocks" ? XLLM_ERROR_REQUEST_FAILED : XLLM_ERROR_INTERNAL;
}

}  // namespace libxllm
