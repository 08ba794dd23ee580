// Shared by http.cc and http_connection.cc, the only files of the server that use Boost's sockets.
#pragma once
#include <utility>  // before awaitable.hpp, which uses it and does not include it

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/http/http.h"
#include "server/http/http_reader.h"

namespace sluice {

namespace asio = boost::asio;
using asio::ip::tcp;

Clock::time_point after(double seconds);  // from now on

// Counts the bytes of all request bodies that are not parsed yet. Thread-safe.
class PendingBytes {
 public:
  explicit PendingBytes(int64_t limit) : limit_(limit) {}
  // Adds the bytes even if they exceed the limit. Returns whether the total is within the limit.
  bool add(int64_t bytes) { return (bytes_ += bytes) <= limit_; }
  void remove(int64_t bytes) { bytes_ -= bytes; }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};
};

class HttpLoop;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpLoop& loop, tcp::socket socket);
  void start();
  void check_deadline(Clock::time_point now);
  void finish_output();  // closes the connection once all output is written
  bool serves(const HttpExchange* exchange) const { return open_ && exchange_.get() == exchange; }
  void respond(HttpResponse response);
  void begin_stream(const HttpResponse& head);
  void write(std::string bytes);
  void end();
  void lose(ClientLoss how) noexcept;
  int64_t unsent_bytes() const;  // a shared body counts with its size divided by the number of its owners

 private:
  // A part of the output: bytes of this connection, or a body that it shares with other connections.
  struct Part {
    std::string own;
    std::shared_ptr<const std::string> shared = {};
    std::string_view text() const { return shared ? *shared : own; }
  };
  asio::awaitable<void> read_all();
  asio::awaitable<void> write_all();
  asio::awaitable<void> wait(asio::steady_timer& signal);
  void consume();
  void read_requests();
  void take_request();
  void take_turns();
  void count_body();
  void refuse(int status, const std::string& message);
  void peer_ended();
  void end_exchange();
  void close();
  void queue(std::string_view head, Part body, std::string_view tail);
  std::string head_of(const HttpResponse& response, std::optional<size_t> body_bytes);
  void check_reader(Clock::time_point now);
  int64_t unread() const { return queued_ - sent_; }

  HttpLoop& loop_;
  tcp::socket socket_;
  // These timers never expire. Cancelling one wakes the coroutine that waits for it.
  asio::steady_timer input_wanted_, output_ready_;
  std::string input_;
  std::vector<Part> output_, sending_;
  HttpReader reader_;
  int64_t counted_ = 0;  // bytes of the current body that PendingBytes has counted
  std::shared_ptr<HttpExchange> exchange_;
  std::string last_id_;  // the id of the last answered request
  // Bytes of answers so far: all that were queued, and those passed to the system. `largest_`: the largest stream write since unread() was 0.
  int64_t queued_ = 0, sent_ = 0, largest_ = 0;
  int64_t left_before_ = 0, sent_before_ = 0;  // unread() and sent_ at read_checked_
  Clock::time_point read_checked_;
  bool open_ = true;
  bool consuming_ = false;
  bool turn_pending_ = false;  // consume() is posted to the loop
  bool last_ = false;          // the connection reads no further request and closes after its output
  bool peer_ended_ = false;
  bool keep_alive_ = true, chunked_ = true, head_only_ = false;
  Clock::time_point read_deadline_, write_deadline_ = Clock::time_point::max();
};

class HttpLoop final : public HttpServer {
 public:
  HttpLoop(const HttpOptions& options, HttpService& service)
      : options_(options), service_(service), acceptor_(context_), timer_(context_), signals_(context_) {}
  Status open();
  std::string url() const override;
  int64_t connections() const override { return static_cast<int64_t>(connections_.size()); }
  void run() override;
  void post(std::function<void()> work) override { asio::post(context_, std::move(work)); }
  void stop() override;

  const HttpOptions& options() const { return options_; }
  HttpService& service() { return service_; }
  auto executor() { return context_.get_executor(); }
  const std::shared_ptr<PendingBytes>& pending() const { return pending_; }
  void drop(const std::shared_ptr<HttpConnection>& connection) { connections_.erase(connection); }
  std::string new_id();

 private:
  asio::awaitable<void> accept_all();
  void take_in(tcp::socket socket);
  asio::awaitable<void> tick_always();
  void tick();
  void bound_output();
  void start(bool* runs, asio::awaitable<void> (HttpLoop::*coroutine)());
  void wait_for_signal();
  HttpOptions options_;
  HttpService& service_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  asio::signal_set signals_;
  std::shared_ptr<PendingBytes> pending_ = std::make_shared<PendingBytes>(options_.max_pending_bytes);
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  bool accepts_ = false, ticks_ = false;
  std::optional<Clock::time_point> stop_at_;
  std::mt19937_64 ids_{std::random_device{}()};
};

}  // namespace sluice
