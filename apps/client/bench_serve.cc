#include "apps/client/bench_serve.h"

#include <algorithm>
#include <ctime>
#include <deque>

namespace sluice::apps {
namespace {

constexpr double kArrivalMost = 1e8;  // seconds: later ones never come

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  char out[32];
  std::strftime(out, sizeof out, "%Y%m%d-%H%M%S", &date);
  return out;
}

std::string body_of(const LoadPrompt& prompt, const ServeBenchOptions& o, const std::string& model) {
  Json body = {{"model", model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (o.backend == ApiBackend::kOpenai) {
    body["prompt"] = prompt.prompt;
    body["max_tokens"] = prompt.output_len;
  } else {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.prompt}}});
    body["max_completion_tokens"] = prompt.output_len;
  }
  if (o.ignore_eos) body["ignore_eos"] = true;
  if (o.temperature >= 0) body["temperature"] = o.temperature;
  return body.dump();
}

// One load: requests arrive when they are due, and wait in a queue while max_concurrency are under way.
class Load {
 public:
  Load(const ServeBenchOptions& options, HttpClient& client, int64_t max_concurrency)
      : options_(options), client_(client), max_concurrency_(max_concurrency) {}

  // Outcomes in the order of the bodies. seconds(): until the last answer.
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
                                   std::chrono::duration<double>(std::min(arrivals[request], kArrivalMost)));
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

// What all loads of one benchmark share.
class ServeBench {
 public:
  ServeBench(const ServeBenchOptions& options, HttpClient& client, const std::string& model)
      : options_(options), target_{client, options.backend, model, options.api_key} {}

  Result<std::vector<ServingRun>> run(const std::function<void(int64_t, int64_t)>& progress) {
    auto dataset = Dataset::open(options_.dataset, target_);
    if (!dataset.ok()) return dataset.status();
    const auto first = outcomes(dataset.value(), 1, 1);
    if (!first.ok()) return first.status();
    if (!first.value().front().ok())
      return Status{Code::kIo,
                    "the first request failed, nothing was measured: " + first.value().front().error};
    std::vector<ServingRun> out;
    for (const int64_t concurrency : options_.max_concurrency) {
      const auto warm = outcomes(dataset.value(), options_.num_warmups, concurrency);
      if (!warm.ok()) return warm.status();
      auto run = one(dataset.value(), concurrency, progress);
      if (!run.ok()) return run.status();
      out.push_back(std::move(run).value());
    }
    return out;
  }

 private:
  Result<std::vector<std::string>> bodies(Dataset& dataset, int64_t count) {
    const auto prompts = dataset.draw(count, target_);
    if (!prompts.ok()) return prompts.status();
    std::vector<std::string> out;
    for (const LoadPrompt& p : prompts.value()) out.push_back(body_of(p, options_, target_.model));
    return out;
  }

  // Of requests that all arrive at once and are not measured.
  Result<std::vector<RequestOutcome>> outcomes(Dataset& dataset, int64_t count, int64_t concurrency) {
    const auto all = bodies(dataset, count);
    if (!all.ok()) return all.status();
    return Load(options_, target_.client, concurrency).run(all.value(), arrival_times(count, {}), nullptr);
  }

  Result<ServingRun> one(Dataset& dataset, int64_t concurrency,
                         const std::function<void(int64_t, int64_t)>& progress) {
    const auto all = bodies(dataset, options_.num_prompts);
    if (!all.ok()) return all.status();
    ServingRun out{.date = date_now(),
                   .backend = options_.backend,
                   .model = target_.model,
                   .prompts = options_.num_prompts,
                   .request_rate = options_.arrivals.request_rate,
                   .burstiness = options_.arrivals.burstiness,
                   .max_concurrency = concurrency,
                   .goodput = options_.goodput,
                   .metrics = options_.metrics,
                   .measured = {},
                   .outcomes = {}};
    Load load(options_, target_.client, concurrency);
    out.outcomes = load.run(all.value(), arrival_times(options_.num_prompts, options_.arrivals), progress);
    out.measured = metrics_of(out.outcomes, load.duration(), options_.percents, options_.goodput);
    return out;
  }

  const ServeBenchOptions& options_;
  LoadTarget target_;
};

}  // namespace

Result<std::vector<ServingRun>> bench_serve(const ServeBenchOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress) {
  for (const std::string& metric : options.metrics) SLUICE_TRY(check_metric(metric));
  auto client = HttpClient::open({.server = options.server, .timeout = options.timeout});
  if (!client.ok()) return client.status();
  std::string model = options.model;
  if (model.empty()) {
    const auto first = first_model(*client.value(), options.api_key);
    if (!first.ok()) return first.status();
    model = first.value();
  }
  return ServeBench(options, *client.value(), model).run(progress);
}

}  // namespace sluice::apps
