/* xllm.h - engines of large language models inside C programs. This header is the manual.
 *
 * A handle (`xllm_engine`) stands for a model that is loaded in an engine process of its own; the library speaks to
 * it and holds no Python, no model and no device. Ten lines are enough:
 *
 *     xllm_engine *engine = NULL;
 *     if (xllm_engine_create(NULL, &engine) != XLLM_OK) { fprintf(stderr, "%s\n", xllm_last_error()); return 1; }
 *     xllm_response *response = NULL;
 *     if (xllm_complete(engine, "Once upon a time", NULL, &response) == XLLM_OK) {
 *         puts(response->choices[0]->text);
 *         xllm_response_free(response);
 *     }
 *     xllm_engine_destroy(engine);
 *
 * Rules that hold everywhere
 *   Status      Functions return `xllm_status`. An out-pointer is written only on XLLM_OK, else set to NULL.
 *               `xllm_last_error()` then holds one sentence, per thread.
 *   Ownership   Strings and arrays going in are borrowed for the call. What comes out belongs to the handle or to the
 *               response that it was reached through, and dies with it. One destroy for each create; NULL is a no-op.
 *   Threads     Every function may be called from any thread at once, but a handle must not be destroyed while another
 *               thread is inside a call on it. Each engine has one thread of its own, and callbacks run on it.
 *   Strings     Text is UTF-8. Texts that come out end with a NUL byte and also carry their length in bytes.
 *   Structs     Those that you fill start with `struct_size`: always use the `_INIT` macro or the `_init` function.
 *               New fields are added only at the end, so a program runs with any later library of its major version.
 *   Process     The library prints nothing, takes no signal handler, raises no SIGPIPE, never ends the process, and
 *               marks its descriptors close-on-exec. The engine process ends with its host, however that ends.
 *               After fork() the child must not use handles of its parent: calls return XLLM_ERROR_WRONG_STATE.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef XLLM_XLLM_H_
#define XLLM_XLLM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define XLLM_API __attribute__((visibility("default")))
#else
#define XLLM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ----------------------------------------------------------------------------------------------------- */

/* Major: changes when a program must be recompiled. Minor: grows with each addition. A program works with a library
 * of the same major and of its own minor or a later one. */
#define XLLM_API_VERSION_MAJOR 1
#define XLLM_API_VERSION_MINOR 0
/* The major version alone: the layout of structs and the meaning of numbers. */
#define XLLM_ABI_VERSION XLLM_API_VERSION_MAJOR

/* The library's ABI version; compare it with XLLM_ABI_VERSION. */
XLLM_API int32_t xllm_abi_version(void);
/* The library's API version as `major << 16 | minor`. */
XLLM_API int32_t xllm_api_version(void);
/* The package's version, such as "0.1.0". Static storage. */
XLLM_API const char *xllm_version(void);

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* The low byte is the class, the bits above it a detail; compare `xllm_status_class(status)` when details do not
 * matter. Numbers are never reused or changed. */
typedef int32_t xllm_status;

enum {
    XLLM_OK = 0,
    XLLM_ERROR_INVALID_ARGUMENT = 1, /* NULL where something must be, a wrong struct_size, text that is not UTF-8 */
    XLLM_ERROR_INVALID_REQUEST = 2,  /* the engine refuses the request as it is; the message names the field */
    XLLM_ERROR_REQUEST_TOO_LONG = 2 | 1 << 8, /* prompt and max_tokens exceed the model's context */
    XLLM_ERROR_INVALID_CONFIG = 3,            /* an engine option has a wrong name, type or value */
    XLLM_ERROR_MODEL_LOAD = 4,                /* the model cannot be loaded; the message names the file */
    XLLM_ERROR_UNSUPPORTED_MODEL = 4 | 1 << 8,
    XLLM_ERROR_QUEUE_FULL = 5,                /* too many requests wait; try again later */
    XLLM_ERROR_TIMEOUT = 6,                   /* timeout_ms has passed; the request is cancelled in the engine */
    XLLM_ERROR_CANCELLED = 7,                 /* cancelled by xllm_request_cancel, a callback or a destroy */
    XLLM_ERROR_ENGINE_START = 8,              /* no interpreter, no such socket, or the engine process failed to start */
    XLLM_ERROR_ENGINE_DEAD = 9,               /* the engine process has ended: destroy the handle and create another */
    XLLM_ERROR_SHUTTING_DOWN = 9 | 1 << 8,    /* the engine takes no new requests */
    XLLM_ERROR_REQUEST_FAILED = 10,           /* this request failed inside the engine; others go on */
    XLLM_ERROR_UNSUPPORTED = 11,              /* known, but this library or engine cannot do it yet */
    XLLM_ERROR_OUT_OF_MEMORY = 12,
    XLLM_ERROR_WRONG_STATE = 13,              /* not here: in a forked child, or a blocking call inside a callback */
    XLLM_ERROR_INTERNAL = 14                  /* a fault of this library or its engine; please report it */
};

/* The class of a status: its low byte. */
static inline xllm_status xllm_status_class(xllm_status status) { return status & 0xff; }

/* The name of a status, such as "XLLM_ERROR_TIMEOUT"; "unknown status" for other numbers. Static storage. */
XLLM_API const char *xllm_status_name(xllm_status status);

/* What went wrong in the last call of this thread that failed: one sentence; "" if none has. Valid until the next call
 * of the library on this thread. */
XLLM_API const char *xllm_last_error(void);

/* ---- Engines ----------------------------------------------------------------------------------------------------- */

typedef struct xllm_engine xllm_engine;

typedef struct xllm_engine_options {
    size_t struct_size;
    /* A folder in Hugging Face layout, a .gguf file or a hub id. NULL or "" takes the embedded demo model. */
    const char *model;
    /* Further options as a JSON object, with the names of the server's config file: {"block_size": 32}. NULL: none.
     * `model` above wins over "model" in here. */
    const char *options_json;
    /* The Python interpreter that runs the engine process. NULL: the environment variable XLLM_PYTHON, else the
     * interpreter of the environment that this library is installed in. */
    const char *python;
    /* Where the engine's log goes. NULL: nowhere, but its last lines are part of the message when it dies. "-": the
     * host's standard error. Otherwise a file to append to. */
    const char *log_path;
    /* Milliseconds for the model to load; 0 means no limit. */
    uint32_t start_timeout_ms;
} xllm_engine_options;

#define XLLM_ENGINE_OPTIONS_INIT { sizeof(xllm_engine_options), NULL, NULL, NULL, NULL, 0 }

/* Fill `options` with defaults; `struct_size` is sizeof(xllm_engine_options). */
XLLM_API xllm_status xllm_engine_options_init(xllm_engine_options *options, size_t struct_size);

/* Start an engine process, load the model, and return when it takes requests. `options` NULL means all defaults.
 * Fails with XLLM_ERROR_INVALID_ARGUMENT, _INVALID_CONFIG, _MODEL_LOAD, _UNSUPPORTED_MODEL, _ENGINE_START, _TIMEOUT. */
XLLM_API xllm_status xllm_engine_create(const xllm_engine_options *options, xllm_engine **engine);

/* Connect to a running engine: one started by `python -m xllm_capi.engine --listen PATH` under the same user.
 * `address` is PATH or "unix:PATH". `timeout_ms` 0 means no limit. Destroying the handle leaves the engine running. */
XLLM_API xllm_status xllm_engine_attach(const char *address, uint32_t timeout_ms, xllm_engine **engine);

/* Cancel what runs, wait until no callback runs, stop the engine process, free the handle. Request handles of the
 * engine stay valid (all ended) and are destroyed on their own. Only fails, and then does nothing, with
 * XLLM_ERROR_WRONG_STATE: called from a callback of this engine, or in a forked child. */
XLLM_API xllm_status xllm_engine_destroy(xllm_engine *engine);

/* XLLM_OK while the engine takes requests; otherwise XLLM_ERROR_ENGINE_DEAD, and the message says why it ended. */
XLLM_API xllm_status xllm_engine_health(xllm_engine *engine);

/* What is loaded. All of it dies with the engine handle. New fields come at the end. */
typedef struct xllm_engine_info {
    const char *model;      /* the name under which the model is served */
    const char *model_impl; /* native, python or transformers */
    const char *device;     /* cpu, cuda:0, ... */
    const char *dtype;      /* float32, bfloat16, float16 */
    int32_t max_model_len;  /* tokens of prompt and output together */
    int32_t vocab_size;
    int32_t num_blocks; /* of the KV cache */
    int32_t block_size; /* tokens a block */
    int64_t process_id; /* of the engine process */
} xllm_engine_info;

XLLM_API xllm_status xllm_engine_get_info(xllm_engine *engine, const xllm_engine_info **info);

/* A snapshot of the engine's gauges and counters. The caller sets `struct_size` (XLLM_METRICS_INIT). */
typedef struct xllm_metrics {
    size_t struct_size;
    int64_t num_running;          /* sequences that run */
    int64_t num_waiting;          /* sequences that wait */
    int64_t num_blocks;           /* blocks of the pool */
    int64_t num_free_blocks;      /* blocks that hold nothing */
    int64_t num_cached_blocks;    /* blocks that only the prefix cache holds */
    int64_t num_steps;            /* since the start, as all that follows */
    int64_t num_prompt_tokens;    /* computed or found in the cache */
    int64_t num_generated_tokens;
    int64_t num_preemptions;
    int64_t prefix_cache_queries; /* prompt tokens looked up */
    int64_t prefix_cache_hits;    /* prompt tokens found */
    double step_time_s;           /* time spent in steps */
} xllm_metrics;

#define XLLM_METRICS_INIT { sizeof(xllm_metrics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0 }

XLLM_API xllm_status xllm_engine_get_metrics(xllm_engine *engine, uint32_t timeout_ms, xllm_metrics *metrics);

/* Give the device's memory back, and take it again. Not built yet: XLLM_ERROR_UNSUPPORTED. */
XLLM_API xllm_status xllm_engine_sleep(xllm_engine *engine);
XLLM_API xllm_status xllm_engine_wake(xllm_engine *engine);

/* ---- What a request asks for ------------------------------------------------------------------------------------- */

typedef struct xllm_request_options {
    size_t struct_size;
    /* Your name for the request, for logs and for the response; need not be unique. NULL: the library makes one. */
    const char *request_id;
    /* Milliseconds until the request is cancelled and ends with XLLM_ERROR_TIMEOUT; 0 means no limit. */
    uint32_t timeout_ms;
    int32_t max_tokens;  /* tokens to generate at most; -1: as many as the context holds */
    int32_t min_tokens;  /* no end before this many tokens */
    int32_t n;           /* sequences to generate for the prompt */
    int32_t top_k;       /* keep the k most probable tokens; -1 or 0: all */
    int32_t logprobs;    /* -1: none; k: the sampled token's log-probability and the k best alternatives */
    double temperature;  /* 0 is greedy */
    double top_p;        /* nucleus sampling: keep tokens up to this probability; 1: all */
    double min_p;        /* keep tokens with at least this share of the best one's probability */
    double presence_penalty;
    double frequency_penalty;
    double repetition_penalty; /* 1: none */
    int64_t seed;              /* used when has_seed is not 0: same seed, prompt and options give the same tokens */
    int32_t has_seed;
    int32_t ignore_eos;                 /* not 0: the model's own end tokens do not stop */
    int32_t keep_special_tokens;        /* not 0: special tokens are part of the text */
    int32_t include_stop_str_in_output; /* not 0: keep the stop string that ended the text */
    int32_t priority;                   /* smaller runs first, where the scheduler's policy looks at it */
    int32_t is_offline;                 /* not 0: batch work that yields to interactive requests */
    const char *const *stop;            /* strings that end the text, at most 16 */
    size_t num_stop;
    const int32_t *stop_token_ids;
    size_t num_stop_token_ids;
    const char *cache_salt;           /* requests share cached prefixes only with equal salts; NULL: "" */
    const char *tools_json;           /* chat: a JSON array of tools in OpenAI's shape; calls come back parsed, in
                                         xllm_choice.tool_calls_json. Needs the package xllm-server, which has the
                                         parsers, beside this one, else XLLM_ERROR_UNSUPPORTED; NULL: none */
    const char *response_format_json; /* JSON schema of the answer */
    const char *template_kwargs_json; /* chat: a JSON object of further chat template variables; NULL: none */
    const char *options_json;         /* a JSON object of sampling options by name, as {"logit_bias": {"42": -100}};
                                         it wins over the fields above; NULL: none */
    const char *tool_choice;          /* chat with tools_json: "auto", "none", "required", or the name of the tool that
                                         must be called; NULL: "auto" */
} xllm_request_options;

#define XLLM_REQUEST_OPTIONS_INIT                                                                                      \
    { sizeof(xllm_request_options), NULL, 0, -1, 0, 1, -1, -1, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0, 0, 0, 0, 0, 0, 0,      \
      NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL }

/* Fill `options` with defaults; `struct_size` is sizeof(xllm_request_options). */
XLLM_API xllm_status xllm_request_options_init(xllm_request_options *options, size_t struct_size);

/* One chat message. This layout never changes; names, tool calls and content parts are given as JSON. */
typedef struct xllm_message {
    const char *role;
    const char *content;
} xllm_message;

/* ---- What comes back --------------------------------------------------------------------------------------------- */

/* The layouts of these two never change. */
typedef struct xllm_alternative {
    int32_t token_id;
    double logprob;
} xllm_alternative;

typedef struct xllm_token_logprob {
    int32_t token_id;
    double logprob;
    const xllm_alternative *alternatives; /* best first */
    size_t num_alternatives;
} xllm_token_logprob;

/* One generated sequence. New fields come at the end. */
typedef struct xllm_choice {
    int32_t index;
    const char *text;
    size_t text_length; /* bytes, without the ending NUL */
    const int32_t *token_ids;
    size_t num_token_ids;
    const xllm_token_logprob *logprobs; /* one a token when asked for, else NULL */
    size_t num_logprobs;
    const char *finish_reason; /* "stop" or "length" */
    const char *stop_reason;   /* the stop string, or stop token id in digits, that ended it; NULL for neither */
    const char *reasoning;     /* chat with tools: what the model thought before `text`; NULL: nothing */
    /* Chat with tools: a JSON array [{"id", "type": "function", "function": {"name", "arguments"}}, ...], ready to be
     * part of the next request's messages_json; `text` then holds only what was said beside the calls. NULL: none. */
    const char *tool_calls_json;
} xllm_choice;

/* The whole answer. New fields come at the end. */
typedef struct xllm_response {
    const char *request_id;
    const char *model;
    int64_t created_s; /* seconds since 1970 */
    const xllm_choice *const *choices;
    size_t num_choices;
    int32_t num_prompt_tokens;
    int32_t num_cached_tokens; /* of the prompt, found in the prefix cache */
    int32_t num_output_tokens; /* over all choices */
} xllm_response;

/* Free a response and all that was reached through it. NULL is a no-op. */
XLLM_API void xllm_response_free(xllm_response *response);

enum {
    XLLM_EVENT_DELTA = 1,   /* new text or tokens of one sequence */
    XLLM_EVENT_FINISHED = 2 /* the last event of a request, always sent exactly once */
};

/* News of a running request; dies with the callback, or with the next call on the request handle. New fields come at
 * the end. */
typedef struct xllm_event {
    int32_t kind;
    xllm_status status;  /* FINISHED: how the request ended; else XLLM_OK */
    const char *message; /* FINISHED with an error: one sentence; else "" */
    int32_t index;       /* DELTA: which of the n sequences */
    const char *text;    /* DELTA: new text, possibly "" */
    size_t text_length;
    const int32_t *token_ids; /* DELTA: new tokens; text may lag behind them */
    size_t num_token_ids;
    const xllm_token_logprob *logprobs; /* DELTA: one a token when asked for, else NULL */
    size_t num_logprobs;
    const char *finish_reason; /* DELTA: set on the sequence's last one, else NULL */
    const char *stop_reason;
    int32_t num_prompt_tokens; /* FINISHED */
    int32_t num_cached_tokens; /* FINISHED */
    const char *reasoning;       /* DELTA of a chat with tools: new thought; NULL: none */
    const char *tool_calls_json; /* DELTA of a chat with tools: on the sequence's last one, all its calls; else NULL */
} xllm_event;

/* Called on the engine's own thread: return soon, and make no blocking call on the same engine (it is refused with
 * XLLM_ERROR_WRONG_STATE). Starting and cancelling requests is fine. Return 0 to go on; anything else cancels the
 * request, whose last event then has the status XLLM_ERROR_CANCELLED. */
typedef int (*xllm_on_event)(const xllm_event *event, void *user_data);

/* ---- Blocking requests ------------------------------------------------------------------------------------------- */

/* Each waits for the whole answer. `options` NULL means defaults. The response is yours to free.
 * Fail with XLLM_ERROR_INVALID_ARGUMENT, _INVALID_REQUEST, _REQUEST_TOO_LONG, _QUEUE_FULL, _TIMEOUT, _CANCELLED (the
 * engine handle is being destroyed), _ENGINE_DEAD, _SHUTTING_DOWN, _REQUEST_FAILED, _UNSUPPORTED, _WRONG_STATE. */

/* Continue a text. */
XLLM_API xllm_status xllm_complete(xllm_engine *engine, const char *prompt, const xllm_request_options *options,
                                   xllm_response **response);
/* Answer a conversation; the model's chat template is applied. */
XLLM_API xllm_status xllm_chat(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                               const xllm_request_options *options, xllm_response **response);
/* The same with the messages as a JSON array, as in the body of an HTTP chat request. */
XLLM_API xllm_status xllm_chat_json(xllm_engine *engine, const char *messages_json,
                                    const xllm_request_options *options, xllm_response **response);
/* Continue a list of token ids; nothing is added in front. */
XLLM_API xllm_status xllm_generate_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                          const xllm_request_options *options, xllm_response **response);

/* ---- Embeddings and scores ---------------------------------------------------------------------------------------- */

typedef struct xllm_pooling_options {
    size_t struct_size;
    const char *request_id; /* as in xllm_request_options, so are the other fields of the same names */
    uint32_t timeout_ms;
    int32_t dimensions;  /* embeddings: cut the vectors to so many numbers and normalise what is left; 0: all */
    int32_t truncate_to; /* keep at most so many tokens of a text; -1: as many as the model takes; 0: refuse longer ones */
    int32_t priority;
    int32_t is_offline;
    const char *cache_salt;
} xllm_pooling_options;

#define XLLM_POOLING_OPTIONS_INIT { sizeof(xllm_pooling_options), NULL, 0, 0, 0, 0, 0, NULL }

/* Fill `options` with defaults; `struct_size` is sizeof(xllm_pooling_options). */
XLLM_API xllm_status xllm_pooling_options_init(xllm_pooling_options *options, size_t struct_size);

/* Vectors of texts, in their order. New fields come at the end. */
typedef struct xllm_embeddings {
    const float *values; /* num_vectors rows of num_dimensions numbers, one after the other */
    size_t num_vectors;
    size_t num_dimensions;
    int32_t num_prompt_tokens; /* over all texts */
    int32_t num_cached_tokens; /* of these, found in the prefix cache */
} xllm_embeddings;

/* Free what xllm_embed or xllm_embed_tokens has returned. NULL is a no-op. */
XLLM_API void xllm_embeddings_free(xllm_embeddings *embeddings);

/* These wait, and fail as blocking requests do; a model that cannot answer fails with XLLM_ERROR_INVALID_REQUEST. */

/* The embeddings of texts, pooled and normalised as the model's files say. */
XLLM_API xllm_status xllm_embed(xllm_engine *engine, const char *const *texts, size_t num_texts,
                                const xllm_pooling_options *options, xllm_embeddings **embeddings);
/* The embedding of token ids; nothing is added to them. */
XLLM_API xllm_status xllm_embed_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                       const xllm_pooling_options *options, xllm_embeddings **embeddings);
/* How well each document fits a query: the cosine of their embeddings, or a reranker's probability. Writes
 * `num_documents` numbers to `scores`, on XLLM_OK only. */
XLLM_API xllm_status xllm_score(xllm_engine *engine, const char *query, const char *const *documents,
                                size_t num_documents, const xllm_pooling_options *options, float *scores);

/* ---- Recommendations --------------------------------------------------------------------------------------------- */

/* For an engine whose options_json holds {"backend": "rec"}: it finds the most probable items of a catalogue after a
 * history. An item has a path, a short list of tokens, and several items may share one. */

typedef struct xllm_recommend_options {
    size_t struct_size;
    const char *request_id; /* as in xllm_request_options, so are timeout_ms, priority and cache_salt */
    uint32_t timeout_ms;
    int32_t beam_width;           /* paths kept in each round, 1 to 512; 0: the engine's option of that name */
    int32_t num_return_sequences; /* best paths that come back; 0: all */
    int32_t num_rounds;           /* tokens of a path, to get fewer than an item has; 0: all */
    int32_t is_sampled;           /* not 0: draw beam_width paths by chance; only then the next five count */
    int32_t top_k;                /* tokens that a draw chooses among; 0: all */
    double temperature;           /* above 0 */
    double top_p;
    int64_t seed;
    int32_t has_seed;
    int32_t priority;
    const char *cache_salt;
} xllm_recommend_options;

#define XLLM_RECOMMEND_OPTIONS_INIT { sizeof(xllm_recommend_options), NULL, 0, 0, 0, 0, 0, 0, 1.0, 1.0, 0, 0, 0, NULL }

/* Fill `options` with defaults; `struct_size` is sizeof(xllm_recommend_options). */
XLLM_API xllm_status xllm_recommend_options_init(xllm_recommend_options *options, size_t struct_size);

/* One path and its items. New fields come at the end. */
typedef struct xllm_recommendation {
    double score;           /* the sum of `logprobs` */
    const char *text;       /* of the tokens; "" for a model without tokenizer */
    const int32_t *token_ids;
    const double *logprobs; /* of each token, over the whole vocabulary */
    size_t num_token_ids;   /* of both */
    const int64_t *item_ids;
    size_t num_item_ids;             /* 0 without a catalogue */
    const char *const *document_ids; /* one an item, of a catalogue that has them; else NULL */
    const char *const *item_types;   /* so too */
} xllm_recommendation;

/* Paths, best first (drawn ones as they were drawn). New fields come at the end. */
typedef struct xllm_recommendations {
    const char *request_id;
    const char *model;
    int64_t created_s; /* seconds since 1970 */
    const xllm_recommendation *const *paths;
    size_t num_paths;
    int32_t num_prompt_tokens;
    int32_t num_cached_tokens; /* of the prompt, found in the prefix cache */
    int32_t catalogue_version; /* counts the changes of the catalogue */
} xllm_recommendations;

/* Free recommendations and all that was reached through them. NULL is a no-op. */
XLLM_API void xllm_recommendations_free(xllm_recommendations *recommendations);

/* These wait, and fail as blocking requests do; an engine of another backend fails with XLLM_ERROR_INVALID_REQUEST, and
 * so do the other requests on an engine of this one. */

/* What follows a history of token ids; nothing is added to them. */
XLLM_API xllm_status xllm_recommend_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                           const xllm_recommend_options *options,
                                           xllm_recommendations **recommendations);

enum {
    XLLM_TENSOR_FLOAT32 = 1,
    XLLM_TENSOR_INT64 = 2
};

/* An array that a request brings. This layout never changes. */
typedef struct xllm_tensor {
    const char *name;
    int32_t dtype;        /* XLLM_TENSOR_FLOAT32 or XLLM_TENSOR_INT64 */
    int32_t rank;         /* 1 to 3 */
    const int64_t *shape; /* `rank` sizes, each above 0 */
    const void *values;   /* row by row */
} xllm_tensor;

/* What follows a history with embeddings in it. `hidden` is the model's hidden size. An encoder-decoder takes
 *     sparse_embedding           float32 [history, hidden], in place of `token_ids`
 *     decoder_context_embedding  float32 [context, hidden], before every path
 * and a language model with the option "model_impl": "python" takes three together, in place of `token_ids`:
 *     LLM_REC_INPUT_TOKENS       int64 [history], token ids
 *     LLM_REC_INPUT_INDICES      int64 [n], different places among them
 *     LLM_REC_INPUT_EMBEDDING    float32 [n, hidden], what stands there instead of the tokens
 * `token_ids` is NULL with `num_token_ids` 0 where tensors stand in its place. */
XLLM_API xllm_status xllm_recommend_tensors(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                            const xllm_tensor *tensors, size_t num_tensors,
                                            const xllm_recommend_options *options,
                                            xllm_recommendations **recommendations);
/* What follows a history as text. */
XLLM_API xllm_status xllm_recommend(xllm_engine *engine, const char *prompt, const xllm_recommend_options *options,
                                    xllm_recommendations **recommendations);
/* What follows a conversation; the model's chat template is applied. */
XLLM_API xllm_status xllm_recommend_chat(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                                         const xllm_recommend_options *options,
                                         xllm_recommendations **recommendations);

/* ---- Streamed requests ------------------------------------------------------------------------------------------- */

typedef struct xllm_request xllm_request;

/* Start a request and return at once. With `on_event` its events go to the callback; with NULL they are kept for
 * xllm_request_next and xllm_request_poll. `request` may be NULL together with a callback: then the request goes on by
 * itself and can be cancelled by the callback only. */
XLLM_API xllm_status xllm_complete_start(xllm_engine *engine, const char *prompt, const xllm_request_options *options,
                                         xllm_on_event on_event, void *user_data, xllm_request **request);
XLLM_API xllm_status xllm_chat_start(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                                     const xllm_request_options *options, xllm_on_event on_event, void *user_data,
                                     xllm_request **request);
XLLM_API xllm_status xllm_chat_json_start(xllm_engine *engine, const char *messages_json,
                                          const xllm_request_options *options, xllm_on_event on_event, void *user_data,
                                          xllm_request **request);
XLLM_API xllm_status xllm_generate_tokens_start(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                                const xllm_request_options *options, xllm_on_event on_event,
                                                void *user_data, xllm_request **request);

/* Wait for the next event of a request without callback. XLLM_ERROR_TIMEOUT after `timeout_ms` (0: no limit) without
 * one; the request goes on. After the last event it is returned again. One thread at a time for each request. */
XLLM_API xllm_status xllm_request_next(xllm_request *request, uint32_t timeout_ms, const xllm_event **event);

/* The same without waiting: `*event` is NULL when there is none now. */
XLLM_API xllm_status xllm_request_poll(xllm_request *request, const xllm_event **event);

/* Wait for the end and return the whole answer, also of a request with callback. Returns the request's own status.
 * XLLM_ERROR_TIMEOUT after `timeout_ms` (0: no limit); the request goes on. May be called again. */
XLLM_API xllm_status xllm_request_wait(xllm_request *request, uint32_t timeout_ms, xllm_response **response);

/* Cancel; its blocks are free one step later. Of an ended request: a no-op. */
XLLM_API xllm_status xllm_request_cancel(xllm_request *request);

/* The request's id. Dies with the handle. "" for NULL. */
XLLM_API const char *xllm_request_get_id(const xllm_request *request);

/* Cancel if it runs, and free the handle; on return its callback is not running and will not run again (called from
 * inside that callback: will not run again once it returns). NULL is a no-op. */
XLLM_API void xllm_request_destroy(xllm_request *request);

#ifdef __cplusplus
}
#endif

#endif /* XLLM_XLLM_H_ */
