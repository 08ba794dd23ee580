// Runs a program and keeps its output.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

struct Outcome {
  int status = -1;  // exit status; -1: it did not start, or a signal killed it
  int signal = 0;   // the signal that killed it
  std::string out, err;
};

// A running program. words[0] is looked up in PATH. Standard input is empty.
class Process {
 public:
  enum class Out : uint8_t {
    kPipe,
    kTerminal,  // standard output is a terminal, whose newlines arrive as "\r\n"
    kNarrow,    // a pipe of one page, so that the program soon waits for its reader
  };
  explicit Process(const std::vector<std::string>& words, Out out = Out::kPipe);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Reads until the program has written `bytes` bytes to the stream; false if it exited before.
  bool wait_for_out(size_t bytes) { return wait_for(result_.out, bytes); }
  bool wait_for_err(size_t bytes) { return wait_for(result_.err, bytes); }
  // Waits, without reading, until the program can write no more (Out::kNarrow); false if it exited before or
  // a minute has passed.
  bool wait_until_full() const;
  void send(int signal) const;
  Outcome finish();  // reads to the end and waits for the program

 private:
  bool wait_for(const std::string& text, size_t bytes);
  bool read_some();  // false if both pipes are at their end
  pid_t child_ = -1;
  int out_ = -1, err_ = -1;
  Outcome result_;
};

// Runs a program to its end.
Outcome run_process(const std::vector<std::string>& words);

}  // namespace sluice::test
