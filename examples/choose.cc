// Prints which kernels an H200 would run for the experts of gpt-oss-120b, and why. Needs no GPU.
//
// Also shows how to use the C API from C++, with a unique_ptr for a handle and an exception for an error.
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "sluice/sluice.h"

namespace {

struct Close {
  void operator()(sluice_device* device) const { sluice_close(device); }
};
using Device = std::unique_ptr<sluice_device, Close>;

// Calls f(error) and throws the error's message if f fails.
template <class F>
void check(F f) {
  char message[4096] = "";
  sluice_text error = {message, sizeof message, 0};
  const sluice_status status = f(&error);
  if (status != SLUICE_OK) throw std::runtime_error(std::string(sluice_status_text(status)) + ": " + message);
}

Device open_cpu() {
  sluice_device* device = nullptr;
  check([&](sluice_text* error) { return sluice_open(nullptr, &device, error); });
  return Device(device);
}

std::string explain(const sluice_question& question) {
  sluice_text size = {nullptr, 0, 0};
  sluice_explain(&question, &size, nullptr);  // sets `needed`, the size of the answer
  std::string out(size.needed, '\0');
  sluice_text text = {&out[0], out.size(), 0};
  check([&](sluice_text* error) { return sluice_explain(&question, &text, error); });
  out.pop_back();  // the NUL
  return out;
}

}  // namespace

int main() try {
  const Device device = open_cpu();
  std::printf("sluice %s on %s\n\n", sluice_version(), sluice_device_text(device.get()));
  sluice_question question = {};
  question.op = "expert_gemm";
  question.problem =
      "tokens=64 slots=4 rows=256 experts=128 features=2880 width=2880 w=e2m1 layout=fragments "
      "act=swiglu_clamped "
      "alpha=1.702 beta=1 limit=7";
  question.device_name = "h200";
  std::fputs(explain(question).c_str(), stdout);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
