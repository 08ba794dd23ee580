/* How the CUDA benchmark meets a kernel of somebody else: a shared library that exports sluice_peers(). Adapters in
 * this folder wrap the peers' own code, which stays outside the repository (bench/peers/build fetches and compiles it).
 *
 * Pointers are device memory. enqueue() may allocate nothing and must be capturable into a CUDA graph, once it has been
 * called outside of one (the first launch loads the kernel). */
#ifndef SLUICE_BENCH_PEER_H
#define SLUICE_BENCH_PEER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* logits[tokens, experts] = x[tokens, hidden] * w[experts, hidden]^T (+ bias[experts]) (+ residual); everything contiguous. Dense
 * layers are asked for in the same words, of "cublaslt" alone: experts are their features. */
typedef struct sluice_peer_router {
  int64_t tokens, experts, hidden;
  const void* x;    /* bf16 */
  const void* w;    /* bf16, or f32 if w_is_f32 */
  const void* bias; /* of the type of w, or null: none */
  void* y;          /* bf16, or f32 if y_is_f32 */
  int32_t y_is_f32;
  int32_t dependent; /* launch with programmatic dependent launch; a peer without it refuses */
  int32_t w_is_f32;
  const void* residual; /* of the type and shape of y, or null: none. Only dense layers have it */
} sluice_peer_router;

/* What turns logits into ids and weights. */
enum sluice_peer_method {
  SLUICE_PEER_SOFTMAX_CHOSEN = 0, /* top-k of the logits, softmax over the chosen (gpt-oss) */
  SLUICE_PEER_DEEPSEEK_V3 = 1,    /* sigmoid, + bias, groups by their two best, renormalised, times scale */
  SLUICE_PEER_SQRT_SOFTPLUS = 2   /* DeepSeek V4: sqrt(softplus), + bias, renormalised, times scale */
};

/* From logits to ids and weights (`what` = 0), and on to rows sorted by expert (`what` = 1: as much of it as the peer's
 * own layer needs: sorted ids, experts of blocks, counts or offsets). */
typedef struct sluice_peer_routing {
  int64_t tokens, experts, top_k, groups, topk_groups;
  int32_t method; /* sluice_peer_method */
  int32_t what;
  double scale;
  const void* logits; /* f32 [tokens, experts] */
  const void* bias;   /* f32 [experts], or null */
  int32_t* ids;       /* [tokens, top_k] */
  float* weights;     /* [tokens, top_k] */
  void* scratch;      /* scratch_bytes() of it, for everything else */
  int32_t dependent;
} sluice_peer_routing;

typedef struct sluice_peer {
  const char* name;    /* "flashinfer-tinygemm", "cublaslt", "vllm-dsv3" ... */
  const char* version; /* of the package it was taken from: "flashinfer 0.6.18" */
  /* Null, or what this peer cannot do, in words. supports = null: the peer has no such operation. */
  const char* (*router_supports)(const sluice_peer_router*);
  size_t (*router_scratch_bytes)(const sluice_peer_router*);
  /* 0, or an error of the peer's. scratch is router_scratch_bytes() of device memory. stream is a cudaStream_t.
   * prepare() is called once for each problem before any enqueue (heuristics, attributes); it may allocate and
   * synchronise. It may return a handle that enqueue() gets back, for as long as the library is loaded; enqueue() may
   * then be given other addresses for x, w, bias and y. */
  void* (*router_prepare)(const sluice_peer_router*, void* scratch);
  int (*router_enqueue)(const sluice_peer_router*, void* scratch, void* prepared, void* stream);

  const char* (*routing_supports)(const sluice_peer_routing*);
  size_t (*routing_scratch_bytes)(const sluice_peer_routing*);
  int (*routing_enqueue)(const sluice_peer_routing*, void* stream);
} sluice_peer;

/* The peers of this library; count is set. */
const sluice_peer* const* sluice_peers(int* count);

/* ---- whole layers: libraries that have some export sluice_layer_peers() ---- */

/* The weights of a layer's experts as a checkpoint has them: rows of e2m1 codes, two to a byte, the lower k in the low
 * nibble; one e8m0 scale for 32 of them. Rows of `up` are gates and ups, in turn or the gates first. */
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
  int32_t interleaved; /* gate and up rows in turn, else all gates first */
  int32_t biases;
  const void* x;        /* bf16 [tokens, hidden] */
  const int32_t* ids;   /* [tokens, top_k] */
  const float* weights; /* [tokens, top_k] */
  void* y;              /* bf16 [tokens, columns()] */
  const void* packed;   /* what pack() wrote */
  void* meta;           /* meta_bytes(): rows by expert, as SLUICE_PEER_GROUP leaves it */
  void* scratch;        /* scratch_bytes(), zeros before the first run */
} sluice_peer_layer;

enum sluice_peer_part {
  SLUICE_PEER_LAYER = 0, /* from ids and weights to y */
  SLUICE_PEER_GROUP = 1, /* ids to meta */
  SLUICE_PEER_GEMMS =
      2 /* both GEMMs with what stands between them, from meta and what the last whole layer left in
                            scratch of the same x; no y */
};

typedef struct sluice_layer_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_layer*); /* null, or what it cannot do */
  int64_t (*columns)(const sluice_peer_layer*);      /* of a row of y: hidden, with the peer's padding */
  size_t (*packed_bytes)(const sluice_peer_layer*);
  size_t (*meta_bytes)(const sluice_peer_layer*);
  size_t (*scratch_bytes)(const sluice_peer_layer*);
  /* May allocate and synchronise. */
  int (*pack)(const sluice_peer_layer*, const sluice_peer_experts*, void* packed, void* stream);
  int (*enqueue)(const sluice_peer_layer*, int32_t part, void* stream);
} sluice_layer_peer;

const sluice_layer_peer* const* sluice_layer_peers(int* count);

/* ---- attention over pages: libraries that have some export sluice_attention_peers() ---- */

/* Causal attention with sinks and a window, as src/ops/attention.h has it. Sequence s owns the rows q_begin[s] to q_begin[s + 1),
 * and the last of them is at position kv_len[s] - 1. Everything is contiguous. */
typedef struct sluice_peer_attention {
  int64_t tokens, sequences, heads, kv_heads, head_dim; /* tokens: rows of all sequences */
  int64_t pages, page_size, pages_per_seq;
  int64_t window; /* positions that a row sees; 0: all */
  double scale;
  int32_t cache_is_e4m3;     /* else bf16 */
  int32_t dependent;         /* launch with programmatic dependent launch, if the peer can */
  const void* q;             /* bf16 [tokens, heads, head_dim] */
  const void* k_cache;       /* [pages, kv_heads, page_size, head_dim] */
  const void* v_cache;       /* the same */
  const int32_t* page_table; /* [sequences, pages_per_seq] */
  const int32_t* q_begin;    /* [sequences + 1] */
  const int32_t* kv_len;     /* [sequences] */
  const void* sinks;         /* bf16 [heads], or null: none */
  void* y;                   /* bf16 [tokens, heads, head_dim] */
  /* The same numbers on the host: an engine plans with them. */
  const int32_t* host_q_begin;
  const int32_t* host_kv_len;
} sluice_peer_attention;

typedef struct sluice_attention_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_attention*); /* null, or what it cannot do */
  size_t (*scratch_bytes)(const sluice_peer_attention*);
  /* Called once for each problem before any enqueue; may allocate and synchronise. Returns a handle for enqueue(), or null if it
   * failed. enqueue() may then be given another q, y and page_table, and caches whose numbers are others. */
  void* (*prepare)(const sluice_peer_attention*, void* scratch);
  int (*enqueue)(const sluice_peer_attention*, void* scratch, void* prepared, void* stream);
} sluice_attention_peer;

const sluice_attention_peer* const* sluice_attention_peers(int* count);

/* ---- latent attention over pages: libraries that have some export sluice_latent_peers() ---- */

/* Latent attention, as src/ops/latent_attention.h has it. Rows and sequences are those of sluice_peer_attention. Everything is
 * contiguous. */
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
  /* The same numbers on the host: an engine plans with them. */
  const int32_t* host_q_begin;
  const int32_t* host_kv_len;
} sluice_peer_latent;

/* Parts, in their order, of which enqueue() runs any set. What passes from one to the next stays in scratch. */
enum sluice_peer_latent_parts {
  SLUICE_PEER_LATENT_ABSORB = 1,  /* q, multiplied by the key matrices */
  SLUICE_PEER_LATENT_ATTEND = 2,  /* from there to a latent for each row and head */
  SLUICE_PEER_LATENT_PROJECT = 4, /* those, multiplied by the value matrices, to y */
  SLUICE_PEER_LATENT_ALL = 7
};

typedef struct sluice_latent_peer {
  const char* name;
  const char* version;
  const char* (*supports)(const sluice_peer_latent*); /* null, or what it cannot do */
  size_t (*scratch_bytes)(const sluice_peer_latent*);
  /* As that of sluice_attention_peer. enqueue() may be given another kv_b, too. */
  void* (*prepare)(const sluice_peer_latent*, void* scratch);
  int (*enqueue)(const sluice_peer_latent*, int32_t parts, void* scratch, void* prepared, void* stream);
} sluice_latent_peer;

const sluice_latent_peer* const* sluice_latent_peers(int* count);

#ifdef __cplusplus
}
#endif
#endif
