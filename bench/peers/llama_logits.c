// Runs llama.cpp over given tokens and writes the logits after each of them, for `engine_accuracy`:
//
//   llama_logits MODEL.gguf THREADS <tokens >logits
//
// Tokens are 32-bit integers. The output is the size of the vocabulary, also as one, and then as many 32-bit floats for every
// token; all in the machine's byte order. llama-server has no way to give whole distributions.

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH_TOKENS = 128, MAX_TOKENS = 8192 };

static void log_errors(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static int fail(const char *what) {
    fprintf(stderr, "llama_logits: %s\n", what);
    return 1;
}

// Evaluates tokens from `first` on, at most one batch, and writes a row for each.
static int write_rows(struct llama_context *context, const llama_token *tokens, int first, int count, int vocab) {
    struct llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[first + i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    int status = llama_decode(context, batch);
    for (int i = 0; status == 0 && i < count; i++) {
        const float *logits = llama_get_logits_ith(context, i);
        if (logits == NULL || fwrite(logits, sizeof(float), (size_t)vocab, stdout) != (size_t)vocab) {
            status = -1;
        }
    }
    llama_batch_free(batch);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 3 || atoi(argv[2]) < 1) {
        return fail("usage: llama_logits MODEL.gguf THREADS <tokens >logits");
    }
    static llama_token tokens[MAX_TOKENS + 1];
    size_t count = fread(tokens, sizeof(llama_token), MAX_TOKENS + 1, stdin);
    if (count == 0 || count > MAX_TOKENS) {
        return fail("expected 1 to 8192 tokens on standard input");
    }
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == NULL) {
        return fail("the model cannot be loaded");
    }
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)count;
    params.n_batch = BATCH_TOKENS;
    params.n_ubatch = BATCH_TOKENS;
    params.n_threads = atoi(argv[2]);
    params.n_threads_batch = atoi(argv[2]);
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        return fail("no context of this length");
    }
    for (int i = 0; i < (int)count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab) {
            return fail("a token is outside the vocabulary");
        }
    }
    int32_t vocab_size = vocab;
    if (fwrite(&vocab_size, sizeof vocab_size, 1, stdout) != 1) {
        return fail("cannot write");
    }
    for (int first = 0; first < (int)count; first += BATCH_TOKENS) {
        int rest = (int)count - first;
        if (write_rows(context, tokens, first, rest < BATCH_TOKENS ? rest : BATCH_TOKENS, vocab) != 0) {
            return fail("a batch failed");
        }
    }
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return fflush(stdout) == 0 ? 0 : fail("cannot write");
}
