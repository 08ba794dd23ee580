// sluice bench serve: how a server answers under load, whichever OpenAI server it is.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "client/arrivals.h"
#include "client/datasets.h"
#include "client/serving_report.h"

namespace sluice {

// Named as vLLM's client names them.
struct ServeBenchOptions {
  ServerUrl server = {"127.0.0.1", "8000", ""};
  std::string endpoint;  // empty: endpoint_of(backend)
  ApiBackend backend = ApiBackend::kOpenai;
  std::string model;  // empty: the server's first
  std::string api_key;
  std::string tokenizer;  // a directory with the model's tokenizer.json; empty: the server's is asked
  Json extra_body = Json::object();  // more fields of each request
  std::vector<Metadata> metadata;    // of the results
  double timeout = 6 * 60 * 60;      // seconds of a request
  DatasetOptions dataset;            // its seed is that of the arrivals too
  int64_t num_prompts = 1000, num_warmups = 0;
  ArrivalOptions arrivals;
  std::vector<int64_t> max_concurrency = {0};  // each is a run of its own; 0: no bound
  bool ignore_eos = false;
  double temperature = -1;  // below 0: the server's own
  std::vector<double> percents = {99};
  Goodput goodput;
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
};

// `progress(done, all)` is called as answers come. One request goes first, alone: if it fails the error says so, and nothing is
// measured. Then, before each run, num_warmups requests. No prompt of these is measured, where the data set has enough.
Result<std::vector<ServingRun>> bench_serve(const ServeBenchOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sluice
