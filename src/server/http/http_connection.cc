// Each connection has two coroutines on the loop's thread: a writer, and a reader that also reads during an answer, so that it notices at
// once when the client disconnects.
#include <utility>  // before awaitable.hpp, which uses it and does not include it

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <ctime>

#include "base/printable.h"
#include "server/http/http_loop.h"
#include "server/memory.h"

namespace sluice {
namespace {

using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kInputMax = 64 << 10;  // bytes of pipelined requests after the current one
// The next request of a connection waits while the client has not read more than this many bytes of answers.
constexpr size_t kOutputPause = 64 << 10;
// maximum per system call, because the loop waits while the system copies
constexpr size_t kWriteBytes = 256 << 10;
constexpr double kLingerSeconds =
    2;  // time for the client to read the error that rejects the rest of its request
constexpr auto kReadsWithin = std::chrono::seconds(1);

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &date);
  return text;
}

}  // namespace

HttpConnection::HttpConnection(HttpLoop& loop, tcp::socket socket)
    : loop_(loop),
      socket_(std::move(socket)),
      input_wanted_(loop.executor(), Clock::time_point::max()),
      output_ready_(loop.executor(), Clock::time_point::max()),
      reader_(loop.options()),
      read_deadline_(after(loop.options().read_timeout)) {}

void HttpConnection::start() {
  // If memory runs out, only this connection ends.
  const auto done = [self = shared_from_this()](std::exception_ptr error) {
    if (error) self->lose(ClientLoss::kNoMemory);
  };
  asio::co_spawn(
      loop_.executor(), [self = shared_from_this()] { return self->read_all(); }, done);
  asio::co_spawn(
      loop_.executor(), [self = shared_from_this()] { return self->write_all(); }, done);
}

asio::awaitable<void> HttpConnection::wait(asio::steady_timer& signal) {
  error_code woken;
  co_await signal.async_wait(asio::redirect_error(asio::use_awaitable, woken));
}

asio::awaitable<void> HttpConnection::read_all() {
  std::vector<char> chunk(kReadBytes);
  while (open_) {
    while (open_ && !last_ && !exchange_ && input_.size() >= kInputMax) co_await wait(input_wanted_);
    if (!open_) co_return;
    error_code error;
    const size_t bytes = co_await socket_.async_read_some(asio::buffer(chunk),
                                                          asio::redirect_error(asio::use_awaitable, error));
    if (!open_) co_return;
    if (error && error != asio::error::eof) co_return lose(ClientLoss::kClosed);
    if (error) {
      while (turn_pending_) co_await wait(input_wanted_);  // requests that arrived before the end
      co_return peer_ended();
    }
    // Input that is not needed is read, too: closing a socket with unread input discards output, and a disconnect is seen only after all input.
    if (last_ || (exchange_ && !keep_alive_)) continue;
    if (input_.empty() && !reader_.within() && !exchange_)
      read_deadline_ = after(loop_.options().read_timeout);
    input_.append(chunk.data(), bytes);
    consume();
    if (!exchange_ || input_.size() < kInputMax) continue;
    keep_alive_ = false;  // input from here on is discarded, so the connection closes after this answer
    std::string().swap(input_);
  }
}

asio::awaitable<void> HttpConnection::write_all() {
  error_code error;
  while (open_) {
    while (open_ && output_.empty() && !last_) co_await wait(output_ready_);
    if (!open_) co_return;
    if (output_.empty()) break;
    sending_.swap(output_);
    for (const Part& part : sending_) {
      std::string_view rest = part.text();
      while (!rest.empty()) {
        write_deadline_ = after(loop_.options().write_timeout);
        const size_t taken = co_await socket_.async_write_some(
            asio::buffer(rest.substr(0, kWriteBytes)), asio::redirect_error(asio::use_awaitable, error));
        if (!open_) co_return;
        if (error) co_return lose(ClientLoss::kClosed);
        rest.remove_prefix(taken);
        sent_ += static_cast<int64_t>(taken);
      }
    }
    sending_.clear();
    if (unread() == 0) largest_ = 0;
    write_deadline_ = Clock::time_point::max();
    consume();
  }
  if (peer_ended_) co_return close();
  socket_.shutdown(tcp::socket::shutdown_send, error);
  read_deadline_ = after(kLingerSeconds);
}

// Parses the input, up to the end of the next request, and takes that request.
void HttpConnection::consume() {
  if (consuming_ || turn_pending_) return;
  consuming_ = true;
  if (!has_memory_for([&] { read_requests(); }) && open_) {
    // If an answer is in progress, or memory runs out again for the error, the connection is closed.
    if (exchange_ || !has_memory_for([&] { refuse(503, "request: the system has no memory for it"); }))
      lose(ClientLoss::kNoMemory);
  }
  consuming_ = false;
  if (input_.size() < kInputMax || exchange_ || !turn_pending_) input_wanted_.cancel();
}

void HttpConnection::read_requests() {
  while (open_ && !last_ && !exchange_ && !input_.empty() && unread() < static_cast<int64_t>(kOutputPause)) {
    const size_t before = input_.size();
    const HttpReader::State state = reader_.read(&input_);
    if (state == HttpReader::State::kRefused) return refuse(reader_.status(), reader_.message());
    count_body();
    if (last_) return;  // count_body() has rejected the request
    if (state == HttpReader::State::kRequest) {
      take_request();
      if (open_ && !exchange_ && !input_.empty()) take_turns();
      return;
    }
    if (reader_.expects_continue()) {
      queue("HTTP/1.1 100 Continue\r\n\r\n", {}, "");
      output_ready_.cancel();
    }
    if (input_.size() == before && input_.size() < kInputMax) return;
    if (input_.size() == before)
      return refuse(431, "request: wanted lines that end within " + std::to_string(kInputMax) +
                             " bytes, found a longer extension of a chunk, or longer trailers");
  }
}

// Other connections come before the next pipelined request, so that clients with many of them delay nobody.
void HttpConnection::take_turns() {
  asio::post(loop_.executor(), [self = shared_from_this()] {
    self->turn_pending_ = false;
    self->consume();
  });
  turn_pending_ = true;
}

void HttpConnection::count_body() {
  const int64_t more = reader_.body_bytes() - counted_;
  counted_ += more;
  if (loop_.pending()->add(more) || last_) return;
  refuse(503, "request: wanted at most " + std::to_string(loop_.pending()->limit()) +
                  " bytes in all requests that are being received (" +
                  loop_.options().names.max_pending_bytes + "), found more; try again later");
}

void HttpConnection::take_request() {
  HttpReader::Message message = reader_.take();
  HttpRequest& request = message.request;
  const auto give_back = [pending = loop_.pending(), bytes = std::exchange(counted_, 0)](const void*) {
    pending->remove(bytes);
  };
  request.counted = std::shared_ptr<const void>(static_cast<const void*>(&loop_), give_back);
  if (request.id.empty()) request.id = loop_.new_id();
  keep_alive_ = message.keep_alive;
  chunked_ = message.chunks;
  head_only_ = message.head_only;
  read_deadline_ = Clock::time_point::max();
  last_id_ = request.id;
  exchange_ = std::make_shared<HttpExchange>(weak_from_this(), request.id);
  const auto exchange = exchange_;
  loop_.service().on_request(std::move(request), exchange);
}

void HttpConnection::refuse(int status, const std::string& message) {
  const std::string id = loop_.new_id();
  keep_alive_ = head_only_ = false;
  exchange_ = std::make_shared<HttpExchange>(weak_from_this(), id);
  last_id_ = id;
  loop_.service().log(id, "refused with " + std::to_string(status) + ": " + message);
  respond({.status = status, .body = loop_.service().error_body(status, message)});
}

std::string HttpConnection::head_of(const HttpResponse& r, std::optional<size_t> body_bytes) {
  if (!body_bytes && !chunked_) keep_alive_ = false;
  std::string out = "HTTP/1.1 " + std::to_string(r.status) + ' ' + reason_phrase(r.status) +
                    "\r\nDate: " + http_date() + "\r\nContent-Type: " + r.content_type +
                    "\r\nx-request-id: " + exchange_->id() + "\r\n";
  for (const HttpHeaders* headers : std::array<const HttpHeaders*, 2>{&exchange_->headers, &r.headers})
    for (const auto& [name, value] : *headers) out += name + ": " + value + "\r\n";
  if (body_bytes) out += "Content-Length: " + std::to_string(*body_bytes) + "\r\n";
  if (!body_bytes && chunked_) out += "Transfer-Encoding: chunked\r\n";
  return out + (keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

// Queues all three texts, or none of them if memory runs out. Does not copy large bodies.
void HttpConnection::queue(std::string_view head, Part body, std::string_view tail) {
  const std::string_view text = body.text();
  const int64_t bytes = std::ssize(head) + std::ssize(text) + std::ssize(tail);
  if (output_.empty() || output_.back().shared || output_.back().own.size() > kOutputPause)
    output_.emplace_back();
  output_.reserve(output_.size() + 2);
  std::string& last = output_.back().own;
  if (text.size() <= kOutputPause) {
    last.reserve(last.size() + static_cast<size_t>(bytes));
    for (const std::string_view part : {head, text, tail}) last += part;
  } else {
    Part end{.own = std::string(tail)};
    last.reserve(last.size() + head.size());
    last += head;
    output_.push_back(std::move(body));
    output_.push_back(std::move(end));
  }
  queued_ += bytes;
}

int64_t HttpConnection::unsent_bytes() const {
  int64_t sum = 0;
  for (const auto* parts : {&output_, &sending_})
    for (const Part& part : *parts)
      sum += part.shared ? std::ssize(*part.shared) / std::max(part.shared.use_count(), 1L)
                         : std::ssize(part.own);
  return sum;
}

void HttpConnection::respond(HttpResponse response) {
  const std::string head = head_of(response, response.text().size());
  Part body{.own = std::move(response.body), .shared = std::move(response.shared)};
  queue(head, head_only_ ? Part() : std::move(body), "");
  end_exchange();
}

void HttpConnection::begin_stream(const HttpResponse& head) {
  queue(head_of(head, std::nullopt), {}, "");
  output_ready_.cancel();
}

void HttpConnection::write(std::string bytes) {
  if (bytes.empty()) return;
  char size[24] = "";
  if (chunked_) std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  const int64_t whole = std::ssize(bytes);
  queue(size, {.own = std::move(bytes)}, chunked_ ? "\r\n" : "");
  largest_ = std::max(largest_, whole);
  output_ready_.cancel();
}

void HttpConnection::end() {
  if (chunked_) queue("0\r\n\r\n", {}, "");
  end_exchange();
}

void HttpConnection::end_exchange() {
  exchange_.reset();
  last_ = last_ || !keep_alive_;
  read_deadline_ = after(loop_.options().idle_timeout);
  output_ready_.cancel();
  input_wanted_.cancel();
  consume();
}

// If the client closes its sending side, an unfinished answer ends, but queued output of finished answers is still sent.
void HttpConnection::peer_ended() {
  if (!open_) return;
  peer_ended_ = true;
  if (exchange_ || unread() == 0) return lose(ClientLoss::kClosed);
  finish_output();
}

void HttpConnection::finish_output() {
  last_ = true;
  output_ready_.cancel();
  input_wanted_.cancel();
}

void HttpConnection::lose(ClientLoss how) noexcept {
  const auto self = weak_from_this().lock();  // close() may drop the last reference
  const auto exchange = std::move(exchange_);
  exchange_.reset();
  const bool was_open = open_;
  close();
  if (exchange && exchange->on_loss) {
    exchange->on_loss(how);
  } else if (!exchange && was_open && unread() > 0) {
    has_memory_for([&] {
      loop_.service().log(last_id_, text(how, loop_.options().names) + ": " + std::to_string(unread()) +
                                        " bytes of the whole answer were not read");
    });
  }
}

std::string text(ClientLoss how, const SettingNames& names) {
  switch (how) {
    case ClientLoss::kClosed:
      return "client gone";
    case ClientLoss::kTooSlow:
      return "client too slow";
    case ClientLoss::kTooLarge:
      return std::string("unsent answers exceeded ") + names.max_pending_bytes +
             ", and this one was the largest";
    case ClientLoss::kNoMemory:
      break;
  }
  return "no memory for the answer";
}

void HttpConnection::close() {
  if (!open_) return;
  open_ = false;
  loop_.pending()->remove(counted_);
  counted_ = 0;
  error_code ignored;
  socket_.close(ignored);
  input_wanted_.cancel();
  output_ready_.cancel();
  loop_.drop(shared_from_this());
}

// Drops a client that reads too slowly: of the bytes that were unread a second ago, at most max_output_bytes plus the largest write may be left.
void HttpConnection::check_reader(Clock::time_point now) {
  if (now - read_checked_ < kReadsWithin) return;
  const int64_t left = left_before_ - (sent_ - sent_before_);  // bytes that have been unread for a second
  read_checked_ = now, left_before_ = unread(), sent_before_ = sent_;
  if (exchange_ && left - largest_ > loop_.options().max_output_bytes) lose(ClientLoss::kTooSlow);
}

void HttpConnection::check_deadline(Clock::time_point now) {
  if (now >= write_deadline_) return lose(ClientLoss::kTooSlow);
  check_reader(now);
  if (!open_ || now < read_deadline_ || exchange_ || unread() > 0) return;
  const bool within = reader_.within() || !input_.empty();
  if (last_ || !within) return close();
  refuse(408, "request: wanted the whole request within " + number_text(loop_.options().read_timeout) +
                  " seconds");
}

std::shared_ptr<HttpConnection> HttpExchange::connection() const {
  auto connection = connection_.lock();
  return connection && connection->serves(this) ? connection : nullptr;
}
void HttpExchange::respond(HttpResponse response) {
  if (const auto c = connection()) c->respond(std::move(response));
}
void HttpExchange::begin_stream(const HttpResponse& head) {
  if (const auto c = connection()) c->begin_stream(head);
}
void HttpExchange::write(std::string bytes) {
  if (const auto c = connection()) c->write(std::move(bytes));
}
void HttpExchange::end() {
  if (const auto c = connection()) c->end();
}
void HttpExchange::drop() noexcept {
  if (const auto c = connection()) c->lose(ClientLoss::kNoMemory);
}

}  // namespace sluice
