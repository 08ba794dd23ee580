// The transport, the only file of the client that includes Boost. Each request is a coroutine on the thread that
// calls run().
#include "client/http_client.h"

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffer_traits.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <vector>

#include "base/printable.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 64 << 10;
constexpr uint32_t kHeadBytesMax = 64 << 10;
constexpr uint64_t kBodyBytesMax = uint64_t{256} << 20;
constexpr int kInterimMax = 100;

Status io_error(std::string message) { return {Code::kIo, std::move(message)}; }

Status too_long() {
  return io_error("wanted an answer of at most " + std::to_string(kBodyBytesMax) + " bytes, found more");
}

Status late(double timeout) {
  return io_error("no complete answer within " + number_text(timeout) + " seconds");
}

// A body that is delivered in pieces. Unlike http::string_body, it does not allocate memory for the whole Content-Length in advance.
struct PieceBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kRequest, class Fields>
    reader(http::header<kRequest, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      for (const asio::const_buffer piece : boost::beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      return boost::beast::buffer_bytes(buffers);
    }
    void finish(error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

class Connection {
 public:
  explicit Connection(asio::io_context& context) : socket_(context), timer_(context), chunk_(kReadBytes) {}
  tcp::socket& socket() { return socket_; }
  bool timed_out() const { return timed_out_; }

  // Closes the socket at the deadline, so that the coroutine that waits for it gets an error.
  void end_at(Clock::time_point deadline) {
    timer_.expires_at(deadline);
    timer_.async_wait([this](const error_code& error) {
      if (error) return;
      timed_out_ = true;
      error_code ignored;
      socket_.close(ignored);
    });
  }
  void rest() { timer_.cancel(); }

  // Sends one request and reads its answer. Then answered() is true if any byte of the answer arrived, and again() if the connection can be
  // reused.
  asio::awaitable<Status> exchange(const std::string& request, AnswerReader& reader);
  bool answered() const { return answered_; }
  bool again() const { return again_; }

 private:
  using Parser = http::response_parser<PieceBody>;
  // 101 (Switching Protocols) counts as a final answer, because this client never asks to switch.
  static bool is_interim(const Parser& parser) {
    return parser.is_header_done() && parser.get().result_int() / 100 == 1 &&
           parser.get().result() != http::status::switching_protocols;
  }
  asio::awaitable<Status> read(AnswerReader& reader);
  asio::awaitable<Status> read_one(Parser* parser, AnswerReader& reader);
  Status take(Parser* parser, AnswerReader& reader, Clock::time_point arrived);
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::vector<char> chunk_;
  std::string input_;
  uint64_t body_bytes_ = 0;
  bool head_ = false, answered_ = false, again_ = false, timed_out_ = false;
};

asio::awaitable<Status> Connection::exchange(const std::string& request, AnswerReader& reader) {
  head_ = answered_ = again_ = false;
  body_bytes_ = 0;
  input_.clear();
  // The server determines how large its answer is. If memory runs out, only this request fails.
  try {
    error_code error;
    co_await asio::async_write(socket_, asio::buffer(request),
                               asio::redirect_error(asio::use_awaitable, error));
    // A server may answer and close the connection before it has read the whole request. Then the answer counts, not the error of writing.
    Status status = co_await read(reader);
    if (!status.ok() && !answered_ && error) status = io_error("cannot send the request: " + error.message());
    co_return status;
  } catch (const std::exception& e) {
    again_ = false;
    co_return io_error(std::string("cannot process the answer: ") + e.what());
  }
}

// Interim answers (1xx) precede the final one (RFC 9110, 15.2).
asio::awaitable<Status> Connection::read(AnswerReader& reader) {
  for (int interim = 0; interim <= kInterimMax; ++interim) {
    Parser parser;
    parser.eager(true);
    parser.header_limit(kHeadBytesMax);
    parser.body_limit(kBodyBytesMax);
    const Status status = co_await read_one(&parser, reader);
    if (!status.ok()) co_return status;
    if (is_interim(parser)) continue;
    again_ = parser.keep_alive() && input_.empty();
    co_return Status{};
  }
  co_return io_error("wanted at most " + std::to_string(kInterimMax) + " interim answers, found more");
}

asio::awaitable<Status> Connection::read_one(Parser* parser, AnswerReader& reader) {
  auto arrived = Clock::now();
  while (true) {
    const Status status = take(parser, reader, arrived);
    if (!status.ok() || parser->is_done()) co_return status;
    error_code error;
    const size_t bytes = co_await socket_.async_read_some(asio::buffer(chunk_),
                                                          asio::redirect_error(asio::use_awaitable, error));
    arrived = Clock::now();
    if (error == asio::error::eof && answered_) {
      if (parser->is_header_done()) parser->put_eof(error);
      if (!error) co_return Status{};
      co_return io_error("the server closed the connection before its answer was complete");
    }
    if (error == asio::error::eof) co_return io_error("the server closed the connection without an answer");
    if (error) co_return io_error("cannot read the answer: " + error.message());
    answered_ = true;
    input_.append(chunk_.data(), bytes);
  }
}

Status Connection::take(Parser* parser, AnswerReader& reader, Clock::time_point arrived) {
  while (!input_.empty() && !parser->is_done()) {
    error_code error;
    const size_t used = parser->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error == http::error::body_limit) return too_long();
    if (error && error != http::error::need_more)
      return io_error("wanted an HTTP answer, found an error: " + error.message());
    if (used == 0) break;
  }
  if (input_.size() > kHeadBytesMax && !parser->is_done())
    return io_error("wanted at most " + std::to_string(kHeadBytesMax) + " bytes of a head, found more");
  if (is_interim(*parser)) return {};
  // Beast checks Content-Length against its limit only if no byte of the body came with the head, so it is checked here, too.
  body_bytes_ += parser->get().body().size();
  if (body_bytes_ > kBodyBytesMax || parser->content_length().value_or(0) > kBodyBytesMax) return too_long();
  if (!head_ && parser->is_header_done()) {
    head_ = true;
    reader.on_head(static_cast<int>(parser->get().result_int()));
  }
  std::string& body = parser->get().body();
  if (!body.empty()) reader.on_body(body, arrived);
  body.clear();  // the parser appends the next piece
  return {};
}

class ClientLoop final : public HttpClient {
 public:
  explicit ClientLoop(const ClientOptions& options) : options_(options) {}
  Status resolve();
  void send(const ClientRequest& request, std::shared_ptr<AnswerReader> reader) override;
  void at(Clock::time_point when, std::function<void()> work) override;
  void run() override {
    context_.restart();
    context_.run();
  }

 private:
  asio::awaitable<void> answer(std::string request, double timeout, std::shared_ptr<AnswerReader> reader);
  asio::awaitable<Status> answer_by_new(const std::string& request, AnswerReader& reader,
                                        Clock::time_point deadline, double timeout);
  std::unique_ptr<Connection> take_idle();  // null: no idle connection
  void keep(std::unique_ptr<Connection> connection);
  std::string text_of(const ClientRequest& request) const;
  ClientOptions options_;
  asio::io_context context_{1};
  tcp::resolver::results_type endpoints_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

Status ClientLoop::resolve() {
  error_code error;
  endpoints_ = tcp::resolver(context_).resolve(options_.server.host, options_.server.port, error);
  if (error) return io_error("cannot find the server " + options_.server.host + ": " + error.message());
  return {};
}

std::string ClientLoop::text_of(const ClientRequest& r) const {
  const ServerUrl& s = options_.server;
  std::string out =
      r.method + ' ' + s.path + r.path + " HTTP/1.1\r\nHost: " + s.place() +
      "\r\nUser-Agent: sluice\r\nAccept: */*\r\nContent-Length: " + std::to_string(r.body.size()) + "\r\n";
  if (!r.body.empty()) out += "Content-Type: application/json\r\n";
  if (!r.api_key.empty()) out += "Authorization: Bearer " + r.api_key + "\r\n";
  return out + "\r\n" + r.body;
}

void ClientLoop::send(const ClientRequest& request, std::shared_ptr<AnswerReader> reader) {
  const auto rethrow = [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  };
  const double timeout = request.timeout > 0 ? request.timeout : options_.timeout;
  asio::co_spawn(
      context_,
      [this, text = text_of(request), timeout, reader = std::move(reader)] {
        return answer(text, timeout, reader);
      },
      rethrow);
}

void ClientLoop::at(Clock::time_point when, std::function<void()> work) {
  const auto timer = std::make_shared<asio::steady_timer>(context_, when);
  timer->async_wait([timer, work = std::move(work)](const error_code& error) {
    if (!error) work();
  });
}

asio::awaitable<void> ClientLoop::answer(std::string request, double timeout,
                                         std::shared_ptr<AnswerReader> reader) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  if (std::unique_ptr<Connection> kept = take_idle()) {
    kept->end_at(deadline);
    const Status status = co_await kept->exchange(request, *reader);
    const bool stale = !status.ok() && !kept->answered() && !kept->timed_out();
    if (!stale) {
      const Status end = kept->timed_out() ? late(timeout) : status;
      keep(std::move(kept));
      reader->on_end(end);
      co_return;
    }
  }
  const Status status = co_await answer_by_new(request, *reader, deadline, timeout);
  reader->on_end(status);
}

asio::awaitable<Status> ClientLoop::answer_by_new(const std::string& request, AnswerReader& reader,
                                                  Clock::time_point deadline, double timeout) {
  auto connection = std::make_unique<Connection>(context_);
  connection->end_at(deadline);
  error_code error;
  co_await asio::async_connect(connection->socket(), endpoints_,
                               asio::redirect_error(asio::use_awaitable, error));
  Status status;
  if (error) {
    status = io_error("cannot connect to " + options_.server.place() + ": " + error.message());
  } else {
    connection->socket().set_option(tcp::no_delay(true), error);
    status = co_await connection->exchange(request, reader);
  }
  if (connection->timed_out()) status = late(timeout);
  keep(std::move(connection));
  co_return status;
}

// Returns an idle connection. Closes connections whose deadline passed just as their last answer ended.
std::unique_ptr<Connection> ClientLoop::take_idle() {
  while (!idle_.empty()) {
    std::unique_ptr<Connection> out = std::move(idle_.back());
    idle_.pop_back();
    if (!out->timed_out()) return out;
  }
  return nullptr;
}

// Keeps a connection for reuse, or closes it. The handler of its timer may still be queued, so the connection is destroyed only after that handler has run.
void ClientLoop::keep(std::unique_ptr<Connection> connection) {
  connection->rest();
  if (connection->again() && !connection->timed_out()) {
    idle_.push_back(std::move(connection));
    return;
  }
  asio::post(context_, [ended = std::shared_ptr<Connection>(std::move(connection))] {});
}

}  // namespace

std::string ServerUrl::place() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + port;
}

std::string ServerUrl::text() const { return "http://" + place() + path; }

Result<ServerUrl> parse_url(std::string_view text) {
  const auto wrong = [&](const std::string& wanted) {
    return invalid("wanted " + wanted + ", found '" + std::string(text) + "'");
  };
  if (text.starts_with("https://"))
    return wrong(
        "http:// (TLS is not supported; use a proxy that terminates TLS, or the server's own http port)");
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return wrong("a URL such as http://127.0.0.1:8000");
  std::string_view rest = text.substr(kScheme.size());
  ServerUrl out;
  const size_t slash = std::min(rest.find('/'), rest.size());
  out.path = rest.substr(slash);
  while (out.path.ends_with('/')) out.path.pop_back();
  std::string_view place = rest.substr(0, slash);
  const size_t bracket = place.rfind(']'), colon = place.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  out.port = has_port ? place.substr(colon + 1) : std::string_view("80");
  out.host = has_port ? place.substr(0, colon) : place;
  if (out.host.starts_with('[') && out.host.ends_with(']'))
    out.host = out.host.substr(1, out.host.size() - 2);
  const auto plain = [](char c) { return c > ' ' && c < 127 && c != '@' && c != '?' && c != '#'; };
  const bool digits = !out.port.empty() && out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.host.empty() || !digits || !std::all_of(rest.begin(), rest.end(), plain))
    return wrong("a URL such as http://127.0.0.1:8000");
  // Rejects larger numbers, which a resolver would reduce modulo 65536.
  const std::string significant = out.port.substr(std::min(out.port.find_first_not_of('0'), out.port.size()));
  constexpr size_t kDigitsMax = 5;
  if (significant.empty() || significant.size() > kDigitsMax || std::stoi(significant) > UINT16_MAX)
    return wrong("a port from 1 to 65535 in the URL");
  return out;
}

Result<std::unique_ptr<HttpClient>> HttpClient::open(const ClientOptions& options) {
  auto loop = std::make_unique<ClientLoop>(options);
  SLUICE_TRY(loop->resolve());
  return std::unique_ptr<HttpClient>(std::move(loop));
}

}  // namespace sluice
