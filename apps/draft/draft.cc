#include "apps/draft/draft.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <memory>

#include "apps/common/session.h"
#include "backends/backends.h"
#include "base/random.h"
#include "models/mtp.h"
#include "nn/owned_tensor.h"

namespace sluice::apps {
namespace {

constexpr int kRepeats = 7;
constexpr int64_t kPage = 16;

Status check_counts(const DraftOptions& o) {
  if (o.tokens.empty()) return invalid("tokens: wanted at least one count, found none");
  for (int64_t tokens : o.tokens)
    if (tokens < 1 || tokens > 1024)
      return invalid("tokens: wanted 1 to 1024, found " + std::to_string(tokens));
  if (o.context >= 0 && o.context < 1 << 20) return {};
  return invalid("context: wanted 0 to " + std::to_string((1 << 20) - 1) + ", found " +
                 std::to_string(o.context));
}

Result<DType> router_dtype_of(const std::string& name) {
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  const std::string known[] = {"float32", "bfloat16"};
  return unknown_name("--router-dtype", name, known);
}

// Steps of up to `most` sequences, with one token each at position `context`. Owns all tensors except the weights, in memory that the
// host and the layer's device can access.
class Steps {
 public:
  static Result<std::unique_ptr<Steps>> make(Device& device, const LoadedMtp& layer, int64_t most,
                                             int64_t context, uint64_t seed) {
    StepBounds bounds{.tokens = most, .sequences = most, .positions = context + 1, .page_size = kPage};
    bounds.pages = most * bounds.pages_per_seq();
    auto mtp = Mtp::plan(device, layer.config(), bounds, {}, layer.experts());
    if (!mtp.ok()) return mtp.status();
    std::unique_ptr<Steps> out(new Steps(device, layer, std::move(mtp).value()));
    SLUICE_TRY(out->allocate(bounds));
    SLUICE_TRY(out->fill(context, seed));
    return out;
  }
  const Mtp& mtp() const { return *mtp_; }

  Result<StepTiming> time(int64_t tokens) {
    StepTiming out{.tokens = tokens, .kernels = mtp_->kernels(tokens, tokens)};
    std::vector<double> ms;
    std::vector<std::byte> first;
    for (int i = -1; i < kRepeats; ++i) {  // the first run warms up
      const auto begin = Clock::now();
      SLUICE_TRY(step(tokens));
      if (i >= 0) ms.push_back(ms_since(begin));
      const auto* bytes = logits_.view().as<std::byte>();
      const std::vector<std::byte> now(bytes, bytes + tokens * layer_.config().vocab * 4);
      if (i < 0) first = now;
      out.same_bits &= now == first;
    }
    out.take(std::move(ms));
    return out;
  }

 private:
  Steps(Device& device, const LoadedMtp& layer, std::unique_ptr<Mtp> mtp)
      : device_(device), layer_(layer), mtp_(std::move(mtp)) {}

  Status allocate(const StepBounds& b) {
    const MtpConfig& c = layer_.config();
    const auto take = [&](OwnedTensor* to, DType dtype, std::initializer_list<int64_t> shape) -> Status {
      auto made = OwnedTensor::make(device_, slot("", Role::kIn, dtype, shape), "draft");
      if (!made.ok()) return made.status();
      return *to = std::move(made).value(), Status{};
    };
    const auto i32 = [&](OwnedTensor* to, std::initializer_list<int64_t> shape) {
      return take(to, DType::kI32, shape);
    };
    SLUICE_TRY(i32(&ids_, {b.tokens}));
    SLUICE_TRY(i32(&positions_, {b.tokens}));
    SLUICE_TRY(i32(&slots_, {b.tokens}));
    SLUICE_TRY(i32(&rows_, {b.tokens}));
    SLUICE_TRY(i32(&begins_, {b.sequences + 1}));
    SLUICE_TRY(i32(&lengths_, {b.sequences}));
    SLUICE_TRY(i32(&pages_, {b.sequences, b.pages_per_seq()}));
    SLUICE_TRY(take(&rope_, DType::kF32, {b.positions, c.attention.rope / 2, 2}));
    SLUICE_TRY(take(&main_, c.x, {b.tokens, c.hidden}));
    SLUICE_TRY(take(&hidden_, c.x, {b.tokens, c.hidden}));
    SLUICE_TRY(take(&logits_, DType::kF32, {b.sequences, c.vocab}));
    SLUICE_TRY(take(&cache_, DType::kU8, {mtp_->cache_bytes()}));
    return take(&workspace_, DType::kU8, {static_cast<int64_t>(mtp_->workspace_bytes())});
  }

  Status fill(int64_t context, uint64_t seed) {
    const MtpConfig& c = layer_.config();
    const StepBounds& b = mtp_->bounds();
    Random random(seed);
    for (int64_t t = 0; t < b.tokens; ++t) {
      ids_.view().as<int32_t>()[t] = static_cast<int32_t>(random.integer(0, c.vocab - 1));
      positions_.view().as<int32_t>()[t] = static_cast<int32_t>(context);
      slots_.view().as<int32_t>()[t] = static_cast<int32_t>(t * b.pages_per_seq() * kPage + context);
      rows_.view().as<int32_t>()[t] = static_cast<int32_t>(t);
    }
    for (int64_t i = 0; i < b.pages; ++i) pages_.view().as<int32_t>()[i] = static_cast<int32_t>(i);
    const auto normal = [&](const Tensor& to) {
      for (int64_t i = 0; i < elements_of(to); ++i) {
        const auto value = static_cast<float>(random.normal());
        if (to.dtype == DType::kBF16) to.as<BF16>()[i] = to_bf16(value);
        if (to.dtype == DType::kF32) to.as<float>()[i] = value;
      }
    };
    normal(main_.view());
    const Tensor cache = mtp_->cache(cache_.view().data);
    normal(cache);
    auto held = mtp_->bind(layer_.weights(), cache);
    if (!held.ok()) return held.status();
    held_ = std::move(held).value();
    return rope_table(c.rope, b.positions, c.attention.rope, rope_.view().as<float>());
  }

  Status step(int64_t tokens) {
    const auto first = [&](const OwnedTensor& t) {
      Tensor view = t.view();
      return view.shape[0] = tokens, view;
    };
    // Sequences beyond the step's own have no rows.
    for (int64_t s = 0; s < mtp_->bounds().sequences; ++s) {
      begins_.view().as<int32_t>()[s + 1] = static_cast<int32_t>(std::min(s + 1, tokens));
      lengths_.view().as<int32_t>()[s] = s < tokens ? static_cast<int32_t>(mtp_->bounds().positions) : 0;
    }
    begins_.view().as<int32_t>()[0] = 0;
    const MtpIn in{.token_ids = first(ids_),
                   .hidden = first(main_),
                   .tables = {.positions = first(positions_),
                              .slot_of = first(slots_),
                              .q_begin = begins_.view(),
                              .kv_len = lengths_.view(),
                              .page_table = pages_.view(),
                              .rope = rope_.view()},
                   .logit_rows = first(rows_)};
    SLUICE_TRY(mtp_->forward(in, held_, {.hidden = hidden_.view(), .logits = first(logits_)},
                             {workspace_.view().as<std::byte>(), mtp_->workspace_bytes()}, device_.stream()));
    return device_.wait(device_.stream());
  }

  Device& device_;
  const LoadedMtp& layer_;
  std::unique_ptr<Mtp> mtp_;
  MtpHeld held_;
  OwnedTensor ids_, positions_, slots_, rows_, begins_, lengths_, pages_, rope_, main_, hidden_, logits_,
      cache_, workspace_;
};

void print(std::ostream* words, const char* format, ...) __attribute__((format(printf, 2, 3)));
void print(std::ostream* words, const char* format, ...) {
  if (!words) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *words << line << std::flush;
}

}  // namespace

Result<DraftReport> run_draft(const DraftOptions& o, std::ostream* words) {
  SLUICE_TRY(check_counts(o));
  if (o.model.empty()) return invalid("model: wanted a directory with a draft layer, found none");
  const auto directory = model_directory(o.model);
  if (!directory.ok()) return directory.status();
  const auto dtype = dtype_of(o.dtype);
  if (!dtype.ok()) return dtype.status();
  const auto router = router_dtype_of(o.router_dtype);
  if (!router.ok()) return router.status();
  auto device = open_device({.threads = o.threads});
  if (!device.ok()) return device.status();
  std::unique_ptr<Device> gpu;
  if (o.experts == "cuda" || o.speculative_moe_backend == "cuda") {
    auto opened = open_device({.backend = Backend::kCuda});
    if (!opened.ok()) return opened.status();
    gpu = std::move(opened).value();
  }
  const auto begin = Clock::now();
  auto loaded = LoadedMtp::load(*device.value(), directory.value(),
                                {.draft = o.layer,
                                 .x = dtype.value(),
                                 .experts = o.experts.empty() ? nullptr : gpu.get(),
                                 .router_logits = router.value(),
                                 .speculative_moe_backend = o.speculative_moe_backend,
                                 .speculative_router_dtype = o.speculative_router_dtype,
                                 .spare = gpu.get()});
  if (!loaded.ok()) return loaded.status();
  const LoadedMtp& layer = *loaded.value();
  DraftReport report{.model = o.model,
                     .device = text(device.value()->info()),
                     .experts = text((layer.experts() ? *layer.experts() : *device.value()).info()),
                     .router_dtype = text(layer.config().moe.logits),
                     .layer = layer.layer(),
                     .weight_bytes = static_cast<double>(layer.weight_bytes()),
                     .load_seconds = ms_since(begin) / 1e3,
                     .timings = {}};
  print(words, "%s: draft layer %lld, %.1f MB, loaded and checked in %.1f s\n", o.model.c_str(),
        static_cast<long long>(report.layer), report.weight_bytes / 1e6, report.load_seconds);
  print(words, "on       %s\nexperts  %s, router scores in %s\n", report.device.c_str(),
        report.experts.c_str(), report.router_dtype.c_str());
  const int64_t most = *std::max_element(o.tokens.begin(), o.tokens.end());
  auto steps = Steps::make(*device.value(), layer, most, o.context, o.seed);
  if (!steps.ok()) return steps.status();
  print(words, "\nrun      %8s %10s %10s %10s  same bits from run to run\n", "tokens", "ms", "fastest",
        "slowest");
  for (int64_t tokens : o.tokens) {
    auto timed = steps.value()->time(tokens);
    if (!timed.ok()) return timed.status();
    const StepTiming& t = report.timings.emplace_back(std::move(timed).value());
    print(words, "         %8lld %10.3f %10.3f %10.3f  %s\n", static_cast<long long>(t.tokens), t.median_ms,
          t.fastest_ms, t.slowest_ms, t.same_bits ? "yes" : "NO");
    if (!t.same_bits) return Status{Code::kCorrupt, "draft: the layer gave different bits from run to run"};
  }
  print(words, "\n");
  for (const auto& [stage, kernel] : report.timings.back().kernels)
    print(words, "         %-18s %s\n", stage.c_str(), kernel.c_str());
  return report;
}

}  // namespace sluice::apps
