// The transport: one of the two files that include Boost. A connection is two coroutines on the loop's thread: one reads, also while
// an answer is under way, so that a client that goes away is seen at once; one writes.
#include "apps/serve/http.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <csignal>
#include <ctime>
#include <optional>
#include <random>
#include <unordered_set>

#include "base/printable.h"

namespace sluice::apps {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kInputMax = 64 << 10;     // of requests that wait behind one that is under way
constexpr size_t kOutputPause = 64 << 10;  // unread answers above this hold back the next request
constexpr size_t kRequestIdMax = 128;
constexpr double kLingerSeconds =
    2;  // in which a client may read the answer that refuses the rest of its request
constexpr auto kTick = std::chrono::milliseconds(100);

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &date);
  return text;
}

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Goes into headers and lines of the log.
bool usable_id(std::string_view id) {
  const auto plain = [](char c) { return c > ' ' && c < 127; };
  return !id.empty() && id.size() <= kRequestIdMax && std::all_of(id.begin(), id.end(), plain);
}

}  // namespace

class HttpLoop;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpLoop& loop, tcp::socket socket);
  void start();
  void check_deadline(Clock::time_point now);
  void finish_output();  // nothing more will be asked: closes when all is written
  bool serves(const HttpExchange* exchange) const { return open_ && exchange_.get() == exchange; }
  void respond(const HttpResponse& response);
  void begin_stream(const HttpResponse& head);
  void write(std::string_view bytes);
  void end();

 private:
  using Parser = http::request_parser<http::string_body>;
  asio::awaitable<void> read_all();
  asio::awaitable<void> write_all();
  asio::awaitable<void> wait(asio::steady_timer& signal);
  void consume();
  void take_request();
  void refuse(int status, const std::string& message);
  void refuse_parse(error_code error);
  void peer_ended();
  void lose(ClientLoss how);
  void end_exchange();
  void close();
  void append_head(const HttpResponse& response, std::optional<size_t> body_bytes);
  size_t unread() const { return output_.size() + sending_.size(); }

  HttpLoop& loop_;
  tcp::socket socket_;
  // They never expire: cancelling one wakes who waits for it.
  asio::steady_timer input_wanted_, output_ready_;
  std::string input_, output_, sending_;
  std::optional<Parser> parser_;
  std::shared_ptr<HttpExchange> exchange_;
  bool open_ = true;
  bool consuming_ = false;
  bool continued_ = false;  // "100 Continue" was said for this request
  bool last_ = false;       // nothing is read any more; the connection ends after what is to be written
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
  void run() override { context_.run(); }
  void post(std::function<void()> work) override { asio::post(context_, std::move(work)); }
  void stop() override;

  const HttpOptions& options() const { return options_; }
  HttpService& service() { return service_; }
  auto executor() { return context_.get_executor(); }
  void drop(const std::shared_ptr<HttpConnection>& connection) { connections_.erase(connection); }
  std::string new_id();

 private:
  asio::awaitable<void> accept_all();
  asio::awaitable<void> tick();
  void wait_for_signal();
  HttpOptions options_;
  HttpService& service_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  asio::signal_set signals_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  std::optional<Clock::time_point> stop_at_;
  std::mt19937_64 ids_{std::random_device{}()};
};

HttpConnection::HttpConnection(HttpLoop& loop, tcp::socket socket)
    : loop_(loop),
      socket_(std::move(socket)),
      input_wanted_(loop.executor(), Clock::time_point::max()),
      output_ready_(loop.executor(), Clock::time_point::max()),
      read_deadline_(after(loop.options().read_timeout)) {}

void HttpConnection::start() {
  // Out of memory for one connection is no reason to end the others.
  const auto done = [self = shared_from_this()](std::exception_ptr error) {
    if (error) self->lose(ClientLoss::kClosed);
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
    while (open_ && !last_ && input_.size() >= kInputMax) co_await wait(input_wanted_);
    if (!open_) co_return;
    error_code error;
    const size_t bytes = co_await socket_.async_read_some(asio::buffer(chunk),
                                                          asio::redirect_error(asio::use_awaitable, error));
    if (!open_) co_return;
    if (error) co_return error == asio::error::eof ? peer_ended() : lose(ClientLoss::kClosed);
    if (last_) continue;  // read, so that closing does not take back what was written
    if (input_.empty() && !parser_ && !exchange_) read_deadline_ = after(loop_.options().read_timeout);
    input_.append(chunk.data(), bytes);
    consume();
  }
}

asio::awaitable<void> HttpConnection::write_all() {
  error_code error;
  while (open_) {
    while (open_ && output_.empty() && !last_) co_await wait(output_ready_);
    if (!open_) co_return;
    if (output_.empty()) break;
    sending_.swap(output_);
    for (size_t sent = 0; sent < sending_.size();) {
      write_deadline_ = after(loop_.options().write_timeout);
      sent += co_await socket_.async_write_some(asio::buffer(sending_.data() + sent, sending_.size() - sent),
                                                asio::redirect_error(asio::use_awaitable, error));
      if (!open_) co_return;
      if (error) co_return lose(ClientLoss::kClosed);
    }
    sending_.clear();
    write_deadline_ = Clock::time_point::max();
    consume();
  }
  if (peer_ended_) co_return close();
  socket_.shutdown(tcp::socket::shutdown_send, error);
  read_deadline_ = after(kLingerSeconds);
}

// Parses what has arrived, up to a request that is under way.
void HttpConnection::consume() {
  if (consuming_) return;
  consuming_ = true;
  while (open_ && !last_ && !exchange_ && !input_.empty() && unread() < kOutputPause) {
    if (!parser_) {
      parser_.emplace();
      parser_->eager(true);
      parser_->header_limit(static_cast<uint32_t>(loop_.options().max_header_bytes));
      parser_->body_limit(static_cast<uint64_t>(loop_.options().max_body_bytes));
      continued_ = false;
    }
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) {
      refuse_parse(error);
      break;
    }
    if (parser_->is_done()) {
      take_request();
      continue;
    }
    if (parser_->is_header_done() && !continued_) {
      continued_ = true;
      if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
        output_ += "HTTP/1.1 100 Continue\r\n\r\n";
        output_ready_.cancel();
      }
    }
    if (used == 0) break;
  }
  consuming_ = false;
  if (input_.size() < kInputMax) input_wanted_.cancel();
}

void HttpConnection::refuse_parse(error_code error) {
  if (error == http::error::body_limit)
    return refuse(413, "body: wanted at most " + std::to_string(loop_.options().max_body_bytes) +
                           " bytes (--max-body-bytes), found more");
  if (error == http::error::header_limit)
    return refuse(431, "headers: wanted at most " + std::to_string(loop_.options().max_header_bytes) +
                           " bytes, found more");
  refuse(400, "wanted HTTP/1.1, found an error: " + error.message());
}

void HttpConnection::take_request() {
  auto message = parser_->release();
  parser_.reset();
  HttpRequest request;
  request.arrived = Clock::now();
  request.method = to_string(message.method_string());
  const std::string target = to_string(message.target());
  request.path = target.substr(0, target.find('?'));
  request.content_type = to_string(message[http::field::content_type]);
  request.authorization = to_string(message[http::field::authorization]);
  request.id = to_string(message["x-request-id"]);
  if (!usable_id(request.id)) request.id = loop_.new_id();
  request.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = request.method == "HEAD";
  if (head_only_) request.method = "GET";
  read_deadline_ = Clock::time_point::max();
  exchange_ = std::make_shared<HttpExchange>(weak_from_this(), request.id);
  loop_.service().on_request(std::move(request), exchange_);
}

void HttpConnection::refuse(int status, const std::string& message) {
  const std::string id = loop_.new_id();
  exchange_ = std::make_shared<HttpExchange>(weak_from_this(), id);
  keep_alive_ = head_only_ = false;
  loop_.service().log(id, "refused with " + std::to_string(status) + ": " + message);
  respond({.status = status, .body = loop_.service().error_body(status, message)});
}

void HttpConnection::append_head(const HttpResponse& r, std::optional<size_t> body_bytes) {
  if (!body_bytes && !chunked_) keep_alive_ = false;
  output_ += "HTTP/1.1 " + std::to_string(r.status) + ' ' +
             to_string(http::obsolete_reason(static_cast<http::status>(r.status))) +
             "\r\nDate: " + http_date() + "\r\nContent-Type: " + r.content_type +
             "\r\nx-request-id: " + exchange_->id() + "\r\n";
  for (const auto& [name, value] : r.headers) output_ += name + ": " + value + "\r\n";
  if (body_bytes) output_ += "Content-Length: " + std::to_string(*body_bytes) + "\r\n";
  if (!body_bytes && chunked_) output_ += "Transfer-Encoding: chunked\r\n";
  output_ += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void HttpConnection::respond(const HttpResponse& response) {
  append_head(response, response.body.size());
  if (!head_only_) output_ += response.body;
  end_exchange();
}

void HttpConnection::begin_stream(const HttpResponse& head) {
  append_head(head, std::nullopt);
  output_ready_.cancel();
}

void HttpConnection::write(std::string_view bytes) {
  if (bytes.empty()) return;
  if (static_cast<int64_t>(unread() + bytes.size()) > loop_.options().max_output_bytes)
    return lose(ClientLoss::kTooSlow);
  char size[24];
  if (chunked_) {
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    output_ += size;
  }
  output_ += bytes;
  if (chunked_) output_ += "\r\n";
  output_ready_.cancel();
}

void HttpConnection::end() {
  if (chunked_) output_ += "0\r\n\r\n";
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

// Half closed is closed for an answer that is still being made; what is already written is still sent.
void HttpConnection::peer_ended() {
  peer_ended_ = true;
  if (exchange_ || unread() == 0) return lose(ClientLoss::kClosed);
  finish_output();
}

void HttpConnection::finish_output() {
  last_ = true;
  output_ready_.cancel();
  input_wanted_.cancel();
}

void HttpConnection::lose(ClientLoss how) {
  const auto exchange = std::move(exchange_);
  exchange_.reset();
  close();
  if (exchange && exchange->on_loss) exchange->on_loss(how);
}

void HttpConnection::close() {
  if (!open_) return;
  open_ = false;
  error_code ignored;
  socket_.close(ignored);
  input_wanted_.cancel();
  output_ready_.cancel();
  loop_.drop(shared_from_this());
}

void HttpConnection::check_deadline(Clock::time_point now) {
  if (now >= write_deadline_) return lose(ClientLoss::kTooSlow);
  if (now < read_deadline_ || exchange_ || unread() > 0) return;
  const bool within = parser_ || !input_.empty();
  if (last_ || !within) return close();
  refuse(408, "request: wanted all of it within " + number_text(loop_.options().read_timeout) + " seconds");
}

std::shared_ptr<HttpConnection> HttpExchange::connection() const {
  auto connection = connection_.lock();
  return connection && connection->serves(this) ? connection : nullptr;
}
void HttpExchange::respond(const HttpResponse& response) {
  if (const auto c = connection()) c->respond(response);
}
void HttpExchange::begin_stream(const HttpResponse& head) {
  if (const auto c = connection()) c->begin_stream(head);
}
void HttpExchange::write(std::string_view bytes) {
  if (const auto c = connection()) c->write(bytes);
}
void HttpExchange::end() {
  if (const auto c = connection()) c->end();
}

std::string HttpLoop::new_id() {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(ids_()));
  return text;
}

Status HttpLoop::open() {
  const std::string place = options_.host + " port " + std::to_string(options_.port);
  const auto failed = [&](const error_code& e) {
    return Status{Code::kIo, "cannot listen on " + place + ": " + e.message()};
  };
  error_code error;
  tcp::resolver resolver(context_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return failed(error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed(error);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) signals_.add(signal);  // nohup ignores it, and so do we
  }
  wait_for_signal();
  const auto rethrow = [](std::exception_ptr e) {
    if (e) std::rethrow_exception(e);
  };
  asio::co_spawn(
      context_, [this] { return accept_all(); }, rethrow);
  asio::co_spawn(
      context_, [this] { return tick(); }, rethrow);
  return {};
}

void HttpLoop::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    if (stop_at_) return;
    // The next one does what it does to any program.
    signals_.clear();
    std::signal(signal, SIG_DFL);
    service_.on_signal();
  });
}

asio::awaitable<void> HttpLoop::accept_all() {
  while (acceptor_.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor_.is_open()) co_return;
    if (error) {  // no descriptors left: some will be closed
      asio::steady_timer pause(context_, kTick);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    if (connections() >= options_.max_connections) {
      service_.log("", "connection refused: " + std::to_string(connections()) + " are open");
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    const auto connection = std::make_shared<HttpConnection>(*this, std::move(socket));
    connections_.insert(connection);
    connection->start();
  }
}

asio::awaitable<void> HttpLoop::tick() {
  while (true) {
    error_code error;
    timer_.expires_after(kTick);
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    service_.on_tick();
    const auto now = Clock::now();
    const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) connection->check_deadline(now);
    if (stop_at_ && (connections_.empty() || now >= *stop_at_)) break;
  }
  context_.stop();
}

void HttpLoop::stop() {
  if (stop_at_) return;
  stop_at_ = after(1);
  error_code ignored;
  acceptor_.close(ignored);
  const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) connection->finish_output();
}

std::string HttpLoop::url() const {
  error_code ignored;
  const tcp::endpoint at = acceptor_.local_endpoint(ignored);
  const std::string host = at.address().to_string();
  return "http://" + (at.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(at.port());
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options, HttpService& service) {
  auto loop = std::make_unique<HttpLoop>(options, service);
  SLUICE_TRY(loop->open());
  return std::unique_ptr<HttpServer>(std::move(loop));
}

}  // namespace sluice::apps
