/* The C interface through which the CUDA benchmark runs other libraries' kernels ("peers"): a shared library exports one or more of
 * sluice_peers(), sluice_layer_peers(), sluice_attention_peers() and sluice_latent_peers(). The adapters in this folder wrap code that
 * stays outside the repository; bench/peers/build fetches and compiles it.
 *
 * Pointers are device memory. enqueue() must not allocate. After one call outside a CUDA graph, which loads the kernel, it must be
 * capturable. */
#ifndef SLUICE_BENCH_PEER_H
#define SLUICE_BENCH_PEER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* logits[tokens, experts] = x[tokens, hidden] * w[experts, hidden]^T (+ bias[experts]) (+ residual); everything contiguous. The
 * benchmark describes dense layers by the same struct, with experts = output features, and passes them only to "cublaslt". */
typedef struct sluice_peer_router {
  int64_t tokens, experts, hidden;
  const void* x;    /* bf16 */
  const void* w;    /* bf16, or f32 if w_is_f32 */
  const void* bias; /* of the type of w, or null: none */
  void* y;          /* bf16, or f32 if y_is_f32 */
  int32_t y_is_f32;
  int32_t dependent; /* use programmatic dependent launch; a peer without it must refuse */
  int32_t w_is_f32;
  const void* residual; /* of the type and shape of y, or null: none. Dense layers only */
} sluice_peer_router;

/* How logits become expert ids and weights. */
enum sluice_peer_method {
  SLUICE_PEER_SOFTMAX_CHOSEN = 0, /* top-k of the logits, softmax over the chosen ones (gpt-oss) */
  SLUICE_PEER_DEEPSEEK_V3 = 1,    /* sigmoid, + bias, groups by their two best, renormalized, times scale */
  SLUICE_PEER_SQRT_SOFTPLUS = 2   /* DeepSeek V4: sqrt(softplus), + bias, renormalized, times scale */
};

/* what = 0: from logits to ids and weights. what = 1: also sorts rows by expert, in the form that the peer's own layer needs (sorted ids,
 * experts of blocks, counts or offsets). */
typedef struct sluice_peer_routing {
  int64_t tokens, experts, top_k, groups, topk_groups;
  int32_t method; /* sluice_peer_method */
  int32_t what;
  double scale;
  const void* logits; /* f32 [tokens, experts] */
  const void* bias;   /* f32 [experts], or null */
  int32_t* ids;       /* [tokens, top_k] */
  float* weights;     /* [tokens, top_k] */
  void* scratch;      /* routing_scratch_bytes() bytes, for everything else */
  int32_t dependent;
} sluice_peer_routing;

typedef struct sluice_peer {
  const char* name;    /* "flashinfer-tinygemm", "cublaslt", "vllm-dsv3" ... */
  const char* version; /* of its package: "flashinfer 0.6.18" */
  /* Returns null, or a sentence that says why the peer does not support this problem. A null function pointer means that the peer does not
   * have the operation at all. */
  const char* (*router_supports)(const sluice_peer_router*);
  size_t (*router_scratch_bytes)(const sluice_peer_router*);
  /* prepare() is called once per problem, before enqueue(), for heuristics and kernel attributes; it may allocate and synchronise. The
   * handle that it returns (or null) stays valid while the library is loaded and is passed to enqueue(), whose x, w, bias and y may have
   * other addresses. enqueue() returns 0, or an error code of the peer. scratch has router_scratch_bytes() bytes of device memory; stream
   * is a cudaStream_t. */
  void* (*router_prepare)(const sluice_peer_router*, void* scratch);
  int (*router_enqueue)(const sluice_peer_router*, void* scratch, void* prepared, void* stream);

  const char* (*routing_supports)(const sluice_peer_routing*);
  size_t (*routing_scratch_bytes)(const sluice_peer_routing*);
  int (*routing_enqueue)(const sluice_peer_routing*, void* stream);
} sluice_peer;

/* Returns the peers of this library and sets `count`. */
const sluice_peer* const* sluice_peers(int* count);

/* ---- whole layers, exported by sluice_layer_peers() ---- */

/* The experts' weights of one layer in checkpoint order: rows of e2m1 codes, two per byte with the lower k in the low nibble, and one e8m0
 * scale per 32 codes. The gate and up rows of `up` alternate, or all gate rows come first (sluice_peer_layer::interleaved). */
typedef struct sluice_peer_experts {
  const uint8_t* up;         /* [experts, 2 * intermediate, hidden / 2] */
  const uint8_t* up_scale;   /* [experts, 2 * intermediate, hidden / 32] */
  const uint8_t* down;       /* [experts, hidden, intermediate / 2] */
  const uint8_t* down_scale; /* [experts, hidden, intermediate / 32] */
  const void* up_bias;       /* bf16 [experts, 2 * intermediate], or null */
  const void* down_bias;     /* bf16 [experts, hidden], or null */
} sluice_peer_experts;

/* y[t] = sum_k weights[t, k] * (h W2[e] + b2[e]), h = act(x[t] W13[e] + b13[e]), e = ids[t, k];
 * act = g / (1 + exp(-alpha g)) * (u + beta), g the gate clamped from above, u the up clamped from both sides, by limit. */
typedef struct sluice_peer_layer {
  int64_t tokens, experts, top_k, hidden, intermediate;
  double alpha, beta, limit;
  int32_t interleaved; /* gate and up rows alternate; otherwise all gate rows come first */
  int32_t biases;
  const void* x;        /* bf16 [tokens, hidden] */
  const int32_t* ids;   /* [tokens, top_k] */
  const float* weights; /* [tokens, top_k] */
  void* y;              /* bf16 [tokens, columns()] */
  const void* packed;   /* written by pack() */
  void* meta;           /* meta_bytes() bytes: rows grouped by expert, written by SLUICE_PEER_GROUP */
  void* scratch;        /* scratch_bytes() bytes, zero before the first run */
} sluice_peer_layer;

enum sluice_peer_part {
  SLUICE_PEER_LAYER = 0, /* from ids and weights to y */
  SLUICE_PEER_GROUP = 1, /* from ids to meta */
  SLUICE_PEER_GEMMS =
      2 /* both GEMMs and the kernels between them, after SLUICE_PEER_LAYER of the same x; no y */
};

typedef struct sluice_layer_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_layer*); /* null, or the reason for a refusal */
  int64_t (*columns)(const sluice_peer_layer*);      /* elements of a row of y: hidden plus padding */
  size_t (*packed_bytes)(const sluice_peer_layer*);
  size_t (*meta_bytes)(const sluice_peer_layer*);
  size_t (*scratch_bytes)(const sluice_peer_layer*);
  /* May allocate and synchronise. */
  int (*pack)(const sluice_peer_layer*, const sluice_peer_experts*, void* packed, void* stream);
  int (*enqueue)(const sluice_peer_layer*, int32_t part, void* stream);
} sluice_layer_peer;

const sluice_layer_peer* const* sluice_layer_peers(int* count);

/* ---- paged attention, exported by sluice_attention_peers() ---- */

/* Causal attention with sinks and a window (src/ops/attention.h). Sequence s has the rows from q_begin[s] up to q_begin[s + 1], exclusive;
 * its last row is at position kv_len[s] - 1. Everything is contiguous. */
typedef struct sluice_peer_attention {
  int64_t tokens, sequences, heads, kv_heads, head_dim; /* tokens: rows of all sequences */
  int64_t pages, page_size, pages_per_seq;
  int64_t window; /* positions that a row attends to; 0: all */
  double scale;
  int32_t cache_is_e4m3;     /* else bf16 */
  int32_t dependent;         /* use programmatic dependent launch, if the peer supports it */
  const void* q;             /* bf16 [tokens, heads, head_dim] */
  const void* k_cache;       /* [pages, kv_heads, page_size, head_dim] */
  const void* v_cache;       /* the same */
  const int32_t* page_table; /* [sequences, pages_per_seq] */
  const int32_t* q_begin;    /* [sequences + 1] */
  const int32_t* kv_len;     /* [sequences] */
  const void* sinks;         /* bf16 [heads], or null: none */
  void* y;                   /* bf16 [tokens, heads, head_dim] */
  /* Copies on the host, from which an engine plans. */
  const int32_t* host_q_begin;
  const int32_t* host_kv_len;
} sluice_peer_attention;

typedef struct sluice_attention_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_attention*); /* null, or the reason for a refusal */
  size_t (*scratch_bytes)(const sluice_peer_attention*);
  /* Called once per problem, before enqueue(); may allocate and synchronise. Returns a handle for enqueue(), or null on failure. Later
   * calls of enqueue() may have another q, y and page_table, and other cache contents. */
  void* (*prepare)(const sluice_peer_attention*, void* scratch);
  int (*enqueue)(const sluice_peer_attention*, void* scratch, void* prepared, void* stream);
} sluice_attention_peer;

const sluice_attention_peer* const* sluice_attention_peers(int* count);

/* ---- paged latent attention, exported by sluice_latent_peers() ---- */

/* Latent attention (src/ops/latent_attention.h). Rows and sequences are laid out as in sluice_peer_attention. Everything is contiguous. */
typedef struct sluice_peer_latent {
  int64_t tokens, sequences, heads, rank, nope, rope, v_dim;
  int64_t pages, page_size, pages_per_seq;
  double scale;
  const void* q;             /* bf16 [tokens, heads, nope + rope] */
  const void* kv_b;          /* bf16 [heads, nope + v_dim, rank] */
  const void* cache;         /* bf16 [pages, page_size, rank + rope] */
  const int32_t* page_table; /* [sequences, pages_per_seq] */
  const int32_t* q_begin;    /* [sequences + 1] */
  const int32_t* kv_len;     /* [sequences] */
  void* y;                   /* bf16 [tokens, heads, v_dim] */
  /* Copies on the host, from which an engine plans. */
  const int32_t* host_q_begin;
  const int32_t* host_kv_len;
} sluice_peer_latent;

/* The parts of the operation, in order. enqueue() runs any subset; intermediate results stay in scratch. */
enum sluice_peer_latent_parts {
  SLUICE_PEER_LATENT_ABSORB = 1,  /* multiplies q by the key matrices */
  SLUICE_PEER_LATENT_ATTEND = 2,  /* attention; leaves a latent for each row and head */
  SLUICE_PEER_LATENT_PROJECT = 4, /* multiplies the latents by the value matrices; writes y */
  SLUICE_PEER_LATENT_ALL = 7
};

typedef struct sluice_latent_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_latent*); /* null, or the reason for a refusal */
  size_t (*scratch_bytes)(const sluice_peer_latent*);
  /* Like sluice_attention_peer::prepare. Later calls of enqueue() may also have another kv_b. */
  void* (*prepare)(const sluice_peer_latent*, void* scratch);
  int (*enqueue)(const sluice_peer_latent*, int32_t parts, void* scratch, void* prepared, void* stream);
} sluice_latent_peer;

const sluice_latent_peer* const* sluice_latent_peers(int* count);

#ifdef __cplusplus
}
#endif
#endif
