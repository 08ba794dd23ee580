// Event streams split at every byte, and the answers read from them.
#include "client/event_stream.h"

#include <gtest/gtest.h>

#include <optional>

#include "client/api_client.h"

namespace sluice {
namespace {

using Strings = std::vector<std::string>;

Strings events_of(const Strings& pieces) {
  Strings out;
  EventStream stream;
  for (const std::string& piece : pieces)
    stream.push(piece, [&](const std::string& data) { out.push_back(data); });
  return out;
}

struct StreamCase {
  const char* why;
  std::string bytes;
  Strings events;
};
const StreamCase kStreams[] = {
    {"the usual form", "data: {\"a\": 1}\n\ndata: [DONE]\n\n", {"{\"a\": 1}", "[DONE]"}},
    {"no space behind the colon", "data:x\n\n", {"x"}},
    {"only one space is removed", "data:  x\n\n", {" x"}},
    {"CR LF", "data: x\r\n\r\ndata: y\r\n\r\n", {"x", "y"}},
    {"CR alone", "data: x\r\rdata: y\r\r", {"x", "y"}},
    {"comments and other fields", ": ping\n\nevent: e\nid: 1\ndata: x\nretry: 5\n\n", {"x"}},
    {"data of two lines", "data: x\ndata: y\n\n", {"x\ny"}},
    {"data of two lines that end with CR LF", "data: x\r\ndata: y\r\n\r\n", {"x\ny"}},
    {"empty data is an event", "data:\n\n", {""}},
    {"bytes above 127", "data: \xc3\xa9\xe2\x80\xa8\n\n", {"\xc3\xa9\xe2\x80\xa8"}},
    {"an unterminated event", "data: x\n\ndata: y\n", {"x"}},
    {"only empty lines", "\n\n\r\n", {}},
};

TEST(EventStream, CutAtEveryByte) {
  for (const StreamCase& c : kStreams) {
    for (size_t cut = 0; cut <= c.bytes.size(); ++cut)
      EXPECT_EQ(events_of({c.bytes.substr(0, cut), c.bytes.substr(cut)}), c.events)
          << c.why << ", split at " << cut;
    Strings bytes;
    for (const char byte : c.bytes) bytes.emplace_back(1, byte);
    EXPECT_EQ(events_of(bytes), c.events) << c.why << ", byte by byte";
  }
}

TEST(EventStream, AnEventBeyondTheBoundIsTheLast) {
  const std::string most(EventStream::kEventBytesMax - 6, 'x');
  EXPECT_EQ(events_of({"data: " + most + "\n\ndata: y\n\n"}), (Strings{most, "y"}));
  EventStream stream;
  int64_t events = 0;
  const auto count = [&](const std::string&) { ++events; };
  stream.push("data: a\n\ndata: " + most, count);
  EXPECT_FALSE(stream.too_long());
  stream.push("xx\n\ndata: b\n\n", count);
  EXPECT_TRUE(stream.too_long());
  stream.push("data: c\n\n", count);
  EXPECT_EQ(events, 1);
  EventStream lines;  // for one event
  while (!lines.too_long()) lines.push("data: " + std::string(1 << 20, 'x') + "\n", count);
  EXPECT_EQ(events, 1);
}

constexpr auto kMs = std::chrono::milliseconds(1);

struct Piece {
  int ms;  // since the request was sent
  std::string bytes;
};

RequestOutcome outcome_of(const std::vector<Piece>& pieces, int http = 200, const Status& end = {}) {
  RequestOutcome out;
  const Clock::time_point sent = Clock::time_point() + std::chrono::hours(1);
  StreamedAnswer answer(sent, [&](RequestOutcome o) { out = std::move(o); });
  answer.on_head(http);
  for (const Piece& p : pieces) answer.on_body(p.bytes, sent + p.ms * kMs);
  answer.on_end(end);
  return out;
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }
std::string text_event(const std::string& text) {
  return event(R"({"choices":[{"index":0,"text":")" + text + "\"}]}");
}
const std::string kUsage = event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}})");
const std::string kDone = "data: [DONE]\n\n";

TEST(StreamedAnswer, TimesOfPieces) {
  const RequestOutcome o = outcome_of({{100, text_event("a")},
                                       {110, text_event("b") + text_event("")},
                                       {140, text_event("c")},
                                       {190, kUsage},
                                       {200, kDone}});
  EXPECT_EQ(o.error, "");
  EXPECT_DOUBLE_EQ(o.ttft, 0.1);
  EXPECT_DOUBLE_EQ(o.latency, 0.14) << "usage and [DONE] do not count as chunks";
  ASSERT_EQ(o.itl.size(), 3u);
  EXPECT_DOUBLE_EQ(o.itl[0], 0.01);
  EXPECT_DOUBLE_EQ(o.itl[1], 0) << "two events arrived at once";
  EXPECT_DOUBLE_EQ(o.itl[2], 0.03);
  EXPECT_EQ(o.text, "abc");
  EXPECT_EQ(o.prompt_tokens, 7);
  EXPECT_EQ(o.output_tokens, 5) << "the server's count";
}

TEST(StreamedAnswer, ChatAndNoUsage) {
  const RequestOutcome o =
      outcome_of({{10, event(R"({"choices":[{"delta":{"role":"assistant","content":null}}]})")},
                  {20, event(R"({"choices":[{"delta":{"content":"Hi"}}],"usage":null})")},
                  {30, kDone}});
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.text, "Hi");
  EXPECT_EQ(o.output_tokens, 2) << "the number of chunks, without the server's count";
}

TEST(StreamedAnswer, Failures) {
  const Piece text = {10, text_event("a")}, done = {20, kDone};
  EXPECT_EQ(outcome_of({text}).error, "stream: wanted [DONE] at its end, found none");
  EXPECT_EQ(outcome_of({done}).error, "stream: wanted at least one event with a choice, found none");
  EXPECT_EQ(outcome_of({text, done}, 200, {Code::kIo, "reset"}).error, "reset");
  EXPECT_EQ(outcome_of({text, {15, event(R"({"error":{"message":"too slow"}})")}, done}).error,
            "error in the stream: too slow");
  EXPECT_EQ(outcome_of({text, {15, event("{")}, done}).error,
            "stream: wanted events with JSON objects, found '{'");
  EXPECT_EQ(outcome_of({{10, R"({"error":{"message":)"}, {11, R"("full"}})"}}, 429).error, "HTTP 429: full");
  EXPECT_EQ(outcome_of({{10, R"({"error":"full"})"}}, 429).error, "HTTP 429: full");
  EXPECT_EQ(outcome_of({{10, "<html>"}}, 500).error, "HTTP 500: <html>");
  EXPECT_EQ(outcome_of({}, 503).error, "HTTP 503");
  EXPECT_EQ(outcome_of({{10, std::string(1000, 'x')}}, 500).error,
            "HTTP 500: " + std::string(300, 'x') + "...");
}

TEST(StreamedAnswer, CountsAboveEveryContext) {
  const auto with = [](const std::string& usage) {
    return outcome_of(
        {{10, text_event("a")}, {15, event(R"({"choices":[],"usage":)" + usage + "}")}, {20, kDone}});
  };
  for (const char* wrong :
       {"-1", "-9223372036854775808", "2147483648", "18446744073709551615", "1e300", "1.5", "\"7\"", "[]"})
    for (const char* key : {"prompt_tokens", "completion_tokens"}) {
      const RequestOutcome o = with(std::string("{\"") + key + "\":" + wrong + "}");
      EXPECT_TRUE(
          o.error.starts_with(std::string("usage: ") + key + ": wanted an integer from 0 to 2147483647"))
          << o.error;
      EXPECT_FALSE(o.usage);
      EXPECT_GE(o.output_tokens, 0);
    }
  const RequestOutcome most = with(R"({"prompt_tokens":2147483647,"completion_tokens":null})");
  EXPECT_EQ(most.error, "");
  EXPECT_EQ(most.prompt_tokens, 2147483647);
  EXPECT_EQ(most.output_tokens, 1) << "counted by chunks";
}

TEST(WholeAnswer, JsonOrWhyNot) {
  const auto answer = [](int status, const std::string& body) {
    std::optional<Result<Json>> out;
    WholeAnswer whole([&](Result<Json> json) { out = std::move(json); });
    whole.on_head(status);
    whole.on_body(body, {});
    whole.on_end({});
    return *out;
  };
  EXPECT_EQ(answer(200, R"({"a":1})").value()["a"], 1);
  EXPECT_EQ(answer(404, R"({"error":{"message":"no such model"}})").status().message,
            "HTTP 404: no such model");
  EXPECT_FALSE(answer(200, "{").ok());
}

TEST(Url, PartsOfIt) {
  const auto parts = [](const char* text) {
    const auto url = parse_url(text);
    return url.ok() ? url.value().host + "|" + url.value().port + "|" + url.value().path
                    : url.status().message;
  };
  EXPECT_EQ(parts("http://localhost:8000"), "localhost|8000|");
  EXPECT_EQ(parts("http://10.0.0.1/"), "10.0.0.1|80|");
  EXPECT_EQ(parts("http://host:1/api/v1/"), "host|1|/api/v1");
  EXPECT_EQ(parts("http://[::1]:8000/v1"), "::1|8000|/v1");
  EXPECT_EQ(parts("http://[::1]"), "::1|80|");
  for (const char* same : {"http://[::1]:8000/v1", "http://host:1"})
    EXPECT_EQ(parse_url(same).value().text(), same);
  EXPECT_EQ(parts("https://host"),
            "wanted http:// (TLS is not supported; use a proxy that terminates TLS, or the server's own http "
            "port), found "
            "'https://host'");
  for (const char* wrong : {"host:8000", "ftp://host", "http://", "http://:80", "http://h:x",
                            "http://h:", "http://h/a b", "http://user@h", "http://h/\r\nX: y", "http://h?x"})
    EXPECT_EQ(parts(wrong), std::string("wanted a URL such as http://127.0.0.1:8000, found '") + wrong + "'");
  for (const char* wrong : {"http://h:0", "http://h:65536", "http://h:84267", "http://h:123456"})
    EXPECT_EQ(parts(wrong), std::string("wanted a port from 1 to 65535 in the URL, found '") + wrong + "'");
  EXPECT_EQ(parts("http://h:65535"), "h|65535|");
}

}  // namespace
}  // namespace sluice
