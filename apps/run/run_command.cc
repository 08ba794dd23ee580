#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "apps/common/input_file.h"
#include "apps/common/interrupt.h"
#include "apps/common/output.h"
#include "apps/run/answer_form.h"
#include "apps/run/line_input.h"
#include "apps/run/reply_json.h"
#include "apps/run/run.h"
#include "base/fields.h"
#include "base/printable.h"
#include "base/utf8.h"

namespace sluice::apps {
namespace {

// Prints the answer to standard output. Reasoning goes to standard error, by default only if that is a terminal.
class Printer {
 public:
  explicit Printer(Reasoning show)
      : reasoning_(show == Reasoning::kShow || (show == Reasoning::kOnTerminal && isatty(STDERR_FILENO))) {}
  void operator()(Channel channel, const std::string& text) {
    if (channel == Channel::kReasoning) {
      if (!reasoning_) return;
      if (!dim_) std::fputs(isatty(STDERR_FILENO) ? "\033[2m" : "", stderr);
      dim_ = true;
      write(text, stderr);
      return;
    }
    end_reasoning();
    write(text, stdout);
    std::fflush(stdout);
  }
  void end() {
    end_reasoning();
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  void end_reasoning() {
    if (dim_) std::fputs(isatty(STDERR_FILENO) ? "\033[0m\n" : "\n", stderr);
    dim_ = false;
  }
  // On a terminal, control characters are escaped, because a model may generate any of them and the terminal would interpret them. A file
  // gets the text unchanged.
  static void write(const std::string& text, std::FILE* to) {
    const std::string shown = isatty(fileno(to)) ? printable(text, Lines::kMany) : text;
    std::fwrite(shown.data(), 1, shown.size(), to);
  }
  bool reasoning_, dim_ = false;
};

// Whether to stop generating: after Ctrl-C, or if the output cannot be written.
bool should_stop() { return asked_to_end() || !output_arrives(); }

void print_speed(const Reply& r) {
  const double decode = r.seconds - r.first_token_seconds;
  std::fprintf(stderr, "%lld tokens in", static_cast<long long>(r.prompt_tokens));
  if (r.cached_tokens > 0) std::fprintf(stderr, " (%lld cached)", static_cast<long long>(r.cached_tokens));
  std::fprintf(stderr, ", %lld out; first token after %.2f s", static_cast<long long>(r.completion_tokens),
               r.first_token_seconds);
  if (r.completion_tokens > 1 && decode > 0)
    std::fprintf(stderr, ", then %.1f tokens/s", static_cast<double>(r.completion_tokens - 1) / decode);
  if (r.verifications > 0)
    std::fprintf(stderr, ", %.2f tokens per verification",
                 1 + static_cast<double>(r.accepted_drafts) / static_cast<double>(r.verifications));
  if (r.finish == FinishReason::kLength) std::fputs("; cut off at the token limit", stderr);
  if (r.finish == FinishReason::kAbort) std::fputs("; stopped", stderr);
  std::fputs("\n", stderr);
  if (!r.recovered.empty())
    std::fprintf(stderr, "the answer's format was repaired: %s\n", printable(r.recovered).c_str());
}

// The exit status after a reply. An incomplete reply has a status of its own, so that scripts notice it.
int status_of(const Reply& reply) {
  return reply.finish == FinishReason::kAbort ? kExitInterrupted : kExitOk;
}

int ask_once(Chat& chat, const RunOptions& o, const AnswerForm& form, const Conversation& conversation) {
  const Interruptible interruptible(EndOn::kCtrlC);
  if (o.format == Format::kJson) {
    const auto reply = chat.ask(conversation, o.sampling, o.stop, {}, should_stop, form.filter());
    if (!reply.ok()) return wrong_use(reply.status().message);
    const std::string json = reply_json(reply.value(), chat.format().tokenizer());
    std::fwrite(json.data(), 1, json.size(), stdout);
    return status_of(reply.value());
  }
  Printer printer(o.reasoning);
  const auto reply =
      chat.ask(conversation, o.sampling, o.stop, std::ref(printer), should_stop, form.filter());
  if (!reply.ok()) return wrong_use(reply.status().message);
  printer.end();
  if (!o.model.quiet) print_speed(reply.value());
  return status_of(reply.value());
}

enum class Word : uint8_t { kNone, kNew, kHelp, kExit };

// Recognizes commands of a chat, such as /new. kInvalidArgument: the line looks like a command but is not one.
Result<Word> word_of(const std::string& line) {
  const std::vector<std::string> known{"/new", "/help", "/exit"};
  const auto in_word = [](unsigned char c) { return std::isalpha(c) != 0; };
  const std::string word = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  if (word.size() < 2 || word[0] != '/' || !std::all_of(word.begin() + 1, word.end(), in_word))
    return Word::kNone;
  for (size_t i = 0; i < known.size(); ++i)
    if (word == known[i]) return static_cast<Word>(i + 1);
  return unknown_name("command", word, known);
}

constexpr const char* kHelp =
    "/new    starts a new conversation\n"
    "/help   shows this text\n"
    "/exit   quits, as Ctrl-D does\n"
    "Ctrl-C stops an answer. The arrow keys move in the line and recall earlier ones; Ctrl-R searches "
    "them.\n";

// Runs one turn of a chat. Returns nullopt if the chat continues, else the exit status. Sets *status, the exit status at the end of the input.
std::optional<int> take_turn(Chat& chat, const RunOptions& o, const AnswerForm& form, bool terminal,
                             Conversation* conversation, int* status) {
  Printer printer(o.reasoning);
  const Interruptible interruptible(EndOn::kCtrlC);
  auto reply = chat.ask(*conversation, o.sampling, o.stop, std::ref(printer), should_stop, form.filter());
  if (!reply.ok()) {
    // If the context is full, the chat continues, because the next line may be /new. The exit status tells scripts that an answer is missing.
    const bool full = reply.status().code == Code::kInvalidArgument;
    const bool can_begin_anew = full && conversation->messages.size() > 1;
    wrong_use(reply.status().message + (can_begin_anew ? "; /new begins a new conversation" : ""));
    conversation->messages.pop_back();
    *status = kExitWrongUse;
    if (terminal || full) return {};
    return kExitWrongUse;
  }
  printer.end();
  if (!output_arrives()) return kExitWrongUse;  // main() reports the error
  if (!o.model.quiet) print_speed(reply.value());
  if (!terminal && status_of(reply.value()) != kExitOk) return kExitInterrupted;
  for (Message& m : reply.value().messages) conversation->messages.push_back(std::move(m));
  return {};
}

Status not_utf8(const std::string& place) {
  return invalid(place + ": wanted text in UTF-8, found other bytes");
}

int converse(Chat& chat, const RunOptions& o, const AnswerForm& form, Conversation conversation) {
  LineInput input;
  int status = kExitOk;
  if (input.terminal())
    std::fputs("Type a message; /help lists the commands, /exit or Ctrl-D quits.\n", stderr);
  while (true) {
    const auto read = input.next();
    if (!read.ok()) return wrong_use(read.status().message);
    const std::optional<std::string>& line = read.value();
    if (!line) break;
    if (line->empty()) continue;
    if (!is_utf8(*line)) {
      wrong_use(not_utf8(kStandardInput).message);
      if (!input.terminal()) return kExitWrongUse;
      continue;
    }
    const auto word = word_of(*line);
    if (!word.ok()) {
      wrong_use(word.status().message);
      if (!input.terminal()) return kExitWrongUse;
      continue;
    }
    if (word.value() == Word::kExit) break;
    if (word.value() == Word::kHelp) std::fputs(kHelp, stderr);
    if (word.value() == Word::kNew) conversation.messages.clear();
    if (word.value() != Word::kNone) continue;
    conversation.messages.push_back(user_message(*line));
    if (const auto end = take_turn(chat, o, form, input.terminal(), &conversation, &status)) return *end;
  }
  return input.terminal() ? kExitOk : status;
}

// The prompt that the flags give; nullopt: chat.
Result<std::optional<std::string>> question_of(const RunOptions& o) {
  if (!o.prompt_file && !o.prompt) return o.prompt;
  const bool standard = o.prompt_file ? o.prompt_file == "-" : o.prompt == "-";
  auto text = standard        ? text_of(stdin, kStandardInput)
              : o.prompt_file ? file_text(*o.prompt_file, "the prompt")
                              : Result<std::string>(*o.prompt);
  if (!text.ok()) return text.status();
  if (!is_utf8(text.value()))
    return not_utf8(standard ? kStandardInput : o.prompt_file ? *o.prompt_file : "--prompt");
  return std::optional(std::move(text).value());
}

// Compiles --json-schema before the weights are read, so that errors come early. Without the flag, answers are unconstrained.
Result<AnswerForm> form_of(const RunOptions& o, const ChatFormat& format) {
  if (!o.json_schema) return AnswerForm();
  const auto directory = model_directory(o.model.model);
  if (!directory.ok()) return directory.status();
  const auto config = read_model_config(directory.value());
  if (!config.ok()) return config.status();
  const int64_t vocab = config.value().decoder.vocab;
  SLUICE_TRY(check_vocabulary(directory.value(), format.tokenizer(), vocab));
  return answer_form(*o.json_schema, format, o.chat.thinking, vocab);
}

}  // namespace

int run_model(const RunOptions& options) {
  const auto chat_flags = chat_options(options.chat);
  if (!chat_flags.ok()) return wrong_use(chat_flags.status().message);
  const auto question = question_of(options);
  if (!question.ok()) return wrong_use(question.status().message);
  const auto format = load_chat_format(options.model, options.chat);
  if (!format.ok()) return wrong_use(format.status().message);
  const auto form = form_of(options, *format.value());
  if (!form.ok()) return wrong_use(form.status().message);
  ModelFlags flags = options.model;
  flags.max_num_seqs = 1;  // one answer at a time
  auto session = open_session(flags);
  if (!session.ok()) return wrong_use(session.status().message);
  auto chat = Chat::open(session.value(), format.value());
  if (!chat.ok()) return wrong_use(chat.status().message);
  Conversation conversation{.options = chat_flags.value(), .messages = {}};
  conversation.options.response_format = form.value().told;
  if (question.value()) {
    conversation.messages.push_back(user_message(*question.value()));
    return ask_once(chat.value(), options, form.value(), conversation);
  }
  return converse(chat.value(), options, form.value(), std::move(conversation));
}

}  // namespace sluice::apps
