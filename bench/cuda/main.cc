// sluice_bench_cuda: times Sluice's kernels and baselines' kernels on this machine's GPU.
#include "cuda/command.h"

int main(int argc, char** argv) { return sluice::bench::command_main(argc, argv); }
