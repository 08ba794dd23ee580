#include "server/requests/unsupported.h"

#include <iterator>
#include <span>

namespace sluice {
namespace {

// A field of an unsupported feature, with the values that mean "off".
struct Unsupported {
  const char* field;
  const char* neutral;  // a JSON array; null is always neutral
};
constexpr Unsupported kOfAll[] = {{"adaptive_target", "[-1]"},
                                  {"allowed_token_ids", "[]"},
                                  {"audio", "[]"},
                                  {"bad_words", "[[]]"},
                                  {"bad_words_ids", "[[]]"},
                                  {"banned_strings", "[[]]"},
                                  {"banned_tokens", "[[]]"},
                                  {"begin_suppress_tokens", "[[]]"},
                                  {"cache_salt", R"([""])"},
                                  {"chat_template", "[]"},
                                  {"constraints", "[[]]"},
                                  {"custom_logit_processor", "[]"},
                                  {"custom_params", "[{}]"},
                                  {"decoder_input_details", "[false]"},
                                  {"details", "[false]"},
                                  {"do_sample", "[true]"},
                                  {"documents", "[[]]"},
                                  {"dry_multiplier", "[0]"},
                                  {"dynatemp_range", "[0]"},
                                  {"encoder_no_repeat_ngram_size", "[0]"},
                                  {"encoder_repetition_penalty", "[1]"},
                                  {"epsilon_cutoff", "[0]"},
                                  {"eta_cutoff", "[0]"},
                                  {"exponential_decay_length_penalty", "[]"},
                                  {"extra_body", "[{}]"},
                                  {"force_words_ids", "[[]]"},
                                  {"forced_bos_token_id", "[]"},
                                  {"forced_eos_token_id", "[]"},
                                  {"format", R"([""])"},
                                  {"function_call", R"(["none", "auto"])"},
                                  {"functions", "[[]]"},
                                  {"guidance_scale", "[1]"},
                                  {"guided_decoding", "[]"},
                                  {"include_stop_str_in_output", "[false]"},
                                  {"input_ids", "[[]]"},
                                  {"length_penalty", "[1]"},
                                  {"logits_processors", "[[]]"},
                                  {"logprob_token_ids", "[[]]"},
                                  {"lora", "[[]]"},
                                  {"lora_path", "[]"},
                                  {"max_length", "[]"},
                                  {"max_new_tokens", "[]"},
                                  {"max_time", "[]"},
                                  {"max_tokens_to_sample", "[]"},
                                  {"min_length", "[0]"},
                                  {"min_new_tokens", "[0]"},
                                  {"min_tokens", "[0]"},
                                  {"mirostat", "[0]"},
                                  {"mirostat_mode", "[0]"},
                                  {"modalities", R"([["text"]])"},
                                  {"n_cmpl", "[1]"},
                                  {"n_indent", "[0]"},
                                  {"n_probs", "[0]"},
                                  {"negative_prompt", R"([""])"},
                                  {"no_repeat_ngram_size", "[0]"},
                                  {"no_stop_trim", "[false]"},
                                  {"num_beams", "[1]"},
                                  {"num_predict", "[-1]"},
                                  {"num_return_sequences", "[1]"},
                                  {"nvext", "[{}]"},
                                  {"options", "[{}]"},
                                  {"output_config", "[{}]"},
                                  {"output_format", R"(["text"])"},
                                  {"parse_tool_calls", "[true]"},
                                  {"penalty_alpha", "[0]"},
                                  {"prediction", "[]"},
                                  {"priority", "[0]"},
                                  {"prompt_embeds", "[]"},
                                  {"prompt_logprobs", "[]"},
                                  {"random_seed", "[]"},
                                  {"reasoning_budget", "[-1]"},
                                  {"reasoning_budget_tokens", "[-1]"},
                                  {"reasoning_format", R"(["auto", "deepseek"])"},
                                  {"repeat_penalty", "[1]"},
                                  {"repetition_detection", "[]"},
                                  {"response_schema", "[]"},
                                  {"return_full_text", "[false]"},
                                  {"return_hidden_states", "[false]"},
                                  {"return_routed_experts", "[false]"},
                                  {"return_token_ids", "[false]"},
                                  {"return_tokens_as_token_ids", "[false]"},
                                  {"samplers", "[]"},
                                  {"sampling_seed", "[]"},
                                  {"separate_reasoning", "[true]"},
                                  {"sequence_bias", "[{}, []]"},
                                  {"session_params", "[]"},
                                  {"skip_special_tokens", "[true]"},
                                  {"smoothing_factor", "[0]"},
                                  {"stop_regex", "[[]]"},
                                  {"stop_sequences", "[[]]"},
                                  {"stop_strings", "[[]]"},
                                  {"stop_words", "[[]]"},
                                  {"stream_reasoning", "[true]"},
                                  {"suffix", R"([""])"},
                                  {"suppress_tokens", "[[]]"},
                                  {"system", R"([""])"},
                                  {"t_max_predict_ms", "[0, -1]"},
                                  {"template", R"([""])"},
                                  {"tfs_z", "[1]"},
                                  {"think", "[]"},
                                  {"thinking", "[]"},
                                  {"thinking_budget", "[-1]"},
                                  {"thinking_budget_tokens", "[-1]"},
                                  {"thinking_token_budget", "[-1]"},
                                  {"token_ids_logprob", "[[]]"},
                                  {"top_a", "[0]"},
                                  {"top_n_sigma", "[-1, 0]"},
                                  {"truncate", "[]"},
                                  {"truncate_prompt_tokens", "[]"},
                                  {"typical", "[1]"},
                                  {"typical_p", "[1]"},
                                  {"use_beam_search", "[false]"},
                                  {"verbosity", R"(["medium"])"},
                                  {"vllm_xargs", "[{}]"},
                                  {"watermark", "[false]"},
                                  {"web_search_options", "[]"},
                                  {"whitespace_pattern", "[]"},
                                  {"xtc_probability", "[0]"}};
// Fields of other endpoints, and other APIs' names of max_tokens, with the values that mean "off".
constexpr const char* kPlainText = R"([{}, {"format": {"type": "text"}}])";
constexpr Unsupported kOfChat[] = {{"echo", "[false]"},         {"input", R"(["", []])"},
                                   {"instructions", R"([""])"}, {"max_output_tokens", "[]"},
                                   {"n_predict", "[-1]"},       {"prompt", R"(["", []])"},
                                   {"text", kPlainText}};
constexpr Unsupported kOfCompletion[] = {{"add_generation_prompt", "[true]"},
                                         {"chat_template_kwargs", "[{}]"},
                                         {"continue_final_message", "[false]"},
                                         {"enable_thinking", "[]"},
                                         {"input", R"(["", []])"},
                                         {"instructions", R"([""])"},
                                         {"max_completion_tokens", "[]"},
                                         {"max_output_tokens", "[]"},
                                         {"messages", "[[]]"},
                                         {"n_predict", "[]"},
                                         {"reasoning", "[{}]"},
                                         {"reasoning_effort", "[]"},
                                         {"text", kPlainText},
                                         {"tool_choice", R"(["none", "auto"])"},
                                         {"tools", "[[]]"},
                                         {"top_logprobs", "[0]"}};
constexpr Unsupported kOfResponse[] = {{"add_generation_prompt", "[true]"},
                                       {"continue_final_message", "[false]"},
                                       {"echo", "[false]"},
                                       {"logprobs", "[false]"},
                                       {"max_completion_tokens", "[]"},
                                       {"messages", "[[]]"},
                                       {"n_predict", "[-1]"},
                                       {"prompt", "[]"}};
// Fields of a response. A response supports the last two.
constexpr Unsupported kOfResponsesApi[] = {{"background", "[false]"}, {"conversation", "[]"},
                                           {"max_tool_calls", "[]"},  {"truncation", R"(["disabled"])"},
                                           {"include", "[[]]"},       {"previous_response_id", "[]"}};
// Fields without effect on the answer.
constexpr const char* kHarmless[] = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store",
    "user"};

void refuse(std::span<const Unsupported> all, ApiFields* fields) {
  for (const auto& [field, neutral] : all) fields->refuse(field, neutral);
}

}  // namespace

void refuse_unsupported(ApiFields* fields) {
  refuse(kOfAll, fields);
  for (const char* field : kHarmless) fields->skip(field);
}

void refuse_unsupported_of(ApiKind kind, ApiFields* fields) {
  if (kind == ApiKind::kResponse) {
    refuse(kOfResponse, fields);
    return refuse(std::span(kOfResponsesApi).first<std::size(kOfResponsesApi) - 2>(), fields);
  }
  if (kind == ApiKind::kChat)
    refuse(kOfChat, fields);
  else
    refuse(kOfCompletion, fields);
  refuse(kOfResponsesApi, fields);
}

}  // namespace sluice
