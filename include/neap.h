// neap: language models with full and sliding-window attention; graphs captured first, KV pools carved from what is left.
//
// Generated from src/capi by cbindgen; change it there (scripts/generate-header.sh).
//
// Every function returns a NeapStatus, NEAP_STATUS_OK (0) when it did what was asked; neap_last_error() has the sentence of
// this thread's last failure. Set struct_size of every struct to its sizeof before a call. A handle is used by one
// thread at a time. A full program: examples/generate.c.

#ifndef NEAP_H
#define NEAP_H

#include <stddef.h>
#include <stdint.h>

// What a function returns: `NEAP_STATUS_OK`, or why not. The sentence is in `neap_last_error`.
enum NeapStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  NEAP_STATUS_OK = 0,
  // An argument is null, too small, not UTF-8 or out of range.
  NEAP_STATUS_INVALID_ARGUMENT = 1,
  // The device cannot be had, or a driver call failed.
  NEAP_STATUS_DEVICE = 2,
  // The model folder cannot be used.
  NEAP_STATUS_MODEL = 3,
  // The engine cannot be started or cannot take the request.
  NEAP_STATUS_ENGINE = 4,
  // This build lacks the feature.
  NEAP_STATUS_UNSUPPORTED = 5,
  // A bug in neap: a panic was caught. The handle must only be closed.
  NEAP_STATUS_INTERNAL = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum NeapStatus NeapStatus;
#else
typedef int32_t NeapStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a generation ended.
enum NeapFinish
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // max_new_tokens were generated.
  NEAP_FINISH_LENGTH = 0,
  // The model ended the text; the end-of-text token was the last one reported.
  NEAP_FINISH_STOP = 1,
  // The longest sequence that the model or the KV pools allow was reached.
  NEAP_FINISH_CAPACITY = 2,
  // The token callback asked for it.
  NEAP_FINISH_CALLBACK = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum NeapFinish NeapFinish;
#else
typedef int32_t NeapFinish;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// An open device. Engines made from it keep what they need of it, so it may be closed before them.
typedef struct NeapDevice NeapDevice;

// A loaded model: graphs captured, KV pools carved, ready to generate.
typedef struct NeapEngine NeapEngine;

// What a device is. Set `struct_size` before the call.
typedef struct NeapDeviceInfo {
  // sizeof(NeapDeviceInfo).
  size_t struct_size;
  // Device memory in bytes.
  uint64_t total_bytes;
  // Physical granularity of device memory in bytes.
  uint64_t granularity_bytes;
  // Driver objects that exist on an emulated device, 0 on a CUDA device: what a program has yet to close.
  uint64_t live_objects;
  // Compute capability, major number.
  uint32_t compute_capability_major;
  // Compute capability, minor number.
  uint32_t compute_capability_minor;
  // 1 when this is the emulator, 0 on a CUDA device.
  uint32_t is_emulator;
  // The ordinal among the driver's devices.
  uint32_t ordinal;
  // The name, NUL-terminated.
  char name[128];
} NeapDeviceInfo;

// How an engine is started. Fill it with `neap_engine_options_init`, then change what you need.
typedef struct NeapEngineOptions {
  // sizeof(NeapEngineOptions).
  size_t struct_size;
  // Device memory left to others, in bytes.
  uint64_t headroom_bytes;
  // The most KV memory to take, in bytes; 0 for all that is left.
  uint64_t kv_limit_bytes;
  // Tokens a KV page: a power of two, at most 256.
  uint32_t page_size;
  // The most sequences that run at once.
  uint32_t max_seqs;
  // The longest sequence in tokens; 0 for what the model's config says.
  uint32_t max_model_len;
  // The most prompt tokens of one prefill chunk.
  uint32_t max_chunk_tokens;
  // 1 to launch kernel by kernel instead of replaying graphs; the tokens are the same.
  uint32_t eager;
  // 1 to compute every prompt in full; the tokens are the same.
  uint32_t no_prefix_cache;
  // No more KV memory than so many resident tokens can fill; 0 for no such bound.
  uint64_t max_kv_tokens;
} NeapEngineOptions;

// Called while a model loads. `phase` is a short text, `done` of `total` are bytes or graphs, 0 of 0 where
// the phase has no parts.
typedef void (*NeapProgressFn)(void *user, const char *phase, uint64_t done, uint64_t total);

// Who holds the device's memory, in bytes, as measured at start-up. The parts and `unaccounted_bytes` add up to
// `total_bytes`. Set `struct_size` before the call.
typedef struct NeapLedger {
  // sizeof(NeapLedger).
  size_t struct_size;
  // All device memory.
  uint64_t total_bytes;
  // Held by others before neap came.
  uint64_t foreign_bytes;
  // The driver's context.
  uint64_t context_bytes;
  // Kernel images.
  uint64_t modules_bytes;
  // Model weights.
  uint64_t weights_bytes;
  // Activations, logits, block tables and work lists.
  uint64_t workspace_bytes;
  // Captured graphs.
  uint64_t graphs_bytes;
  // Left to others on purpose.
  uint64_t headroom_bytes;
  // The KV pools.
  uint64_t kv_bytes;
  // Mapped for KV, but less than a slab.
  uint64_t tail_bytes;
  // What is missing from the sum: negative when the parts exceed the total.
  int64_t unaccounted_bytes;
} NeapLedger;

// How the KV memory was carved. Set `struct_size` before the call.
typedef struct NeapCarve {
  // sizeof(NeapCarve).
  size_t struct_size;
  // Bytes of a slab, the unit in which pools take memory.
  uint64_t slab_bytes;
  // Bytes that are mapped but no whole slab.
  uint64_t tail_bytes;
  // Pools: one for each layer group.
  uint32_t num_pools;
  // Tokens a page.
  uint32_t page_size;
} NeapCarve;

// One pool of the carve. Set `struct_size` before the call.
typedef struct NeapPool {
  // sizeof(NeapPool).
  size_t struct_size;
  // Bytes of a page: K and V of every layer of the group.
  uint64_t page_bytes;
  // Pages of the pool.
  uint64_t pages;
  // Tokens these pages hold.
  uint64_t tokens;
  // Layers of the group.
  uint32_t num_layers;
  // Must be ignored.
  uint32_t reserved;
  // The group's name, such as "full" or "swa", NUL-terminated.
  char group[32];
} NeapPool;

// What to generate. Fill it with `neap_generate_options_init`.
typedef struct NeapGenerateOptions {
  // sizeof(NeapGenerateOptions).
  size_t struct_size;
  // The most tokens to generate.
  uint32_t max_new_tokens;
  // 1 to go on past the model's end-of-text tokens.
  uint32_t ignore_stop_tokens;
} NeapGenerateOptions;

// Called with each token as it is generated; anything but 0 stops the generation. It must not call back into
// the engine.
typedef int32_t (*NeapTokenFn)(void *user, uint32_t token);

// What the prefix cache has done since the engine was loaded; all 0 when it is switched off. Set `struct_size` before the
// call.
typedef struct NeapPrefixCounters {
  // sizeof(NeapPrefixCounters).
  size_t struct_size;
  // Prompts looked up.
  uint64_t lookups;
  // Those that began like a cached one.
  uint64_t hits;
  // Prompt tokens that were not computed again.
  uint64_t saved_tokens;
  // Prompts shorter than one block and one token.
  uint64_t misses_too_short;
  // Prompts whose first block was not cached.
  uint64_t misses_unknown;
  // Prompts whose tokens were cached but no window to continue from.
  uint64_t misses_no_window;
  // Pages in the cache now, all pools together.
  uint64_t cached_pages;
  // Pages given up so far, all pools together.
  uint64_t evicted_pages;
} NeapPrefixCounters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The sentence of the last failed call of this thread; empty when none has failed.
//
// The text belongs to neap and stays valid until the next failed call of this thread.
const char *neap_last_error(void);

// neap's version, such as "0.1.0".
const char *neap_version(void);

// Opens a device: "auto", "cuda", "cuda:N", "emu" or "emu:PROFILE"; "auto" takes the first CUDA device, or the
// emulator where there is none. Close it with `neap_device_close`.
//
// # Safety
// `name` is NUL-terminated; `device` is writable.
NeapStatus neap_device_open(const char *name,
                            struct NeapDevice **device);

// Tells what a device is.
//
// # Safety
// `device` is a live device; `info` points to as many writable bytes as its `struct_size` says.
NeapStatus neap_device_info(const struct NeapDevice *device, struct NeapDeviceInfo *info);

// Closes a device; null is accepted. The handle is gone whatever is returned.
//
// # Safety
// `device` is null or a live device that nothing uses any more.
NeapStatus neap_device_close(struct NeapDevice *device);

// Fills `options` with the defaults. Set `options->struct_size` before the call.
//
// # Safety
// `options` points to as many writable bytes as its `struct_size` says.
NeapStatus neap_engine_options_init(struct NeapEngineOptions *options);

// Loads a model folder onto a device, captures its graphs, measures what memory is left and carves the KV pools
// from it. `options`, `progress` and `user` may be null. Close it with `neap_engine_close`.
//
// # Safety
// `device` is a live device; `model_dir` is NUL-terminated; `options` is null or has the bytes its `struct_size`
// says; `progress` may be called with `user` during this call; `engine` is writable.
NeapStatus neap_engine_load(const struct NeapDevice *device,
                            const char *model_dir,
                            const struct NeapEngineOptions *options,
                            NeapProgressFn progress,
                            void *user,
                            struct NeapEngine **engine);

// Reads the ledger.
//
// # Safety
// `engine` is a live engine; `ledger` has the bytes its `struct_size` says.
NeapStatus neap_engine_ledger(const struct NeapEngine *engine, struct NeapLedger *ledger);

// Reads the carve.
//
// # Safety
// `engine` is a live engine; `carve` has the bytes its `struct_size` says.
NeapStatus neap_engine_carve(const struct NeapEngine *engine, struct NeapCarve *carve);

// Reads pool `index` of the carve, below `NeapCarve.num_pools`.
//
// # Safety
// `engine` is a live engine; `pool` has the bytes its `struct_size` says.
NeapStatus neap_engine_pool(const struct NeapEngine *engine, uint32_t index, struct NeapPool *pool);

// Closes an engine and gives back all its device memory; null is accepted. The handle is gone whatever is
// returned.
//
// # Safety
// `engine` is null or a live engine that nothing uses any more.
NeapStatus neap_engine_close(struct NeapEngine *engine);

// Fills `options` with the defaults. Set `options->struct_size` before the call.
//
// # Safety
// `options` points to as many writable bytes as its `struct_size` says.
NeapStatus neap_generate_options_init(struct NeapGenerateOptions *options);

// Continues `prompt` greedily and calls `on_token` with each new token. `options` and `finish` may be null.
//
// # Safety
// `engine` is a live engine that no other thread uses; `prompt` points to `prompt_tokens` ids; `options` is null
// or has the bytes its `struct_size` says; `on_token` may be called with `user` during this call; `finish` is
// null or writable.
NeapStatus neap_generate(struct NeapEngine *engine,
                         const uint32_t *prompt,
                         size_t prompt_tokens,
                         const struct NeapGenerateOptions *options,
                         NeapTokenFn on_token,
                         void *user,
                         NeapFinish *finish);

// Gives back all KV memory but about `kv_bytes` bytes, and says how many bytes the device has more of. Addresses and
// graphs stay, and tokens do not change; what a request was accepted for is kept.
//
// # Safety
// `engine` is a live engine that no other thread uses; `given_back_bytes` is writable.
NeapStatus neap_engine_shrink(struct NeapEngine *engine,
                              uint64_t kv_bytes,
                              uint64_t *given_back_bytes);

// Takes KV memory until there are about `kv_bytes` bytes of it, or as much as the device has; says how many there are.
//
// # Safety
// `engine` is a live engine that no other thread uses; `now_bytes` is writable.
NeapStatus neap_engine_grow(struct NeapEngine *engine,
                            uint64_t kv_bytes,
                            uint64_t *now_bytes);

// Gives back all KV memory and keeps weights, addresses and graphs; says how many bytes the device has more of. Until
// `neap_engine_wake` nothing can be generated.
//
// # Safety
// `engine` is a live engine that no other thread uses; `given_back_bytes` is writable.
NeapStatus neap_engine_sleep(struct NeapEngine *engine,
                             uint64_t *given_back_bytes);

// Takes back what `neap_engine_sleep` gave away, or as much as the device still has; says how many bytes of KV there are.
//
// # Safety
// `engine` is a live engine that no other thread uses; `now_bytes` is writable.
NeapStatus neap_engine_wake(struct NeapEngine *engine,
                            uint64_t *now_bytes);

// Reads the counters of the prefix cache.
//
// # Safety
// `engine` is a live engine; `counters` has the bytes its `struct_size` says.
NeapStatus neap_engine_prefix_counters(const struct NeapEngine *engine, struct NeapPrefixCounters *counters);

// Encodes a text with the model's tokenizer, the beginning-of-text token included.
//
// `count` receives the number of ids whatever `capacity` is; ids are written only when all of them fit, so a
// first call with `capacity` 0 asks for the size.
//
// # Safety
// `engine` is a live engine; `text_utf8` is NUL-terminated; `ids` points to `capacity` elements; `count` is writable.
NeapStatus neap_tokenize(const struct NeapEngine *engine,
                         const char *text_utf8,
                         uint32_t *ids,
                         size_t capacity,
                         size_t *count);

// Decodes token ids to UTF-8; special tokens are left out, incomplete characters become U+FFFD.
//
// `length` receives the number of bytes without the terminator; the text is written, NUL-terminated, only when
// `capacity` is larger than that.
//
// # Safety
// `engine` is a live engine; `ids` points to `count` elements; `text_utf8` to `capacity` bytes; `length` is writable.
NeapStatus neap_detokenize(const struct NeapEngine *engine,
                           const uint32_t *ids,
                           size_t count,
                           char *text_utf8,
                           size_t capacity,
                           size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NEAP_H */
