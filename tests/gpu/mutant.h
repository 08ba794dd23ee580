// A deliberately broken kernel that replaces the kernel of the same name. tools/mutations_cuda.py builds such
// kernels as libraries from mutants.toml.
#pragma once
#include <dlfcn.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dispatch/device.h"

namespace sluice::test {

// The candidate in a library, for any operation. The library stays loaded.
class Mutant {
 public:
  // Returns kIo with what the loader did not find.
  static Result<Mutant> load(const std::string& path) {
    const auto failed = [&] { return Status{Code::kIo, "mutant: " + path + ": " + dlerror()}; };
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return failed();
    const auto op = reinterpret_cast<const char* (*)()>(dlsym(library, "sluice_mutant_op"));
    const auto candidate = reinterpret_cast<const void* (*)()>(dlsym(library, "sluice_mutant"));
    if (!op || !candidate) return failed();
    return Mutant(op(), candidate());
  }
  const std::string& op() const { return op_; }
  // The catalog with this candidate instead of the candidate of the same name; `found` tells whether there is
  // one.
  Catalog in_place(const Catalog& catalog, bool* found) const {
    Catalog out;
    *found = false;
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : catalog.table<Op>()) {
        const auto* mine = Op::kName == op_ ? static_cast<const Candidate<Op>*>(candidate_) : nullptr;
        const bool here = mine && mine->name == c->name;
        *found |= here;
        out.add(here ? *mine : *c);
      }
    });
    return out;
  }

 private:
  Mutant(std::string op, const void* candidate) : op_(std::move(op)), candidate_(candidate) {}
  std::string op_;
  const void* candidate_;
};

// A device with a mutant among its kernels.
class MutatedDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> make(std::unique_ptr<Device> inner, const std::string& path) {
    const auto mutant = Mutant::load(path);
    if (!mutant.ok()) return mutant.status();
    bool found = false;
    Catalog catalog = mutant.value().in_place(inner->catalog(), &found);
    if (!found) return invalid("mutant: " + path + ": wanted a kernel that the device has, found another");
    // Printed once and immediately, because a run with a mutant may end without warning.
    static const bool told = std::printf("[   note   ] kernels of %s\n", path.c_str()) > 0;
    if (told) std::fflush(stdout);
    return std::unique_ptr<Device>(new MutatedDevice(std::move(inner), std::move(catalog)));
  }
  const DeviceInfo& info() const override { return inner_->info(); }
  const Catalog& catalog() const override { return catalog_; }
  Result<void*> allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void release(void* memory) override { inner_->release(memory); }
  bool shares_host_memory() const override { return inner_->shares_host_memory(); }
  Result<void*> allocate_host(size_t bytes) override { return inner_->allocate_host(bytes); }
  void release_host(void* memory) override { inner_->release_host(memory); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }
  Stream stream() override { return inner_->stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream s) override {
    return inner_->copy(to, from, bytes, s);
  }
  Status wait(Stream s) override { return inner_->wait(s); }
  Result<std::unique_ptr<Recording>> record(Stream s, const std::function<Status()>& f) override {
    return inner_->record(s, f);
  }
  Status replay(const Recording& recording, Stream s) override { return inner_->replay(recording, s); }

 private:
  MutatedDevice(std::unique_ptr<Device> inner, Catalog catalog)
      : inner_(std::move(inner)), catalog_(std::move(catalog)) {}
  std::unique_ptr<Device> inner_;
  Catalog catalog_;
};

}  // namespace sluice::test
