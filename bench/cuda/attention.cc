// Attention over pages: decode steps of many sequences, and prompts.
#include <algorithm>
#include <numeric>

#include "backends/cuda/queue.h"
#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/attention.h"

namespace sluice::bench {
namespace {

constexpr int64_t kTableSequences = 1024, kPage = 16;
constexpr int64_t kPositionsMax = 1 << 21;               // over all sequences
constexpr int64_t kDecodes = 32, kDecodeContext = 1024;  // decode sequences in a prompt's batch
// Over e4m3 caches a baseline's error may be this many times the operation's bound, because it rounds queries and weights to e4m3 too.
constexpr double kPeerBoundsE4M3 = 16;

struct Heads {
  const char* model;  // heads, kv heads, elements per head
  int64_t q, kv, dim;
  bool sinks;
};
constexpr Heads kGptOss = {"64x8x64", 64, 8, 64, true}, kQwen3 = {"32x4x128", 32, 4, 128, false};

// `sequences` sequences of `rows` rows each, which end at position `context`, followed by `decodes` sequences of one row at
// kDecodeContext.
struct AttentionShape {
  int64_t sequences = 1, rows = 1, context = 1024, window = 0;
  CacheType cache = CacheType::kSame;
  int64_t decodes = 0;
  Heads heads = kGptOss;
  int64_t all() const { return sequences + decodes; }
  int64_t tokens() const { return sequences * rows + decodes; }
  int64_t pages() const { return (context + kPage - 1) / kPage; }  // per sequence
  // The mean number of positions that a row attends to.
  double seen() const {
    const auto all = static_cast<double>(context), mine = static_cast<double>(rows);
    const double causal = all - (mine - 1) / 2;
    return window > 0 ? std::min(causal, static_cast<double>(window)) : causal;
  }
  double decode_seen() const {
    return static_cast<double>(window > 0 ? std::min(window, kDecodeContext) : kDecodeContext);
  }
  double cache_bytes() const {
    const double keys =
        window > 0 ? static_cast<double>(std::min(context, window + rows - 1)) : static_cast<double>(context);
    return (static_cast<double>(sequences) * keys + static_cast<double>(decodes) * decode_seen()) *
           static_cast<double>(2 * bytes_of(cache_type(), heads.kv * heads.dim));
  }
  double bytes() const {
    return cache_bytes() + 4.0 * static_cast<double>(tokens()) * static_cast<double>(heads.q * heads.dim);
  }
  double flops() const {
    return 4.0 * static_cast<double>(heads.q * heads.dim) *
           (static_cast<double>(sequences * rows) * seen() + static_cast<double>(decodes) * decode_seen());
  }
  DType cache_type() const { return cache_dtype(cache, DType::kBF16); }
  std::string note() const {
    return "context " + std::to_string(context) +
           (window > 0 ? " window " + std::to_string(window) : std::string()) +
           (cache == CacheType::kE4M3 ? " e4m3" : "") +
           (decodes > 0
                ? " beside " + std::to_string(decodes) + " decodes at " + std::to_string(kDecodeContext)
                : "");
  }
};

class Attend {
 public:
  Attend(Device& device, const AttentionShape& shape, int64_t cold_bytes)
      : shape_(shape), cold_bytes_(cold_bytes), memory_(device) {}

  Attention::Problem problem() const {
    return {.tokens = shape_.tokens(),
            .sequences = kTableSequences,
            .heads = shape_.heads.q,
            .kv_heads = shape_.heads.kv,
            .head_dim = shape_.heads.dim,
            .pages = pages_,
            .page_size = kPage,
            .pages_per_seq = shape_.pages(),
            .window = shape_.window,
            .rows_max = shape_.decodes > 0 ? 0 : shape_.rows,  // unknown in mixed steps
            .cache = shape_.cache,
            .sinks = shape_.heads.sinks,
            .settled = true};  // as nn/attention.cc plans it
  }
  Memory& memory() { return memory_; }

  Status make() {
    const int64_t of_run = shape_.all() * shape_.pages(), sets = cold_sets(cold_bytes_, shape_.cache_bytes());
    pages_ = sets * of_run;
    for (Tensor* cache : {&k_cache_, &v_cache_})
      SLUICE_TRY(
          memory_.random(shape_.cache_type(), {pages_, shape_.heads.kv, kPage, shape_.heads.dim}, 1, cache));
    SLUICE_TRY(
        memory_.random(DType::kBF16, {shape_.tokens(), shape_.heads.q, shape_.heads.dim}, 1, kTurns, &q_));
    SLUICE_TRY(
        memory_.several(DType::kBF16, {shape_.tokens(), shape_.heads.q, shape_.heads.dim}, kTurns, &y_));
    SLUICE_TRY(memory_.random(DType::kBF16, {shape_.heads.q}, 1, &sinks_));
    SLUICE_TRY(page_tables(memory_, sets, of_run, kTableSequences, shape_.pages(), &tables_, &table_));
    for (int64_t s = 0; s <= kTableSequences; ++s)
      host_q_begin_.push_back(
          static_cast<int32_t>(std::min(s, shape_.sequences) * shape_.rows +
                               std::clamp<int64_t>(s - shape_.sequences, 0, shape_.decodes)));
    for (int64_t s = 0; s < kTableSequences; ++s)
      host_kv_len_.push_back(static_cast<int32_t>(s < shape_.sequences ? shape_.context
                                                  : s < shape_.all()   ? kDecodeContext
                                                                       : 0));
    SLUICE_TRY(memory_.upload(host_q_begin_, {kTableSequences + 1}, &q_begin_));
    return memory_.upload(host_kv_len_, {kTableSequences}, &kv_len_);
  }
  Attention::Args args(int64_t i) const {
    return {.q = turn(q_, i),
            .k_cache = k_cache_,
            .v_cache = v_cache_,
            .page_table = turn(tables_, i),
            .q_begin = q_begin_,
            .kv_len = kv_len_,
            .sinks = shape_.heads.sinks ? sinks_ : Tensor{},
            .y = turn(y_, i)};
  }
  sluice_peer_attention peer_args(int64_t i) const {
    const Attention::Args a = args(i);
    return {.tokens = shape_.tokens(),
            .sequences = shape_.all(),
            .heads = shape_.heads.q,
            .kv_heads = shape_.heads.kv,
            .head_dim = shape_.heads.dim,
            .pages = pages_,
            .page_size = kPage,
            .pages_per_seq = shape_.pages(),
            .window = shape_.window,
            .scale = problem().scale,
            .cache_is_e4m3 = shape_.cache == CacheType::kE4M3,
            .dependent = 1,
            .q = a.q.data,
            .k_cache = a.k_cache.data,
            .v_cache = a.v_cache.data,
            .page_table = static_cast<const int32_t*>(a.page_table.data),
            .q_begin = static_cast<const int32_t*>(a.q_begin.data),
            .kv_len = static_cast<const int32_t*>(a.kv_len.data),
            .sinks = a.sinks.data,
            .y = a.y.data,
            .host_q_begin = host_q_begin_.data(),
            .host_kv_len = host_kv_len_.data()};
  }
  Status poison() { return bench::poison(y_[0], memory_.stream()); }

  // Checks the first kv head in some rows of run 0.
  Result<std::string> check(Who who) {
    const double bounds = who != Who::kPeer                  ? 1
                          : shape_.cache == CacheType::kE4M3 ? kPeerBoundsE4M3
                                                             : kPeerBounds;
    for (const int64_t row : {int64_t{0}, shape_.rows / 2, shape_.tokens() - 1}) {
      Result<std::string> wrong = check_row(row, bounds);
      if (!wrong.ok() || !wrong.value().empty()) return wrong;
    }
    return std::string();
  }

 private:
  // A view of some contiguous elements.
  static Tensor part(const Tensor& t, int64_t first, std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<std::byte*>(t.data) + bytes_of(t.dtype, first), t.dtype, shape, t.where);
  }
  Result<std::string> check_row(int64_t row, double bounds) {
    const int64_t group = shape_.heads.q / shape_.heads.kv;
    const int64_t of_prompts = shape_.sequences * shape_.rows, pages = shape_.pages();
    const bool decodes = row >= of_prompts;
    const int64_t sequence = decodes ? shape_.sequences + row - of_prompts : row / shape_.rows;
    std::string k_bytes, v_bytes;
    for (int64_t i = 0; i < pages; ++i) {
      const int64_t at =
          table_[static_cast<size_t>(sequence * pages + i)] * shape_.heads.kv * kPage * shape_.heads.dim;
      HostTensor k, v;
      SLUICE_TRY(to_host(memory_.device(), part(k_cache_, at, {kPage, shape_.heads.dim}), &k));
      SLUICE_TRY(to_host(memory_.device(), part(v_cache_, at, {kPage, shape_.heads.dim}), &v));
      k_bytes += k.bytes, v_bytes += v.bytes;
    }
    HostTensor q, sinks, got;
    SLUICE_TRY(to_host(memory_.device(),
                       part(q_[0], row * shape_.heads.q * shape_.heads.dim, {1, group, shape_.heads.dim}),
                       &q));
    SLUICE_TRY(to_host(memory_.device(),
                       part(y_[0], row * shape_.heads.q * shape_.heads.dim, {1, group, shape_.heads.dim}),
                       &got));
    SLUICE_TRY(to_host(memory_.device(), part(sinks_, 0, {group}), &sinks));
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    int32_t begin[] = {0, 1};
    auto length =
        static_cast<int32_t>(decodes ? kDecodeContext : shape_.context - shape_.rows + row % shape_.rows + 1);
    Attention::Problem one = problem();
    one.tokens = one.sequences = one.kv_heads = one.rows_max = 1, one.heads = group, one.pages = pages;
    const Expectations wanted = reference(
        one,
        {.q = q.tensor,
         .k_cache = make_tensor(k_bytes.data(), shape_.cache_type(), {pages, 1, kPage, shape_.heads.dim}),
         .v_cache = make_tensor(v_bytes.data(), shape_.cache_type(), {pages, 1, kPage, shape_.heads.dim}),
         .page_table = make_tensor(table.data(), DType::kI32, {1, pages}),
         .q_begin = make_tensor(begin, DType::kI32, {2}),
         .kv_len = make_tensor(&length, DType::kI32, {1}),
         .sinks = sinks.tensor,
         .y = got.tensor});
    const Comparison c = compare(wanted.front(), got.tensor);
    return c.wrong > 0 && (bounds <= 1 || c.worst_share > bounds)
               ? "row " + std::to_string(row) + ": " + c.text
               : std::string();
  }

  AttentionShape shape_;
  int64_t cold_bytes_, pages_ = 0;
  Memory memory_;
  Tensor k_cache_ = {}, v_cache_ = {}, sinks_ = {}, q_begin_ = {}, kv_len_ = {};
  std::vector<Tensor> q_, y_, tables_;
  std::vector<int32_t> table_, host_q_begin_, host_kv_len_;
};

// The names of all configurations, for kernels that have several.
Status add_configs(Attend& attend, Contest* contest) {
  Memory& memory = attend.memory();
  const Attention::Problem problem = attend.problem();
  const Decision decision =
      decide<Attention>(problem, memory.device().info(), memory.device().catalog().table<Attention>());
  for (const Verdict& v : decision.verdicts) {
    if (v.configs.size() < 2) continue;
    for (const Config& one : v.configs) {
      if (!one.refusal.accepted()) continue;
      const std::string name = std::string(v.candidate) + ":" + one.name;
      auto step = make_step<Attention>(memory, problem, [&attend](int64_t i) { return attend.args(i); },
                                       {.force = name});
      if (!step.ok()) return step.status();
      contest->contenders.push_back({Who::kCandidate, name, commit(), true, std::move(step).value()});
    }
  }
  return {};
}

Status add_peers(const Peers& peers, Attend& attend, Contest* contest) {
  Memory& memory = attend.memory();
  const Stream stream = memory.stream();
  const sluice_peer_attention first = attend.peer_args(0);
  for (const sluice_attention_peer* peer : peers.attention()) {
    if (peer->supports(&first)) continue;
    void* scratch = nullptr;
    const size_t bytes = peer->scratch_bytes(&first);
    if (bytes > 0) SLUICE_TRY(memory.bytes(bytes, &scratch));
    void* prepared = peer->prepare(&first, scratch);
    const auto enqueue = [peer, scratch, prepared, &attend, stream](int64_t i) -> Status {
      const sluice_peer_attention a = attend.peer_args(i);
      const int error = peer->enqueue(&a, scratch, prepared, cuda::queue_of(stream).stream);
      return error == 0 ? Status{}
                        : unsupported(std::string(peer->name) + ": error " + std::to_string(error));
    };
    contest->contenders.push_back({Who::kPeer, csv_word(peer->name), csv_word(peer->version), true, enqueue});
  }
  return {};
}

}  // namespace

Status Bench::attention() {
  std::vector<AttentionShape> shapes;
  const auto counts = [&](std::vector<int64_t> usual) {
    return options_.tokens.empty() ? usual : options_.tokens;
  };
  const auto add = [&](int64_t window, CacheType cache) {
    for (const int64_t context : {1024, 8192})
      for (const int64_t sequences : counts({1, 8, 32, 64, 128, 256, 1024}))
        if (sequences <= kTableSequences && sequences * context <= kPositionsMax)
          shapes.push_back({.sequences = sequences, .context = context, .window = window, .cache = cache});
    for (const int64_t tokens : counts({64, 256, 1024}))
      for (const int64_t context : {1024, 4096, 8192})
        if (tokens >= 16 && tokens <= context)
          shapes.push_back(
              {.rows = tokens, .context = context, .window = window, .cache = cache, .decodes = kDecodes});
    for (const int64_t tokens : counts({1024, 4096, 8192}))
      if (tokens >= kTableSequences)
        shapes.push_back({.rows = tokens, .context = tokens, .window = window, .cache = cache});
  };
  add(0, CacheType::kSame), add(128, CacheType::kSame), add(0, CacheType::kE4M3), add(128, CacheType::kE4M3);
  // Heads of 128 elements: decode and prompts, without windows.
  const size_t of_gpt_oss = shapes.size();
  for (size_t i = 0; i < of_gpt_oss; ++i)
    if (shapes[i].window == 0 && shapes[i].decodes == 0) {
      shapes.push_back(shapes[i]);
      shapes.back().heads = kQwen3;
    }
  auto left = static_cast<int64_t>(shapes.size());
  for (const AttentionShape& shape : shapes) {
    share(left--);
    if (!wants(shape.heads.model) || over(shape.heads.model, shape.tokens())) continue;
    Attend attend(device_, shape, options_.cold_bytes);
    SLUICE_TRY(attend.make());
    Contest contest{.suite = "attention",
                    .op = shape.decodes > 0 ? "attention_mixed"
                          : shape.rows == 1 ? "attention_decode"
                                            : "attention_prefill",
                    .model = shape.heads.model,
                    .note = shape.note(),
                    .tokens = shape.tokens(),
                    .bytes = shape.bytes(),
                    .flops = shape.flops()};
    contest.launches = launches_for(0, contest.bytes, contest.flops);
    contest.poison = [&] { return attend.poison(); };
    contest.verify = [&](Who who) { return attend.check(who); };
    std::vector<std::string> complaints;
    SLUICE_TRY(add_ours<Attention>(
        attend.memory(), attend.problem(), [&attend](int64_t i) { return attend.args(i); }, true, &contest,
        &complaints));
    if (options_.candidates) SLUICE_TRY(add_configs(attend, &contest));
    SLUICE_TRY(add_peers(peers_, attend, &contest));
    SLUICE_TRY(hold(contest, std::move(complaints)));
  }
  return {};
}

}  // namespace sluice::bench
