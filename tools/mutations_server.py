"""The mutations of tools/mutations.py in the server, in what the engine does for it, and in the clients that measure one."""
from mutations_table import Mutation


def server(*words):
    return Mutation(*words, program="sluice_server_tests")


def client(*words):
    return Mutation(*words, program="sluice_client_tests")


SERVER = [
    server(
        "stop_string_in_two_pieces",
        "a stop string that two tokens share is not found",
        "apps/serve/stop_matcher.cc",
        "const size_t open = held_.size() - kept;",
        "const size_t open = held_.size();",
        "StopMatcher.*",
    ),
    server(
        "logprobs_behind_a_stop",
        "log probabilities of tokens that a stop string took away",
        "apps/serve/answer_choice.cc",
        "  while (!held_.empty() && held_.front().offset < shown_bytes_) {",
        "  while (!held_.empty()) {",
        "ApiAnswer.*",
    ),
    server(
        "offsets_in_bytes",
        "text_offset counts bytes",
        "apps/serve/answer_choice.cc",
        "return (c & 0xc0) != 0x80;",
        "return c != 0;",
        "ApiAnswer.*",
    ),
    server(
        "calls_nobody_offered",
        "a call of a function that the request does not know is told as one",
        "apps/serve/answer_choice.cc",
        "offers_tools_ ? called_function(e.message.recipient) : \"\";",
        "called_function(e.message.recipient);",
        "ApiAnswer.*",
    ),
    server(
        "forced_header_is_lost",
        "a call that the request began has no name",
        "apps/serve/api_answer.cc",
        "      choice->begin_with(forced);\n",
        "      (void)forced;\n",
        "ApiAnswer.*",
    ),
    server(
        "cached_tokens_of_each_choice",
        "a prompt's cached tokens count once for each of its answers",
        "apps/serve/api_answer.cc",
        "c.tokens() == 0 && choice % choices_each_ == 0",
        "c.tokens() == 0",
        "ApiAnswer.*",
    ),
    server(
        "cut_answers_are_whole",
        "a response that its limit ended says that it is completed",
        "apps/serve/response_answer.h",
        "done() && at(0).finish() == FinishReason::kLength;",
        "false;",
        "ApiResponse.*",
    ),
    server(
        "stored_calls_forgotten",
        "the output of a call is refused after previous_response_id",
        "apps/serve/response_answer.cc",
        "    if (items_[i].kind == Kind::kCall) conversation_.function_of[call_id_of(i)] = items_[i].name;\n",
        "    (void)call_id_of(i);\n",
        "ApiResponse.*",
    ),
    server(
        "oldest_response_stays",
        "the response that was used last goes first",
        "apps/serve/response_store.cc",
        "drop(std::prev(entries_.end()));",
        "drop(std::next(entries_.begin()));",
        "ResponseStore.*",
    ),
    server(
        "schemas_in_order_of_names",
        "members of a schema come in the order of their names",
        "apps/serve/api_fields.cc",
        "  Ordered all = Ordered::parse(body, keep, false);",
        "  Ordered all = Json::parse(body, nullptr, false);\n  (void)keep;",
        "ApiRequest.*",
    ),
    server(
        "results_of_the_last_call",
        "what a tool said belongs to whichever call came last",
        "apps/serve/api_messages.cc",
        "const auto found = out_->function_of.find(id);",
        "(void)id;\n  const auto found = out_->function_of.empty() ? out_->function_of.end() : std::prev(out_->function_of.end());",
        "ApiRequest.*:ApiResponse.*",
    ),
    server(
        "bounds_taken_in",
        "a histogram counts a value that is its bound in the next bucket",
        "apps/serve/metrics.cc",
        "std::lower_bound(bounds_.begin()",
        "std::upper_bound(bounds_.begin()",
        "Metrics.*",
    ),
    client(
        "events_cut_at_cr",
        "a line's end in two bytes is two ends",
        "apps/client/event_stream.cc",
        "    if (second) continue;\n",
        "    if (second) end_line(event);\n",
        "EventStream.*",
    ),
    client(
        "time_of_the_first_token_too",
        "TPOT counts the first token's time among the others",
        "apps/client/serving_metrics.cc",
        "(o.latency - o.ttft) /",
        "o.latency /",
        "*",
    ),
    client(
        "interval_without_its_spread",
        "Wilson's interval is that of a normal distribution",
        "apps/client/accuracy.cc",
        "+ spread / (4 * n)",
        "+ spread * 0",
        "*",
    ),
    client(
        "sign_test_of_one_side",
        "two servers are told apart by half the evidence",
        "apps/client/accuracy.cc",
        "std::min(1.0, 2 * tail)",
        "std::min(1.0, tail)",
        "*",
    ),
    Mutation(
        "no_bound_beside_decodes",
        "prompts beside decodes fill the step, whatever bound they have",
        "src/serve/scheduler.cc",
        "prompts = options_.mixed_prefill_tokens;",
        "prompts = std::max(prompts, options_.mixed_prefill_tokens);",
        "MixedPrefill.*",
    ),
    Mutation(
        "bound_without_decodes",
        "prompts are bounded in steps in which nobody decodes",
        "src/serve/scheduler.cc",
        "options_.mixed_prefill_tokens > 0 && !chunks.empty()",
        "options_.mixed_prefill_tokens > 0",
        "MixedPrefill.*",
    ),
    Mutation(
        "prompts_begin_without_bound",
        "the bound beside decodes is that of prompts that have begun, and not of those that begin",
        "src/serve/scheduler.cc",
        "admit({.tokens = std::min(budget, prompts),",
        "admit({.tokens = budget,",
        "MixedPrefill.*",
    ),
]
