#include "cpu_suite.h"

#include <algorithm>
#include <iomanip>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>

#include "backends/cpu/device.h"
#include "bandwidth.h"
#include "base/random.h"
#include "dispatch/plan.h"
#include "ops/expert_gemm.h"

namespace sluice::bench {
namespace {

// Performance goals of the kernels.
constexpr double kReadShareGoal = 0.60, kSgemmGoal = 1.50;

struct Layer {
  Tensor w[2], scales[2];  // gate and up, down
};

// Grouped row r belongs to the (token, expert) pair order[r] = token * top_k + slot.
struct Routing {
  std::vector<int32_t> row_begin, row_count, order;
  int64_t active = 0;
};

struct Measured {
  int64_t tokens = 0;
  std::string_view kernels[2];
  Sample time;
  double bytes = 0, flops = 0;  // per run; bytes: of the weights only
  double sgemm_us = 0;          // 0: not measured
};

class CpuSuite {
 public:
  CpuSuite(const CpuBenchOptions& options, std::unique_ptr<Device> device)
      : options_(options), shape_(options.shape), device_(std::move(device)), random_(7) {}
  ~CpuSuite() {
    for (void* block : blocks_) device_->release(block);
  }

  Status run(std::ostream& out) {
    SLUICE_TRY(measure_reading());
    for (int64_t tokens : options_.tokens) rows_.push_back({.tokens = tokens, .kernels = {}, .time = {}});
    SLUICE_TRY(measure_sgemm());
    SLUICE_TRY(make_layers());
    for (Measured& row : rows_) {
      SLUICE_TRY(measure_tokens(&row));
      SLUICE_TRY(measure_reading());  // measured again, because other processes may use memory bandwidth
    }
    options_.format == Format::kJson ? print_json(out) : print_text(out);
    return {};
  }

 private:
  Status measure_reading() {
    const Result<double> now = read_bytes_per_us(*device_);
    if (!now.ok()) return now.status();
    readings_.push_back(now.value());
    std::sort(readings_.begin(), readings_.end());
    read_bytes_per_us_ = readings_.back();
    return {};
  }

  ExpertGemm::Problem problem(int64_t tokens, bool down) const {
    ExpertGemm::Problem p{.rows = tokens * shape_.top_k, .experts = shape_.experts};
    p.features = down ? shape_.width : shape_.features;
    p.width = down ? shape_.features : shape_.width;
    p.bias = true;
    if (down) return p;
    p.tokens = tokens;
    p.slots = shape_.top_k;
    p.act = Activation::kSwiGluClamped;
    p.alpha = 1.702;
    p.beta = 1;
    p.limit = 7;
    return p;
  }

  Result<Tensor> allocate(DType type, std::initializer_list<int64_t> shape) {
    Tensor t = make_tensor(nullptr, type, shape);
    const auto bytes = static_cast<size_t>(bytes_of(type, elements_of(t)));
    Result<void*> memory = device_->allocate(bytes);
    if (!memory.ok()) return memory.status();
    blocks_.push_back(memory.value());
    t.data = memory.value();
    // Repeats a block of random bytes: every MXFP4 code is a finite number. The caller overwrites scales and floats.
    auto* out = static_cast<uint8_t*>(t.data);
    std::vector<uint32_t> some(1 << 14);
    for (uint32_t& word : some) word = random_.bits();
    for (size_t i = 0; i < bytes; i += some.size() * sizeof(uint32_t))
      std::memcpy(out + i, some.data(), std::min(some.size() * sizeof(uint32_t), bytes - i));
    return t;
  }

  Status fill_bf16(Tensor* t, std::initializer_list<int64_t> shape) {
    Result<Tensor> made = allocate(DType::kBF16, shape);
    if (!made.ok()) return made.status();
    *t = made.value();
    for (int64_t i = 0; i < elements_of(*t); ++i)
      t->as<BF16>()[i] = to_bf16(static_cast<float>(random_.uniform() - 0.5));
    return {};
  }

  Status make_layers() {
    for (int i = 0; i < options_.layers; ++i) {
      Layer layer;
      for (bool down : {false, true}) {
        const PanelShape s = ExpertGemm::panels(problem(1, down));
        Result<Tensor> w = allocate(DType::kU8, {shape_.experts, s.code_bytes({DType::kE2M1})});
        if (!w.ok()) return w.status();
        Result<Tensor> scales = allocate(DType::kU8, {shape_.experts, s.scale_bytes({DType::kE2M1})});
        if (!scales.ok()) return scales.status();
        for (int64_t k = 0; k < elements_of(scales.value()); ++k) {
          uint8_t& scale = scales.value().as<uint8_t>()[k];
          scale = static_cast<uint8_t>(116 + scale % 8);
        }
        layer.w[down] = w.value();
        layer.scales[down] = scales.value();
      }
      layers_.push_back(layer);
    }
    const int64_t tokens = *std::max_element(options_.tokens.begin(), options_.tokens.end());
    SLUICE_TRY(fill_bf16(&x_, {tokens, shape_.width}));
    SLUICE_TRY(fill_bf16(&middle_, {tokens * shape_.top_k, shape_.features}));
    SLUICE_TRY(fill_bf16(&y_, {tokens * shape_.top_k, shape_.width}));
    SLUICE_TRY(fill_bf16(&bias_[0], {shape_.experts, 2 * shape_.features}));
    return fill_bf16(&bias_[1], {shape_.experts, shape_.width});
  }

  // Each token takes top_k different experts, all equally likely. Successive calls for one token choose different experts until every
  // expert has been chosen, so that weights are cold.
  Routing route(int64_t tokens) {
    std::vector<std::vector<int32_t>> of(static_cast<size_t>(shape_.experts));
    for (int64_t t = 0; t < tokens; ++t) {
      if (tokens > 1 || static_cast<int64_t>(deck_.size()) < shape_.top_k) {
        deck_.resize(static_cast<size_t>(shape_.experts));
        std::iota(deck_.begin(), deck_.end(), 0);
      }
      for (int64_t k = 0; k < shape_.top_k; ++k) {
        std::swap(deck_.back(),
                  deck_[static_cast<size_t>(random_.integer(0, static_cast<int64_t>(deck_.size()) - 1))]);
        of[static_cast<size_t>(deck_.back())].push_back(static_cast<int32_t>(t * shape_.top_k + k));
        deck_.pop_back();
      }
    }
    Routing out;
    out.row_begin.push_back(0);
    for (const auto& slots : of) {
      out.row_count.push_back(static_cast<int32_t>(slots.size()));
      out.order.insert(out.order.end(), slots.begin(), slots.end());
      out.row_begin.push_back(static_cast<int32_t>(out.order.size()));
      out.active += !slots.empty();
    }
    return out;
  }

  Status measure_sgemm() {
    SgemmExperts sgemm(shape_, device_->info().cores);
    if (!sgemm.ready()) return out_of_memory("bench: not enough memory for one layer of experts in f32");
    for (Measured& row : rows_) {
      if (std::count(options_.sgemm_tokens.begin(), options_.sgemm_tokens.end(), row.tokens) == 0) continue;
      const Routing routing = route(row.tokens);
      row.sgemm_us = sgemm.run(routing.row_count, 5).median_us;
    }
    return {};
  }

  static Tensor vector_of(std::vector<int32_t>& v) {
    return make_tensor(v.data(), DType::kI32, {static_cast<int64_t>(v.size())});
  }
  static Tensor first_rows(Tensor t, int64_t rows) { return t.shape[0] = rows, t; }

  ExpertGemm::Args args(const Layer& layer, Routing& routing, int64_t tokens, bool down) const {
    const int64_t rows = tokens * shape_.top_k;
    return {.x = down ? first_rows(middle_, rows) : first_rows(x_, tokens),
            .w = layer.w[down],
            .w_scale = layer.scales[down],
            .bias = bias_[down],
            .act_params = {},
            .row_begin = vector_of(routing.row_begin),
            .row_count = vector_of(routing.row_count),
            .order = down ? Tensor{} : vector_of(routing.order),
            .weights = {},
            .y = first_rows(down ? y_ : middle_, rows)};
  }

  Status measure_tokens(Measured* row) {
    const auto up = make_plan<ExpertGemm>(*device_, problem(row->tokens, false));
    if (!up.ok()) return up.status();
    const auto down = make_plan<ExpertGemm>(*device_, problem(row->tokens, true));
    if (!down.ok()) return down.status();
    row->kernels[0] = up.value().kernel();
    row->kernels[1] = down.value().kernel();
    const size_t bytes = std::max(up.value().workspace_bytes(), down.value().workspace_bytes());
    Result<void*> memory = device_->allocate(bytes);
    if (!memory.ok()) return memory.status();
    const Workspace workspace{static_cast<std::byte*>(memory.value()), bytes};
    Routing routing;
    Status status;
    double active = 0, runs = 0;
    row->time = measure(
        [&](int64_t) {
          routing = route(row->tokens);
          active += static_cast<double>(routing.active);
          ++runs;
        },
        [&](int64_t i) {
          const Layer& layer = layers_[static_cast<size_t>(i) % layers_.size()];
          for (const Plan<ExpertGemm>* plan : {&up.value(), &down.value()}) {
            if (!status.ok()) return;
            status = plan->run(args(layer, routing, row->tokens, plan == &down.value()), workspace,
                               device_->stream());
          }
        },
        11, 1e6);
    device_->release(memory.value());
    for (bool d : {false, true}) {
      const PanelShape s = ExpertGemm::panels(problem(1, d));
      row->bytes +=
          active / runs * static_cast<double>(s.code_bytes({DType::kE2M1}) + s.scale_bytes({DType::kE2M1}));
      row->flops += ExpertGemm::flops(problem(row->tokens, d));
    }
    return status;
  }

  double read_share(const Measured& m) const { return m.bytes / m.time.median_us / read_bytes_per_us_; }

  void print_text(std::ostream& out) const {
    out << std::fixed << "device   " << text(device_->info()) << "\nlayer    experts " << shape_.experts
        << ", top " << shape_.top_k << ", width " << shape_.width << ", features " << shape_.features
        << "; mxfp4 weights, " << options_.layers
        << " layers in rotation; bf16 activations\nceiling  reading " << std::setprecision(1)
        << read_bytes_per_us_ / 1e3 << " GB/s (measured between rows: " << readings_.front() / 1e3 << " to "
        << readings_.back() / 1e3 << ")\n\n"
        << "tokens       ms [   p10,    p90]   GB/s  of read  GFLOP/s  sgemm ms  times sgemm  kernels\n";
    for (const Measured& m : rows_) {
      out << std::setw(6) << m.tokens << std::setprecision(2) << std::setw(9) << m.time.median_us / 1e3
          << " [" << std::setw(6) << m.time.p10_us / 1e3 << ", " << std::setw(6) << m.time.p90_us / 1e3 << "]"
          << std::setprecision(1) << std::setw(7) << m.bytes / m.time.median_us / 1e3 << std::setw(8)
          << std::setprecision(0) << 100 * read_share(m) << "%" << std::setw(9)
          << m.flops / m.time.median_us / 1e3;
      if (m.sgemm_us > 0) {
        out << std::setprecision(1) << std::setw(10) << m.sgemm_us / 1e3 << std::setw(13)
            << m.sgemm_us / m.time.median_us;
      } else {
        out << std::setw(10) << "-" << std::setw(13) << "-";
      }
      out << "  " << m.kernels[0];
      if (m.kernels[1] != m.kernels[0]) out << ", " << m.kernels[1];
      out << "\n";
    }
    out << "\n" << std::setprecision(2);
    for (const Measured& m : rows_) {
      if (m.tokens == 1) print_goal(out, "tokens 1: share of read bandwidth", read_share(m), kReadShareGoal);
      if (m.tokens == 256 && m.sgemm_us > 0)
        print_goal(out, "tokens 256: times OpenBLAS sgemm", m.sgemm_us / m.time.median_us, kSgemmGoal);
    }
  }

  static void print_goal(std::ostream& out, const char* what, double reached, double goal) {
    out << what << " " << reached << ", goal " << goal << ": " << (reached >= goal ? "reached" : "missed")
        << "\n";
  }

  void print_json(std::ostream& out) const {
    out << "{\"device\": \"" << text(device_->info()) << "\", \"read_bytes_per_us\": " << read_bytes_per_us_
        << ", \"rows\": [";
    for (const Measured& m : rows_) {
      out << (&m == rows_.data() ? "" : ", ") << "{\"tokens\": " << m.tokens
          << ", \"median_us\": " << m.time.median_us << ", \"p10_us\": " << m.time.p10_us
          << ", \"p90_us\": " << m.time.p90_us << ", \"weight_bytes\": " << m.bytes
          << ", \"flops\": " << m.flops << ", \"sgemm_us\": " << m.sgemm_us << ", \"kernels\": [\""
          << m.kernels[0] << "\", \"" << m.kernels[1] << "\"]}";
    }
    out << "]}\n";
  }

  CpuBenchOptions options_;
  ExpertShape shape_;
  std::unique_ptr<Device> device_;
  Random random_;
  double read_bytes_per_us_ = 0;  // the highest of readings_
  std::vector<double> readings_;  // ascending
  std::vector<void*> blocks_;
  std::vector<Layer> layers_;
  Tensor x_, middle_, y_, bias_[2];
  std::vector<int32_t> deck_;
  std::vector<Measured> rows_;
};

}  // namespace

Status run_cpu_suite(const CpuBenchOptions& options, std::ostream& out) {
  auto device = cpu::open_device({.threads = options.threads});
  if (!device.ok()) return device.status();
  return CpuSuite(options, std::move(device.value())).run(out);
}

}  // namespace sluice::bench
