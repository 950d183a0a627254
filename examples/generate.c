// Continues a prompt given as token ids, through neap's C ABI.
//
//   generate MODEL DEVICE MAX_NEW_TOKENS ID...
//
// DEVICE is auto, cuda:N, emu or emu:PROFILE. New ids go to standard output as they come, one a line; what the
// memory was used for goes to standard error. The README says how to compile and link this file.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "neap.h"

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, neap_last_error());
    return 2;
}

static int32_t on_token(void *user, uint32_t token) {
    size_t *count = user;
    *count += 1;
    printf("%" PRIu32 "\n", token);
    fflush(stdout);
    return 0;
}

static int tell_memory(const NeapEngine *engine) {
    NeapLedger ledger = {.struct_size = sizeof ledger};
    if (neap_engine_ledger(engine, &ledger) != NEAP_STATUS_OK) return failed("ledger");
    fprintf(stderr,
            "total %" PRIu64 " = foreign %" PRIu64 " + context %" PRIu64 " + modules %" PRIu64 " + weights %" PRIu64
            " + workspace %" PRIu64 " + graphs %" PRIu64 " + headroom %" PRIu64 " + kv %" PRIu64 " + tail %" PRIu64
            " + unaccounted %" PRId64 " bytes\n",
            ledger.total_bytes, ledger.foreign_bytes, ledger.context_bytes, ledger.modules_bytes, ledger.weights_bytes,
            ledger.workspace_bytes, ledger.graphs_bytes, ledger.headroom_bytes, ledger.kv_bytes, ledger.tail_bytes,
            ledger.unaccounted_bytes);

    NeapCarve carve = {.struct_size = sizeof carve};
    if (neap_engine_carve(engine, &carve) != NEAP_STATUS_OK) return failed("carve");
    for (uint32_t i = 0; i < carve.num_pools; i++) {
        NeapPool pool = {.struct_size = sizeof pool};
        if (neap_engine_pool(engine, i, &pool) != NEAP_STATUS_OK) return failed("pool");
        fprintf(stderr, "pool %s: %" PRIu32 " layers, %" PRIu64 " pages of %" PRIu64 " bytes, %" PRIu64 " tokens\n",
                pool.group, pool.num_layers, pool.pages, pool.page_bytes, pool.tokens);
    }
    return 0;
}

static int generate(const NeapDevice *device, char **arguments, const uint32_t *prompt, size_t prompt_tokens) {
    // One sequence, so one decode graph; the tokens do not depend on it.
    NeapEngineOptions options = {.struct_size = sizeof options};
    neap_engine_options_init(&options);
    options.max_seqs = 1;
    options.max_chunk_tokens = 256;
    NeapEngine *engine = NULL;
    if (neap_engine_load(device, arguments[1], &options, NULL, NULL, &engine) != NEAP_STATUS_OK) return failed("load");

    int status = tell_memory(engine);
    if (status == 0) {
        NeapGenerateOptions wanted = {.struct_size = sizeof wanted};
        neap_generate_options_init(&wanted);
        wanted.max_new_tokens = (uint32_t)strtoul(arguments[3], NULL, 10);
        size_t count = 0;
        NeapFinish finish = NEAP_FINISH_LENGTH;
        if (neap_generate(engine, prompt, prompt_tokens, &wanted, on_token, &count, &finish) != NEAP_STATUS_OK)
            status = failed("generate");
        else
            fprintf(stderr, "%zu tokens, ended by %s\n", count, finish == NEAP_FINISH_STOP ? "the model" : "length");
    }
    if (neap_engine_close(engine) != NEAP_STATUS_OK && status == 0) status = failed("close");
    return status;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s MODEL DEVICE MAX_NEW_TOKENS ID...\n", argv[0]);
        return 2;
    }
    const size_t prompt_tokens = (size_t)argc - 4;
    uint32_t *prompt = malloc(prompt_tokens * sizeof *prompt);
    if (prompt == NULL) return 2;
    for (size_t i = 0; i < prompt_tokens; i++) prompt[i] = (uint32_t)strtoul(argv[4 + i], NULL, 10);

    NeapDevice *device = NULL;
    int status = 0;
    if (neap_device_open(argv[2], &device) != NEAP_STATUS_OK)
        status = failed("device");
    else
        status = generate(device, argv, prompt, prompt_tokens);

    if (status == 0) {
        NeapDeviceInfo info = {.struct_size = sizeof info};
        if (neap_device_info(device, &info) != NEAP_STATUS_OK) status = failed("info");
        if (info.live_objects != 0) {
            fprintf(stderr, "%" PRIu64 " driver objects were left behind\n", info.live_objects);
            status = 1;
        }
    }
    neap_device_close(device);
    free(prompt);
    return status;
}
