#include "client/bench_serve.h"

#include <algorithm>
#include <ctime>
#include <deque>

namespace sluice {
namespace {

constexpr double kArrivalMax = 1e8;        // maximum arrival time in seconds; larger values are clamped
constexpr double kMetricsTimeoutS = 10.0;  // if /metrics takes longer, the report omits the drafts

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  char out[32];
  std::strftime(out, sizeof out, "%Y%m%d-%H%M%S", &date);
  return out;
}

Json own_body(const LoadPrompt& prompt, const ServeBenchOptions& o, const std::string& model) {
  Json body = {{"model", model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (o.backend == ApiBackend::kOpenai) {
    body["prompt"] = prompt.prompt;
    body["max_tokens"] = prompt.output_len;
  } else {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.prompt}}});
    body["max_completion_tokens"] = prompt.output_len;
  }
  if (o.ignore_eos) body["ignore_eos"] = true;
  if (o.temperature) body["temperature"] = *o.temperature;
  return body;
}

Json body_of(const LoadPrompt& prompt, const ServeBenchOptions& o, const std::string& model) {
  Json body = own_body(prompt, o, model);
  body.update(o.extra_body);
  return body;
}

ServingRun empty_run(const ServeBenchOptions& o, const std::string& model, int64_t concurrency) {
  return {.date = date_now(),
          .backend = o.backend,
          .model = model,
          .tokenizer = o.tokenizer,
          .prompts = o.num_prompts,
          .request_rate = o.arrivals.request_rate,
          .burstiness = o.arrivals.burstiness,
          .max_concurrency = concurrency,
          .goodput = o.goodput,
          .metrics = o.metrics,
          .measured = {},
          .drafts = {},
          .outcomes = {},
          .metadata = o.metadata};
}

// Runs one load. Sends requests at their arrival times, but queues them while max_concurrency requests are running.
class Load {
 public:
  Load(const ServeBenchOptions& options, HttpClient& client, int64_t max_concurrency)
      : options_(options), client_(client), max_concurrency_(max_concurrency) {}

  // Returns the outcomes in the order of `bodies`. After that, duration() is the time from the start to the last answer.
  std::vector<RequestOutcome> run(const std::vector<std::string>& bodies, const std::vector<double>& arrivals,
                                  const std::function<void(int64_t, int64_t)>& progress);
  double duration() const { return duration_; }

 private:
  struct Due {
    size_t request;
    Clock::time_point arrived;
  };
  void wait_for(size_t request, const std::vector<double>& arrivals);
  void send_what_may_go();
  void send(const Due& due);
  const ServeBenchOptions& options_;
  HttpClient& client_;
  int64_t max_concurrency_, running_ = 0, done_ = 0;
  const std::vector<std::string>* bodies_ = nullptr;
  std::function<void(int64_t, int64_t)> progress_;
  Clock::time_point begin_;
  std::deque<Due> due_;
  std::vector<RequestOutcome> outcomes_;
  double duration_ = 0;
};

std::vector<RequestOutcome> Load::run(const std::vector<std::string>& bodies,
                                      const std::vector<double>& arrivals,
                                      const std::function<void(int64_t, int64_t)>& progress) {
  bodies_ = &bodies;
  progress_ = progress;
  outcomes_.resize(bodies.size());
  begin_ = Clock::now();
  if (!bodies.empty()) wait_for(0, arrivals);
  client_.run();
  return std::move(outcomes_);
}

void Load::wait_for(size_t request, const std::vector<double>& arrivals) {
  while (request < bodies_->size()) {
    const auto when = begin_ + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(std::min(arrivals[request], kArrivalMax)));
    if (when > Clock::now())
      return client_.at(when, [this, request, &arrivals] { wait_for(request, arrivals); });
    due_.push_back({request, Clock::now()});
    send_what_may_go();
    ++request;
  }
}

void Load::send_what_may_go() {
  while (!due_.empty() && (max_concurrency_ == 0 || running_ < max_concurrency_)) {
    const Due due = due_.front();
    due_.pop_front();
    ++running_;
    send(due);
  }
}

void Load::send(const Due& due) {
  const auto sent = Clock::now();
  const auto done = [this, due, sent](RequestOutcome outcome) {
    outcome.start = seconds(sent - begin_);
    outcome.queued = seconds(sent - due.arrived);
    outcomes_[due.request] = std::move(outcome);
    --running_;
    duration_ = seconds(Clock::now() - begin_);
    if (progress_) progress_(++done_, static_cast<int64_t>(bodies_->size()));
    send_what_may_go();
  };
  const std::string path = options_.endpoint.empty() ? endpoint_of(options_.backend) : options_.endpoint;
  client_.send({.path = path, .body = (*bodies_)[due.request], .api_key = options_.api_key},
               std::make_shared<StreamedAnswer>(sent, done));
}

// What all runs of one benchmark share.
class ServeBench {
 public:
  ServeBench(const ServeBenchOptions& options, LoadTarget target)
      : options_(options), target_(std::move(target)) {}

  Result<std::vector<ServingRun>> run(const std::function<void(int64_t, int64_t)>& progress) {
    auto dataset = Dataset::open(options_.dataset, target_);
    if (!dataset.ok()) return dataset.status();
    // Makes all prompts before the first run, so that an error loses no results.
    const auto probe = prompts(dataset.value(), 1);
    if (!probe.ok()) return probe.status();
    std::vector<Prompts> warmups, measured;
    for (size_t i = 0; i < options_.max_concurrency.size(); ++i) {
      for (const auto& [count, to] :
           {std::pair{options_.num_warmups, &warmups}, std::pair{options_.num_prompts, &measured}}) {
        auto sampled = prompts(dataset.value(), count);
        if (!sampled.ok()) return sampled.status();
        to->push_back(std::move(sampled).value());
      }
    }
    const auto first = outcomes(probe.value(), 1);
    if (!first.front().ok())
      return Status{Code::kIo, "the first request failed, so nothing was measured: " + first.front().error};
    std::vector<ServingRun> out;
    for (size_t i = 0; i < options_.max_concurrency.size(); ++i) {
      outcomes(warmups[i], options_.max_concurrency[i]);
      auto run = one(measured[i], options_.max_concurrency[i], progress);
      if (!run.ok()) return run.status();
      out.push_back(std::move(run).value());
    }
    return out;
  }

 private:
  struct Prompts {
    std::vector<LoadPrompt> all;
    std::vector<std::string> bodies;
  };
  Result<Prompts> prompts(Dataset& dataset, int64_t count) {
    auto sampled = dataset.draw(count, target_);
    if (!sampled.ok()) return sampled.status();
    Prompts out{.all = std::move(sampled).value(), .bodies = {}};
    for (const LoadPrompt& p : out.all) out.bodies.push_back(body_of(p, options_, target_.model).dump());
    // Without a tokenizer, the tokens of the answers cannot be counted, so nothing reads the prompts.
    if (!target_.tokenizer) out.all = {};
    return out;
  }

  // Sends requests that all arrive at the same time, such as warm-ups.
  std::vector<RequestOutcome> outcomes(const Prompts& prompts, int64_t concurrency) {
    return Load(options_, target_.client, concurrency)
        .run(prompts.bodies, arrival_times(std::ssize(prompts.bodies), {}), nullptr);
  }

  Result<ServingRun> one(const Prompts& prompts, int64_t concurrency,
                         const std::function<void(int64_t, int64_t)>& progress) {
    ServingRun out = empty_run(options_, target_.model, concurrency);
    Load load(options_, target_.client, concurrency);
    const std::optional<DraftCounters> before = counters();
    out.outcomes = load.run(prompts.bodies, arrival_times(options_.num_prompts, options_.arrivals), progress);
    const std::optional<DraftCounters> after = before ? counters() : std::nullopt;
    if (after) out.drafts = drafts_between(*before, *after);
    if (target_.tokenizer) SLUICE_TRY(count_missing_tokens(prompts.all, &out.outcomes));
    out.measured = metrics_of(out.outcomes, load.duration(), options_.percents, options_.goodput);
    return out;
  }

  // nullopt if the server has no /metrics, which is not an error, because few servers have it.
  std::optional<DraftCounters> counters() {
    const auto page = fetch_text(target_.client, {.method = "GET",
                                                  .path = "/metrics",
                                                  .api_key = options_.api_key,
                                                  .timeout = std::min(kMetricsTimeoutS, options_.timeout)});
    if (!page.ok()) return {};
    return draft_counters(page.value());
  }

  // Counts tokens after the run, because tokenizing would disturb its timing.
  Status count_missing_tokens(const std::vector<LoadPrompt>& prompts, std::vector<RequestOutcome>* outcomes) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      RequestOutcome& o = (*outcomes)[i];
      if (!o.ok() || o.usage) continue;
      const Json& prompt = prompts[i].prompt;
      const auto in = prompt.is_array() ? Result<int64_t>(static_cast<int64_t>(prompt.size()))
                                        : count_tokens(prompt.get<std::string>(), target_);
      const auto out = count_tokens(o.text, target_);
      if (!in.ok()) return in.status();
      if (!out.ok()) return out.status();
      o.prompt_tokens = in.value(), o.output_tokens = out.value();
    }
    return {};
  }

  const ServeBenchOptions& options_;
  LoadTarget target_;
};

// Returns the status with the name of the option in front of its message.
Status about(const char* option, const Status& status) {
  return status.ok() ? status : Status{status.code, std::string(option) + ": " + status.message};
}

Result<std::optional<Tokenizer>> tokenizer_of(const ServeBenchOptions& o) {
  if (o.tokenizer.empty()) return std::optional<Tokenizer>();
  auto tokenizer = Tokenizer::load(o.tokenizer + "/tokenizer.json");
  if (!tokenizer.ok()) return about(o.dataset.names.tokenizer, tokenizer.status());
  return std::optional(std::move(tokenizer).value());
}

// Checks the options as far as that is possible without a request.
Status check_options(const ServeBenchOptions& o) {
  for (const std::string& metric : o.metrics) SLUICE_TRY(about(o.names.metrics, check_metric(metric)));
  ServingRun run = empty_run(o, "", o.max_concurrency.empty() ? 0 : o.max_concurrency.front());
  run.measured = metrics_of({}, 1, o.percents, o.goodput);
  SLUICE_TRY(about(o.names.metadata, check_metadata(run)));
  const Json own = own_body({.prompt = "", .output_len = 1}, o, "");
  for (const auto& [name, value] : o.extra_body.items())
    if (own.contains(name))
      return about(o.names.extra_body,
                   invalid("wanted only fields that no other option sets, found '" + name + "'"));
  return {};
}

}  // namespace

Result<std::vector<ServingRun>> bench_serve(const ServeBenchOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress) {
  SLUICE_TRY(check_options(options));
  auto tokenizer = tokenizer_of(options);
  if (!tokenizer.ok()) return tokenizer.status();
  auto client = HttpClient::open({.server = options.server, .timeout = options.timeout});
  if (!client.ok()) return client.status();
  std::string model = options.model;
  if (model.empty()) {
    const auto first = first_model(*client.value(), options.api_key);
    if (!first.ok()) return first.status();
    model = first.value();
  }
  LoadTarget target{*client.value(), options.backend, model, options.api_key, std::move(tokenizer).value()};
  return ServeBench(options, std::move(target)).run(progress);
}

}  // namespace sluice
