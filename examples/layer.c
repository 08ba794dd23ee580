/* Runs one MoE layer of gpt-oss as an engine would: loads weights in checkpoint layout, runs the layer on the program's own stream, and
 * replays it from a CUDA graph that the program captured.
 *
 *   layer [--device cpu|cuda] [--index N] [--model gpt-oss-120b|gpt-oss-20b] [--tokens 1,8,64] [--ep RANK/SIZE] [--weights host|device]
 *
 * Weights and input are pseudo-random. `sluice moe MODEL --digest` generates the same weights and input, so on the same device it prints the
 * same digests of the layer's output. With --ep the program is one rank of an expert-parallel layer and needs only that rank's memory.
 *
 * If WITH_CUDA is defined, the program links the CUDA runtime itself, as an engine does. Otherwise it rejects --device cuda. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice/sluice.h"
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

static char message[8192];
static sluice_text error = {message, sizeof message, 0};

static void fail(const char* doing, const char* why) {
  fprintf(stderr, "layer: %s: %s\n", doing, why);
  exit(1);
}
static void check(sluice_status status) {
  if (status != SLUICE_OK) fail(sluice_status_text(status), message);
}

/* ---- Memory, stream and graphs: on a GPU the program's own, on the CPU Sluice's ---- */

typedef struct {
  int on_cuda;
  sluice_device* device;
  sluice_stream stream; /* Sluice's handle of this program's stream */
#ifdef WITH_CUDA
  cudaStream_t native;
#endif
} machine;

#ifdef WITH_CUDA
static void check_cuda(const char* doing, cudaError_t status) {
  if (status != cudaSuccess) fail(doing, cudaGetErrorString(status));
}
#endif

static void machine_open(machine* m, int on_cuda, int index) {
  sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
  void* native = NULL;
  m->on_cuda = on_cuda;
  options.backend = on_cuda ? SLUICE_CUDA : SLUICE_CPU;
  options.index = index;
#ifdef WITH_CUDA
  m->native = NULL;
  if (on_cuda) {
    check_cuda("cudaSetDevice", cudaSetDevice(index));
    check_cuda("cudaStreamCreate", cudaStreamCreateWithFlags(&m->native, cudaStreamNonBlocking));
    native = m->native;
  }
#else
  if (on_cuda) fail("--device cuda", "this program was built without the CUDA runtime");
#endif
  check(sluice_open(&options, &m->device, &error));
  check(sluice_stream_wrap(m->device, native, &m->stream, &error));
}

static void machine_close(machine* m) {
  sluice_stream_unwrap(m->device, m->stream);
  sluice_close(m->device);
#ifdef WITH_CUDA
  if (m->on_cuda) cudaStreamDestroy(m->native);
#endif
}

static void* take(machine* m, size_t bytes) {
  void* out = NULL;
#ifdef WITH_CUDA
  if (m->on_cuda) {
    check_cuda("cudaMalloc", cudaMalloc(&out, bytes));
    return out;
  }
#endif
  check(sluice_allocate(m->device, bytes, &out, &error));
  return out;
}

static void give_back(machine* m, void* memory) {
#ifdef WITH_CUDA
  if (m->on_cuda) {
    cudaFree(memory);
    return;
  }
#endif
  sluice_release(m->device, memory);
}

/* Copies between host memory and the device's memory, and waits until the copy is complete. */
static void copy(machine* m, void* to, const void* from, size_t bytes) {
#ifdef WITH_CUDA
  if (m->on_cuda) {
    check_cuda("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, m->native));
    check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(m->native));
    return;
  }
#endif
  (void)m;
  memcpy(to, from, bytes);
}

typedef struct {
  const sluice_layer* layer;
  const sluice_launch* launch;
} step;

static sluice_status enqueue(void* context) {
  const step* s = context;
  return sluice_layer_run(s->layer, s->launch, &error);
}

/* Captures the step without running it, then runs the captured graph. */
static void run_captured(machine* m, step* s) {
  sluice_recording* recording = NULL;
#ifdef WITH_CUDA
  if (m->on_cuda) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda("cudaStreamBeginCapture", cudaStreamBeginCapture(m->native, cudaStreamCaptureModeGlobal));
    check(enqueue(s));
    check_cuda("cudaStreamEndCapture", cudaStreamEndCapture(m->native, &graph));
    check_cuda("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0));
    check_cuda("cudaGraphLaunch", cudaGraphLaunch(exec, m->native));
    check_cuda("cudaStreamSynchronize", cudaStreamSynchronize(m->native));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return;
  }
#endif
  check(sluice_record(m->device, m->stream, enqueue, s, &recording, &error));
  check(sluice_replay(m->device, recording, m->stream, &error));
  check(sluice_wait(m->device, m->stream, &error));
  sluice_recording_destroy(recording);
}

/* ---- Pseudo-random tensors: 8-byte word i of tensor k is SplitMix64(k * 2^40 + i), with some bits replaced so that all values are valid ---- */

enum kind { CODES, SCALES, ROUTER, BIAS, UNIT };

static uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* Four bf16 numbers of similar magnitude: random sign and mantissa, fixed exponent. */
static uint64_t four_bf16(uint64_t bits, uint64_t exponent) {
  return (bits & 0x807F807F807F807Fu) | exponent * 0x0080008000800080u;
}

static uint64_t word_of(enum kind kind, uint64_t bits) {
  switch (kind) {
    case CODES:
      return bits;
    case SCALES:
      return 0x7676767676767676u + (bits & 0x0303030303030303u); /* 118 to 121, which mean 2^-9 to 2^-6 */
    case ROUTER:
      return four_bf16(bits, 121); /* absolute values from 2^-6 to 2^-5 */
    case BIAS:
      return four_bf16(bits, 124);
    case UNIT:
      return four_bf16(bits, 126);
  }
  return 0;
}

/* Writes `bytes` bytes of tensor k, beginning at byte `first`; both are multiples of 8. */
static void fill(enum kind kind, uint64_t k, uint64_t first, size_t bytes, unsigned char* to) {
  size_t i;
  for (i = 0; i < bytes; i += 8) {
    const uint64_t word = word_of(kind, mix((k << 40) + (first + i) / 8));
    memcpy(to + i, &word, 8);
  }
}

/* ---- The layer's weights, in the shapes of gpt-oss's checkpoint ---- */

enum { HIDDEN = 2880, WIDTH = 2880, TENSORS = 8, RANK_MAX = 4 };

typedef struct {
  const char* name;
  const char* type;
  enum kind kind;
  int of_experts; /* not 0: the first dimension has the experts, and a rank passes only its own experts */
  int rank;
  int64_t shape[RANK_MAX];
} tensor_kind;

static const tensor_kind kinds[TENSORS] = {
    {"model.layers.0.mlp.router.weight", "BF16", ROUTER, 0, 2, {0, HIDDEN, 0, 0}},
    {"model.layers.0.mlp.router.bias", "BF16", BIAS, 0, 1, {0, 0, 0, 0}},
    {"model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", CODES, 1, 4, {0, 2 * WIDTH, HIDDEN / 32, 16}},
    {"model.layers.0.mlp.experts.gate_up_proj_scales", "U8", SCALES, 1, 3, {0, 2 * WIDTH, HIDDEN / 32, 0}},
    {"model.layers.0.mlp.experts.gate_up_proj_bias", "BF16", BIAS, 1, 2, {0, 2 * WIDTH, 0, 0}},
    {"model.layers.0.mlp.experts.down_proj_blocks", "U8", CODES, 1, 4, {0, HIDDEN, WIDTH / 32, 16}},
    {"model.layers.0.mlp.experts.down_proj_scales", "U8", SCALES, 1, 3, {0, HIDDEN, WIDTH / 32, 0}},
    {"model.layers.0.mlp.experts.down_proj_bias", "BF16", BIAS, 1, 2, {0, HIDDEN, 0, 0}},
};

typedef struct {
  const char* model;
  int64_t experts, ep_rank, ep_size;
} layer_kind;

/* Generates the tensors in host memory or in device memory, loads them into the layer, and frees them. */
static void load(machine* m, sluice_layer* layer, const layer_kind* kind, int on_machine) {
  const int64_t begin = kind->experts * kind->ep_rank / kind->ep_size;
  const int64_t end = kind->experts * (kind->ep_rank + 1) / kind->ep_size;
  sluice_weight list[TENSORS];
  int64_t shapes[TENSORS][RANK_MAX];
  void* memory[TENSORS];
  sluice_weights weights;
  int i, d;
  for (i = 0; i < TENSORS; ++i) {
    const tensor_kind* t = &kinds[i];
    const int64_t first = t->of_experts ? begin : 0, count = t->of_experts ? end - begin : kind->experts;
    size_t each = t->type[0] == 'B' ? 2 : 1; /* bytes of an element; after the loops, of an expert or a row */
    unsigned char* host;
    for (d = 0; d < t->rank; ++d) shapes[i][d] = d == 0 ? count : t->shape[d];
    for (d = 1; d < t->rank; ++d) each *= (size_t)t->shape[d];
    list[i].name = t->name;
    list[i].type = t->type;
    list[i].where = on_machine && m->on_cuda ? SLUICE_CUDA : SLUICE_CPU;
    list[i].rank = t->rank;
    list[i].shape = shapes[i];
    list[i].bytes = each * (size_t)count;
    host = malloc(list[i].bytes);
    if (!host) fail(t->name, "out of memory");
    fill(t->kind, (uint64_t)i, (uint64_t)first * each, list[i].bytes, host);
    memory[i] = host;
    if (on_machine) {
      memory[i] = take(m, list[i].bytes);
      copy(m, memory[i], host, list[i].bytes);
      free(host);
    }
    list[i].data = memory[i];
  }
  weights.tensors = list;
  weights.count = TENSORS;
  weights.naming = NULL; /* detected from the names */
  weights.layer = -1;    /* the names contain a single layer */
  check(sluice_layer_load(layer, &weights, &error));
  for (i = 0; i < TENSORS; ++i) on_machine ? give_back(m, memory[i]) : free(memory[i]);
}

/* The FNV-1a hash. */
static uint64_t digest_of(const unsigned char* bytes, size_t count) {
  uint64_t hash = 0xCBF29CE484222325u;
  size_t i;
  for (i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
  return hash;
}

/* Returns the digest of the bf16 numbers. Fails if any of them is not finite, or if all of them are zero. */
static uint64_t digest_on(machine* m, const void* y, size_t bytes) {
  unsigned char* host = malloc(bytes);
  uint64_t out;
  size_t i, others = 0;
  if (!host) fail("y", "out of memory");
  copy(m, host, y, bytes);
  for (i = 0; i < bytes; i += 2) {
    const unsigned bits = host[i] | (unsigned)host[i + 1] << 8;
    if ((bits & 0x7F80u) == 0x7F80u) fail("y", "wanted finite numbers, found NaN or infinity");
    others += (bits & 0x7FFFu) != 0;
  }
  if (others == 0) fail("y", "wanted an output, found only zeros");
  out = digest_of(host, bytes);
  free(host);
  return out;
}

static void run(machine* m, const sluice_layer* layer, const layer_kind* kind, int64_t tokens) {
  const size_t bytes = (size_t)tokens * HIDDEN * 2, scratch = sluice_layer_workspace_bytes(layer);
  const int64_t shape[] = {tokens, HIDDEN};
  void *x = take(m, bytes), *y = take(m, bytes), *workspace = take(m, scratch);
  unsigned char* host = malloc(bytes);
  sluice_arg args[2];
  sluice_launch launch;
  step s;
  uint64_t eager, captured;
  if (!host) fail("x", "out of memory");
  fill(UNIT, TENSORS, 0, bytes, host);
  copy(m, x, host, bytes);
  args[0].name = "x";
  args[0].tensor = sluice_contiguous(x, SLUICE_BF16, 2, shape);
  args[1].name = "y";
  args[1].tensor = sluice_contiguous(y, SLUICE_BF16, 2, shape);
  args[0].tensor.where = args[1].tensor.where = m->stream.backend;
  launch.args = args;
  launch.arg_count = 2;
  launch.workspace = workspace;
  launch.workspace_bytes = scratch;
  launch.stream = m->stream;
  s.layer = layer;
  s.launch = &launch;

  check(enqueue(&s));
  check(sluice_wait(m->device, m->stream, &error));
  eager = digest_on(m, y, bytes);
  memset(host, 0, bytes);
  copy(m, y, host, bytes);
  run_captured(m, &s);
  captured = digest_on(m, y, bytes);
  if (eager != captured) fail("captured", "wanted the same bits as without the graph, found others");
  printf("digest %s ep %d/%d tokens %d: %08x%08x\n", kind->model, (int)kind->ep_rank, (int)kind->ep_size,
         (int)tokens, (unsigned)(eager >> 32), (unsigned)(eager & 0xFFFFFFFFu));
  free(host);
  give_back(m, x);
  give_back(m, y);
  give_back(m, workspace);
}

int main(int argc, char** argv) {
  layer_kind kind = {"gpt-oss-120b", 128, 0, 1};
  sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
  sluice_layer* layer = NULL;
  const char* tokens = "1,8,64";
  const char* at;
  int i, on_cuda = 0, index = 0, on_machine = 0;
  machine m;
  for (i = 1; i < argc; i += 2) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--device") && (!strcmp(value, "cpu") || !strcmp(value, "cuda"))) {
      on_cuda = value[1] == 'u';
    } else if (!strcmp(argv[i], "--index") && *value) {
      index = atoi(value);
    } else if (!strcmp(argv[i], "--model") &&
               (!strcmp(value, "gpt-oss-120b") || !strcmp(value, "gpt-oss-20b"))) {
      kind.model = value;
      kind.experts = value[8] == '1' ? 128 : 32;
    } else if (!strcmp(argv[i], "--tokens") && *value) {
      tokens = value;
    } else if (!strcmp(argv[i], "--ep") && strchr(value, '/')) {
      kind.ep_rank = atoi(value);
      kind.ep_size = atoi(strchr(value, '/') + 1);
      if (kind.ep_rank < 0 || kind.ep_size < 1 || kind.ep_rank >= kind.ep_size || kind.ep_size > kind.experts)
        fail("--ep", "wanted RANK/SIZE with 0 <= RANK < SIZE <= experts");
    } else if (!strcmp(argv[i], "--weights") && (!strcmp(value, "host") || !strcmp(value, "device"))) {
      on_machine = value[0] == 'd';
    } else {
      fail(argv[i],
           "wanted --device, --index, --model, --tokens, --ep or --weights, with a value as in the head of "
           "layer.c");
    }
  }
  options.model = kind.model;
  options.ep_rank = kind.ep_rank;
  options.ep_size = kind.ep_size;
  for (at = tokens; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
    const long count = atol(at);
    if (count < 1 || count > 16384) fail("--tokens", "wanted counts from 1 to 16384, separated by commas");
    if (count > options.tokens_max) options.tokens_max = count;
  }

  machine_open(&m, on_cuda, index);
  printf("device %s\n", sluice_device_text(m.device));
  check(sluice_layer_create(m.device, &options, &layer, &error));
  load(&m, layer, &kind, on_machine);
  printf("layer  %s\n", sluice_layer_text(layer));
  for (at = tokens; at; at = strchr(at, ','), at = at ? at + 1 : NULL) run(&m, layer, &kind, atol(at));
  sluice_layer_destroy(layer);
  machine_close(&m);
  return 0;
}
