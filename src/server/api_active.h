// A request whose sequences are in the queue or in the engine. The files that implement ApiServer share this struct.
#pragma once
#include <atomic>
#include <chrono>
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

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct ApiServer::Active {
  Active(const ChatFormat& format, ServedModel::Prepared p, Exchange e, AnswerHead head)
      : exchange(std::move(e)),
        request(std::move(p.request)),
        answer(Answer::make(format, request, std::move(head), p.prompts, p.forced)) {}
  int64_t prompt_tokens() const;
  int64_t completion_tokens() const;
  // The cost of one token, and the cost of the answer's end, as a number of scores (log probabilities) to write as JSON.
  int64_t work_of(const GeneratedToken& token) const;
  int64_t work_of_end() const;
  bool end_repeats() const;    // whether all scores are written (again) at the end of the answer
  int64_t kept_bytes() const;  // bytes of log probabilities, including those to write at the end

  Exchange exchange;
  ApiRequest request;
  std::shared_ptr<Answer> answer;
  Ticket first_ticket = 0;
  struct Sequence {
    bool ended = false;  // further tokens of the engine are ignored
    int64_t tokens = 0;
    Clock::time_point started, first_token, last_token;
  };
  std::vector<Sequence> sequences;  // indexed by choice
  std::vector<int64_t> prompt_lengths;
  std::string events;    // the events of the current step
  bool touched = false;  // is in `touched_`, because the current step gave it tokens
  Clock::time_point arrived;
  bool started = false;    // at least one sequence has entered the engine
  bool begun = false;      // at least one token is in the answer
  bool streaming = false;  // the head of the stream is written

  // While `away` is true, a worker owns `answer` and `events`. Tokens that arrive meanwhile wait in `later`, and an error in `fault`.
  bool away = false;
  struct Later {
    TicketToken token;
    Clock::time_point at;
  };
  std::deque<Later> later;
  std::optional<ApiError> fault;
  int64_t kept = 0;                // scores of the answer so far
  std::atomic<bool> over = false;  // the request has ended, so a worker need not do its work
};

}  // namespace sluice
