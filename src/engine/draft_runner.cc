#include "engine/draft_runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/places.h"

namespace sluice {

Result<std::unique_ptr<DraftRunner>> DraftRunner::plan(Device& device, const DraftHead& head,
                                                       const StepBounds& bounds, size_t group,
                                                       const Policy& policy) {
  std::unique_ptr<DraftRunner> out(new DraftRunner(device, head, bounds, group));
  auto planned = DraftLayer::plan(device, head.config, bounds, policy, head.experts);
  if (!planned.ok()) return planned.status();
  out->head_ = std::move(planned).value();
  const DraftLayerConfig& c = head.config;
  const std::vector<int64_t> rows(kDraftsMax, bounds.sequences);
  Places places{out->layout(bounds.tokens, rows).end};
  out->written_bytes_ = places.used;
  out->drafted_at_ = places.take(DType::kI32, 2 * kDraftsMax * out->pitch());
  out->taps_at_ = places.take(c.x, bounds.tokens * c.features());
  out->stream_at_ = places.take(c.x, bounds.tokens * c.hidden);
  out->hidden_at_ = places.take(c.x, bounds.sequences * c.hidden);
  out->rope_at_ = places.take(DType::kF32, bounds.positions * c.attention.rotary);
  out->device_bytes_ = places.used;
  return out;
}

DraftRunner::~DraftRunner() {
  if (block_) device_.release(block_);
  if (host_) device_.release_host(host_);
  if (host_drafts_) device_.release_host(host_drafts_);
}

Status DraftRunner::take_memory(const KvCache& cache) {
  const Result<void*> block = device_.allocate(device_bytes_);
  if (!block.ok()) return block.status();
  block_ = static_cast<std::byte*>(block.value());
  const Result<void*> host = device_.allocate_host(written_bytes_);
  if (!host.ok()) return host.status();
  host_ = static_cast<std::byte*>(host.value());
  const Result<void*> read = device_.allocate_host(taps_at_ - drafted_at_);
  if (!read.ok()) return read.status();
  host_drafts_ = static_cast<int32_t*>(read.value());
  const Stream stream = device_.stream();
  // Initializes gaps between tensors, which copies include, and table rows that kernels read before a step
  // writes them.
  std::memset(host_, 0, written_bytes_);
  SLUICE_TRY(device_.copy(block_, host_, written_bytes_, stream));
  auto held = head_->bind(weights_, cache);
  if (!held.ok()) return held.status();
  held_ = std::move(held).value();
  const int64_t rotary = head_->config().attention.rotary;
  std::vector<float> table(static_cast<size_t>(bounds_.positions * rotary));
  SLUICE_TRY(rope_table(head_->config().rope, bounds_.positions, rotary, table.data()));
  SLUICE_TRY(device_.copy(block_ + rope_at_, table.data(), table.size() * sizeof(float), stream));
  return device_.wait(stream);
}

Tensor DraftRunner::view(size_t at, DType dtype, std::initializer_list<int64_t> shape) const {
  return make_tensor(block_ + at, dtype, shape, device_.info().backend);
}

Tensor DraftRunner::taps(int64_t tokens) const {
  return view(taps_at_, head_->config().x, {tokens, head_->config().features()});
}

// Rows reserved per draft position. Rounded up, so that every position's tensors begin at a multiple of 16
// bytes, as kernels require.
int64_t DraftRunner::pitch() const { return (bounds_.sequences + 3) / 4 * 4; }

// The outputs for draft position `place`: pitch() tokens, followed by pitch() logprobs.
DraftLayerOut DraftRunner::drafted(int64_t place, int64_t rows) const {
  const auto at = [&](int64_t half) {
    return drafted_at_ + static_cast<size_t>(bytes_of(DType::kI32, (2 * place + half) * pitch()));
  };
  return {.token = view(at(0), DType::kI32, {rows}),
          .logprob = view(at(1), DType::kF32, {rows}),
          .hidden = view(hidden_at_, head_->config().x, {rows, head_->config().hidden})};
}

// rows[place]: number of sequences that have a draft at position `place`.
DraftRunner::Layout DraftRunner::layout(int64_t tokens, std::span<const int64_t> rows) const {
  Places places;
  Layout at{};
  at.token_ids = places.take(DType::kI32, tokens);
  const int64_t sequences = rows.empty() ? 0 : rows.front();
  at.rows = places.take(DType::kI32, sequences);
  for (size_t place = 1; place < rows.size(); ++place)
    at.passes.push_back({.positions = places.take(DType::kI32, rows[place]),
                         .slot_of = places.take(DType::kI32, rows[place]),
                         .kv_len = places.take(DType::kI32, bounds_.sequences),
                         .q_begin = places.take(DType::kI32, bounds_.sequences + 1),
                         .rows = rows[place]});
  at.page_table = places.take(DType::kI32, sequences * bounds_.pages_per_seq());
  at.end = places.used;
  return at;
}

// Sorts sequences by descending number of drafts, so that every pass runs on a prefix of the list.
std::vector<DraftRunner::Drafting> DraftRunner::drafting(const std::vector<Chunk>& chunks) {
  std::vector<Drafting> out;
  int64_t first_row = 0;
  for (const Chunk& chunk : chunks) {
    Sequence* const s = chunk.sequence.get();
    if (!s->ended && s->has_features && !s->drafts_now().empty())
      out.push_back({s, static_cast<int32_t>(first_row + std::ssize(s->tokens) - 2 - chunk.first)});
    first_row += chunk.count;
  }
  std::ranges::stable_sort(out, std::ranges::greater(),
                           [](const Drafting& d) { return d.sequence->drafts.size(); });
  return out;
}

void DraftRunner::write(const Layout& l, const std::vector<Chunk>& chunks,
                        std::span<const Drafting> drafting) {
  auto* token = at<int32_t>(host_, l.token_ids);
  for (const Chunk& chunk : chunks) {
    const std::vector<int32_t>& tokens = chunk.sequence->tokens;
    // Rows after a rejected draft have no next token. Their keys and values are recomputed before any token
    // attends to them.
    for (auto next = static_cast<size_t>(chunk.first) + 1;
         next <= static_cast<size_t>(chunk.first + chunk.count); ++next)
      *token++ = next < tokens.size() ? tokens[next] : 0;
  }
  auto* table = at<int32_t>(host_, l.page_table);
  for (size_t i = 0; i < drafting.size(); ++i) {
    at<int32_t>(host_, l.rows)[i] = drafting[i].row;
    const std::vector<int32_t>& pages = drafting[i].sequence->pages[group_].page;
    std::copy(pages.begin(), pages.end(), table + static_cast<int64_t>(i) * bounds_.pages_per_seq());
  }
  for (size_t j = 0; j < l.passes.size(); ++j) {
    const Pass& pass = l.passes[j];
    at<int32_t>(host_, pass.q_begin)[0] = 0;
    for (int64_t i = 0; i < bounds_.sequences; ++i) {
      at<int32_t>(host_, pass.q_begin)[i + 1] = static_cast<int32_t>(std::min(i + 1, pass.rows));
      at<int32_t>(host_, pass.kv_len)[i] = 0;
      if (i >= pass.rows) continue;
      const Sequence& s = *drafting[static_cast<size_t>(i)].sequence;
      const int64_t position = std::ssize(s.tokens) - 1 + static_cast<int64_t>(j);
      const int32_t page = s.pages[group_].page[static_cast<size_t>(position / bounds_.page_size)];
      at<int32_t>(host_, pass.positions)[i] = static_cast<int32_t>(position);
      at<int32_t>(host_, pass.slot_of)[i] =
          static_cast<int32_t>(page * bounds_.page_size + position % bounds_.page_size);
      at<int32_t>(host_, pass.kv_len)[i] = static_cast<int32_t>(position + 1);
    }
  }
}

Status DraftRunner::enqueue(const Layout& l, int64_t tokens, std::span<const int64_t> rows,
                            const StepTables& tables, Workspace workspace, KernelRuns* runs) {
  const Stream queue = device_.stream();
  const DraftLayerConfig& c = head_->config();
  const Tensor rope = view(rope_at_, DType::kF32, {bounds_.positions, c.attention.rotary / 2, 2});
  const Tensor stream = view(stream_at_, c.x, {bounds_.tokens, c.hidden});
  SLUICE_TRY(device_.copy(block_, host_, l.end, queue));
  DraftLayerIn in{
      .token_ids = view(l.token_ids, DType::kI32, {tokens}), .source = taps(tokens), .tables = tables};
  in.tables.rope = rope;
  SLUICE_TRY(head_->extend(in, held_, first_rows(stream, tokens), workspace, queue, runs));
  if (rows.empty()) return {};
  SLUICE_TRY(head_->draft(view(l.rows, DType::kI32, {rows[0]}), stream, held_, drafted(0, rows[0]), workspace,
                          queue, runs));
  for (size_t j = 0; j < l.passes.size(); ++j) {
    const Pass& pass = l.passes[j];
    const int64_t n = pass.rows;
    const DraftLayerOut before = drafted(static_cast<int64_t>(j), n);
    in = {.token_ids = before.token,
          .source = before.hidden,
          .tables = {
              .positions = view(pass.positions, DType::kI32, {n}),
              .slot_of = view(pass.slot_of, DType::kI32, {n}),
              .q_begin = view(pass.q_begin, DType::kI32, {bounds_.sequences + 1}),
              .kv_len = view(pass.kv_len, DType::kI32, {bounds_.sequences}),
              .page_table = view(l.page_table, DType::kI32, {bounds_.sequences, bounds_.pages_per_seq()}),
              .rope = rope,
              .rows_max = 1}};
    SLUICE_TRY(head_->next(in, held_, first_rows(stream, n), workspace, queue, runs));
    SLUICE_TRY(head_->draft(head_->first(n), stream, held_, drafted(static_cast<int64_t>(j) + 1, n),
                            workspace, queue, runs));
  }
  const auto bytes = static_cast<size_t>(bytes_of(DType::kI32, 2 * std::ssize(rows) * pitch()));
  return device_.copy(host_drafts_, block_ + drafted_at_, bytes, queue);
}

Status DraftRunner::run(const std::vector<Chunk>& chunks, const StepTables& tables, Workspace workspace,
                        KernelRuns* runs) {
  const std::vector<Drafting> all = drafting(chunks);
  std::vector<int64_t> rows(all.empty() ? 0 : all.front().sequence->drafts.size());
  for (const Drafting& d : all)
    for (size_t place = 0; place < d.sequence->drafts.size(); ++place) ++rows[place];
  int64_t tokens = 0;
  for (const Chunk& chunk : chunks) tokens += chunk.count;
  const Layout l = layout(tokens, rows);
  write(l, chunks, all);
  Status status = enqueue(l, tokens, rows, tables, workspace, runs);
  if (status.ok() && !rows.empty()) status = device_.wait(device_.stream());
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<int32_t>& drafts = all[i].sequence->drafts;
    size_t valid = 0;
    for (; status.ok() && valid < drafts.size(); ++valid) {
      const int32_t* token = host_drafts_ + 2 * valid * static_cast<size_t>(pitch()) + i;
      drafts[valid] = *token;
      if (!std::isfinite(std::bit_cast<float>(token[pitch()]))) break;
    }
    if (status.ok()) not_finite_ += std::ssize(drafts) - static_cast<int64_t>(valid);
    drafts.resize(valid);
  }
  return status;
}

}  // namespace sluice
