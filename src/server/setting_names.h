// How the operator names the settings that the server's messages mention.
#pragma once

namespace sluice {

// The defaults are the names of the options' fields. A program that sets these options with flags stores the
// flags' names here.
struct SettingNames {
  const char *allowed_hosts = "allowed_hosts", *api_keys = "api_keys";        // of AccessOptions
  const char *max_queue = "max_queue", *request_timeout = "request_timeout";  // of ApiOptions
  const char* max_answer_bytes = "max_answer_bytes";                          // of ApiOptions
  const char *max_body_bytes = "max_body_bytes", *max_pending_bytes = "max_pending_bytes";  // of HttpOptions
  const char *max_model_len = "max_model_len", *max_num_seqs = "max_num_seqs";              // of the engine
};

}  // namespace sluice
