/* Sluice from C: devices, the Mixture-of-Experts layer, plans of its operations, and why a kernel was chosen.
 *
 * A layer is made from a known model's name or from fields, takes weights as a checkpoint has them, and runs: sluice_layer_create,
 * sluice_layer_load, sluice_layer_run.
 *
 * Operations are named by text ("router_gemm"), and so are the fields of a problem ("tokens=1 experts=128")
 * and the tensors of a call ("x", "w", "y"): one set of functions serves every operation. sluice_op_fields()
 * and sluice_op_tensors() list them; the contract of each operation (formula, ties, NaN, exactness) is the
 * comment on top of src/ops/<operation>.h.
 *
 * Errors     Every function that can fail returns a sluice_status and writes a message to `error`, unless
 *            that is NULL. A message says what was wanted and what was found. Outputs are not touched on
 *            failure, except for the messages and the sizes that the descriptions name.
 *
 * Ownership  sluice_open, sluice_allocate, sluice_stream_wrap, sluice_plan_create, sluice_table_create, sluice_layer_create and
 *            sluice_record give an object that the caller releases with the matching function; releasing NULL does nothing. All of
 *            them end before their device is closed. Strings that come back live as long as the object that
 *            gave them, or for ever where there is none. Strings that go in are read during the call only.
 *
 * Threads    Plans, tables and loaded layers never change by running: any thread may run them, on its own workspace. One stream belongs
 *            to one thread at a time. There is no state outside of the objects.
 *
 * Growth     Structs that begin with `size` grow at their end with later versions. A caller sets size to sizeof of its own
 *            header's struct (SLUICE_..._INIT does); the library reads what lies before that and takes the rest as zero, which
 *            always means what it meant before. A field that it does not know must be zero. Other structs stay as they are.
 *
 * Memory     Launching (sluice_plan_run, sluice_table_run, sluice_layer_run, sluice_replay) does not allocate when it succeeds;
 *            inside sluice_record, which keeps what is enqueued, it does.
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
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0

/* "0.1.0": of the library that runs, which may differ from the header's. */
SLUICE_API const char* sluice_version(void);

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT =
      1,                  /* the caller broke a contract: shape, type, stride, bound, null pointer, name */
  SLUICE_UNSUPPORTED = 2, /* the request is legal, but nothing here can do it */
  SLUICE_OUT_OF_MEMORY = 3,
  SLUICE_IO = 4,
  SLUICE_CORRUPT = 5, /* data from outside lies about itself */
  SLUICE_DEVICE = 6   /* a fault that a device reported */
} sluice_status;

/* "invalid argument" and so on; "unknown" for numbers that are no status. */
SLUICE_API const char* sluice_status_text(int32_t status);

/* A buffer of the caller's for text. What is written always ends in a NUL, and is cut short where `capacity`
 * is too small; `needed` becomes the bytes of the whole text, its NUL included. Start with {buffer, sizeof
 * buffer, 0}; {NULL, 0, 0} asks for the size alone. */
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
  int32_t threads;        /* SLUICE_CPU: 0 is one for each processor that the process may use */
  int32_t index;          /* SLUICE_CUDA: which of the GPUs that the process may see, from 0 */
  int32_t plain_launches; /* SLUICE_CUDA: not 0: no kernel starts before the previous launch has ended */
  sluice_log log;         /* may be NULL; called on the thread that calls into the library */
  void* log_context;
} sluice_device_options;
#define SLUICE_DEVICE_OPTIONS_INIT \
  { sizeof(sluice_device_options), SLUICE_CPU, 0, 0, 0, NULL, NULL }

/* `options` may be NULL: the CPU with all its threads. SLUICE_UNSUPPORTED says what this machine lacks, and how many GPUs it
 * has where there is none of that index. A thread's current GPU stays what it was, here and in every other call. */
SLUICE_API sluice_status sluice_open(const sluice_device_options* options, sluice_device** out,
                                     sluice_text* error);
SLUICE_API void sluice_close(sluice_device* device);
/* "cpu (8 threads; avx2 avx512)" */
SLUICE_API const char* sluice_device_text(const sluice_device* device);

/* Memory of the device, aligned to 256 bytes, its content unspecified. For start-up: launches need none. */
SLUICE_API sluice_status sluice_allocate(sluice_device* device, size_t bytes, void** out, sluice_text* error);
SLUICE_API void sluice_release(sluice_device* device, void* memory);

/* A queue of work on a device. Work enqueued on it runs in order. */
typedef struct sluice_stream {
  int32_t backend; /* sluice_backend */
  void* native;    /* of its backend: not to be looked into */
} sluice_stream;

/* The device's own stream. */
SLUICE_API sluice_stream sluice_device_stream(sluice_device* device);
/* A stream of the caller's as one of the device's. SLUICE_CUDA: `native` is a cudaStream_t of that GPU, of any CUDA runtime in the
 * process; NULL is its default stream. Launches and copies go to that stream, also while the caller captures it into a graph of its
 * own, and to no other; they neither allocate nor wait. SLUICE_CPU: NULL gives the device's own stream, all else is refused.
 * Wrapping is for start-up: it takes some memory, and the stream must not be captured at that moment.
 * Kernels of one wrapped stream share counters in that memory. So a graph captured through it must not run beside itself, beside
 * another one captured through it, or beside other work enqueued through it; wrapping the stream again gives counters of their own.
 * The caller's stream outlives its wrapping, and the wrapping all work and all graphs made through it. */
SLUICE_API sluice_status sluice_stream_wrap(sluice_device* device, void* native, sluice_stream* out,
                                            sluice_text* error);
/* Points what sluice_stream_wrap gave at another stream of the caller's on the same GPU, from now on. The counters stay: work enqueued
 * through it before has ended, or comes before the new stream's in the order of the GPU. Takes no memory and may be called while
 * either stream is captured, so streams wrapped at start-up can serve streams that come later. SLUICE_CPU: only NULL. */
SLUICE_API sluice_status sluice_stream_retarget(sluice_device* device, sluice_stream wrapped, void* native,
                                                sluice_text* error);
/* Ends what sluice_stream_wrap gave, and leaves the caller's stream alone; the device's own stream is left alone, too. */
SLUICE_API void sluice_stream_unwrap(sluice_device* device, sluice_stream stream);
/* Enqueues a copy between host and device, or inside the device. */
SLUICE_API sluice_status sluice_copy(sluice_device* device, void* to, const void* from, size_t bytes,
                                     sluice_stream stream, sluice_text* error);
/* Blocks until the stream is idle. Faults of work that runs on its own surface here. A stream that is being captured is refused. */
SLUICE_API sluice_status sluice_wait(sluice_device* device, sluice_stream stream, sluice_text* error);

/* ---- Tensors ---- */

typedef enum sluice_dtype {
  SLUICE_F32 = 0,
  SLUICE_BF16 = 1,
  SLUICE_E2M1 = 2, /* two to a byte, the even element in the low nibble */
  SLUICE_E8M0 = 3,
  SLUICE_I32 = 4,
  SLUICE_I64 = 5,
  SLUICE_I16 = 6,
  SLUICE_U8 = 7,
  SLUICE_E4M3 = 8 /* no infinities; 0x7f and 0xff are NaN */
} sluice_dtype;

#define SLUICE_RANK_MAX 4

/* A view of memory that the caller owns and keeps until the work that reads or writes it has run. Strides are
 * in elements; the last dimension is contiguous. */
typedef struct sluice_tensor {
  void* data;
  int32_t dtype; /* sluice_dtype */
  int32_t where; /* sluice_backend */
  int32_t rank;
  int64_t shape[SLUICE_RANK_MAX];
  int64_t stride[SLUICE_RANK_MAX];
} sluice_tensor;

/* A contiguous view on the CPU; `rank` sizes are read from `shape`, at most SLUICE_RANK_MAX. */
SLUICE_API sluice_tensor sluice_contiguous(void* data, sluice_dtype dtype, int32_t rank,
                                           const int64_t* shape);

typedef struct sluice_arg {
  const char* name; /* of the operation's tensor */
  sluice_tensor tensor;
} sluice_arg;

#define SLUICE_ARGS_MAX 32

/* All that a launch needs. Tensors that the problem does not use are left out; the order does not matter. */
typedef struct sluice_launch {
  const sluice_arg* args;
  size_t arg_count; /* at most SLUICE_ARGS_MAX */
  void* workspace;  /* memory of the device, aligned to 256 bytes; may be NULL when none is needed */
  size_t workspace_bytes;
  sluice_stream stream;
} sluice_launch;

/* ---- Plans: a choice made once ---- */

typedef struct sluice_policy {
  const char*
      force; /* the only kernel allowed: "NAME" or "NAME:CONFIG"; refused means an error, no fallback. NULL: any */
  int32_t batch_invariant; /* not 0: only kernels whose rows do not depend on each other */
} sluice_policy;

typedef struct sluice_plan sluice_plan;

/* `problem`: "name=value name=value"; fields that are left out keep their defaults; NULL is "". `policy` may
 * be NULL. SLUICE_INVALID_ARGUMENT: an operation, field or value that does not exist, naming the nearest one,
 * or a problem outside of the contract. SLUICE_UNSUPPORTED: no kernel takes it, with every reason of every
 * kernel. */
SLUICE_API sluice_status sluice_plan_create(const sluice_device* device, const char* op, const char* problem,
                                            const sluice_policy* policy, sluice_plan** out,
                                            sluice_text* error);
SLUICE_API void sluice_plan_destroy(sluice_plan* plan);
SLUICE_API size_t sluice_plan_workspace_bytes(const sluice_plan* plan);
/* "cpu.router_gemm.dot" */
SLUICE_API const char* sluice_plan_kernel(const sluice_plan* plan);
/* Checks the tensors and enqueues. SLUICE_INVALID_ARGUMENT names the tensor, what was wanted and what was
 * found, and enqueues nothing. */
SLUICE_API sluice_status sluice_plan_run(const sluice_plan* plan, const sluice_launch* launch,
                                         sluice_text* error);

/* ---- Tables: a choice for each count of tokens, made once ---- */

typedef struct sluice_table sluice_table;

typedef struct sluice_step {
  int64_t first, last; /* tokens that this kernel serves */
  const char* kernel;
  size_t workspace_bytes;
} sluice_step;

/* As sluice_plan_create, for 0 to tokens_max tokens; the problem's own count does not matter. */
SLUICE_API sluice_status sluice_table_create(const sluice_device* device, const char* op, const char* problem,
                                             int64_t tokens_max, const sluice_policy* policy,
                                             sluice_table** out, sluice_text* error);
SLUICE_API void sluice_table_destroy(sluice_table* table);
/* Enough for every count. */
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

/* One expert's (or dense layer's) weights. */
typedef struct sluice_panel_matrix {
  int64_t features, width; /* columns of y, columns of x */
  int32_t gated;           /* not 0: 2 * features rows, in gate_order */
  int32_t gate_order;      /* sluice_gate_order */
  int32_t dtype;           /* SLUICE_BF16, or SLUICE_E2M1 with a scale for each 32 (width % 32 == 0) */
} sluice_panel_matrix;

/* The same weights as a checkpoint has them and in layout "panels16" of expert_gemm and linear. Scales are left
 * zeroed for SLUICE_BF16. */
typedef struct sluice_panel_views {
  sluice_tensor rows;         /* bf16 or e2m1 [rows, width] */
  sluice_tensor row_scales;   /* u8 [rows, width / 32], e8m0 */
  sluice_tensor panels;       /* u8 [bytes] */
  sluice_tensor panel_scales; /* u8 [bytes] */
} sluice_panel_views;

/* What the packed form takes; scale_bytes is 0 for SLUICE_BF16. */
SLUICE_API sluice_status sluice_panel_bytes(const sluice_panel_matrix* matrix, int64_t* panel_bytes,
                                            int64_t* scale_bytes, sluice_text* error);
/* On the calling thread, in memory of the host. Packing writes every byte of the packed form; unpacking inverts it
 * bit by bit. SLUICE_INVALID_ARGUMENT names the tensor; nothing is written then. */
SLUICE_API sluice_status sluice_pack_panels(const sluice_panel_matrix* matrix,
                                            const sluice_panel_views* views, sluice_text* error);
SLUICE_API sluice_status sluice_unpack_panels(const sluice_panel_matrix* matrix,
                                              const sluice_panel_views* views, sluice_text* error);

/* ---- A layer: router, experts and all between them, with weights ---- */

typedef struct sluice_layer sluice_layer;

typedef struct sluice_layer_options {
  size_t size;       /* sizeof(sluice_layer_options) */
  const char* model; /* a known layer, "gpt-oss-120b"; NULL: the fields alone */
  const char*
      fields; /* "hidden=2880 experts=128", over the model's; NULL: none. sluice_layer_fields() lists them */
  int64_t tokens_max; /* of a run: at least 1 */
  /* One rank's part. Tensor-parallel ranks share the width inside the experts, in whole blocks of 32; expert-parallel ranks share the
   * experts. The answers of all ranks add up to the layer's. A size of 0 is 1. */
  int64_t tp_rank, tp_size, ep_rank, ep_size;
  const sluice_policy* policy; /* NULL: any kernel */
  int32_t threads;             /* that pack weights; 0: one for each processor */
  /* The caller's memory of the device for the packed weights: sluice_layer_measure() says how much, aligned to 256 bytes. It outlives
   * the layer. NULL: the layer takes memory of its own. */
  void* weights;
  size_t weights_bytes;
  /* The kernel of the routed experts by name, "cuda.expert_gemm.mxfp4_tile_sm90" or its last part, for runs of at most decode_tokens
   * tokens and for longer ones; all else stays free. A kernel that cannot run the layer is refused with its reasons. NULL or "auto":
   * the fastest. decode_tokens: 0 is 64. */
  const char* backend_decode;
  const char* backend_prefill;
  int64_t decode_tokens;
} sluice_layer_options;
#define SLUICE_LAYER_OPTIONS_INIT \
  { sizeof(sluice_layer_options), NULL, NULL, 1, 0, 1, 0, 1, NULL, 0, NULL, 0, NULL, NULL, 0 }

/* Plans as sluice_layer_create, and keeps nothing: what the packed weights and a run take of the device's memory. Either pointer
 * may be NULL. */
SLUICE_API sluice_status sluice_layer_measure(sluice_device* device, const sluice_layer_options* options,
                                              size_t* weight_bytes, size_t* workspace_bytes,
                                              sluice_text* error);

/* Plans the layer for 0 to tokens_max tokens and takes the memory of this rank's weights. SLUICE_INVALID_ARGUMENT names the option or
 * the field; SLUICE_UNSUPPORTED has every reason of every kernel; SLUICE_OUT_OF_MEMORY says how many bytes are wanted and free. The
 * handle ends before its device is closed, and after the work that it has enqueued. */
SLUICE_API sluice_status sluice_layer_create(sluice_device* device, const sluice_layer_options* options,
                                             sluice_layer** out, sluice_text* error);
SLUICE_API void sluice_layer_destroy(sluice_layer* layer);
/* Every field of this rank's layer: "hidden=2880 intermediate=1440 ...". */
SLUICE_API const char* sluice_layer_text(const sluice_layer* layer);
SLUICE_API size_t sluice_layer_workspace_bytes(const sluice_layer* layer); /* enough for every count */
SLUICE_API size_t sluice_layer_weight_bytes(const sluice_layer* layer); /* of the device's memory, packed */

/* One tensor of weights as a checkpoint has it, contiguous. */
typedef struct sluice_weight {
  const char* name; /* "model.layers.3.mlp.router.weight" */
  const char* type; /* as safetensors files call it: "BF16", "F32", "U8", "F8_E4M3", ... */
  int32_t where;    /* sluice_backend: memory of the host, or of the layer's device */
  int32_t rank;     /* at most 8 */
  const int64_t* shape;
  const void* data;
  size_t bytes;
} sluice_weight;

/* The tensors of a layer under the names and in the order of gate and up of one of these, all of it data in src/nn/moe/names.cc:
 * gpt_oss, gpt_oss_original, gpt_oss_bf16, deepseek_v4, deepseek_v3, qwen3_moe, nemotron3, minimax_m2, llama4, minimax_m3,
 * mistral_large_3, as the models' publishers have them; and plain, Sluice's own: router, router_bias, correction_bias, hash_table, experts.up and experts.down
 * [experts, rows, width] (with experts.up_scale, experts.up_bias and so on) with gate and up in the layer's gate_order, shared.gate,
 * shared.up and shared.down. Tensors are the whole layer's: the slice is cut from them. Where all experts are in one tensor it may hold
 * this rank's experts alone. Tensors of other layers may be among them. Where the layer's fields ask for them, these stand beside any
 * naming: experts.act_params, F32 [experts, 3] (alpha, beta, limit), and lora_a, lora_b, lora_scale. */
typedef struct sluice_weights {
  const sluice_weight* tensors;
  size_t count;
  const char* naming; /* NULL: found by the names */
  int64_t layer;      /* the number in the names; -1: the only one */
} sluice_weights;

/* Packs the weights into the layer's memory, for the first time or over older ones, and returns when they are there: the tensors may go
 * then. Nothing of the layer may run meanwhile; pointers stay, so graphs stay valid. Work that writes the tensors has ended before.
 * Needs for a while, besides the weights' own memory: on the CPU less than 64 MiB; on a GPU its memory for one matrix of one expert as
 * it stands in its tensor, 32 MiB of page-locked host memory and, for tensors in the GPU's memory, 64 MiB more of it.
 * SLUICE_CORRUPT, SLUICE_UNSUPPORTED or SLUICE_INVALID_ARGUMENT names the tensor, what was wanted and what was found; a layer that
 * had weights keeps them. */
SLUICE_API sluice_status sluice_layer_load(sluice_layer* layer, const sluice_weights* weights,
                                           sluice_text* error);
/* One expert, by its number in the whole layer, and its biases. Tensors of all experts in one may hold this one alone ([1, ...]). All is
 * checked before the first byte is written. */
SLUICE_API sluice_status sluice_layer_replace_expert(sluice_layer* layer, int64_t expert,
                                                     const sluice_weights* weights, sluice_text* error);

/* Takes the next `count` bytes; what is not SLUICE_OK ends the writing, and is its status. A number that is no sluice_status is
 * SLUICE_INVALID_ARGUMENT. */
typedef sluice_status (*sluice_sink)(void* context, const void* bytes, size_t count);
/* The packed weights, as a safetensors file that says what they are: its bytes, and those in order, in pieces of at most 8 MiB. */
SLUICE_API sluice_status sluice_layer_packed_bytes(const sluice_layer* layer, size_t* out,
                                                   sluice_text* error);
SLUICE_API sluice_status sluice_layer_write_packed(const sluice_layer* layer, sluice_sink sink, void* context,
                                                   sluice_text* error);
/* The same bytes, in memory of the host, in place of sluice_layer_load. SLUICE_CORRUPT names what differs, another version or layout, a
 * field of another layer, a hash, with what was wanted and what was found; nothing is written then. */
SLUICE_API sluice_status sluice_layer_read_packed(sluice_layer* layer, const void* bytes, size_t count,
                                                  sluice_text* error);

/* Enqueues the layer for as many tokens as x has rows. Arguments go by name: sluice_layer_tensors() lists those that this layer takes.
 * Allocates nothing, waits for nothing, and touches no stream but the launch's, which may be a caller's and in capture.
 * SLUICE_INVALID_ARGUMENT names the tensor, what was wanted and what was found, or says that weights are missing; nothing is
 * enqueued then. Any number of threads may run one layer, each with a workspace and a stream of its own. */
SLUICE_API sluice_status sluice_layer_run(const sluice_layer* layer, const sluice_launch* launch,
                                          sluice_text* error);
/* Writes what runs at each of these counts of tokens: the path, and each stage's kernel and problem. */
SLUICE_API sluice_status sluice_layer_explain(const sluice_layer* layer, const int64_t* tokens, size_t count,
                                              sluice_text* out, sluice_text* error);

/* ---- Recordings: a step enqueued once and replayed ---- */

typedef struct sluice_recording sluice_recording;

/* Enqueues the step on the recorded stream; what is not SLUICE_OK ends the recording, and is its status. A number that is no
 * sluice_status is SLUICE_INVALID_ARGUMENT. */
typedef sluice_status (*sluice_enqueue)(void* context);

/* Calls enqueue(context) once, without running what it enqueues on `stream`, and keeps that. Tensors and
 * workspaces that it named must stay where they are while the recording lives. */
SLUICE_API sluice_status sluice_record(sluice_device* device, sluice_stream stream, sluice_enqueue enqueue,
                                       void* context, sluice_recording** out, sluice_text* error);
SLUICE_API sluice_status sluice_replay(sluice_device* device, const sluice_recording* recording,
                                       sluice_stream stream, sluice_text* error);
SLUICE_API void sluice_recording_destroy(sluice_recording* recording);

/* ---- Questions that need no device ---- */

/* Writes what would be chosen and why: a line for each kernel, its cost or every reason against it.
 * `device_name` is a known device ("h200"), or NULL to ask about the open `device`; exactly one of the two is
 * given. SLUICE_OK: something was chosen. SLUICE_UNSUPPORTED: no kernel accepts, and `out` says why, as it does
 * when the contract refuses the problem (SLUICE_INVALID_ARGUMENT). A buffer that is too small is
 * SLUICE_INVALID_ARGUMENT; out->needed says what it takes. */
typedef struct sluice_question {
  const char* op;
  const char* problem;
  const char* device_name;
  const sluice_device* device;
  const sluice_policy* policy;
} sluice_question;
SLUICE_API sluice_status sluice_explain(const sluice_question* question, sluice_text* out,
                                        sluice_text* error);

/* The same for a layer: what sluice_layer_explain() would say of it at each of these counts of tokens, or the error of
 * sluice_layer_create(), with every reason. Of the options, threads and weights do not matter. */
typedef struct sluice_layer_question {
  const sluice_layer_options* options;
  const char* device_name;
  const sluice_device* device;
} sluice_layer_question;
SLUICE_API sluice_status sluice_layer_describe(const sluice_layer_question* question, const int64_t* tokens,
                                               size_t count, sluice_text* out, sluice_text* error);

SLUICE_API size_t sluice_op_count(void);
/* NULL when there is no such index. */
SLUICE_API const char* sluice_op_name(size_t index);

typedef struct sluice_field {
  const char* name;
  const char* doc;
  const char* value;        /* its default */
  const char* const* words; /* what it accepts; NULL for numbers */
  size_t word_count;
} sluice_field;
/* The strings live during the call. */
typedef void (*sluice_field_visitor)(void* context, const sluice_field* field);
/* Calls visit for each field of the operation's problem, in order. */
SLUICE_API sluice_status sluice_op_fields(const char* op, sluice_field_visitor visit, void* context,
                                          sluice_text* error);

typedef enum sluice_role { SLUICE_IN = 0, SLUICE_OUT = 1, SLUICE_IN_OUT = 2 } sluice_role;
typedef struct sluice_slot {
  const char* name;
  sluice_role role;
  int32_t used; /* 0: must be left out for this problem */
  int32_t rows_may_be_strided;
  sluice_dtype dtype;
  int32_t rank;
  int64_t shape[SLUICE_RANK_MAX];
} sluice_slot;
typedef void (*sluice_slot_visitor)(void* context, const sluice_slot* slot);
/* Calls visit for each tensor of the operation, as this problem wants it. SLUICE_INVALID_ARGUMENT: a problem outside of the contract,
 * with every reason. */
SLUICE_API sluice_status sluice_op_tensors(const char* op, const char* problem, sluice_slot_visitor visit,
                                           void* context, sluice_text* error);
/* The same for a layer: its fields as a known model has them (NULL: their defaults), and the tensors of a run of so many tokens. */
SLUICE_API sluice_status sluice_layer_fields(const char* model, sluice_field_visitor visit, void* context,
                                             sluice_text* error);
SLUICE_API sluice_status sluice_layer_tensors(const sluice_layer* layer, int64_t tokens,
                                              sluice_slot_visitor visit, void* context, sluice_text* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_SLUICE_H_ */
