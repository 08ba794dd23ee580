/* Runs the router of gpt-oss-120b for one token: from 2880 activations to the scores of 128 experts.
 *
 * Opens the CPU device, creates a plan, runs it, and prints which kernel was chosen and which expert has the highest score. It must
 * be expert 42, because the row of weights of expert 42 equals the token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice/sluice.h"

enum { HIDDEN = 2880, EXPERTS = 128 };

static char message[4096];
static sluice_text error = {message, sizeof message, 0};

/* A call that fails writes a message to `error`, which says what was wanted and what was found. */
static void check(sluice_status status) {
  if (status == SLUICE_OK) return;
  fprintf(stderr, "%s: %s\n", sluice_status_text(status), message);
  exit(1);
}

/* A bf16 number is the upper half of a float. Truncating a float is exact for the numbers used here. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static void fill(uint16_t* x, uint16_t* w, uint16_t* bias) {
  uint32_t state = 1;
  for (int i = 0; i < EXPERTS * HIDDEN; ++i) {
    state = state * 1664525u + 1013904223u;
    w[i] = to_bf16((float)(int)(state >> 29) * 0.25f - 1.0f);
  }
  for (int i = 0; i < HIDDEN; ++i) x[i] = to_bf16(i % 3 == 0 ? 1.0f : -0.5f);
  memcpy(w + 42 * HIDDEN, x, HIDDEN * sizeof *x);
  for (int e = 0; e < EXPERTS; ++e) bias[e] = to_bf16(0.125f);
}

int main(void) {
  sluice_device* device = NULL;
  check(sluice_open(NULL, &device, &error)); /* NULL: the CPU with all its threads */

  /* A plan has the kernel that was chosen for one problem. Make it once and run it many times. */
  sluice_plan* plan = NULL;
  check(sluice_plan_create(device, "router_gemm", "tokens=1 experts=128 hidden=2880 bias=1", NULL, &plan,
                           &error));

  /* Tensors may use any memory. Memory of sluice_allocate() is aligned for every kernel. */
  void *x, *w, *bias, *y, *workspace;
  check(sluice_allocate(device, HIDDEN * 2, &x, &error));
  check(sluice_allocate(device, EXPERTS * HIDDEN * 2, &w, &error));
  check(sluice_allocate(device, EXPERTS * 2, &bias, &error));
  check(sluice_allocate(device, EXPERTS * sizeof(float), &y, &error));
  check(sluice_allocate(device, sluice_plan_workspace_bytes(plan), &workspace, &error));
  fill(x, w, bias);

  /* Tensors are passed by name, in any order; this operation has x, w, bias and y. */
  const int64_t x_shape[] = {1, HIDDEN}, w_shape[] = {EXPERTS, HIDDEN}, bias_shape[] = {EXPERTS},
                y_shape[] = {1, EXPERTS};
  sluice_arg args[4];
  args[0].name = "x";
  args[0].tensor = sluice_contiguous(x, SLUICE_BF16, 2, x_shape);
  args[1].name = "w";
  args[1].tensor = sluice_contiguous(w, SLUICE_BF16, 2, w_shape);
  args[2].name = "bias";
  args[2].tensor = sluice_contiguous(bias, SLUICE_BF16, 1, bias_shape);
  args[3].name = "y";
  args[3].tensor = sluice_contiguous(y, SLUICE_F32, 2, y_shape);

  sluice_launch launch;
  launch.args = args;
  launch.arg_count = 4;
  launch.workspace = workspace;
  launch.workspace_bytes = sluice_plan_workspace_bytes(plan);
  launch.stream = sluice_device_stream(device);
  check(sluice_plan_run(plan, &launch, &error));
  check(sluice_wait(device, launch.stream, &error));

  const float* logits = y;
  int top = 0;
  for (int e = 1; e < EXPERTS; ++e)
    if (logits[e] > logits[top]) top = e;
  printf("device      %s\n", sluice_device_text(device));
  printf("kernel      %s\n", sluice_plan_kernel(plan));
  printf("top expert  %d with logit %.3f\n", top, (double)logits[top]);

  void* memory[] = {x, w, bias, y, workspace};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) sluice_release(device, memory[i]);
  sluice_plan_destroy(plan);
  sluice_close(device);
  return 0;
}
