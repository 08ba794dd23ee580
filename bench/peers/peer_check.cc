// Checks the results of the baselines (bench/peers/peer.h) in double precision, and times them.
//
// usage: peer_check FOLDER [router | routing]     loads every peer_*.so of FOLDER; needs a GPU
//
// Prints one line for each baseline and problem: the worst error, then median, p10 and p90 of microseconds per launch. It
// replays a recorded chain of launches over weights that rotate (so that they are cold) and over several x and outputs. If an
// error exceeds its bound, the program exits with 1 after all problems.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "peer.h"

namespace {

// The minimum number of launches. There is at least one per copy of the weights, so that no copy is warm.
constexpr int kLaunches = 100;
constexpr int kReplays = 15;
constexpr int kRotated = 4;
constexpr size_t kColdBytes = size_t{208} << 20;
int failures = 0;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "peer_check: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

void* allocate(size_t bytes) {
  void* p = nullptr;
  must(cudaMalloc(&p, std::max<size_t>(bytes, 256)), "cudaMalloc");
  return p;
}

float value_of(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Normally distributed bf16 numbers. Truncation instead of rounding makes no difference here.
std::vector<uint16_t> random_bf16(size_t count, float scale, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> table(1 << 16), out(count);
  for (uint16_t& t : table) {
    const float value = normal(generator);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    t = static_cast<uint16_t>(bits >> 16);
  }
  for (uint16_t& v : out) v = table[generator() >> 16];
  return out;
}

struct Times {
  float median, p10, p90;
};

// Microseconds per launch of `enqueue(i, stream)`, or negative numbers if it cannot be captured.
template <class Enqueue>
Times time_launches(cudaStream_t stream, int launches, const Enqueue& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  bool ok = true;
  for (int i = 0; i < launches && ok; ++i) ok = enqueue(i) == 0;
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !ok) return {-1, -1, -1};
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t from, to;
  must(cudaEventCreate(&from), "event");
  must(cudaEventCreate(&to), "event");
  std::vector<float> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    must(cudaEventRecord(from, stream), "record");
    must(cudaGraphLaunch(exec, stream), "graph launch");
    must(cudaEventRecord(to, stream), "record");
    must(cudaEventSynchronize(to), "replay");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, from, to), "elapsed");
    if (i >= 2) times.push_back(milliseconds * 1000 / launches);
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return {times[kReplays / 2], times[kReplays / 10], times[kReplays - 1 - kReplays / 10]};
}

void report(const sluice_peer* peer, const char* problem, double error, double bound, const Times& t) {
  const bool good = error <= bound;
  failures += !good || t.median < 0;
  std::printf("%-26s %-34s error %8.2e %s %8.3f %8.3f %8.3f us\n", peer->name, problem, error,
              good ? "ok   " : "WRONG", t.median, t.p10, t.p90);
  std::fflush(stdout);
}

// ---- router ----

struct Shape {
  int64_t hidden, experts;
};

void check_router(const std::vector<const sluice_peer*>& peers, cudaStream_t stream) {
  const Shape shapes[] = {{2880, 32},  {2880, 128}, {4096, 256}, {7168, 256},
                          {7168, 384}, {2688, 128}, {4096, 512}, {5120, 384}};
  const int64_t counts[] = {1, 3, 8, 16, 64, 128, 512, 4096};
  constexpr int64_t kMax = 4096;
  for (const Shape& s : shapes) {
    const auto w = random_bf16(s.experts * s.hidden, 0.02f, 1), x = random_bf16(kMax * s.hidden, 1, 2);
    const auto bias = random_bf16(s.experts, 1, 3);
    const size_t w_bytes = w.size() * 2, x_bytes = x.size() * 2;
    const int copies = static_cast<int>(kColdBytes / w_bytes + 1);
    auto* device_w = static_cast<char*>(allocate(w_bytes * copies));
    auto* device_x = static_cast<char*>(allocate(x_bytes));
    auto* device_y = static_cast<char*>(allocate(kMax * s.experts * 4));
    void* device_bias = allocate(s.experts * 2);
    must(cudaMemcpy(device_w, w.data(), w_bytes, cudaMemcpyHostToDevice), "w");
    for (int i = 1; i < copies; ++i)
      must(cudaMemcpy(device_w + i * w_bytes, device_w, w_bytes, cudaMemcpyDeviceToDevice), "copies of w");
    must(cudaMemcpy(device_x, x.data(), x_bytes, cudaMemcpyHostToDevice), "x");
    must(cudaMemcpy(device_bias, bias.data(), s.experts * 2, cudaMemcpyHostToDevice), "bias");

    // A few rows of the reference, and the sums of absolute values that bound the error of f32 additions.
    const int64_t rows[] = {0, 1, 3, 7, 15, 63, 100, 127, 300, 511, 2000, 4095};
    std::map<int64_t, std::vector<double>> exact, magnitude;
    for (const int64_t t : rows)
      for (int64_t e = 0; e < s.experts; ++e) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < s.hidden; ++k) {
          const double product = double{value_of(x[t * s.hidden + k])} * value_of(w[e * s.hidden + k]);
          sum += product;
          size += std::abs(product);
        }
        exact[t].push_back(sum);
        magnitude[t].push_back(size);
      }

    for (const sluice_peer* peer : peers) {
      if (peer->router_enqueue == nullptr) continue;
      for (const int kind : {0, 1, 2})  // bf16 with bias, bf16, f32
        for (const int64_t tokens : counts)
          for (const int dependent : {0, 1}) {
            if (kind == 0 && s.hidden != 2880) continue;  // only gpt-oss has a bias
            if (dependent && tokens > 128) continue;
            const bool with_bias = kind == 0;
            sluice_peer_router p = {
                tokens,   s.experts, s.hidden,  device_x, device_w, with_bias ? device_bias : nullptr,
                device_y, kind == 2, dependent, 0};
            if (peer->router_supports(&p) != nullptr) continue;
            void* scratch = allocate(peer->router_scratch_bytes(&p));
            must(cudaMemset(device_y, 0xff, kMax * s.experts * 4), "poison");
            void* prepared = peer->router_prepare(&p, scratch);
            char problem[96];
            std::snprintf(problem, sizeof problem, "%ldx%ld %s M=%ld%s", s.hidden, s.experts,
                          kind == 0   ? "bias bf16"
                          : kind == 1 ? "bf16"
                                      : "f32",
                          tokens, dependent ? " pdl" : "");
            if (peer->router_enqueue(&p, scratch, prepared, stream) != 0 ||
                cudaStreamSynchronize(stream) != cudaSuccess) {
              std::printf("%-26s %-34s FAILED: %s\n", peer->name, problem,
                          cudaGetErrorString(cudaGetLastError()));
              ++failures;
              cudaFree(scratch);
              continue;
            }
            std::vector<char> y(tokens * s.experts * 4);
            must(cudaMemcpy(y.data(), device_y, tokens * s.experts * (kind == 2 ? 4 : 2),
                            cudaMemcpyDeviceToHost),
                 "y");
            double worst = 0;  // in units of the bound
            for (const int64_t t : rows)
              for (int64_t e = 0; t < tokens && e < s.experts; ++e) {
                const int64_t at = t * s.experts + e;
                const double add = with_bias ? value_of(bias[e]) : 0;
                const double found = kind == 2 ? reinterpret_cast<float*>(y.data())[at]
                                               : value_of(reinterpret_cast<uint16_t*>(y.data())[at]);
                const double wanted = exact[t][e] + add;
                // assumes `hidden` sequential f32 additions, the worst case; a bf16 result is rounded once or twice
                const double bound = s.hidden * 0x1p-24 * magnitude[t][e] +
                                     (kind == 2 ? 0x1p-23 : 0x1p-7) * (std::abs(wanted) + std::abs(add));
                const double off = std::abs(found - wanted) / bound;
                worst = std::isnan(off) ? INFINITY : std::max(worst, off);
              }
            const Times times = time_launches(stream, std::max(kLaunches, copies), [&](int i) {
              sluice_peer_router q = p;
              q.w = device_w + i % copies * w_bytes;
              if (tokens <= kMax / kRotated) {
                q.x = device_x + i % kRotated * (x_bytes / kRotated);
                q.y = device_y + i % kRotated * (kMax * s.experts * 4 / kRotated);
              }
              return peer->router_enqueue(&q, scratch, prepared, stream);
            });
            report(peer, problem, worst, 1, times);
            cudaFree(scratch);
          }
    }
    cudaFree(device_w);
    cudaFree(device_x);
    cudaFree(device_y);
    cudaFree(device_bias);
  }
}

// ---- routing ----

// The double-precision ids and weights of one row.
void route(const sluice_peer_routing& p, const float* logits, const float* bias, std::vector<int>& ids,
           std::vector<double>& weights) {
  std::vector<double> weight(p.experts), choice(p.experts);
  for (int64_t e = 0; e < p.experts; ++e) {
    const double z = logits[e];
    weight[e] = p.method == SLUICE_PEER_DEEPSEEK_V3     ? 1 / (1 + std::exp(-z))
                : p.method == SLUICE_PEER_SQRT_SOFTPLUS ? std::sqrt(std::log1p(std::exp(z)))
                                                        : std::exp(z);
    choice[e] = weight[e] + (bias != nullptr ? bias[e] : 0);
  }
  if (p.method == SLUICE_PEER_DEEPSEEK_V3 && p.groups > 1) {
    const int64_t in_group = p.experts / p.groups;
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < p.groups; ++g) {
      std::vector<double> of(choice.begin() + g * in_group, choice.begin() + (g + 1) * in_group);
      std::partial_sort(of.begin(), of.begin() + 2, of.end(), std::greater<>());
      groups.push_back({-(of[0] + of[1]), g});
    }
    std::sort(groups.begin(), groups.end());
    for (int64_t g = p.topk_groups; g < p.groups; ++g)
      std::fill_n(choice.begin() + groups[g].second * in_group, in_group, -INFINITY);
  }
  std::vector<int> order(p.experts);
  for (int64_t e = 0; e < p.experts; ++e) order[e] = static_cast<int>(e);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return choice[a] != choice[b] ? choice[a] > choice[b] : a < b; });
  ids.assign(order.begin(), order.begin() + p.top_k);
  double sum = 0;
  for (const int id : ids) sum += weight[id];
  weights.clear();
  for (const int id : ids) weights.push_back(weight[id] / sum * p.scale);
}

void check_routing(const std::vector<const sluice_peer*>& peers, cudaStream_t stream) {
  constexpr int64_t kMax = 16384;
  sluice_peer_routing problems[4] = {};
  const auto set = [&](int i, int64_t experts, int64_t top_k, int64_t groups, int64_t topk_groups, int method,
                       double scale) {
    problems[i].experts = experts, problems[i].top_k = top_k, problems[i].groups = groups;
    problems[i].topk_groups = topk_groups, problems[i].method = method, problems[i].scale = scale;
  };
  set(0, 256, 8, 8, 4, SLUICE_PEER_DEEPSEEK_V3, 2.5);
  set(1, 128, 4, 1, 1, SLUICE_PEER_SOFTMAX_CHOSEN, 1);
  set(2, 256, 6, 1, 1, SLUICE_PEER_SQRT_SOFTPLUS, 1.5);
  set(3, 384, 6, 1, 1, SLUICE_PEER_SQRT_SOFTPLUS, 1.5);
  const char* names[] = {"256x8 deepseek_v3", "128x4 softmax", "256x6 sqrt_softplus", "384x6 sqrt_softplus"};
  for (int i = 0; i < 4; ++i) {
    sluice_peer_routing p = problems[i];
    std::mt19937 generator(7);
    std::normal_distribution<float> normal(0, 1.5f);
    std::vector<float> logits(kMax * p.experts), bias(p.experts);
    for (float& v : logits) v = normal(generator);
    for (float& v : bias) v = normal(generator) * 0.1f;
    auto* device_logits = static_cast<float*>(allocate(logits.size() * 4));
    auto* device_bias = static_cast<float*>(allocate(bias.size() * 4));
    must(cudaMemcpy(device_logits, logits.data(), logits.size() * 4, cudaMemcpyHostToDevice), "logits");
    must(cudaMemcpy(device_bias, bias.data(), bias.size() * 4, cudaMemcpyHostToDevice), "bias");
    const bool has_bias = p.method != SLUICE_PEER_SOFTMAX_CHOSEN;
    p.logits = device_logits;
    p.bias = has_bias ? device_bias : nullptr;
    p.ids = static_cast<int32_t*>(allocate(kMax * p.top_k * 4));
    p.weights = static_cast<float*>(allocate(kMax * p.top_k * 4));
    for (const sluice_peer* peer : peers) {
      if (peer->routing_enqueue == nullptr) continue;
      for (p.what = 0; p.what < 2; ++p.what)
        for (const int64_t tokens : {1, 2, 8, 32, 128, 512, 2048, 16384})
          for (const int dependent : {0, 1}) {
            p.tokens = tokens;
            p.dependent = dependent;
            if (peer->routing_supports(&p) != nullptr) continue;
            p.scratch = allocate(peer->routing_scratch_bytes(&p));
            must(cudaMemset(p.ids, 0xff, kMax * p.top_k * 4), "poison");
            must(cudaMemset(p.weights, 0xff, kMax * p.top_k * 4), "poison");
            char problem[96];
            std::snprintf(problem, sizeof problem, "%s%s M=%ld%s", names[i], p.what ? " +rows" : "", tokens,
                          dependent ? " pdl" : "");
            if (peer->routing_enqueue(&p, stream) != 0 || cudaStreamSynchronize(stream) != cudaSuccess) {
              std::printf("%-26s %-34s FAILED: %s\n", peer->name, problem,
                          cudaGetErrorString(cudaGetLastError()));
              ++failures;
              continue;
            }
            std::vector<int32_t> ids(tokens * p.top_k);
            std::vector<float> weights(tokens * p.top_k);
            must(cudaMemcpy(ids.data(), p.ids, ids.size() * 4, cudaMemcpyDeviceToHost), "ids");
            must(cudaMemcpy(weights.data(), p.weights, weights.size() * 4, cudaMemcpyDeviceToHost),
                 "weights");
            double worst = 0;
            int64_t other_rows = 0;
            std::vector<int> wanted;
            std::vector<double> wanted_weights;
            for (int64_t t = 0; t < std::min<int64_t>(tokens, 512); ++t) {
              route(p, logits.data() + t * p.experts, has_bias ? bias.data() : nullptr, wanted,
                    wanted_weights);
              std::map<int, double> found;
              for (int64_t k = 0; k < p.top_k; ++k) found[ids[t * p.top_k + k]] = weights[t * p.top_k + k];
              bool same = true;
              for (const int id : wanted) same = same && found.count(id) != 0;
              // f32 may decide near ties differently: at most in a few of a thousand rows.
              other_rows += !same;
              for (int64_t k = 0; same && k < p.top_k; ++k)
                worst = std::max(worst, std::abs(found[wanted[k]] - wanted_weights[k]));
            }
            if (other_rows > 2) worst = INFINITY;
            const Times times = time_launches(stream, kLaunches, [&](int j) {
              sluice_peer_routing q = p;
              const int64_t room = kMax / tokens;
              q.logits = device_logits + j % room * tokens * p.experts;
              return peer->routing_enqueue(&q, stream);
            });
            report(peer, problem, worst, 2e-5, times);
            cudaFree(p.scratch);
          }
    }
    cudaFree(device_logits);
    cudaFree(device_bias);
    cudaFree(p.ids);
    cudaFree(p.weights);
  }
}

std::vector<const sluice_peer*> load(const char* folder) {
  std::vector<std::string> files;
  DIR* dir = opendir(folder);
  for (const dirent* entry; dir != nullptr && (entry = readdir(dir)) != nullptr;) {
    const std::string name = entry->d_name;
    if (name.rfind("peer_", 0) == 0 && name.size() > 3 && name.compare(name.size() - 3, 3, ".so") == 0)
      files.push_back(std::string(folder) + "/" + name);
  }
  if (dir != nullptr) closedir(dir);
  std::sort(files.begin(), files.end());
  std::vector<const sluice_peer*> peers;
  for (const std::string& file : files) {
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "peer_check: %s\n", dlerror());
      ++failures;
      continue;
    }
    const auto list = reinterpret_cast<decltype(&sluice_peers)>(dlsym(library, "sluice_peers"));
    int count = 0;
    const sluice_peer* const* found = list == nullptr ? nullptr : list(&count);
    for (int i = 0; i < count; ++i) {
      std::printf("%-26s %s\n", found[i]->name, found[i]->version);
      peers.push_back(found[i]);
    }
  }
  return peers;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: peer_check FOLDER [router | routing]\n");
    return 2;
  }
  must(cudaFree(nullptr), "wanted a GPU, found none");
  const auto peers = load(argv[1]);
  if (peers.empty()) {
    std::fprintf(stderr, "peer_check: wanted a folder with peer_*.so, found none in %s\n", argv[1]);
    return 2;
  }
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const std::string part = argc == 3 ? argv[2] : "";
  if (part != "routing") check_router(peers, stream);
  if (part != "router") check_routing(peers, stream);
  std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}
