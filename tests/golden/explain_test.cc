// The kernels that would run for known models, as text under review: a change of dispatch is a visible diff.
// SLUICE_UPDATE_GOLDENS=1 in the environment writes the files instead of comparing them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "backends/backends.h"
#include "dispatch/explain.h"
#include "golden/models.h"
#include "graph/run_plan.h"

namespace sluice::test {
namespace {

// Two digits of cost: enough to show a changed choice, too few to show every small change of a cost model.
std::string two_digits(double us) {
  if (!(us > 0)) return "0";
  const int exponent = static_cast<int>(std::floor(std::log10(us)));
  const double unit = std::pow(10.0, exponent - 1);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.*f", std::max(0, 1 - exponent), std::round(us / unit) * unit);
  return buffer;
}

// Whether the build has kernels for a backend. If it has none, all are planned, so the text does not
// mention it.
bool has_kernels(Backend backend) {
  bool any = false;
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : all_candidates().table<Op>()) any |= c->backend == backend && !c->planned;
  });
  return any;
}

// One line per candidate of the device's own backend.
std::string choices(const AnyProblem& problem, const DeviceInfo& device) {
  const Decision d = problem.decide(device, all_candidates(), {});
  EXPECT_TRUE(d.contract.accepted()) << problem.text() << ": " << d.contract.line();
  std::string out = "  " + device.name + "\n";
  const bool built = has_kernels(device.backend);
  for (size_t i = 0; i < d.verdicts.size(); ++i) {
    const Verdict& v = d.verdicts[i];
    if (v.candidate != kStageByStage && v.candidate.substr(0, v.candidate.find('.')) != text(device.backend))
      continue;
    const bool accepted = v.refusal.accepted();
    char line[128];
    std::snprintf(line, sizeof line, "    %s %8s %s  ", static_cast<int>(i) == d.chosen ? "->" : "  ",
                  accepted ? two_digits(v.cost_us).c_str() : "-", accepted ? "us" : "  ");
    out += line + std::string(v.candidate) + (v.planned && built ? " (planned)" : "");
    out += accepted ? "\n" : ": " + v.refusal.line() + "\n";
  }
  return d.chosen >= 0 ? out : out + "    no kernel supports this problem\n";
}

std::string golden_of(const MoeModel& model) {
  std::ostringstream out;
  const size_t ops = layer_of(model, 1, Backend::kCpu).size();
  for (size_t op = 0; op < ops; ++op) {
    for (int64_t tokens : {1, 64, 1024}) {
      std::string heading;
      for (const char* name : {"h200", "cpu-amx", "cpu-avx2"}) {
        const DeviceInfo device = known_device(name).value();
        const auto layer = layer_of(model, tokens, device.backend);
        const std::string now = std::string(layer[op]->op()) + " " + layer[op]->text() + "\n";
        if (now != heading) out << (heading = now);  // devices with the same problem share its line
        out << choices(*layer[op], device);
      }
    }
  }
  return out.str();
}

std::string path_of(const MoeModel& model) {
  return std::string(SLUICE_SOURCE_DIR) + "/tests/golden/explain/" + model.file + ".txt";
}

std::string first_difference(const std::string& want, const std::string& got) {
  std::istringstream a(want), b(got);
  std::string x, y;
  for (int line = 1;; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, x)), more_b = static_cast<bool>(std::getline(b, y));
    if (!more_a && !more_b) return "";
    if (!more_a || !more_b || x != y)
      return "line " + std::to_string(line) + "\n  golden: " + (more_a ? x : "(ends)") +
             "\n  now:    " + (more_b ? y : "(ends)");
  }
}

TEST(Goldens, Explain) {
  for (const MoeModel& model : moe_models()) {
    const std::string now = golden_of(model), path = path_of(model);
    if (std::getenv("SLUICE_UPDATE_GOLDENS")) {
      std::ofstream(path) << now;
      continue;
    }
    std::ifstream file(path);
    const std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_EQ(first_difference(golden, now), "") << path
                                                 << "\nRewrite with SLUICE_UPDATE_GOLDENS=1 sluice_tests "
                                                    "--gtest_filter=Goldens.*, and review the diff.";
  }
}

TEST(Goldens, CostsKeepTwoDigits) {
  EXPECT_EQ(two_digits(0), "0");
  EXPECT_EQ(two_digits(0.0512), "0.051");
  EXPECT_EQ(two_digits(1), "1.0");
  EXPECT_EQ(two_digits(2.249), "2.2");
  EXPECT_EQ(two_digits(34.9), "35");
  EXPECT_EQ(two_digits(1234.5), "1200");
}

}  // namespace
}  // namespace sluice::test
