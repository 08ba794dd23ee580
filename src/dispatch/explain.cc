#include "dispatch/explain.h"

#include <algorithm>
#include <cstdio>

namespace sluice {

std::string features_text(uint32_t features) {
  constexpr const char* kNames[] = {"avx2", "avx512", "avx512_bf16", "amx_bf16", "neon"};
  std::string out;
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (features & (1u << i)) out += (out.empty() ? "" : " ") + std::string(kNames[i]);
  return out.empty() ? "no vector features" : out;
}

std::string text(const DeviceInfo& device) {
  if (device.backend == Backend::kCuda)
    return device.name + " (sm" + std::to_string(device.sm) + ", " + std::to_string(device.cores) + " SMs)";
  return device.name + " (" + std::to_string(device.cores) +
         (device.cores == 1 ? " thread; " : " threads; ") + features_text(device.cpu_features) + ")";
}

Status Decision::status() const {
  if (!contract.accepted()) return invalid(contract.line());
  if (chosen >= 0) return {};
  std::string message = verdicts.empty() ? "no kernel is registered" : "no kernel supports this problem";
  for (const Verdict& v : verdicts) message += ". " + std::string(v.candidate) + ": " + v.refusal.line();
  return unsupported(message);
}

Refusal refusal_of(const std::vector<Config>& configs) {
  const auto reasons = [](const Config& one) { return one.refusal.reasons(); };
  Refusal out;
  if (configs.empty()) return out;
  if (std::all_of(configs.begin(), configs.end(),
                  [&](const Config& one) { return reasons(one) == reasons(configs.front()); }))
    return configs.front().refusal;
  for (const Config& one : configs)
    if (!one.refusal.accepted())
      out.need(false, "configuration " + one.name + " to support this problem", one.refusal.line());
  return out;
}

namespace {

// The configurations of a candidate, each with its cost or the reasons against it; the cheapest is marked and followed by its launches.
std::string configs_text(const Verdict& v) {
  std::string out;
  if (v.configs.size() == 1 && v.configs[0].name.empty()) {
    for (const std::string& text : v.texts) out += "                " + text + "\n";
    return out;
  }
  for (size_t i = 0; i < v.configs.size(); ++i) {
    const Config& one = v.configs[i];
    char line[200];
    if (!one.refusal.accepted()) {
      out += "               -    " + one.name + "  refused: " + one.refusal.line() + "\n";
      continue;
    }
    const bool best = static_cast<int>(i) == v.config;
    std::snprintf(line, sizeof line, "    %s %9.1f us  %s\n", best ? "->" : "  ", one.cost_us,
                  one.name.c_str());
    out += line;
    if (best)
      for (const std::string& text : v.texts) out += "                      " + text + "\n";
  }
  return out;
}

}  // namespace

std::string explain_text(std::string_view op, const std::string& problem, const DeviceInfo& device,
                         const Decision& decision) {
  std::string out = "problem  " + std::string(op) + " " + problem + "\ndevice   " + text(device) + "\n";
  for (const std::string& reason : decision.contract.reasons()) out += "!! the contract " + reason + "\n";
  for (size_t i = 0; i < decision.verdicts.size(); ++i) {
    const Verdict& v = decision.verdicts[i];
    const std::string note = v.planned ? "  (planned: no kernel in this build)\n" : "\n";
    char line[160];
    if (v.refusal.accepted() && decision.contract.accepted()) {
      std::snprintf(line, sizeof line, "%s %9.1f us  %-40s workspace %zu B",
                    static_cast<int>(i) == decision.chosen ? "->" : "  ", v.cost_us,
                    std::string(v.candidate).c_str(), v.workspace_bytes);
      out += line + note + configs_text(v);
      continue;
    }
    std::snprintf(line, sizeof line, "           -    %-40s refused", std::string(v.candidate).c_str());
    out += line + note;
    for (const std::string& reason : v.refusal.reasons()) out += "                " + reason + "\n";
  }
  if (decision.chosen < 0) out += "!! no kernel supports this problem\n";
  return out;
}

}  // namespace sluice
