// Latent attention over pages: decode steps of many sequences with the heads of DeepSeek V3 or Moonlight, one or several rows per sequence.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "backends/cuda/queue.h"
#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/latent_attention.h"

namespace sluice::bench {
namespace {

constexpr int64_t kLatentSequences = 256, kLatentPage = 64;  // baselines need pages of 64
constexpr int64_t kLatentsMax = 1 << 21;                     // over all sequences
constexpr int64_t kRank = 512, kNope = 128, kRope = 64, kValue = 128;
constexpr int64_t kQueryHead = kNope + kRope, kLatentRow = kRank + kRope;
// The operation's bound assumes that all rounding errors add up; random data stay so far below it that a result of zeros would pass.
// The RMS of the errors is therefore also compared with the RMS of y. Sluice rounds once to bf16, which leaves about 2^-9; a baseline
// rounds queries, weights, latents and y.
constexpr double kOurShareOfY = 0x1p-7, kPeerShareOfY = 0x1p-6;

// `sequences` sequences of `rows` rows each, which end at position `context`.
struct LatentShape {
  const char* model = "deepseek-v3";
  int64_t heads = 128, sequences = 1, rows = 1, context = 1024;
  int64_t tokens() const { return sequences * rows; }
  int64_t pages() const { return (context + kLatentPage - 1) / kLatentPage; }  // per sequence
  int64_t weight_bytes() const { return bytes_of(DType::kBF16, heads * (kNope + kValue) * kRank); }
  double cache_bytes() const { return 2.0 * static_cast<double>(sequences * context * kLatentRow); }
  double queries() const { return static_cast<double>(tokens() * heads); }
  double bytes() const {
    return cache_bytes() + static_cast<double>(weight_bytes()) + 2 * queries() * (kQueryHead + kValue);
  }
  double flops() const { return attend_flops() + 2 * queries() * (kNope + kValue) * kRank; }
  // Bytes of the attention alone, from absorbed queries to latents.
  double attend_bytes() const { return cache_bytes() + 2 * queries() * (kLatentRow + kRank); }
  double attend_flops() const {
    const double seen = static_cast<double>(context) - static_cast<double>(rows - 1) / 2;  // the mean
    return 2 * queries() * seen * (kLatentRow + kRank);
  }
  std::string note() const {
    return "context " + std::to_string(context) +
           (rows > 1 ? " " + std::to_string(rows) + " rows a sequence" : "");
  }
};

class Latents {
 public:
  Latents(Device& device, const LatentShape& shape, int64_t cold_bytes)
      : shape_(shape), cold_bytes_(cold_bytes), memory_(device) {}

  LatentAttention::Problem problem() const {
    return {.tokens = shape_.tokens(),
            .sequences = kLatentSequences,
            .heads = shape_.heads,
            .rank = kRank,
            .nope = kNope,
            .rope = kRope,
            .v_dim = kValue,
            .pages = pages_,
            .page_size = kLatentPage,
            .pages_per_seq = shape_.pages(),
            .rows_max = shape_.rows};
  }
  Memory& memory() { return memory_; }

  Status make() {
    const int64_t of_run = shape_.sequences * shape_.pages(),
                  sets = cold_sets(cold_bytes_, shape_.cache_bytes());
    pages_ = sets * of_run;
    SLUICE_TRY(memory_.random(DType::kBF16, {pages_, 1, kLatentPage, kLatentRow}, 1, &cache_));
    SLUICE_TRY(memory_.random(DType::kBF16, {shape_.heads, kNope + kValue, kRank},
                              1 / std::sqrt(double{kRank}),
                              cold_sets(cold_bytes_, static_cast<double>(shape_.weight_bytes())), &kv_b_));
    SLUICE_TRY(memory_.random(DType::kBF16, {shape_.tokens(), shape_.heads, kQueryHead}, 1, kTurns, &q_));
    SLUICE_TRY(memory_.several(DType::kBF16, {shape_.tokens(), shape_.heads, kValue}, kTurns, &y_));
    SLUICE_TRY(page_tables(memory_, sets, of_run, kLatentSequences, shape_.pages(), &tables_, &table_));
    for (int64_t s = 0; s <= kLatentSequences; ++s)
      host_q_begin_.push_back(static_cast<int32_t>(std::min(s, shape_.sequences) * shape_.rows));
    for (int64_t s = 0; s < kLatentSequences; ++s)
      host_kv_len_.push_back(static_cast<int32_t>(s < shape_.sequences ? shape_.context : 0));
    SLUICE_TRY(memory_.upload(host_q_begin_, {kLatentSequences + 1}, &q_begin_));
    return memory_.upload(host_kv_len_, {kLatentSequences}, &kv_len_);
  }
  LatentAttention::Args args(int64_t i) const {
    return {.q = turn(q_, i),
            .kv_b = turn(kv_b_, i),
            .cache = cache_,
            .page_table = turn(tables_, i),
            .q_begin = q_begin_,
            .kv_len = kv_len_,
            .y = turn(y_, i)};
  }
  sluice_peer_latent peer_args(int64_t i) const {
    const LatentAttention::Args a = args(i);
    return {.tokens = shape_.tokens(),
            .sequences = shape_.sequences,
            .heads = shape_.heads,
            .rank = kRank,
            .nope = kNope,
            .rope = kRope,
            .v_dim = kValue,
            .pages = pages_,
            .page_size = kLatentPage,
            .pages_per_seq = shape_.pages(),
            .scale = problem().scale,
            .q = a.q.data,
            .kv_b = a.kv_b.data,
            .cache = a.cache.data,
            .page_table = static_cast<const int32_t*>(a.page_table.data),
            .q_begin = static_cast<const int32_t*>(a.q_begin.data),
            .kv_len = static_cast<const int32_t*>(a.kv_len.data),
            .y = a.y.data,
            .host_q_begin = host_q_begin_.data(),
            .host_kv_len = host_kv_len_.data()};
  }
  Status poison() { return bench::poison(y_[0], memory_.stream()); }

  // Checks the first and the last head in some rows of run 0.
  Result<std::string> check(Who who) {
    const double bounds = who == Who::kPeer ? kPeerBounds : 1;
    const double share = who == Who::kPeer ? kPeerShareOfY : kOurShareOfY;
    double off = 0, all = 0;
    for (const int64_t row : {int64_t{0}, shape_.tokens() / 2, shape_.tokens() - 1})
      for (const int64_t head : {int64_t{0}, shape_.heads - 1}) {
        HostTensor got;
        SLUICE_TRY(to_host(memory_.device(),
                           part(y_[0], (row * shape_.heads + head) * kValue, {1, 1, kValue}), &got));
        const auto [known, fresh] = expected_.try_emplace({row, head});
        if (fresh) SLUICE_TRY(expect(row, head, got.tensor, &known->second));
        const Comparison c = compare(known->second, got.tensor);
        if (c.wrong > 0 && (bounds <= 1 || c.worst_share > bounds))
          return "head " + std::to_string(head) + " of row " + std::to_string(row) + ": " + c.text;
        for (int64_t i = 0; i < kValue; ++i) {
          const double want = known->second.value[static_cast<size_t>(i)], error = load(got.tensor, i) - want;
          off += error * error, all += want * want;
        }
      }
    // Written so that NaN counts as wrong.
    if (std::sqrt(off) <= share * std::sqrt(all)) return std::string();
    return "relative error " + std::to_string(std::sqrt(off / all)) + ", wanted at most " +
           std::to_string(share);
  }

 private:
  // A view of some contiguous elements.
  static Tensor part(const Tensor& t, int64_t first, std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<std::byte*>(t.data) + bytes_of(t.dtype, first), t.dtype, shape, t.where);
  }
  // The reference for one head of one row.
  Status expect(int64_t row, int64_t head, const Tensor& y, Expected* out) {
    const int64_t pages = shape_.pages(), sequence = row / shape_.rows;
    std::string rows;
    for (int64_t i = 0; i < pages; ++i) {
      const int64_t at = table_[static_cast<size_t>(sequence * pages + i)] * kLatentPage * kLatentRow;
      HostTensor page;
      SLUICE_TRY(to_host(memory_.device(), part(cache_, at, {kLatentPage, kLatentRow}), &page));
      rows += page.bytes;
    }
    HostTensor q, kv_b;
    SLUICE_TRY(to_host(memory_.device(),
                       part(q_[0], (row * shape_.heads + head) * kQueryHead, {1, 1, kQueryHead}), &q));
    SLUICE_TRY(to_host(memory_.device(),
                       part(kv_b_[0], head * (kNope + kValue) * kRank, {1, kNope + kValue, kRank}), &kv_b));
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    int32_t begin[] = {0, 1};
    auto length = static_cast<int32_t>(shape_.context - shape_.rows + row % shape_.rows + 1);
    LatentAttention::Problem one = problem();
    one.tokens = one.sequences = one.heads = 1, one.pages = pages;
    *out = std::move(
        reference(one, {.q = q.tensor,
                        .kv_b = kv_b.tensor,
                        .cache = make_tensor(rows.data(), DType::kBF16, {pages, 1, kLatentPage, kLatentRow}),
                        .page_table = make_tensor(table.data(), DType::kI32, {1, pages}),
                        .q_begin = make_tensor(begin, DType::kI32, {2}),
                        .kv_len = make_tensor(&length, DType::kI32, {1}),
                        .y = y})
            .front());
    return {};
  }

  LatentShape shape_;
  int64_t cold_bytes_, pages_ = 0;
  Memory memory_;
  Tensor cache_ = {}, q_begin_ = {}, kv_len_ = {};
  std::vector<Tensor> kv_b_, q_, y_, tables_;
  std::vector<int32_t> table_, host_q_begin_, host_kv_len_;
  std::map<std::pair<int64_t, int64_t>, Expected> expected_;  // by row and head, because references are slow
};

// A baseline, prepared for one shape.
struct LatentPeer {
  const sluice_latent_peer* peer;
  void* scratch;
  void* prepared;
  Latents* latents;

  Status enqueue(int64_t i, int32_t parts) const {
    const sluice_peer_latent a = latents->peer_args(i);
    const int error =
        peer->enqueue(&a, parts, scratch, prepared, cuda::queue_of(latents->memory().stream()).stream);
    return error == 0 ? Status{} : unsupported(std::string(peer->name) + ": error " + std::to_string(error));
  }
  Contender contender(int32_t parts) const {
    return {Who::kPeer, csv_word(peer->name), csv_word(peer->version), true,
            [*this, parts](int64_t i) { return enqueue(i, parts); }};
  }
};

Result<std::vector<LatentPeer>> ready_peers(const Peers& peers, Latents& latents,
                                            std::vector<std::string>* complaints) {
  std::vector<LatentPeer> out;
  const sluice_peer_latent first = latents.peer_args(0);
  for (const sluice_latent_peer* peer : peers.latent()) {
    if (const char* refusal = peer->supports(&first)) {
      complaints->push_back(std::string(peer->name) + " skipped: " + refusal);
      continue;
    }
    void* scratch = nullptr;
    const size_t bytes = peer->scratch_bytes(&first);
    if (bytes > 0) SLUICE_TRY(latents.memory().bytes(bytes, &scratch));
    // Inputs are filled on the device's stream, and a baseline may use another stream.
    SLUICE_TRY(latents.memory().device().wait(latents.memory().stream()));
    out.push_back({peer, scratch, peer->prepare(&first, scratch), &latents});
  }
  return out;
}

// The attention of a baseline alone, without the two products with kv_b.
Contest attend_contest(const LatentShape& shape, Latents& latents, const LatentPeer& peer) {
  Contest contest{.suite = "latent",
                  .op = "latent_attend",
                  .model = shape.model,
                  .note = shape.note(),
                  .tokens = shape.tokens(),
                  .bytes = shape.attend_bytes(),
                  .flops = shape.attend_flops()};
  contest.contenders.push_back(peer.contender(SLUICE_PEER_LATENT_ATTEND));
  // All runs write the latents in the baseline's scratch, so a later run overwrites the latents of an earlier run.
  contest.poison = [&latents, peer]() -> Status {
    SLUICE_TRY(peer.enqueue(1, SLUICE_PEER_LATENT_ABSORB | SLUICE_PEER_LATENT_ATTEND));
    SLUICE_TRY(peer.enqueue(0, SLUICE_PEER_LATENT_ABSORB));
    return latents.poison();
  };
  contest.verify = [&latents, peer](Who who) -> Result<std::string> {
    SLUICE_TRY(peer.enqueue(0, SLUICE_PEER_LATENT_PROJECT));
    SLUICE_TRY(latents.memory().device().wait(latents.memory().stream()));
    return latents.check(who);
  };
  return contest;
}

}  // namespace

Status Bench::latent() {
  std::vector<LatentShape> shapes;
  const std::vector<int64_t> usual = {1, 8, 32, 64, 128};
  const auto add = [&](LatentShape shape) {
    for (const int64_t context : {1024, 4096, 8192})
      for (const int64_t sequences : options_.tokens.empty() ? usual : options_.tokens)
        if (sequences <= kLatentSequences && sequences * context <= kLatentsMax) {
          shape.sequences = sequences, shape.context = context;
          shapes.push_back(shape);
        }
  };
  for (const int64_t rows : {1, 2}) add({.rows = rows});
  for (const int64_t rows : {1, 4}) add({.model = "moonlight-16b-a3b", .heads = 16, .rows = rows});
  auto left = static_cast<int64_t>(shapes.size());
  for (const LatentShape& shape : shapes) {
    share(left--);
    if (!wants(shape.model) || over(shape.model, shape.tokens())) continue;
    Latents latents(device_, shape, options_.cold_bytes);
    SLUICE_TRY(latents.make());
    Contest contest{.suite = "latent",
                    .op = "latent_attention",
                    .model = shape.model,
                    .note = shape.note(),
                    .tokens = shape.tokens(),
                    .bytes = shape.bytes(),
                    .flops = shape.flops()};
    contest.launches = launches_for(shape.weight_bytes(), contest.bytes, contest.flops);
    contest.poison = [&] { return latents.poison(); };
    contest.verify = [&](Who who) { return latents.check(who); };
    std::vector<std::string> complaints;
    SLUICE_TRY(add_ours<LatentAttention>(
        latents.memory(), latents.problem(), [&latents](int64_t i) { return latents.args(i); }, true,
        &contest, &complaints, true));
    const Result<std::vector<LatentPeer>> peers = ready_peers(peers_, latents, &complaints);
    if (!peers.ok()) return peers.status();
    for (const LatentPeer& peer : peers.value())
      contest.contenders.push_back(peer.contender(SLUICE_PEER_LATENT_ALL));
    SLUICE_TRY(hold(std::move(contest), std::move(complaints)));
    for (const LatentPeer& peer : peers.value()) {
      if (!peer.prepared) continue;
      Contest alone = attend_contest(shape, latents, peer);
      alone.launches = launches_for(0, alone.bytes, alone.flops);
      SLUICE_TRY(hold(std::move(alone), {}));
    }
  }
  return {};
}

}  // namespace sluice::bench
