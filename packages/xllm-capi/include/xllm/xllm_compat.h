/* xllm_compat.h - the function and struct names of the earlier C API of xLLM, as thin functions over xllm.h, so that
 * programs written for it recompile. docs/howto/migrate-c-programs.md lists the edits. New programs use xllm.h.
 *
 * Life: create, initialize with a model path, call, free each response, destroy. Differences from the earlier library:
 * `timeout_ms` 0 means no limit; a request that runs out of time is cancelled in the engine; a failed initialize leaves a
 * message in xllm_last_error(); destroy waits for calls in flight. A response is freed once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef XLLM_XLLM_COMPAT_H_
#define XLLM_XLLM_COMPAT_H_

#include <stdbool.h>

#include "xllm/xllm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define XLLM_META_STRING_FIELD_MAX_LEN 128
#define XLLM_ERROR_INFO_MAX_LEN 512

typedef enum XLLM_StatusCode {
    kSuccess = 0,
    kNotInitialized = 1,
    kModelNotFound = 2,
    kTimeout = 3,
    kInvalidRequest = 4,
    kInternalError = 5
} XLLM_StatusCode;

/* Sizes of 0 and empty strings mean the engine's own default. Initialize refuses, with a message, what this engine
 * cannot do: several nodes or ranks, disaggregation, speculation, tasks other than "generate". It ignores what only tunes
 * another engine's speed: graphs, overlap, shared memory, copy kernels, communication, ports, affinity. */
typedef struct XLLM_InitOptions {
    bool enable_chunked_prefill;
    bool enable_prefix_cache;
    bool enable_disagg_pd;
    bool enable_pd_ooc;
    bool enable_schedule_overlap;
    bool enable_shm;
    bool enable_graph;
    bool enable_rec_fast_sampler;
    bool enable_prefill_piecewise_graph;
    bool enable_xattention_one_stage;
    bool enable_graph_mode_decode_no_padding;
    bool enable_block_copy_kernel;
    bool enable_topk_sorted;
    bool enable_rec_prefill_only;
    uint32_t cp_size;
    uint32_t transfer_listen_port;
    uint32_t nnodes;
    uint32_t node_rank;
    uint32_t dp_size;
    uint32_t ep_size;
    uint32_t block_size;
    uint32_t max_cache_size;
    uint32_t max_tokens_per_batch;
    uint32_t max_seqs_per_batch;
    uint32_t max_tokens_per_chunk_for_prefill;
    uint32_t num_speculative_tokens;
    uint32_t num_request_handling_threads;
    uint32_t expert_parallel_degree;
    uint32_t server_idx;
    uint32_t beam_width;
    uint32_t max_decode_rounds;
    uint32_t max_token_per_req;
    float max_memory_utilization;
    uint32_t rec_worker_max_concurrency;
    uint32_t flashinfer_workspace_buffer_size;
    uint32_t request_queue_size;
    char task[XLLM_META_STRING_FIELD_MAX_LEN];
    char communication_backend[XLLM_META_STRING_FIELD_MAX_LEN];
    char instance_role[XLLM_META_STRING_FIELD_MAX_LEN];
    char master_node_addr[XLLM_META_STRING_FIELD_MAX_LEN];
    char xservice_addr[XLLM_META_STRING_FIELD_MAX_LEN];
    char instance_name[XLLM_META_STRING_FIELD_MAX_LEN];
    char kv_cache_transfer_mode[XLLM_META_STRING_FIELD_MAX_LEN];
    char log_dir[XLLM_META_STRING_FIELD_MAX_LEN]; /* the engine's log goes to xllm.log in here */
    char draft_model[XLLM_META_STRING_FIELD_MAX_LEN];
    char cpu_affinity[XLLM_META_STRING_FIELD_MAX_LEN];
} XLLM_InitOptions, XLLM_InitLLMOptions;

typedef struct XLLM_ChatMessage {
    char role[XLLM_META_STRING_FIELD_MAX_LEN];
    char *content;
} XLLM_ChatMessage;

/* The three times are ignored. Of language models, best_of other than 1 and n, and beam_width other than 0, are invalid
 * requests. Of recommenders, only request_id, echo, beam_width and num_return_sequences (0: all) count. */
typedef struct XLLM_RequestParams {
    bool echo;
    bool offline;
    bool logprobs;
    bool ignore_eos;
    uint32_t n;
    uint32_t max_tokens; /* as many as the context holds, when it holds fewer */
    uint32_t best_of;
    int32_t ttlt_slo_ms;
    int32_t ttft_slo_ms;
    int32_t tpot_slo_ms;
    uint32_t beam_width;
    uint32_t num_return_sequences;
    int64_t top_logprobs;
    int64_t top_k;
    float top_p;
    float frequency_penalty;
    float presence_penalty;
    float repetition_penalty;
    float temperature;
    char request_id[XLLM_META_STRING_FIELD_MAX_LEN];
} XLLM_RequestParams;

typedef struct XLLM_Usage {
    int32_t prompt_tokens;
    int32_t completion_tokens;
    int32_t total_tokens;
    int32_t cached_tokens;
} XLLM_Usage;

typedef struct XLLM_LogProb {
    uint32_t token_id;
    float logprob;
} XLLM_LogProb;

typedef struct XLLM_LogProbs {
    XLLM_LogProb *entries;
    size_t entries_size;
} XLLM_LogProbs;

typedef struct XLLM_Choice {
    uint32_t index;
    char *text;                /* completions; NULL for chat */
    XLLM_ChatMessage *message; /* chat; NULL for completions */
    int32_t *token_ids;
    size_t token_size;
    XLLM_LogProbs logprobs;
    char finish_reason[XLLM_META_STRING_FIELD_MAX_LEN];
} XLLM_Choice;

typedef struct XLLM_Choices {
    XLLM_Choice *entries;
    size_t entries_size;
} XLLM_Choices;

typedef struct XLLM_RecOutput {
    uint32_t index;
    int64_t *item_ids;
    size_t item_ids_size;
    float *rec_token_logprobs;
    size_t rec_token_logprobs_size;
} XLLM_RecOutput;

typedef struct XLLM_RecOutputs {
    XLLM_RecOutput *entries;
    size_t entries_size;
} XLLM_RecOutputs;

typedef struct XLLM_Response {
    XLLM_StatusCode status_code;
    char error_info[XLLM_ERROR_INFO_MAX_LEN];
    char id[XLLM_META_STRING_FIELD_MAX_LEN];
    char object[XLLM_META_STRING_FIELD_MAX_LEN];
    int64_t created;
    char model[XLLM_META_STRING_FIELD_MAX_LEN];
    XLLM_Choices choices;
    XLLM_Usage usage;
    XLLM_RecOutputs rec_outputs;
} XLLM_Response;

/* Tensors and multimodal inputs of the recommendation functions. Floats of every kind, signed integers and booleans are
 * taken, and converted where the model wants another kind. */
typedef enum XLLM_DataType {
    XLLM_DTYPE_UNDEFINED = 0,
    XLLM_DTYPE_FLOAT16 = 1,
    XLLM_DTYPE_FLOAT32 = 2,
    XLLM_DTYPE_FLOAT64 = 3,
    XLLM_DTYPE_BFLOAT16 = 4,
    XLLM_DTYPE_INT8 = 5,
    XLLM_DTYPE_INT16 = 6,
    XLLM_DTYPE_INT32 = 7,
    XLLM_DTYPE_INT64 = 8,
    XLLM_DTYPE_UINT8 = 9,
    XLLM_DTYPE_UINT16 = 10,
    XLLM_DTYPE_UINT32 = 11,
    XLLM_DTYPE_UINT64 = 12,
    XLLM_DTYPE_BOOL = 13,
    XLLM_DTYPE_STRING = 14
} XLLM_DataType;

typedef struct XLLM_Dims {
    int rank; /* 1 to 3 */
    int dim[8];
} XLLM_Dims;

typedef struct XLLM_Tensor {
    XLLM_DataType dtype;
    XLLM_Dims dims;
    const void *data;
} XLLM_Tensor;

typedef struct XLLM_Tensors {
    XLLM_Tensor *entries;
    size_t entries_size;
} XLLM_Tensors;

typedef enum XLLM_MM_Type {
    XLLM_MM_TYPE_NONE = 0,
    XLLM_MM_TYPE_IMAGE = 1 << 0,
    XLLM_MM_TYPE_AUDIO = 1 << 1,
    XLLM_MM_TYPE_VIDEO = 1 << 2,
    XLLM_MM_TYPE_TEXT = 1 << 3,
    XLLM_MM_TYPE_EMBEDDING = 1 << 4
} XLLM_MM_Type;

typedef struct XLLM_MM_Value {
    bool is_single_tensor;
    union {
        XLLM_Tensor tensor;
        XLLM_Tensors tensors;
    } data;
} XLLM_MM_Value;

typedef struct XLLM_MM_DictEntry {
    char key[XLLM_META_STRING_FIELD_MAX_LEN];
    XLLM_MM_Value value;
} XLLM_MM_DictEntry;

typedef struct XLLM_MM_Dict {
    XLLM_MM_DictEntry *entries;
    size_t entries_size;
} XLLM_MM_Dict;

typedef struct XLLM_MM_TokenPos {
    uint32_t offset;
    uint32_t length;
} XLLM_MM_TokenPos;

typedef struct XLLM_MM_State {
    XLLM_MM_TokenPos token_pos;
} XLLM_MM_State;

typedef struct XLLM_MM_Item {
    XLLM_MM_Type type;
    XLLM_MM_Value value;
    XLLM_MM_State state;
} XLLM_MM_Item;

typedef struct XLLM_MM_Items {
    XLLM_MM_Item *entries;
    size_t entries_size;
} XLLM_MM_Items;

typedef struct XLLM_MM_Data {
    uint32_t type_mask;
    bool is_dict;
    union {
        XLLM_MM_Dict dict;
        XLLM_MM_Items items;
    } data;
} XLLM_MM_Data;

typedef struct XLLM_LLM_Handler XLLM_LLM_Handler;
typedef struct XLLM_REC_Handler XLLM_REC_Handler;

/* ---- Language models --------------------------------------------------------------------------------------------- */

/* NULL only when memory is out. */
XLLM_API XLLM_LLM_Handler *xllm_llm_create(void);
XLLM_API void xllm_llm_destroy(XLLM_LLM_Handler *handler);
XLLM_API void xllm_llm_init_options_default(XLLM_InitOptions *init_options);
/* Once a handler. `init_options` NULL means defaults. On false, xllm_last_error() says why. */
XLLM_API bool xllm_llm_initialize(XLLM_LLM_Handler *handler, const char *model_path,
                                  const XLLM_InitOptions *init_options);
XLLM_API void xllm_llm_request_params_default(XLLM_RequestParams *request_params);
/* `model_id` is the last part of the model's path. NULL only when memory is out; `status_code` says how it went. */
XLLM_API XLLM_Response *xllm_llm_completions(XLLM_LLM_Handler *handler, const char *model_id, const char *prompt,
                                             uint32_t timeout_ms, const XLLM_RequestParams *request_params);
XLLM_API XLLM_Response *xllm_llm_chat_completions(XLLM_LLM_Handler *handler, const char *model_id,
                                                  const XLLM_ChatMessage *messages, size_t messages_count,
                                                  uint32_t timeout_ms, const XLLM_RequestParams *request_params);
XLLM_API void xllm_llm_free_response(XLLM_Response *response);

/* ---- Generative recommendation ----------------------------------------------------------------------------------- */

XLLM_API XLLM_REC_Handler *xllm_rec_create(void);
XLLM_API void xllm_rec_destroy(XLLM_REC_Handler *handler);
XLLM_API void xllm_rec_init_options_default(XLLM_InitOptions *init_options);
/* As xllm_llm_initialize; the folder holds the catalogue too, as items.bin. max_token_per_req is ignored. */
XLLM_API bool xllm_rec_initialize(XLLM_REC_Handler *handler, const char *model_path,
                                  const XLLM_InitOptions *init_options);
XLLM_API void xllm_rec_request_params_default(XLLM_RequestParams *request_params);
/* Choices are the paths, best first, with the log-probabilities of their tokens; `rec_outputs` holds, path by path, the
 * items and the same log-probabilities. `mm_data` NULL means none. Its dictionary holds the tensors that
 * xllm_recommend_tensors takes, by their names, one each; its items, of the type XLLM_MM_TYPE_EMBEDDING, each hold the
 * embeddings [length, hidden] that stand in the place of `length` tokens of `token_ids` from `offset` on. */
XLLM_API XLLM_Response *xllm_rec_text_completions(XLLM_REC_Handler *handler, const char *model_id, const char *prompt,
                                                  uint32_t timeout_ms, const XLLM_RequestParams *request_params);
XLLM_API XLLM_Response *xllm_rec_token_completions(XLLM_REC_Handler *handler, const char *model_id,
                                                   const int32_t *token_ids, size_t token_size, uint32_t timeout_ms,
                                                   const XLLM_RequestParams *request_params);
XLLM_API XLLM_Response *xllm_rec_multimodal_completions(XLLM_REC_Handler *handler, const char *model_id,
                                                        const int32_t *token_ids, size_t token_size,
                                                        const XLLM_MM_Data *mm_data, uint32_t timeout_ms,
                                                        const XLLM_RequestParams *request_params);
XLLM_API XLLM_Response *xllm_rec_chat_completions(XLLM_REC_Handler *handler, const char *model_id,
                                                  const XLLM_ChatMessage *messages, size_t messages_count,
                                                  uint32_t timeout_ms, const XLLM_RequestParams *request_params);
XLLM_API void xllm_rec_free_response(XLLM_Response *response);

#ifdef __cplusplus
}
#endif

#endif /* XLLM_XLLM_COMPAT_H_ */
