// Reads conversations and tools in the forms that clients send.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/requests/fields.h"

namespace sluice {

// Reads a string, or an array of text parts. `types` are the allowed types of a part. Unknown members of parts are added to `ignored`.
std::string read_content(const JsonAt& at, std::initializer_list<const char*> types, ApiFields* fields,
                         std::vector<std::string>* ignored);

constexpr size_t kCallIdMax = 1024;  // bytes; OpenAI's ids have about 30
// Checks the length of a call's id and of its function's name; both must be present. A violation is an error of `fields`.
bool fits_call(const JsonAt& call, const char* id, const JsonAt& function, ApiFields* fields);

// Builds a conversation from a client's messages.
class ConversationReader {
 public:
  // Continues the conversation of `out`. Unknown fields of its messages are added to `out->ignored`.
  explicit ConversationReader(ApiRequest* out) : out_(&out->conversation), ignored_(&out->ignored) {}
  std::vector<std::string>* ignored() { return ignored_; }
  // Adds a system or developer message. Before all other messages it sets the instructions.
  void instruct(const std::string& content);
  void ask(const std::string& content);
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

// Reads tools and tool_choice. A chat nests a tool's function in an object of its own; a response does not. Tools that the server would
// have to run are left out.
enum class ToolStyle : uint8_t { kChat, kResponse };
void read_tools(ApiFields* fields, std::string_view body, ToolStyle style, ApiRequest* request);

}  // namespace sluice
