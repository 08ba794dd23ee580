// Reads the conversations and tools of requests.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/requests/fields.h"

namespace sluice {

// Reads a string, or an array of text parts whose types are in `types`. Unknown members of the parts are added to `ignored`.
std::string read_content(const JsonAt& at, std::initializer_list<const char*> types, ApiFields* fields,
                         std::vector<std::string>* ignored);

constexpr size_t kCallIdMax = 1024;  // bytes; OpenAI's ids have about 30
// Checks that a call's id and its function's name are short enough; both must be present. Otherwise sets an error in `fields`.
bool fits_call(const JsonAt& call, const char* id, const JsonAt& function, ApiFields* fields);

// Builds a conversation from a client's messages.
class ConversationReader {
 public:
  // Appends to the conversation of `out`. Unknown fields of messages are added to `out->ignored`.
  explicit ConversationReader(ApiRequest* out) : out_(&out->conversation), ignored_(&out->ignored) {}
  std::vector<std::string>* ignored() { return ignored_; }
  // Adds a system or developer message. If no other message precedes it, it becomes part of the instructions.
  void instruct(const std::string& content);
  void add_user_message(const std::string& content);
  void reason(const std::string& content);
  void answer(const std::string& content, Said said);
  void call(const std::string& id, const std::string& function, const std::string& arguments);
  // False: no earlier call has this id.
  bool call_output(const std::string& id, const std::string& content);

 private:
  ApiConversation* out_;
  std::vector<std::string>* ignored_;
};

void read_messages(ApiFields* fields, ApiRequest* out);

// Reads tools and tool_choice. In a chat a tool has its function in the member "function"; in a response the tool itself is the function.
// Tools that the server would have to run are left out.
enum class ToolStyle : uint8_t { kChat, kResponse };
void read_tools(ApiFields* fields, std::string_view body, ToolStyle style, ApiRequest* request);

}  // namespace sluice
