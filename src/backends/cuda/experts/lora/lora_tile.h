// Sizes that the descriptor and the kernel of expert_lora_mma_sm90 share.
#pragma once

namespace sluice::cuda {

constexpr int kLoraWarps = 8, kLoraThreads = 32 * kLoraWarps;
constexpr int kLoraUnit = 32;  // elements of a row that four lanes load together

}  // namespace sluice::cuda
