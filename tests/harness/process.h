// Runs a program and keeps what it says.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

struct Outcome {
  int status = -1;  // exit status; -1: it could not be started, or a signal ended it
  int signal = 0;   // that ended it
  std::string out, err;
};

// A program that runs. words[0] is looked up in PATH. Standard input is empty.
class Process {
 public:
  enum class Out : uint8_t {
    kPipe,
    kTerminal,  // standard output is a terminal, whose newlines arrive as "\r\n"
    kNarrow,    // a pipe of a page: soon the program waits for its reader
  };
  explicit Process(const std::vector<std::string>& words, Out out = Out::kPipe);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads until it has written `bytes` there. False: it ended before.
  bool wait_for_out(size_t bytes) { return wait_for(result_.out, bytes); }
  bool wait_for_err(size_t bytes) { return wait_for(result_.err, bytes); }
  // Reads nothing until it can write no more there (Out::kNarrow). False: it ended before, or a minute is over.
  bool wait_until_full() const;
  void send(int signal) const;
  Outcome finish();  // reads to the end and waits for it

 private:
  bool wait_for(const std::string& text, size_t bytes);
  bool read_some();  // false: both pipes have ended
  pid_t child_ = -1;
  int out_ = -1, err_ = -1;
  Outcome result_;
};

// To its end.
Outcome run_process(const std::vector<std::string>& words);

}  // namespace sluice::test
