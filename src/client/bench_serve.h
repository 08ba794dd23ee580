// sluice bench serve: measures any OpenAI-compatible server under load.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/arrivals.h"
#include "client/datasets.h"
#include "client/serving_report.h"

namespace sluice {

// The names of options in error messages, as users know them. Names of the data set's options are in ServeBenchOptions::dataset.names.
struct ServeBenchNames {
  const char *extra_body = "extra_body", *metadata = "metadata", *metrics = "metrics";
};

// Field names follow vLLM's client.
struct ServeBenchOptions {
  ServerUrl server = {"127.0.0.1", "8000", ""};
  std::string endpoint;  // empty: endpoint_of(backend)
  ApiBackend backend = ApiBackend::kOpenai;
  std::string model;  // empty: the first of /v1/models
  std::string api_key;
  // Directory of the model's tokenizer.json; empty: use the server's tokenize endpoint.
  std::string tokenizer;
  Json extra_body = Json::object();  // additional fields of each request
  std::vector<Metadata> metadata;    // metadata of the results
  double timeout = 6 * 60 * 60;      // seconds per request
  DatasetOptions dataset;            // its seed also determines the arrival times
  int64_t num_prompts = 1000, num_warmups = 0;
  ArrivalOptions arrivals;
  std::vector<int64_t> max_concurrency = {0};  // one run per value; 0: no limit
  bool ignore_eos = false;
  std::optional<double> temperature = {};  // nullopt: the server's default
  std::vector<double> percents = {99};
  Goodput goodput;
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
  ServeBenchNames names = {};
};

// Calls `progress(done, all)` after each answer. First sends one request alone; if it fails, returns the error and measures nothing. Each run
// starts with num_warmups unmeasured requests, whose prompts are not used again if the data set is large enough.
Result<std::vector<ServingRun>> bench_serve(const ServeBenchOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sluice
