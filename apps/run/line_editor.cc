#include "apps/run/line_editor.h"

#if defined(SLUICE_LINE_EDITING)
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "apps/common/commands.h"
#include "apps/common/signal_notes.h"
#include "base/json.h"
#endif

namespace sluice::apps {

#if defined(SLUICE_LINE_EDITING)
namespace {

constexpr int kHistoryLines = 1000;
constexpr int64_t kEditrcBytesMax = 1 << 20;

// Binds key sequences that terminals send and libedit does not know, and the shells' key for history search.
constexpr const char* kKeys[][2] = {{"\\e[3~", "ed-delete-next-char"}, {"\\e[H", "ed-move-to-beg"},
                                    {"\\e[F", "ed-move-to-end"},       {"\\e[1~", "ed-move-to-beg"},
                                    {"\\e[4~", "ed-move-to-end"},      {"\\e[1;5C", "em-next-word"},
                                    {"\\e[1;5D", "ed-prev-word"},      {"^R", "em-inc-search-prev"}};

// This libedit command reads an editor command from the terminal. If the command has an open quote, libedit uses invalid pointers.
constexpr const char* kUnsafeCommand = "ed-command";

// Selects a UTF-8 locale: libedit decodes characters by the locale. On minimal systems the default locale is ASCII.
void want_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

class LibeditEditor final : public LineEditor {
 public:
  explicit LibeditEditor(const char* prompt) : prompt_(prompt) {
    want_utf8();
    HistEvent event;
    history(past_, &event, H_SETSIZE, kHistoryLines);
    history(past_, &event, H_SETUNIQUE, 1);
    el_set(line_, EL_CLIENTDATA, this);
    el_set(line_, EL_PROMPT, prompt_of);
    el_set(line_, EL_EDITOR, "emacs");
    el_set(line_, EL_GETCFN, key_of);
    el_set(line_, EL_HIST, history, past_);
    for (const auto& [key, what] : kKeys) el_set(line_, EL_BIND, key, what, nullptr);
    read_editrc();
    el_set(line_, EL_BIND, "\\ex", "ed-unassigned", nullptr);
    el_set(line_, EL_BIND, "-a", ":", "ed-unassigned", nullptr);
  }
  ~LibeditEditor() override {
    el_end(line_);
    history_end(past_);
  }
  bool works() const { return signals_.works(); }

  std::optional<std::string> next() override {
    const SignalNotes::Taking taking(&signals_);
    el_resize(line_);                // the window may have been resized during an answer
    el_set(line_, EL_PREP_TERM, 1);  // before the prompt is shown, because users may then type
    int bytes = 0;
    const char* text = el_gets(line_, &bytes);
    if (text == nullptr || bytes <= 0) return {};
    std::string out(text, static_cast<size_t>(bytes));
    while (!out.empty() && (out.back() == '\n' || out.back() == '\r')) out.pop_back();
    HistEvent event;
    if (!out.empty()) history(past_, &event, H_ENTER, out.c_str());
    return out;
  }

 private:
  static LibeditEditor& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<LibeditEditor*>(self);
  }
  static char* prompt_of(EditLine* line) { return of(line).prompt_.data(); }
  static int key_of(EditLine* line, wchar_t* key) { return of(line).read_key(key); }
  int read_key(wchar_t* key);
  bool wait_for_key();
  void act_on(int signal);
  void redraw();
  void read_editrc();
  void take_editrc_line(const std::string& line, const std::string& place);

  std::string prompt_;
  SignalNotes signals_;
  EditLine* line_ = el_init("sluice", stdin, stderr, stderr);  // not stdout, which is for answers only
  History* past_ = history_init();
};

// Replaces libedit's reader. Returns 1 for a character, 0 at the end of input, and -1 for an error. Drops invalid bytes.
int LibeditEditor::read_key(wchar_t* key) {
  char bytes[MB_LEN_MAX];
  size_t count = 0;
  while (wait_for_key()) {
    const ssize_t got = read(STDIN_FILENO, bytes + count, 1);
    if (got == 0) return 0;
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return -1;
    ++count;
    while (count > 0) {
      std::mbstate_t state{};
      const size_t used = std::mbrtowc(key, bytes, count, &state);
      if (used == static_cast<size_t>(-2) && count < sizeof bytes) break;  // incomplete
      if (used <= count) return 1;
      bytes[0] = bytes[count - 1];  // this byte may begin another character
      count = count > 1 ? 1 : 0;
    }
  }
  return -1;
}

bool LibeditEditor::wait_for_key() {
  pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {signals_.descriptor(), POLLIN, 0}};
  while (true) {
    if (poll(ready, std::size(ready), -1) < 0 && errno != EINTR) return false;
    while (const auto signal = signals_.take()) act_on(*signal);
    if (ready[0].revents != 0) return true;
  }
}

void LibeditEditor::act_on(int signal) {
  if (signal != SIGWINCH) el_set(line_, EL_PREP_TERM, 0);
  if (signal != SIGWINCH && signal != SIGCONT) signals_.deliver(signal);
  el_set(line_, EL_PREP_TERM, 1);
  el_resize(line_);
  redraw();
}

void LibeditEditor::redraw() {
  std::fputs("\r", stderr);
  el_set(line_, EL_REFRESH);
}

// Finds and reads $EDITRC or ~/.editrc as el_source() does, but rejects lines for which libedit's behavior is undefined.
void LibeditEditor::read_editrc() {
  const char *named = std::getenv("EDITRC"), *home = std::getenv("HOME");
  if (!named && !home) return;
  const std::string path = named ? named : std::string(home) + "/.editrc";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // no file, or /dev/null to disable it
  const auto text = read_file(path, kEditrcBytesMax);
  if (!text.ok()) {
    wrong_use(text.status().message);
    return;
  }
  std::istringstream lines(text.value());
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number)
    take_editrc_line(line, path + " line " + std::to_string(number));
}

void LibeditEditor::take_editrc_line(const std::string& line, const std::string& place) {
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos || line[first] == '#') return;
  ::Tokenizer* words = tok_init(nullptr);
  int count = 0;
  const char** all = nullptr;
  if (tok_str(words, line.c_str() + first, &count, &all) != 0) {
    wrong_use(place + ": unclosed quote");
  } else if (std::any_of(all, all + count,
                         [](const char* word) { return std::strcmp(word, kUnsafeCommand) == 0; })) {
    wrong_use(place + ": the command " + kUnsafeCommand + " is not supported");
  } else if (count > 0 && el_parse(line_, count, all) == -1) {
    wrong_use(place + ": '" + all[0] + "' is not a command of libedit");
  }
  tok_end(words);
}

}  // namespace

std::unique_ptr<LineEditor> LineEditor::open(const char* prompt) {
  auto out = std::make_unique<LibeditEditor>(prompt);
  return out->works() ? std::move(out) : nullptr;
}
#else
std::unique_ptr<LineEditor> LineEditor::open(const char*) { return nullptr; }
#endif

}  // namespace sluice::apps
