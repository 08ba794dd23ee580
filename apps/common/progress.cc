#include "apps/common/progress.h"

#include <unistd.h>

#include <cstdio>

namespace sluice::apps {

bool people_are_watching() { return isatty(STDERR_FILENO); }

void ProgressBar::operator()(int64_t bytes_done, int64_t bytes_total) {
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const bool last = bytes_done >= bytes_total;
  if (!last && elapsed < shown_ + 0.1) return;
  shown_ = elapsed;
  constexpr int kWidth = 30;
  const double gb = 1e-9 * static_cast<double>(bytes_done), all = 1e-9 * static_cast<double>(bytes_total);
  const double share = bytes_total ? gb / all : 1;
  const auto full = static_cast<size_t>(share * kWidth);
  std::fprintf(stderr, "\r%s [%s%s] %3.0f%%  %.2f of %.2f GB  %.2f GB/s ", title_.c_str(),
               std::string(full, '#').c_str(), std::string(kWidth - full, '.').c_str(), 100 * share, gb, all,
               elapsed > 0 ? gb / elapsed : 0);
  if (last) std::fputs("\r\033[K", stderr);
}

}  // namespace sluice::apps
