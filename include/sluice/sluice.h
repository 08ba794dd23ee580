/* Sluice from C: devices, the Mixture-of-Experts layer, plans of operations, explanations of kernel choices.
 *
 * To use a layer, create it from a known model's name or from fields (sluice_layer_create), load its weights from
 * a checkpoint's tensors (sluice_layer_load), and run it (sluice_layer_run).
 *
 * Operations are named by text ("router_gemm"), and so are the fields of a problem ("tokens=1 experts=128") and the
 * tensors of a launch ("x", "w", "y"), so the same functions work for every operation. sluice_op_fields() and
 * sluice_op_tensors() list them. The contract of each operation (formula, ties, NaN, exactness) is the comment at
 * the top of src/ops/<operation>.h.
 *
 * Errors     Every function that can fail returns a sluice_status and writes a message to `error`, unless `error` is
 *            NULL. A message states what was wanted and what was found. A function that fails does not change its
 *            outputs, except for messages, and for sizes that the function's description names.
 *
 * Ownership  The caller releases every object returned by sluice_open, sluice_allocate, sluice_stream_wrap,
 *            sluice_plan_create, sluice_table_create, sluice_layer_create, sluice_record and sluice_group_create with the
 *            matching function; releasing NULL does nothing. All other objects must be released before their device. A
 *            returned string is valid as long as the object that it belongs to, or forever if there is no such object.
 *            The library reads the strings that the caller passes only during the call.
 *
 * Threads    Running does not change a plan, a table or a loaded layer, so several threads may run the same one, each
 *            with its own workspace. Only one thread at a time may use a stream. There is no global state.
 *
 * Growth     Later versions add fields at the end of structs that begin with `size`. The caller sets size to sizeof of
 *            the struct in the caller's header (as SLUICE_..._INIT does). The library reads that many bytes and treats
 *            missing fields as zero, which always means the behavior of older versions. A field that the library
 *            does not know must be zero. The layout of all other structs does not change.
 *
 * Memory     Successful launches (sluice_plan_run, sluice_table_run, sluice_layer_run, sluice_replay) do not allocate,
 *            except inside sluice_record, because a recording stores what is enqueued.
 */
#ifndef SLUICE_SLUICE_H_
#define SLUICE_SLUICE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SLUICE_API __attribute__((visibility("default")))
#else
#define SLUICE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 2
#define SLUICE_VERSION_PATCH 0

/* The version of the library that runs, such as "0.2.0". It may differ from the header's version. */
SLUICE_API const char* sluice_version(void);

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT =
      1,                  /* the caller broke a contract: shape, type, stride, bound, null pointer, name */
  SLUICE_UNSUPPORTED = 2, /* valid, but no kernel or device of this library and machine can do it */
  SLUICE_OUT_OF_MEMORY = 3,
  SLUICE_IO = 4,
  SLUICE_CORRUPT = 5, /* input data is malformed or inconsistent */
  SLUICE_DEVICE = 6   /* a device reported a fault */
} sluice_status;

/* A text such as "invalid argument"; "unknown" for a number that is not a sluice_status. */
SLUICE_API const char* sluice_status_text(int32_t status);

/* A text buffer of the caller. The library terminates the text with a NUL, truncates it if `capacity` is too
 * small, and sets `needed` to the bytes of the whole text with its NUL. Initialize it to
 * {buffer, sizeof buffer, 0}, or to {NULL, 0, 0} to get only the size. */
typedef struct sluice_text {
  char* data;
  size_t capacity;
  size_t needed;
} sluice_text;

/* ---- Devices ---- */

typedef enum sluice_backend { SLUICE_CPU = 0, SLUICE_CUDA = 1 } sluice_backend;

typedef struct sluice_device sluice_device;

/* Receives one line, without its newline. level: 0 debug, 1 information, 2 warning, 3 error. */
typedef void (*sluice_log)(void* context, int level, const char* line);

typedef struct sluice_device_options {
  size_t size;            /* sizeof(sluice_device_options) */
  int32_t backend;        /* sluice_backend */
  int32_t threads;        /* for SLUICE_CPU; 0 means one thread for each processor that the process may use */
  int32_t index;          /* for SLUICE_CUDA; index, from 0, among the GPUs visible to the process */
  int32_t plain_launches; /* for SLUICE_CUDA; if not 0, a kernel starts after the previous one has ended */
  sluice_log log;         /* may be NULL; called on the thread that calls into the library */
  void* log_context;
} sluice_device_options;
#define SLUICE_DEVICE_OPTIONS_INIT \
  { sizeof(sluice_device_options), SLUICE_CPU, 0, 0, 0, NULL, NULL }

/* If `options` is NULL, opens the CPU with one thread for each processor. SLUICE_UNSUPPORTED: this machine
 * lacks the backend or has no GPU with the index; the message gives the reason or the number of GPUs. No
 * function of this library changes the calling thread's current GPU. */
SLUICE_API sluice_status sluice_open(const sluice_device_options* options, sluice_device** out,
                                     sluice_text* error);
SLUICE_API void sluice_close(sluice_device* device);
/* A description such as "cpu (8 threads; avx2 avx512)". */
SLUICE_API const char* sluice_device_text(const sluice_device* device);

/* Allocates device memory, aligned to 256 bytes, with unspecified content. Meant for start-up, because
 * launches do not need it. */
SLUICE_API sluice_status sluice_allocate(sluice_device* device, size_t bytes, void** out, sluice_text* error);
SLUICE_API void sluice_release(sluice_device* device, void* memory);

/* A queue of work on a device. Work enqueued on it runs in order. */
typedef struct sluice_stream {
  int32_t backend; /* sluice_backend */
  void* native;    /* a handle of the backend; opaque */
} sluice_stream;

/* The device's own stream. */
SLUICE_API sluice_stream sluice_device_stream(sluice_device* device);
/* Wraps the caller's stream, so that the library can enqueue work on it. SLUICE_CUDA: `native` is a
 * cudaStream_t of the GPU, from any CUDA runtime in the process; NULL is the GPU's default stream. Launches
 * and copies go only to this stream, even while the caller captures it into a graph; they do not allocate or
 * wait. SLUICE_CPU: `native` must be NULL, and the result is the device's own stream.
 * Wrap streams at start-up, because wrapping allocates memory. The stream must not be under capture during
 * the call. Kernels of one wrapped stream share counters in that memory. So a graph captured through the
 * wrapped stream must not run at the same time as itself, as another graph captured through it, or as other
 * work enqueued through it. Wrap the stream again to get separate counters.
 * The caller's stream must outlive the wrapped stream, and the wrapped stream must outlive all work
 * enqueued and all graphs captured through it. */
SLUICE_API sluice_status sluice_stream_wrap(sluice_device* device, void* native, sluice_stream* out,
                                            sluice_text* error);
/* Lets a wrapped stream enqueue on another stream of the caller on the same GPU from now on. The counters stay
 * the same, so work enqueued earlier through the wrapped stream must have ended, or the work of the new stream
 * must be ordered after it on the GPU. Does not allocate, and may be called while either of the caller's streams
 * is under capture. So a stream that was wrapped at start-up can be used for streams that are created later.
 * SLUICE_CPU: `native` must be NULL. */
SLUICE_API sluice_status sluice_stream_retarget(sluice_device* device, sluice_stream wrapped, void* native,
                                                sluice_text* error);
/* Releases a wrapped stream. The caller's stream does not change. Does nothing if `stream` is the device's
 * own stream. */
SLUICE_API void sluice_stream_unwrap(sluice_device* device, sluice_stream stream);
/* Enqueues a copy between host and device, or inside the device. */
SLUICE_API sluice_status sluice_copy(sluice_device* device, void* to, const void* from, size_t bytes,
                                     sluice_stream stream, sluice_text* error);
/* Blocks until the stream is idle, and returns faults of its asynchronous work. It is an error if the stream
 * is under capture. */
SLUICE_API sluice_status sluice_wait(sluice_device* device, sluice_stream stream, sluice_text* error);

/* ---- Tensors ---- */

typedef enum sluice_dtype {
  SLUICE_F32 = 0,
  SLUICE_BF16 = 1,
  SLUICE_E2M1 = 2, /* two per byte, the even element in the low nibble */
  SLUICE_E8M0 = 3,
  SLUICE_I32 = 4,
  SLUICE_I64 = 5,
  SLUICE_I16 = 6,
  SLUICE_U8 = 7,
  SLUICE_E4M3 = 8 /* no infinities; 0x7f and 0xff are NaN */
} sluice_dtype;

#define SLUICE_RANK_MAX 4

/* A view of memory that the caller owns. The memory must stay valid until the work that reads or writes it
 * has run. Strides are in elements; the last dimension is contiguous. */
typedef struct sluice_tensor {
  void* data;
  int32_t dtype; /* sluice_dtype */
  int32_t where; /* sluice_backend */
  int32_t rank;
  int64_t shape[SLUICE_RANK_MAX];
  int64_t stride[SLUICE_RANK_MAX];
} sluice_tensor;

/* Returns a contiguous view of host memory. `shape` has `rank` sizes; `rank` is at most SLUICE_RANK_MAX. */
SLUICE_API sluice_tensor sluice_contiguous(void* data, sluice_dtype dtype, int32_t rank,
                                           const int64_t* shape);

typedef struct sluice_arg {
  const char* name; /* name of one of the operation's tensors */
  sluice_tensor tensor;
} sluice_arg;

#define SLUICE_ARGS_MAX 32

/* The arguments of one launch. Omit tensors that the problem does not use. The order does not matter. */
typedef struct sluice_launch {
  const sluice_arg* args;
  size_t arg_count; /* at most SLUICE_ARGS_MAX */
  void* workspace;  /* device memory, aligned to 256 bytes; may be NULL if none is needed */
  size_t workspace_bytes;
  sluice_stream stream;
} sluice_launch;

/* ---- Plans: a kernel for one problem, chosen once ---- */

typedef struct sluice_policy {
  const char*
      /* the only kernel allowed, as "NAME" or "NAME:CONFIG"; if it does not accept the problem, planning
       * fails. NULL: any kernel */
      force;
  int32_t batch_invariant; /* not 0: only kernels in which a row's result does not depend on other rows */
} sluice_policy;

typedef struct sluice_plan sluice_plan;

/* `problem` is "name=value name=value"; missing fields have their defaults, and NULL means "". `policy` may be
 * NULL. SLUICE_INVALID_ARGUMENT: the operation, a field or a value does not exist (the message suggests the
 * nearest name), or the problem breaks the contract. SLUICE_UNSUPPORTED: no kernel accepts the problem; the
 * message has all reasons of all kernels. */
SLUICE_API sluice_status sluice_plan_create(const sluice_device* device, const char* op, const char* problem,
                                            const sluice_policy* policy, sluice_plan** out,
                                            sluice_text* error);
SLUICE_API void sluice_plan_destroy(sluice_plan* plan);
SLUICE_API size_t sluice_plan_workspace_bytes(const sluice_plan* plan);
/* The name of the chosen kernel, such as "cpu.router_gemm.dot". */
SLUICE_API const char* sluice_plan_kernel(const sluice_plan* plan);
/* Checks the tensors and enqueues the operation. With SLUICE_INVALID_ARGUMENT nothing is enqueued, and the
 * message names the tensor, what was wanted and what was found. */
SLUICE_API sluice_status sluice_plan_run(const sluice_plan* plan, const sluice_launch* launch,
                                         sluice_text* error);

/* ---- Tables: a kernel for each token count, chosen once ---- */

typedef struct sluice_table sluice_table;

typedef struct sluice_step {
  int64_t first, last; /* the kernel runs for token counts from `first` to `last` */
  const char* kernel;
  size_t workspace_bytes;
} sluice_step;

/* Like sluice_plan_create, but for 0 to tokens_max tokens; the problem's own token count is ignored. */
SLUICE_API sluice_status sluice_table_create(const sluice_device* device, const char* op, const char* problem,
                                             int64_t tokens_max, const sluice_policy* policy,
                                             sluice_table** out, sluice_text* error);
SLUICE_API void sluice_table_destroy(sluice_table* table);
/* The workspace that is enough for every token count. */
SLUICE_API size_t sluice_table_workspace_bytes(const sluice_table* table);
SLUICE_API size_t sluice_table_step_count(const sluice_table* table);
SLUICE_API sluice_status sluice_table_step(const sluice_table* table, size_t index, sluice_step* out,
                                           sluice_text* error);
SLUICE_API sluice_status sluice_table_run(const sluice_table* table, int64_t tokens,
                                          const sluice_launch* launch, sluice_text* error);

/* ---- Packed weights ---- */

typedef enum sluice_gate_order {
  SLUICE_INTERLEAVED = 0, /* row 2i gate, row 2i + 1 up: gpt-oss */
  SLUICE_GATE_FIRST = 1,  /* [gate; up] */
  SLUICE_UP_FIRST = 2     /* [up; gate] */
} sluice_gate_order;

/* The weights of one expert or of one dense layer. */
typedef struct sluice_panel_matrix {
  int64_t features, width; /* columns of y, columns of x */
  int32_t gated;           /* not 0: 2 * features rows, in gate_order */
  int32_t gate_order;      /* sluice_gate_order */
  int32_t dtype;           /* SLUICE_BF16, or SLUICE_E2M1 with one scale per 32 elements (width % 32 == 0) */
} sluice_panel_matrix;

/* The same weights in two forms: as a checkpoint stores them, and packed in layout "panels16" of expert_gemm
 * and linear. For SLUICE_BF16 leave the scales zeroed. */
typedef struct sluice_panel_views {
  sluice_tensor rows;         /* bf16 or e2m1 [rows, width] */
  sluice_tensor row_scales;   /* u8 [rows, width / 32], e8m0 */
  sluice_tensor panels;       /* u8 [bytes] */
  sluice_tensor panel_scales; /* u8 [bytes] */
} sluice_panel_views;

/* Returns the sizes of the packed form in bytes; scale_bytes is 0 for SLUICE_BF16. */
SLUICE_API sluice_status sluice_panel_bytes(const sluice_panel_matrix* matrix, int64_t* panel_bytes,
                                            int64_t* scale_bytes, sluice_text* error);
/* sluice_pack_panels() and sluice_unpack_panels() work on the calling thread and in host memory. Packing
 * writes every byte of the packed form; unpacking restores the checkpoint's bytes exactly. With
 * SLUICE_INVALID_ARGUMENT nothing is written, and the message names the tensor. */
SLUICE_API sluice_status sluice_pack_panels(const sluice_panel_matrix* matrix,
                                            const sluice_panel_views* views, sluice_text* error);
SLUICE_API sluice_status sluice_unpack_panels(const sluice_panel_matrix* matrix,
                                              const sluice_panel_views* views, sluice_text* error);

/* ---- A layer: router, experts and everything between them, with weights ---- */

typedef struct sluice_layer sluice_layer;

typedef struct sluice_layer_options {
  size_t size;       /* sizeof(sluice_layer_options) */
  const char* model; /* a known layer, such as "gpt-oss-120b"; NULL: `fields` alone define the layer */
  const char*
      /* such as "hidden=2880 experts=128"; they override the fields of `model`. NULL: none.
       * sluice_layer_fields() lists them */
      fields;
  int64_t tokens_max; /* largest token count of a run; at least 1 */
  /* This rank's part of the layer. Tensor-parallel ranks split the intermediate width of the experts in blocks
   * of 32; expert-parallel ranks split the experts. The sum of all ranks' outputs is the layer's output. A size
   * of 0 means 1. */
  int64_t tp_rank, tp_size, ep_rank, ep_size;
  const sluice_policy* policy; /* NULL: any kernel */
  int32_t threads;             /* threads that pack weights; 0: one for each processor */
  /* The caller's device memory for the packed weights, aligned to 256 bytes; sluice_layer_measure() returns
   * the size. It must outlive the layer. NULL: the layer allocates its own memory. */
  void* weights;
  size_t weights_bytes;
  /* Names of kernels for the routed experts, such as "cuda.expert_gemm.mxfp4_tile_sm90" or its last part.
   * backend_decode is for runs of at most decode_tokens tokens, backend_prefill for longer runs. Other operations
   * are not affected. If a kernel cannot run the layer, creation fails with the kernel's reasons. NULL or "auto":
   * the fastest kernel. decode_tokens 0 means 64. */
  const char* backend_decode;
  const char* backend_prefill;
  int64_t decode_tokens;
} sluice_layer_options;
#define SLUICE_LAYER_OPTIONS_INIT \
  { sizeof(sluice_layer_options), NULL, NULL, 1, 0, 1, 0, 1, NULL, 0, NULL, 0, NULL, NULL, 0 }

/* Plans like sluice_layer_create but creates no layer. Returns the bytes of device memory that the packed
 * weights and the workspace of a run need. Either pointer may be NULL. */
SLUICE_API sluice_status sluice_layer_measure(sluice_device* device, const sluice_layer_options* options,
                                              size_t* weight_bytes, size_t* workspace_bytes,
                                              sluice_text* error);

/* Plans the layer for 0 to tokens_max tokens and allocates the memory of this rank's weights. With
 * SLUICE_INVALID_ARGUMENT the message names the option or the field, with SLUICE_UNSUPPORTED it has all reasons of
 * all kernels, and with SLUICE_OUT_OF_MEMORY it has the bytes wanted and free. Destroy the layer after the work that
 * it has enqueued has ended and before closing its device. */
SLUICE_API sluice_status sluice_layer_create(sluice_device* device, const sluice_layer_options* options,
                                             sluice_layer** out, sluice_text* error);
SLUICE_API void sluice_layer_destroy(sluice_layer* layer);
/* All fields of this rank's part of the layer, such as "hidden=2880 intermediate=1440 ...". */
SLUICE_API const char* sluice_layer_text(const sluice_layer* layer);
SLUICE_API size_t sluice_layer_workspace_bytes(const sluice_layer* layer); /* enough for every token count */
/* The bytes of device memory that the packed weights take. */
SLUICE_API size_t sluice_layer_weight_bytes(const sluice_layer* layer);

/* One weight tensor as a checkpoint stores it; contiguous. */
typedef struct sluice_weight {
  const char* name; /* such as "model.layers.3.mlp.router.weight" */
  const char* type; /* the type name of safetensors files: "BF16", "F32", "U8", "F8_E4M3", ... */
  int32_t where;    /* sluice_backend: host memory, or memory of the layer's device */
  int32_t rank;     /* at most 8 */
  const int64_t* shape;
  const void* data;
  size_t bytes;
} sluice_weight;

/* The tensors of a layer, named and with gate and up ordered as in one of these namings (defined in
 * src/nn/moe/names.cc): gpt_oss, gpt_oss_original, gpt_oss_bf16, deepseek_v4, deepseek_v3, qwen3_moe, nemotron3,
 * minimax_m2, llama4, minimax_m3, mistral_large_3 and glm5_next, as the publishers of the models name them; and plain,
 * Sluice's own naming: router, router_bias, correction_bias, hash_table, experts.up and experts.down [experts, rows, width]
 * (with experts.up_scale, experts.up_bias and so on) with gate and up in the layer's gate_order, shared.gate,
 * shared.up and shared.down. experts.up_scale is, if expert_scales is mx, F8_E8M0 or U8 [experts, rows, width / 32];
 * if nv, F8_E4M3 [experts, rows, width / 16]; if blocks, F32, BF16 or F8_E8M0 [experts, ceil(rows / 128), ceil(width
 * / 128)]. With rows and nv there is also experts.up_row_scale, F32 or BF16 [experts, rows] or [experts]. Tensors
 * are of the whole layer, and the library copies this rank's slice of them. A tensor of stacked experts may instead
 * have only this rank's experts. The list may contain tensors of other layers. If the layer's fields ask for them,
 * these tensors are expected with any naming: experts.act_params, F32 [experts, 3] (alpha, beta, limit), and lora_a,
 * lora_b, lora_scale of the router's adapters (experts' adapters: sluice_layer_replace_adapter). */
typedef struct sluice_weights {
  const sluice_weight* tensors;
  size_t count;
  const char* naming; /* NULL: detected from the tensor names */
  int64_t layer;      /* the layer number in the names; -1: the names contain a single layer */
} sluice_weights;

/* Packs the weights into the layer's memory and replaces earlier weights. When the call returns, packing is complete
 * and the caller may free the tensors. The layer must not run during the call. Its memory does not move, so captured
 * graphs stay valid. Work that writes the tensors must have ended before the call. Temporary memory: on the CPU less
 * than 64 MiB; on a GPU, device memory for one matrix of one expert as its tensor stores it, 32 MiB of page-locked
 * host memory and, for tensors in GPU memory, another 64 MiB of GPU memory. The messages of SLUICE_CORRUPT,
 * SLUICE_UNSUPPORTED and SLUICE_INVALID_ARGUMENT name the tensor, what was wanted and what was found. After these
 * errors a layer still has its earlier weights. */
SLUICE_API sluice_status sluice_layer_load(sluice_layer* layer, const sluice_weights* weights,
                                           sluice_text* error);
/* Replaces the weights and biases of one expert; `expert` is its number in the whole layer. Tensors of stacked
 * experts may have this expert alone ([1, ...]). Everything is checked before the first byte is written. */
SLUICE_API sluice_status sluice_layer_replace_expert(sluice_layer* layer, int64_t expert,
                                                     const sluice_weights* weights, sluice_text* error);
/* Replaces LoRA adapter 0 to lora_adapters - 1 in place. With lora_rank: lora_a [rank, hidden], lora_b [experts,
 * rank], lora_scale F32 [1]. With expert_lora_rank: experts.up_lora_a [experts, inner, width], experts.up_lora_b
 * [experts, rows of W13 in gate_order, rank], experts.down_lora_a [experts, rank, intermediate], experts.down_lora_b
 * [experts, width, rank], experts.lora_scale F32 [1]; inner is rank, or twice the rank with expert_lora_split
 * (gate's rows, then up's), width is hidden or latent. Matrices are in lora_w or BF16. Slices and checks are as
 * in sluice_layer_load; naming and layer are not read. The layer must have weights; loading them again keeps adapters. */
SLUICE_API sluice_status sluice_layer_replace_adapter(sluice_layer* layer, int64_t adapter,
                                                      const sluice_weights* weights, sluice_text* error);

/* Receives the next `count` bytes. If it returns a status other than SLUICE_OK, writing stops and the writing
 * function returns that status. A number that is not a sluice_status becomes SLUICE_INVALID_ARGUMENT. */
typedef sluice_status (*sluice_sink)(void* context, const void* bytes, size_t count);
/* The packed weights as a safetensors file with a description of the layout. sluice_layer_packed_bytes() returns
 * the file's size; sluice_layer_write_packed() writes its bytes in order, in pieces of at most 8 MiB. */
SLUICE_API sluice_status sluice_layer_packed_bytes(const sluice_layer* layer, size_t* out,
                                                   sluice_text* error);
SLUICE_API sluice_status sluice_layer_write_packed(const sluice_layer* layer, sluice_sink sink, void* context,
                                                   sluice_text* error);
/* Use it instead of sluice_layer_load to load bytes that sluice_layer_write_packed wrote, from host memory. With
 * SLUICE_CORRUPT nothing is written, and the message names what differs (version, layout, a field of the layer,
 * or a hash), what was wanted and what was found. */
SLUICE_API sluice_status sluice_layer_read_packed(sluice_layer* layer, const void* bytes, size_t count,
                                                  sluice_text* error);

/* Enqueues the layer for as many tokens as x has rows. Arguments are named; sluice_layer_tensors() lists
 * the arguments of this layer. It does not allocate or wait, and uses only the launch's stream, which may be a
 * wrapped stream under capture. With SLUICE_INVALID_ARGUMENT nothing is enqueued; the message names the tensor,
 * what was wanted and what was found, or says that weights are missing. Any number of threads may run the same
 * layer, each with its own workspace and stream. */
SLUICE_API sluice_status sluice_layer_run(const sluice_layer* layer, const sluice_launch* launch,
                                          sluice_text* error);
/* Writes, for each of the `count` token counts, the kernel and the problem of every stage. */
SLUICE_API sluice_status sluice_layer_explain(const sluice_layer* layer, const int64_t* tokens, size_t count,
                                              sluice_text* out, sluice_text* error);

/* ---- Recordings: a step enqueued once and replayed ---- */

typedef struct sluice_recording sluice_recording;

/* Enqueues the step on the recorded stream. If it returns a status other than SLUICE_OK, recording stops and
 * sluice_record() returns that status. A number that is not a sluice_status becomes SLUICE_INVALID_ARGUMENT. */
typedef sluice_status (*sluice_enqueue)(void* context);

/* Calls enqueue(context) once and captures what it enqueues on `stream` without running it. The memory of the
 * tensors and workspaces that it uses must stay valid while the recording exists. */
SLUICE_API sluice_status sluice_record(sluice_device* device, sluice_stream stream, sluice_enqueue enqueue,
                                       void* context, sluice_recording** out, sluice_text* error);
SLUICE_API sluice_status sluice_replay(sluice_device* device, const sluice_recording* recording,
                                       sluice_stream stream, sluice_text* error);
SLUICE_API void sluice_recording_destroy(sluice_recording* recording);

/* ---- Questions that need no device ---- */

/* Writes which kernel would be chosen and why: a line per kernel, with its cost or all reasons why it does not
 * accept the problem. Set either `device_name` to a known device ("h200") or `device` to an open device, and the
 * other to NULL. SLUICE_OK: a kernel was chosen. SLUICE_UNSUPPORTED: no kernel accepts the problem.
 * SLUICE_INVALID_ARGUMENT: the problem breaks the contract. In both cases `out` has the reasons. Also
 * SLUICE_INVALID_ARGUMENT: the buffer is too small; out->needed is the size that it needs. */
typedef struct sluice_question {
  const char* op;
  const char* problem;
  const char* device_name;
  const sluice_device* device;
  const sluice_policy* policy;
} sluice_question;
SLUICE_API sluice_status sluice_explain(const sluice_question* question, sluice_text* out,
                                        sluice_text* error);

/* Writes, without creating a layer, what sluice_layer_explain() would write for these token counts, or the error
 * of sluice_layer_create() with all reasons. The fields threads and weights of the options are ignored. */
typedef struct sluice_layer_question {
  const sluice_layer_options* options;
  const char* device_name;
  const sluice_device* device;
} sluice_layer_question;
SLUICE_API sluice_status sluice_layer_describe(const sluice_layer_question* question, const int64_t* tokens,
                                               size_t count, sluice_text* out, sluice_text* error);

SLUICE_API size_t sluice_op_count(void);
/* NULL if the index is out of range. */
SLUICE_API const char* sluice_op_name(size_t index);

typedef struct sluice_field {
  const char* name;
  const char* doc;
  const char* value;        /* the default value */
  const char* const* words; /* the accepted words; NULL for numbers */
  size_t word_count;
} sluice_field;
/* The strings are valid only during the call. */
typedef void (*sluice_field_visitor)(void* context, const sluice_field* field);
/* Calls `visit` for each field of the operation's problem, in order. */
SLUICE_API sluice_status sluice_op_fields(const char* op, sluice_field_visitor visit, void* context,
                                          sluice_text* error);

typedef enum sluice_role { SLUICE_IN = 0, SLUICE_OUT = 1, SLUICE_IN_OUT = 2 } sluice_role;
typedef struct sluice_slot {
  const char* name;
  sluice_role role;
  int32_t used; /* 0: this problem does not use the tensor, and passing it is an error */
  int32_t rows_may_be_strided;
  sluice_dtype dtype;
  int32_t rank;
  int64_t shape[SLUICE_RANK_MAX];
} sluice_slot;
typedef void (*sluice_slot_visitor)(void* context, const sluice_slot* slot);
/* Calls `visit` for each tensor of the operation, with the shape and type that this problem requires.
 * SLUICE_INVALID_ARGUMENT: the problem breaks the contract; the message gives all reasons. */
SLUICE_API sluice_status sluice_op_tensors(const char* op, const char* problem, sluice_slot_visitor visit,
                                           void* context, sluice_text* error);
/* These functions do the same for a layer. sluice_layer_fields() visits the fields with the values of a known model
 * (NULL: with their defaults), sluice_layer_tensors() visits the tensors of a run of `tokens` tokens. */
SLUICE_API sluice_status sluice_layer_fields(const char* model, sluice_field_visitor visit, void* context,
                                             sluice_text* error);
SLUICE_API sluice_status sluice_layer_tensors(const sluice_layer* layer, int64_t tokens,
                                              sluice_slot_visitor visit, void* context, sluice_text* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_SLUICE_H_ */
