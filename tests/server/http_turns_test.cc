// Requests of several connections: each connection takes its turn, however many pipelined requests another one has.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/http.h"

namespace sluice {
namespace {

// Answers every request at once, and keeps the order of their paths.
class Service final : public HttpService {
 public:
  std::vector<std::string> paths;
  std::function<void()> at_first = [] {};  // runs during the first request
  void on_request(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    if (paths.empty()) at_first();
    paths.push_back(request.path);
    exchange->respond({.body = "{}"});
  }
  std::string error_body(int, const std::string& message) override { return message; }
  void on_tick() override {}
  void on_signal() override {}
  void log(std::string_view, const std::string&) override {}
};

class HttpTurns : public testing::Test {
 protected:
  void SetUp() override {
    auto made = HttpServer::listen({.port = 0}, service_);
    ASSERT_TRUE(made.ok()) << made.status().message;
    server_ = std::move(made.value());
    const std::string url = server_->url();
    port_ = std::stoi(url.substr(url.rfind(':') + 1));
  }
  void start() {
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    server_->post([this] { server_->stop(); });
    thread_.join();
  }
  int connect_to() const {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port_));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    return s;
  }
  static void send_all(int s, const std::string& bytes) {
    ASSERT_EQ(send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  // The answers on a connection until it has `count` of them, or ends.
  static size_t answers(int s, size_t count) {
    std::string all;
    size_t found = 0;
    std::vector<char> chunk(65536);
    while (found < count) {
      const ssize_t bytes = recv(s, chunk.data(), chunk.size(), 0);
      if (bytes <= 0) break;
      all.append(chunk.data(), static_cast<size_t>(bytes));
      found = 0;
      for (size_t at = all.find("HTTP/1.1 200"); at != std::string::npos;
           at = all.find("HTTP/1.1 200", at + 1))
        ++found;
    }
    return found;
  }
  static std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"; }

  Service service_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  int port_ = 0;
};

TEST_F(HttpTurns, PipelinedRequestsComeOneAtATime) {
  constexpr size_t kMany = 200;
  const int many = connect_to(), one = connect_to();
  // The other connection's request arrives while the server answers the first of many.
  service_.at_first = [&] { send_all(one, get("/one")); };
  std::string requests;
  for (size_t i = 0; i < kMany; ++i) requests += get("/many");
  send_all(many, requests);
  start();
  EXPECT_EQ(answers(one, 1), 1u);
  EXPECT_EQ(answers(many, kMany), kMany);
  close(many), close(one);
  TearDown();
  const auto at = std::ranges::find(service_.paths, "/one") - service_.paths.begin();
  EXPECT_LT(at, 20);
  EXPECT_EQ(service_.paths.size(), kMany + 1);
}

TEST_F(HttpTurns, AllRequestsBeforeTheEndOfTheInputAreAnswered) {
  const int s = connect_to();
  std::string requests;
  for (int i = 0; i < 30; ++i) requests += get("/" + std::to_string(i));
  send_all(s, requests);
  ASSERT_EQ(shutdown(s, SHUT_WR), 0);
  start();
  EXPECT_EQ(answers(s, 31), 30u);
  close(s);
  TearDown();
  ASSERT_EQ(service_.paths.size(), 30u);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(service_.paths[i], "/" + std::to_string(i));
}

}  // namespace
}  // namespace sluice
