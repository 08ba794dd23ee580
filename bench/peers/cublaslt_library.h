// Opens cuBLASLt at run time, so that adapters are built without it: libcublasLt.so.13 from the loader's path
// (LD_LIBRARY_PATH), or the file that the variable SLUICE_PEER_CUBLASLT names.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

struct CublasLt {
  bool open = false;
  cublasLtHandle_t handle = nullptr;
  char version[32] = "libcublasLt.so.13 not found";
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;

  CublasLt() {
    const char* named = std::getenv("SLUICE_PEER_CUBLASLT");
    void* file = dlopen(named != nullptr ? named : "libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
      return function != nullptr;
    };
    open = find(create, "cublasLtCreate") && find(get_version, "cublasLtGetVersion") &&
           find(matmul, "cublasLtMatmul") && find(desc_create, "cublasLtMatmulDescCreate") &&
           find(desc_set, "cublasLtMatmulDescSetAttribute") &&
           find(layout_create, "cublasLtMatrixLayoutCreate") &&
           find(layout_set, "cublasLtMatrixLayoutSetAttribute") &&
           find(preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    if (!open) return;
    const size_t number = get_version();  // 130101: 13.1.1
    std::snprintf(version, sizeof version, "cublasLt %zu.%zu.%zu", number / 10000, number / 100 % 100,
                  number % 100);
  }
};

// Captures `launches` launches and returns the microseconds of one, from the median of several replays. launch(i) returns true if it was
// accepted. Returns a negative number if a launch was rejected.
template <class Launch>
float recorded_us(cudaStream_t stream, int launches, Launch launch) {
  constexpr int kReplays = 3;
  if (!launch(0) || cudaStreamSynchronize(stream) != cudaSuccess) return -1;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) return -1;
  bool ok = true;
  for (int i = 0; i < launches; ++i) ok = ok && launch(i);
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !ok) return -1;
  if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) return -1;
  cudaEvent_t from, to;
  cudaEventCreate(&from);
  cudaEventCreate(&to);
  std::vector<float> times;
  for (int i = 0; i < kReplays + 1; ++i) {
    cudaEventRecord(from, stream);
    cudaGraphLaunch(exec, stream);
    cudaEventRecord(to, stream);
    cudaEventSynchronize(to);
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, from, to);
    if (i > 0) times.push_back(milliseconds * 1000 / launches);  // the first replay uploads the graph
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[kReplays / 2];
}
