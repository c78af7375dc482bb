// The layout of the public structs, as programs compiled against earlier headers know it. A failing line here means a
// break of the ABI: add new fields at the end, and their lines below.
#include <cstddef>

#include "xllm/xllm.h"

static_assert(sizeof(void *) == 8, "libxllm supports 64-bit systems.");

#define XLLM_FIELD(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

XLLM_FIELD(xllm_engine_options, struct_size, 0);
XLLM_FIELD(xllm_engine_options, model, 8);
XLLM_FIELD(xllm_engine_options, options_json, 16);
XLLM_FIELD(xllm_engine_options, python, 24);
XLLM_FIELD(xllm_engine_options, log_path, 32);
XLLM_FIELD(xllm_engine_options, start_timeout_ms, 40);
static_assert(sizeof(xllm_engine_options) == 48);

XLLM_FIELD(xllm_engine_info, model, 0);
XLLM_FIELD(xllm_engine_info, max_model_len, 32);
XLLM_FIELD(xllm_engine_info, process_id, 48);
static_assert(sizeof(xllm_engine_info) == 56);

XLLM_FIELD(xllm_metrics, struct_size, 0);
XLLM_FIELD(xllm_metrics, num_running, 8);
XLLM_FIELD(xllm_metrics, prefix_cache_hits, 88);
XLLM_FIELD(xllm_metrics, step_time_s, 96);
static_assert(sizeof(xllm_metrics) == 104);

XLLM_FIELD(xllm_request_options, struct_size, 0);
XLLM_FIELD(xllm_request_options, request_id, 8);
XLLM_FIELD(xllm_request_options, timeout_ms, 16);
XLLM_FIELD(xllm_request_options, max_tokens, 20);
XLLM_FIELD(xllm_request_options, min_tokens, 24);
XLLM_FIELD(xllm_request_options, n, 28);
XLLM_FIELD(xllm_request_options, top_k, 32);
XLLM_FIELD(xllm_request_options, logprobs, 36);
XLLM_FIELD(xllm_request_options, temperature, 40);
XLLM_FIELD(xllm_request_options, top_p, 48);
XLLM_FIELD(xllm_request_options, min_p, 56);
XLLM_FIELD(xllm_request_options, presence_penalty, 64);
XLLM_FIELD(xllm_request_options, frequency_penalty, 72);
XLLM_FIELD(xllm_request_options, repetition_penalty, 80);
XLLM_FIELD(xllm_request_options, seed, 88);
XLLM_FIELD(xllm_request_options, has_seed, 96);
XLLM_FIELD(xllm_request_options, ignore_eos, 100);
XLLM_FIELD(xllm_request_options, keep_special_tokens, 104);
XLLM_FIELD(xllm_request_options, include_stop_str_in_output, 108);
XLLM_FIELD(xllm_request_options, priority, 112);
XLLM_FIELD(xllm_request_options, is_offline, 116);
XLLM_FIELD(xllm_request_options, stop, 120);
XLLM_FIELD(xllm_request_options, num_stop, 128);
XLLM_FIELD(xllm_request_options, stop_token_ids, 136);
XLLM_FIELD(xllm_request_options, num_stop_token_ids, 144);
XLLM_FIELD(xllm_request_options, cache_salt, 152);
XLLM_FIELD(xllm_request_options, tools_json, 160);
XLLM_FIELD(xllm_request_options, response_format_json, 168);
XLLM_FIELD(xllm_request_options, template_kwargs_json, 176);
XLLM_FIELD(xllm_request_options, options_json, 184);
XLLM_FIELD(xllm_request_options, tool_choice, 192);
static_assert(sizeof(xllm_request_options) == 200);

XLLM_FIELD(xllm_pooling_options, struct_size, 0);
XLLM_FIELD(xllm_pooling_options, request_id, 8);
XLLM_FIELD(xllm_pooling_options, timeout_ms, 16);
XLLM_FIELD(xllm_pooling_options, dimensions, 20);
XLLM_FIELD(xllm_pooling_options, truncate_to, 24);
XLLM_FIELD(xllm_pooling_options, priority, 28);
XLLM_FIELD(xllm_pooling_options, is_offline, 32);
XLLM_FIELD(xllm_pooling_options, cache_salt, 40);
static_assert(sizeof(xllm_pooling_options) == 48);

XLLM_FIELD(xllm_embeddings, values, 0);
XLLM_FIELD(xllm_embeddings, num_vectors, 8);
XLLM_FIELD(xllm_embeddings, num_dimensions, 16);
XLLM_FIELD(xllm_embeddings, num_prompt_tokens, 24);
XLLM_FIELD(xllm_embeddings, num_cached_tokens, 28);

XLLM_FIELD(xllm_recommend_options, struct_size, 0);
XLLM_FIELD(xllm_recommend_options, request_id, 8);
XLLM_FIELD(xllm_recommend_options, timeout_ms, 16);
XLLM_FIELD(xllm_recommend_options, beam_width, 20);
XLLM_FIELD(xllm_recommend_options, num_return_sequences, 24);
XLLM_FIELD(xllm_recommend_options, num_rounds, 28);
XLLM_FIELD(xllm_recommend_options, is_sampled, 32);
XLLM_FIELD(xllm_recommend_options, top_k, 36);
XLLM_FIELD(xllm_recommend_options, temperature, 40);
XLLM_FIELD(xllm_recommend_options, top_p, 48);
XLLM_FIELD(xllm_recommend_options, seed, 56);
XLLM_FIELD(xllm_recommend_options, has_seed, 64);
XLLM_FIELD(xllm_recommend_options, priority, 68);
XLLM_FIELD(xllm_recommend_options, cache_salt, 72);
static_assert(sizeof(xllm_recommend_options) == 80);

XLLM_FIELD(xllm_tensor, name, 0);
XLLM_FIELD(xllm_tensor, dtype, 8);
XLLM_FIELD(xllm_tensor, rank, 12);
XLLM_FIELD(xllm_tensor, shape, 16);
XLLM_FIELD(xllm_tensor, values, 24);
static_assert(sizeof(xllm_tensor) == 32);

XLLM_FIELD(xllm_recommendation, score, 0);
XLLM_FIELD(xllm_recommendation, text, 8);
XLLM_FIELD(xllm_recommendation, token_ids, 16);
XLLM_FIELD(xllm_recommendation, logprobs, 24);
XLLM_FIELD(xllm_recommendation, num_token_ids, 32);
XLLM_FIELD(xllm_recommendation, item_ids, 40);
XLLM_FIELD(xllm_recommendation, num_item_ids, 48);
XLLM_FIELD(xllm_recommendation, document_ids, 56);
XLLM_FIELD(xllm_recommendation, item_types, 64);

XLLM_FIELD(xllm_recommendations, request_id, 0);
XLLM_FIELD(xllm_recommendations, model, 8);
XLLM_FIELD(xllm_recommendations, created_s, 16);
XLLM_FIELD(xllm_recommendations, paths, 24);
XLLM_FIELD(xllm_recommendations, num_paths, 32);
XLLM_FIELD(xllm_recommendations, num_prompt_tokens, 40);
XLLM_FIELD(xllm_recommendations, num_cached_tokens, 44);
XLLM_FIELD(xllm_recommendations, catalogue_version, 48);

static_assert(sizeof(xllm_message) == 16);
static_assert(sizeof(xllm_alternative) == 16);
static_assert(sizeof(xllm_token_logprob) == 32);

XLLM_FIELD(xllm_choice, index, 0);
XLLM_FIELD(xllm_choice, text, 8);
XLLM_FIELD(xllm_choice, text_length, 16);
XLLM_FIELD(xllm_choice, token_ids, 24);
XLLM_FIELD(xllm_choice, num_token_ids, 32);
XLLM_FIELD(xllm_choice, logprobs, 40);
XLLM_FIELD(xllm_choice, num_logprobs, 48);
XLLM_FIELD(xllm_choice, finish_reason, 56);
XLLM_FIELD(xllm_choice, stop_reason, 64);
XLLM_FIELD(xllm_choice, reasoning, 72);
XLLM_FIELD(xllm_choice, tool_calls_json, 80);

XLLM_FIELD(xllm_response, request_id, 0);
XLLM_FIELD(xllm_response, model, 8);
XLLM_FIELD(xllm_response, created_s, 16);
XLLM_FIELD(xllm_response, choices, 24);
XLLM_FIELD(xllm_response, num_choices, 32);
XLLM_FIELD(xllm_response, num_prompt_tokens, 40);
XLLM_FIELD(xllm_response, num_cached_tokens, 44);
XLLM_FIELD(xllm_response, num_output_tokens, 48);

XLLM_FIELD(xllm_event, kind, 0);
XLLM_FIELD(xllm_event, status, 4);
XLLM_FIELD(xllm_event, message, 8);
XLLM_FIELD(xllm_event, index, 16);
XLLM_FIELD(xllm_event, text, 24);
XLLM_FIELD(xllm_event, text_length, 32);
XLLM_FIELD(xllm_event, token_ids, 40);
XLLM_FIELD(xllm_event, num_token_ids, 48);
XLLM_FIELD(xllm_event, logprobs, 56);
XLLM_FIELD(xllm_event, num_logprobs, 64);
XLLM_FIELD(xllm_event, finish_reason, 72);
XLLM_FIELD(xllm_event, stop_reason, 80);
XLLM_FIELD(xllm_event, num_prompt_tokens, 88);
XLLM_FIELD(xllm_event, num_cached_tokens, 92);
XLLM_FIELD(xllm_event, reasoning, 96);
XLLM_FIELD(xllm_event, tool_calls_json, 104);
