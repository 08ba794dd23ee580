// A request in the queue or in the engine. The files of ApiServer share this struct.
#pragma once
#include <atomic>
#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "server/api_server.h"

namespace sluice {

struct ApiServer::Active {
  Active(const ChatFormat& format, ServedModel::Prepared p, Exchange e, AnswerHead head)
      : exchange(std::move(e)),
        request(std::move(p.request)),
        answer(Answer::make(format, request, std::move(head), p.prompts, p.forced)) {}
  int64_t prompt_tokens() const;
  int64_t completion_tokens() const;
  // Cost of one token, and of the end of the answer, as a number of scores to write as JSON.
  int64_t work_of(const GeneratedToken& token) const;
  int64_t work_of_end() const;
  bool end_repeats() const;    // the last event, or the whole answer, lists all scores again
  int64_t kept_bytes() const;  // of log probabilities, including those that the end repeats

  Exchange exchange;
  ApiRequest request;
  std::shared_ptr<Answer> answer;
  Ticket first_ticket = 0;
  struct Sequence {
    bool ended = false;  // the engine sends no more tokens
    int64_t tokens = 0;
    Clock::time_point started, first_token, last_token;
  };
  std::vector<Sequence> sequences;  // indexed by choice
  std::vector<int64_t> prompt_lengths;
  std::string events;    // the events of the current step
  bool touched = false;  // in `touched_`: the current step gave it tokens
  Clock::time_point arrived;
  bool started = false;    // at least one sequence has entered the engine
  bool begun = false;      // at least one token is in the answer
  bool streaming = false;  // the head of the stream is written

  // While `away`, a worker owns `answer` and `events`. Tokens that arrive meanwhile wait in `later`, an error in `fault`.
  bool away = false;
  struct Later {
    TicketToken token;
    Clock::time_point at;
  };
  std::deque<Later> later;
  std::optional<ApiError> fault;
  int64_t kept = 0;                // in scores
  std::atomic<bool> over = false;  // the worker may stop: the request is over
};

}  // namespace sluice
