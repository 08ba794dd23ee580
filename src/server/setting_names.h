// The names of settings in the server's messages, as the operator knows them.
#pragma once

namespace sluice {

// The defaults are the names of the fields of AccessOptions, ApiOptions and HttpOptions. A program that sets
// these fields with flags stores the names of its flags here.
struct SettingNames {
  const char *allowed_hosts = "allowed_hosts", *api_keys = "api_keys";        // of AccessOptions
  const char *max_queue = "max_queue", *request_timeout = "request_timeout";  // of ApiOptions
  const char* max_answer_bytes = "max_answer_bytes";                          // of ApiOptions
  const char *max_body_bytes = "max_body_bytes", *max_pending_bytes = "max_pending_bytes";  // of HttpOptions
  const char *max_model_len = "max_model_len", *max_num_seqs = "max_num_seqs";              // of the engine
};

}  // namespace sluice
