// Conversations and tools as clients write them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/requests/fields.h"

namespace sluice {

// A string, or an array of parts that are all text; `types` are the words that such parts have as their type.
std::string read_content(const JsonAt& at, std::initializer_list<const char*> types, ApiFields* fields);

constexpr size_t kCallIdMax = 1024;  // bytes; OpenAI's have some 30
// Whether the id of a call and the name of its function, which are there, are as long as they may be; else an error of `fields`.
bool fits_call(const JsonAt& call, const char* id, const JsonAt& function, ApiFields* fields);

// Builds the messages of a conversation from those of a client.
class ConversationReader {
 public:
  explicit ConversationReader(ApiConversation* out) : out_(out) {}  // goes on from what is there
  // Of the system or a developer: before all others they are the instructions.
  void instruct(const std::string& content);
  void ask(const std::string& content);
  void reason(const std::string& content);
  void answer(const std::string& content, Said said);
  void call(const std::string& id, const std::string& function, const std::string& arguments);
  // False: no call had this id.
  bool call_output(const std::string& id, const std::string& content);

 private:
  ApiConversation* out_;
};

void read_messages(ApiFields* fields, ApiRequest* out);

// tools and tool_choice. In a chat a function stands in an object of its own, in a response it does not, and tools that the server would
// run are left out.
enum class ToolStyle : uint8_t { kChat, kResponse };
void read_tools(ApiFields* fields, std::string_view body, ToolStyle style, ApiTools* out);

}  // namespace sluice
