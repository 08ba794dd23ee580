#include "server/http/http_reader.h"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

#include "server/server_text.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kRequestIdMax = 128;

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Whether a client's request id may be used. Headers and log lines repeat it, so it must be short and printable.
bool usable_id(std::string_view id) {
  const auto plain = [](char c) { return c > ' ' && c < 127; };
  return !id.empty() && id.size() <= kRequestIdMax && std::all_of(id.begin(), id.end(), plain);
}

// If the target is absolute, such as "http://host:1/path?query", it also names the host, and the Host header is ignored (RFC 9112, 3.2.2).
void split_target(const std::string& target, HttpRequest* request) {
  std::string_view rest = target;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lower(std::string(rest.substr(0, scheme.size()))) != scheme) continue;
    rest.remove_prefix(scheme.size());
    const size_t end = std::min(rest.find_first_of("/?"), rest.size());
    request->host = rest.substr(0, end);
    rest.remove_prefix(end);
    break;
  }
  const size_t query = rest.find('?');
  request->path = rest.substr(0, query);
  request->query = query == std::string_view::npos ? std::string_view() : rest.substr(query + 1);
  if (request->path.empty()) request->path = "/";
}

bool has_bare_line_feed(std::string_view text) {
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1))
    if (at == 0 || text[at - 1] != '\r') return true;
  return false;
}

}  // namespace

const char* reason_phrase(int status) {
  return http::obsolete_reason(static_cast<http::status>(status)).data();
}

struct HttpReader::Parser : http::request_parser<http::string_body> {
  bool head_checked = false, continue_said = false;
  // Contains only the headers before the body. Trailers, which follow the body, are ignored (RFC 9110, 6.5.1).
  HttpReader::Message message;
};

HttpReader::HttpReader(const HttpOptions& options) : options_(options) {}
HttpReader::~HttpReader() = default;

HttpReader::State HttpReader::refuse(int status, std::string message) {
  status_ = status;
  message_ = std::move(message);
  parser_.reset();
  return State::kRefused;
}

// Rejects ambiguous body lengths, with which part of the body could be taken for another client's request (RFC 9112, 6.3).
HttpReader::State HttpReader::check_head() {
  parser_->head_checked = true;
  const auto& head = parser_->get();
  const auto codings = head.count(http::field::transfer_encoding);
  if (codings > 0) {
    const auto coding = head[http::field::transfer_encoding];
    if (codings > 1 || !boost::beast::iequals(coding, "chunked"))
      return refuse(400, "Transfer-Encoding: wanted chunked, found " +
                             (codings > 1 ? "several" : "'" + to_string(coding) + "'"));
    if (head.version() < 11) return refuse(400, "Transfer-Encoding: wanted HTTP/1.1, found HTTP/1.0");
    if (head.count(http::field::content_length) > 0)
      return refuse(400, "Content-Length and Transfer-Encoding cannot be combined; send one of them");
  }
  // RFC 9112, 3.2 requires one Host header.
  const auto hosts = head.count(http::field::host);
  if (hosts > 1) return refuse(400, "Host: wanted one, found several");
  if (hosts == 0 && head.version() >= 11) return refuse(400, "Host: wanted one, found none");
  return State::kMore;
}

HttpReader::State HttpReader::read(std::string* input) {
  // Skips empty lines before a request (RFC 9112, 2.2).
  size_t blank = 0;
  while (!parser_ && std::string_view(*input).substr(blank).starts_with("\r\n")) blank += 2;
  input->erase(0, blank);
  while (!input->empty() && (parser_ || *input != "\r")) {
    if (!parser_) {
      parser_ = std::make_unique<Parser>();
      parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
      parser_->body_limit(static_cast<uint64_t>(options_.max_body_bytes));
    }
    error_code error;
    const size_t used = parser_->put(asio::buffer(*input), error);
    input->erase(0, used);
    if (error == http::error::body_limit)
      return refuse(413, "body: wanted at most " + std::to_string(options_.max_body_bytes) + " bytes (" +
                             options_.names.max_body_bytes + "), found more");
    if (error == http::error::header_limit)
      return refuse(
          431, "headers: wanted at most " + std::to_string(options_.max_header_bytes) + " bytes, found more");
    if (error && error != http::error::need_more)
      return refuse(400, "wanted HTTP/1.1, found an error: " + error.message());
    if (parser_->is_header_done() && !parser_->head_checked) {
      if (check_head() == State::kRefused) return State::kRefused;
      take_head();
      parser_->eager(true);  // without eager(), the parser stops after the header section
    }
    if (parser_->is_done()) return State::kRequest;
    if (used > 0) continue;
    // The parser waits for CR LF even if a line ends in LF alone (RFC 9112, 2.2), and would wait forever.
    if (parser_->is_header_done() && parser_->chunked() && has_bare_line_feed(*input))
      return refuse(
          400, "Transfer-Encoding: wanted chunks whose lines end in CR LF, found a line that ends in LF");
    break;
  }
  return State::kMore;
}

int64_t HttpReader::body_bytes() const { return parser_ ? std::ssize(parser_->get().body()) : 0; }

bool HttpReader::expects_continue() {
  if (!parser_ || !parser_->is_header_done() || parser_->is_done() || parser_->continue_said) return false;
  parser_->continue_said = true;
  return boost::beast::iequals(parser_->get()[http::field::expect], "100-continue");
}

void HttpReader::take_head() {
  const auto& head = parser_->get();
  Message& out = parser_->message;
  HttpRequest& request = out.request;
  request.method = to_string(head.method_string());
  request.host = to_string(head[http::field::host]);
  split_target(to_string(head.target()), &request);
  request.origin = to_string(head[http::field::origin]);
  request.asked_method = to_string(head[http::field::access_control_request_method]);
  request.asked_headers = to_string(head[http::field::access_control_request_headers]);
  request.content_type = to_string(head[http::field::content_type]);
  request.content_encoding = to_string(head[http::field::content_encoding]);
  request.authorization = to_string(head[http::field::authorization]);
  request.id = to_string(head["x-request-id"]);
  if (!usable_id(request.id)) request.id.clear();
  out.keep_alive = head.keep_alive();
  const auto [first, last] = head.equal_range(http::field::connection);  // several lines are one list
  for (auto line = first; line != last; ++line)
    if (http::token_list{line->value()}.exists("close")) out.keep_alive = false;
  out.chunks = head.version() >= 11;
  out.head_only = request.method == "HEAD";
  if (out.head_only) request.method = "GET";
}

HttpReader::Message HttpReader::take() {
  Message out = std::move(parser_->message);
  out.request.body = std::move(parser_->get().body());
  out.request.arrived = Clock::now();
  parser_.reset();
  return out;
}

}  // namespace sluice
