#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "base/printable.h"

namespace sluice {
namespace {

std::vector<double> seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640,  2560};
}
std::vector<double> tokens() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
}

std::string escaped(const std::string& label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

class Page {
 public:
  explicit Page(const std::string& model) : label_("model_name=\"" + escaped(model) + "\"") {
    text_.reserve(64 << 10);
  }
  void begin(const std::string& name, const char* type, const char* help) {
    name_ = name;
    text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  // A page has many samples and is made on the thread of all connections, so only text_ allocates.
  void sample(double value, std::string_view more = {}, std::string_view suffix = {}) {
    text_.append(name_).append(suffix).append("{").append(label_);
    if (!more.empty()) text_.append(",").append(more);
    text_.append("} ").append(number_text(value)).append("\n");
  }
  // Adds a sample with numeric labels.
  void sample(std::initializer_list<std::pair<std::string_view, int64_t>> numbered, int64_t value) {
    text_.append(name_).append("{").append(label_);
    for (const auto& [key, number] : numbered) {
      text_.append(",").append(key).append("=\"");
      append(number);
      text_ += '"';
    }
    text_ += "} ";
    append(value);
    text_ += '\n';
  }
  void one(const std::string& name, const char* type, const char* help, double value) {
    begin(name, type, help);
    sample(value);
  }
  void histogram(const std::string& name, const char* help, const Histogram& h) {
    histogram(name, help, h.bounds(), h.counts(), h.sum());
  }
  // `counts` has one element more than `bounds`, for the values above all bounds.
  void histogram(const std::string& name, const char* help, std::span<const double> bounds,
                 std::span<const int64_t> counts, double sum) {
    begin(name, "histogram", help);
    int64_t below = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      below += counts[i];
      const std::string bound = i < bounds.size() ? number_text(bounds[i]) : "+Inf";
      sample(static_cast<double>(below), "le=\"" + bound + "\"", "_bucket");
    }
    sample(sum, "", "_sum");
    sample(static_cast<double>(below), "", "_count");
  }
  std::string text() && { return std::move(text_); }

 private:
  void append(int64_t number) {
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  }

  std::string label_, name_, text_;
};

void append_engine(Page* page, const std::string& p, const EngineLoad& load) {
  const double used =
      load.pages ? 1 - static_cast<double>(load.free_pages) / static_cast<double>(load.pages) : 0;
  page->one(p + "num_requests_running", "gauge", "Sequences that the engine runs.",
            static_cast<double>(load.running));
  page->one(p + "num_requests_waiting", "gauge", "Sequences that wait for the engine.",
            static_cast<double>(load.waiting));
  page->one(p + "kv_cache_usage_perc", "gauge", "Fraction of the KV cache in use, 0 to 1.", used);
  page->one(p + "num_preemptions_total", "counter", "Preemptions of running sequences.",
            static_cast<double>(load.preemptions));
  page->one(p + "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
            static_cast<double>(load.prefix_queries));
  page->one(p + "prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
            static_cast<double>(load.prefix_hits));
}

void append_drafts(Page* page, const std::string& p, const DraftCounts& drafts, int64_t drafts_max) {
  page->one(p + "spec_decode_num_drafts_total", "counter", "Steps of a sequence that verified drafts.",
            static_cast<double>(drafts.drafts));
  page->one(p + "spec_decode_num_draft_tokens_total", "counter", "Drafted tokens that were verified.",
            static_cast<double>(drafts.draft_tokens));
  page->one(p + "spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that were accepted.",
            static_cast<double>(drafts.accepted));
  page->begin(p + "spec_decode_num_accepted_tokens_per_pos_total", "counter",
              "Drafted tokens that were accepted, by their place in the draft.");
  for (int64_t i = 0; i < drafts_max; ++i)
    page->sample(static_cast<double>(drafts.accepted_at[static_cast<size_t>(i)]),
                 "position=\"" + std::to_string(i) + "\"");
}

void append_requests(Page* page, const std::string& p, const ServeMetrics& m) {
  page->one(p + "prompt_tokens_total", "counter", "Prompt tokens processed.",
            static_cast<double>(m.prompt_tokens));
  page->one(p + "generation_tokens_total", "counter", "Generated tokens.",
            static_cast<double>(m.generation_tokens));
  page->begin(p + "request_success_total", "counter", "Finished sequences by finish reason.");
  for (const auto& [reason, count] : m.finished)
    page->sample(static_cast<double>(count), "finished_reason=\"" + reason + "\"");
  page->histogram(p + "time_to_first_token_seconds", "Time from a request to its first token.",
                  m.first_token);
  page->histogram(p + "inter_token_latency_seconds", "Time between two tokens of a sequence.",
                  m.between_tokens);
  page->histogram(p + "request_time_per_output_token_seconds",
                  "Mean time per token of a sequence after its first token.", m.per_output_token);
  page->histogram(p + "e2e_request_latency_seconds", "Time from a request to its last token.", m.whole);
  page->histogram(p + "request_queue_time_seconds", "Time from a request to its first step.", m.queue);
  page->histogram(p + "request_prefill_time_seconds", "Time from a request's first step to its first token.",
                  m.prefill);
  page->histogram(p + "request_decode_time_seconds", "Time from a request's first token to its last.",
                  m.decode);
  page->histogram(p + "request_prompt_tokens", "Tokens per prompt.", m.prompt_lengths);
  page->histogram(p + "request_generation_tokens", "Tokens per answer.", m.generation_lengths);
}

// The number of tokens of the busiest expert, divided by the mean over all experts; 0 before the first token.
double imbalance(std::span<const int64_t> tokens) {
  const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (all == 0) return 0;
  const int64_t largest = *std::max_element(tokens.begin(), tokens.end());
  return static_cast<double>(largest) * static_cast<double>(tokens.size()) / static_cast<double>(all);
}

void append_experts(Page* page, const ExpertCounts& counts) {
  const auto experts = static_cast<size_t>(counts.experts);
  const auto of_layer = [&](size_t i) { return std::span(counts.tokens).subspan(i * experts, experts); };
  page->begin("sluice:expert_tokens_total", "counter",
              "Tokens routed to an expert of a layer, including recomputed and discarded tokens.");
  for (size_t i = 0; i < counts.layers.size(); ++i)
    for (int64_t expert = 0; expert < counts.experts; ++expert)
      page->sample({{"layer", counts.layers[i]}, {"expert", expert}},
                   of_layer(i)[static_cast<size_t>(expert)]);
  page->begin(
      "sluice:expert_load_imbalance", "gauge",
      "Tokens of a layer's busiest expert divided by the mean of its experts, since the start; 0 before "
      "the first token.");
  for (size_t i = 0; i < counts.layers.size(); ++i)
    page->sample(imbalance(of_layer(i)), "layer=\"" + std::to_string(counts.layers[i]) + "\"");
}

}  // namespace

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bound - bounds_.begin())];
  sum_ += value;
}

ServeMetrics::ServeMetrics()
    : finished{{"stop", 0}, {"length", 0}, {"abort", 0}, {"error", 0}},
      first_token(seconds()),
      between_tokens(seconds()),
      per_output_token(seconds()),
      whole(seconds()),
      queue(seconds()),
      prefill(seconds()),
      decode(seconds()),
      prompt_lengths(tokens()),
      generation_lengths(tokens()),
      step_tokens(tokens()) {}

std::string metrics_text(const ServeMetrics& m, const EngineLoad& load, int64_t connections,
                         const std::string& model) {
  Page page(model);
  for (const char* prefix : {"vllm:", "sluice:"}) {
    append_engine(&page, prefix, load);
    if (load.drafts) append_drafts(&page, prefix, *load.drafts, load.drafts_max);
    append_requests(&page, prefix, m);
  }
  page.one("sluice:engine_steps_total", "counter", "Engine steps.", static_cast<double>(load.steps));
  const MaskTimes& masks = load.masks.times;
  page.histogram("sluice:structured_mask_seconds",
                 "Time on a worker to compute the mask of allowed tokens of a structured answer.",
                 MaskTimes::kBounds, masks.counts, masks.seconds);
  page.one("sluice:structured_steps_sat_out_total", "counter",
           "Steps that skipped a sequence because its token mask was not ready.",
           static_cast<double>(load.masks.steps_sat_out));
  page.begin("sluice:kernel_runs_total", "counter", "Kernel launches, including replayed graphs.");
  for (const KernelRuns::Entry& e : load.kernels.all())
    page.sample(static_cast<double>(e.runs), "kernel=\"" + escaped(std::string(e.kernel)) + "\"");
  if (load.experts) append_experts(&page, *load.experts);
  page.histogram("sluice:step_generated_tokens", "Tokens sampled per step.", m.step_tokens);
  page.one("sluice:connections", "gauge", "Open connections.", static_cast<double>(connections));
  page.one("sluice:clients_lost_total", "counter", "Clients lost before their answer was complete.",
           static_cast<double>(m.clients_lost));
  page.one("sluice:log_lines_dropped_total", "counter", "Log lines that could not be written.",
           static_cast<double>(m.log_lines_dropped));
  page.begin("sluice:http_answers_total", "counter", "HTTP answers by status.");
  for (const auto& [status, count] : m.answers)
    page.sample(static_cast<double>(count), "status=\"" + std::to_string(status) + "\"");
  return std::move(page).text();
}

}  // namespace sluice
