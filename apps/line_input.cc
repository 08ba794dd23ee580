#include "apps/line_input.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#if defined(SLUICE_LINE_EDITING)
#include <histedit.h>
#include <langinfo.h>

#include <clocale>
#include <cstring>
#endif

namespace sluice::apps {
namespace {

constexpr const char* kPrompt = "> ";

}  // namespace

#if defined(SLUICE_LINE_EDITING)
namespace {

constexpr int kHistoryLines = 1000;

// Keys that terminals send and libedit does not know by itself; and a search in the history, as shells have it.
constexpr const char* kKeys[][2] = {{"\\e[3~", "ed-delete-next-char"}, {"\\e[H", "ed-move-to-beg"},
                                    {"\\e[F", "ed-move-to-end"},       {"\\e[1~", "ed-move-to-beg"},
                                    {"\\e[4~", "ed-move-to-end"},      {"\\e[1;5C", "em-next-word"},
                                    {"\\e[1;5D", "ed-prev-word"},      {"^R", "em-inc-search-prev"}};

// libedit reads characters as the locale has them; a bare system's has ASCII alone.
void want_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

char* prompt_of(EditLine*) {
  static std::string text = kPrompt;
  return text.data();
}

}  // namespace

struct LineInput::Editor {
  Editor() {
    want_utf8();
    HistEvent event;
    history(past, &event, H_SETSIZE, kHistoryLines);
    history(past, &event, H_SETUNIQUE, 1);
    el_set(line, EL_PROMPT, prompt_of);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 1);  // Ctrl-C ends the program, which leaves the terminal as it was
    el_set(line, EL_HIST, history, past);
    for (const auto& [key, what] : kKeys) el_set(line, EL_BIND, key, what, nullptr);
    el_source(line, nullptr);
  }
  ~Editor() {
    el_end(line);
    history_end(past);
  }
  std::optional<std::string> next() {
    el_set(line, EL_PREP_TERM, 1);  // before the prompt: who sees it may press any key
    int bytes = 0;
    const char* text = el_gets(line, &bytes);
    if (text == nullptr || bytes <= 0) return {};
    std::string out(text, static_cast<size_t>(bytes));
    while (!out.empty() && (out.back() == '\n' || out.back() == '\r')) out.pop_back();
    HistEvent event;
    if (!out.empty()) history(past, &event, H_ENTER, out.c_str());
    return out;
  }
  EditLine* line = el_init("sluice", stdin, stderr, stderr);  // answers alone go to standard output
  History* past = history_init();
};
#else
struct LineInput::Editor {
  std::optional<std::string> next() { return {}; }
};
#endif

LineInput::LineInput() : terminal_(isatty(STDIN_FILENO)) {
#if defined(SLUICE_LINE_EDITING)
  if (terminal_ && isatty(STDERR_FILENO)) editor_ = std::make_unique<Editor>();
#endif
}

LineInput::~LineInput() = default;

std::optional<std::string> LineInput::next() {
  if (editor_) return editor_->next();
  if (terminal_) std::fputs(kPrompt, stderr);
  std::string line;
  if (!std::getline(std::cin, line)) return {};
  return line;
}

}  // namespace sluice::apps
