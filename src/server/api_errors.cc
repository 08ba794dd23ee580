#include "server/api_errors.h"

#include "base/printable.h"

namespace sluice {

ApiError overloaded(int64_t max_queue, const SettingNames& names) {
  return {.status = 429,
          .message = "queue: wanted at most " + std::to_string(max_queue) + " waiting sequences (" +
                     names.max_queue + "), found it full; try again later",
          .type = "rate_limit_error",
          .code = "queue_full"};
}

ApiError shutting_down() {
  return {.status = 503,
          .message = "the server is shutting down",
          .type = "server_error",
          .code = "shutting_down"};
}

ApiError no_memory() {
  return {.status = 503,
          .message = "the system has no memory for this request",
          .type = "server_error",
          .code = "out_of_memory"};
}

ApiError too_much_kept(int64_t limit, const SettingNames& names) {
  return {.status = 503,
          .message = "logprobs: wanted at most " + std::to_string(limit) +
                     " bytes of log probabilities in all running answers (" + names.max_answer_bytes +
                     "), found more; "
                     "this answer had the most",
          .type = "server_error",
          .param = "logprobs",
          .code = "out_of_memory"};
}

ApiError unknown_model(const std::string& name) {
  return {.status = 404,
          .message = "model: wanted a name that /v1/models lists, found '" + shortened(name) + "'",
          .param = "model",
          .code = "model_not_found"};
}

ApiError timed_out(double seconds, const SettingNames& names) {
  return {.status = 504,
          .message = "request: wanted an answer within " + number_text(seconds) + " seconds (" +
                     names.request_timeout + "), found none",
          .type = "server_error",
          .code = "timeout"};
}

}  // namespace sluice
