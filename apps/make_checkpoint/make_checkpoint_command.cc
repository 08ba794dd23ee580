#include <csignal>
#include <cstdio>

#include "apps/common/commands.h"
#include "apps/common/interrupt.h"
#include "apps/common/progress.h"
#include "apps/make_checkpoint/make_checkpoint.h"

namespace sluice::apps {

int make_checkpoint_command(const MakeOptions& options) {
  if (options.directory.empty())
    return wrong_use("make-checkpoint: wanted a directory to write to, found none");
  ProgressBar bar("Writing");
  const Interruptible interruptible(EndOn::kAnySignal);
  const Status status = make_checkpoint(options, [&](int64_t done, int64_t all) -> Status {
    if (asked_to_end()) return {Code::kIo, options.directory + ": interrupted; removed the partial files"};
    if (people_are_watching()) bar(done, all);
    return {};
  });
  if (asked_to_end() && !status.ok()) {
    (void)wrong_use(status.message);
    if (ending_signal() != SIGINT)
      (void)std::raise(ending_signal());  // now has the signal's default effect, which ends the process
    return kExitInterrupted;
  }
  if (!status.ok()) return wrong_use(status.message);
  const bool weights = options.weights == MakeOptions::Weights::kWrite;
  std::printf(
      "%s: %s %s\n", options.directory.c_str(),
      weights ? "random weights in the layout of" : "configs and a tokenizer for --load-format dummy of",
      made_text(options).c_str());
  return kExitOk;
}

}  // namespace sluice::apps
