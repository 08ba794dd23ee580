// sluice_bench_cuda.
#pragma once

namespace sluice::bench {

// main() of the program. Returns its exit status.
int command_main(int argc, char** argv);

}  // namespace sluice::bench
