// The transport: one thread accepts connections (http_connection.cc), checks deadlines, and runs posted work.
#include "server/http/http.h"

#include <netinet/tcp.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <thread>

#include "server/http/http_loop.h"
#include "server/memory.h"

namespace sluice {
namespace {

using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(100);
// How long a failed allocation on the loop's thread is retried. All connections wait for it.
constexpr auto kPatience = std::chrono::milliseconds(50);
constexpr int kAcceptsOfTurn = 64;
// Bytes that the system keeps of an answer that its client does not read yet. Without a limit it keeps 4 MB for each client, and copying that
// for 50 clients at once delays the others by up to 330 ms.
constexpr int kSystemKeeps = 128 << 10;

Status cannot_listen(const HttpOptions& options, const error_code& error) {
  return {Code::kIo, "cannot listen on " + options.host + " port " + std::to_string(options.port) + ": " +
                         error.message()};
}

// Binds `acceptor` to the address of `options`, without listening.
Status bind(const HttpOptions& options, asio::io_context& context, tcp::acceptor* acceptor) {
  if (options.host.empty())
    return invalid("host: wanted an address or a name, found ''");  // an empty host would bind all addresses
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return cannot_listen(options, error);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  return error ? cannot_listen(options, error) : Status{};
}

}  // namespace

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string HttpLoop::new_id() {
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(ids_()));
  return text;
}

Status HttpLoop::open() {
  SLUICE_TRY(bind(options_, context_, &acceptor_));
  error_code error;
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor_.non_blocking(true, error);
  if (error) return cannot_listen(options_, error);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) signals_.add(signal);  // an ignored signal stays ignored
  }
  wait_for_signal();
  return {};
}

// Starts the coroutine unless it runs. If one ends because memory ran out, run() calls this again.
void HttpLoop::start(bool* runs, asio::awaitable<void> (HttpLoop::*coroutine)()) {
  if (*runs) return;
  const auto ended = [runs](std::exception_ptr error) {
    *runs = false;
    if (error) std::rethrow_exception(error);
  };
  asio::co_spawn(context_, (this->*coroutine)(), ended);
  *runs = true;
}

void HttpLoop::run() {
  be_patient_for_memory(kPatience);
  const auto serve = [this] {
    if (!stop_at_) start(&accepts_, &HttpLoop::accept_all);
    start(&ticks_, &HttpLoop::tick_always);
    context_.run();
  };
  // std::bad_alloc has ended only one connection, answer or coroutine. run() continues with all others.
  while (!has_memory_for(serve)) std::this_thread::sleep_for(kPatience);
}

void HttpLoop::wait_for_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    if (stop_at_) return;
    // A second signal has the system's default action and ends the process.
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
    if (error) {  // for example out of descriptors: wait until some are closed
      asio::steady_timer pause(context_, kTick);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    (void)has_memory_for([&] { take_in(std::move(socket)); });  // on failure the socket is closed
    // Also accepts further waiting connections. If each turn of the loop accepted only one, the last of many clients would
    // wait for the answers to all earlier clients.
    for (int more = 1; more < kAcceptsOfTurn && acceptor_.is_open(); ++more) {
      socket = tcp::socket(context_);
      acceptor_.accept(socket, error);
      if (error) break;
      (void)has_memory_for([&] { take_in(std::move(socket)); });
    }
  }
}

void HttpLoop::take_in(tcp::socket socket) {
  if (connections() >= options_.max_connections)
    return service_.log("", "connection refused: " + std::to_string(connections()) + " connections are open");
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kSystemKeeps, sizeof kSystemKeeps);
  const auto connection = std::make_shared<HttpConnection>(*this, std::move(socket));
  connections_.insert(connection);
  if (!has_memory_for([&] { connection->start(); })) connection->lose(ClientLoss::kNoMemory);
}

asio::awaitable<void> HttpLoop::tick_always() {
  while (true) {
    error_code error;
    timer_.expires_after(kTick);
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    (void)has_memory_for([&] { tick(); });
    if (stop_at_ && (connections_.empty() || Clock::now() >= *stop_at_)) break;
  }
  context_.stop();
}

void HttpLoop::tick() {
  service_.on_tick();
  const auto now = Clock::now();
  const std::vector<std::shared_ptr<HttpConnection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all)
    if (!has_memory_for([&] { connection->check_deadline(now); })) connection->lose(ClientLoss::kNoMemory);
  bound_output();
}

// Drops the connections with the most unsent bytes until the rest is within max_pending_bytes.
void HttpLoop::bound_output() {
  while (true) {
    int64_t all = 0, largest_bytes = 0;
    std::shared_ptr<HttpConnection> largest;
    for (const auto& connection : connections_) {
      const int64_t bytes = connection->unsent_bytes();
      all += bytes;
      if (bytes > largest_bytes) largest_bytes = bytes, largest = connection;
    }
    if (all <= options_.max_pending_bytes || !largest) return;
    largest->lose(ClientLoss::kTooLarge);
  }
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

Status HttpServer::check(const HttpOptions& options) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  return bind(options, context, &acceptor);
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options, HttpService& service) {
  auto loop = std::make_unique<HttpLoop>(options, service);
  SLUICE_TRY(loop->open());
  return std::unique_ptr<HttpServer>(std::move(loop));
}

}  // namespace sluice
