// A request in the queue or in the engine, as the files of ApiServer share it.
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
  // In scores of which JSON is made: of a token, and of the end.
  int64_t work_of(const GeneratedToken& token) const;
  int64_t work_of_end() const;
  bool end_repeats() const;    // the end says again what the tokens had
  int64_t kept_bytes() const;  // of log probabilities, with those of the end

  Exchange exchange;
  ApiRequest request;
  std::shared_ptr<Answer> answer;
  Ticket first_ticket = 0;
  struct Sequence {
    bool ended = false;  // the engine has no more of it
    int64_t tokens = 0;
    Clock::time_point started, first_token, last_token;
  };
  std::vector<Sequence> sequences;  // by choice
  std::vector<int64_t> prompt_lengths;
  std::string events;    // of a stream, that one step gives
  bool touched = false;  // by the step that is being taken
  Clock::time_point arrived;
  bool started = false;    // at least one sequence has entered the engine
  bool begun = false;      // at least one token is in the answer
  bool streaming = false;  // the head of the stream is written

  // A worker has `answer` and `events`. What comes meanwhile waits: tokens, and the error that ends the answer.
  bool away = false;
  struct Later {
    TicketToken token;
    Clock::time_point at;
  };
  std::deque<Later> later;
  std::optional<ApiError> fault;
  int64_t kept = 0;                // scores
  std::atomic<bool> over = false;  // nobody wants what the worker does
};

}  // namespace sluice
