// Writes a loaded layer's packed bytes to a safetensors file, and reads such a file.
#include <algorithm>
#include <cstring>

#include "nn/moe/load.h"
#include "weights/row_hash.h"
#include "weights/safetensors_writer.h"

namespace sluice {
namespace {

constexpr std::string_view kVersionKey = "sluice.packed", kConfigKey = "sluice.config";
constexpr const char *kFingerprints = "sluice.fingerprints", *kHashes = "sluice.hashes";
constexpr size_t kPiece = size_t{8} << 20;

Status corrupt(const std::string& what, const std::string& wanted, const std::string& found) {
  return {Code::kCorrupt, "packed layer: " + what + ": wanted " + wanted + ", found " + found};
}

StoredType stored_as(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StoredType::kF32;
    case DType::kBF16:
      return StoredType::kBF16;
    case DType::kI32:
      return StoredType::kI32;
    default:
      return StoredType::kU8;  // the type of packed weights
  }
}

// Hashes bytes that arrive in pieces of kPiece.
class PieceHash {
 public:
  void add(std::span<const std::byte> piece) {
    const HashPiece one{piece.data(), piece.size()};
    hashes_.push_back(hash_pieces(&one, 1));
  }
  uint64_t value() const { return fingerprint_of(hashes_); }

 private:
  std::vector<uint64_t> hashes_;
};

template <class F>
Status for_each_piece(size_t bytes, F f) {
  for (size_t at = 0; at < bytes; at += kPiece) SLUICE_TRY(f(at, std::min(kPiece, bytes - at)));
  return {};
}

// Compares two configs as text. A field that `said` lacks has its default value, because a file may be older than the field. kCorrupt names
// the first field that differs.
Status same_config(std::string_view wanted, const std::string& said) {
  MoeConfig config;
  const std::string text = parse_fields(said, &config).ok() ? fields_text(config) : said;
  std::string_view found = text;
  while (true) {
    std::string_view name, value, other_name, other_value;
    const bool more = next_assignment(&wanted, &name, &value);
    const bool other = next_assignment(&found, &other_name, &other_value);
    if (!more && !other) return {};
    if (name == other_name && value == other_value && more == other) continue;
    return corrupt("config", more ? std::string(name) + "=" + std::string(value) : "no more fields",
                   other ? std::string(other_name) + "=" + std::string(other_value) : "no more fields");
  }
}

std::span<const std::byte> bytes_of_words(const std::vector<uint64_t>& words) {
  return std::as_bytes(std::span(words));
}

}  // namespace

struct LoadedMoe::Written {
  std::vector<TensorToWrite> tensors;  // weight_slots(), then fingerprints and hashes
  std::vector<Tensor> weights;         // the tensors of weight_slots(), in memory
  std::vector<size_t> bytes;           // their sizes
  std::vector<uint64_t> fingerprints;
  std::map<std::string, std::string> metadata;
};

LoadedMoe::Written LoadedMoe::written() const {
  Written out;
  MoeWeights weights = weights_;
  for (const auto& [spec, tensor] : weight_slots(config_, &weights)) {
    if (!spec.used) continue;
    const auto* sizes = spec.shape.data();
    out.tensors.push_back(
        {std::string(spec.name), stored_as(spec.dtype), std::vector<int64_t>(sizes, sizes + spec.rank)});
    out.weights.push_back(*tensor);
    out.bytes.push_back(static_cast<size_t>(bytes_of(tensor->dtype, elements_of(*tensor))));
  }
  for (const PackedExperts* p : {&up_, &down_, &shared_up_, &shared_down_, &latent_in_, &latent_out_})
    out.fingerprints.insert(out.fingerprints.end(), p->fingerprints.begin(), p->fingerprints.end());
  out.tensors.push_back({kFingerprints, StoredType::kU64, {static_cast<int64_t>(out.fingerprints.size())}});
  out.tensors.push_back({kHashes, StoredType::kU64, {static_cast<int64_t>(out.weights.size()) + 1}});
  out.metadata[std::string(kVersionKey)] = std::to_string(kPackedVersion);
  out.metadata[std::string(kConfigKey)] = fields_text(config_);
  return out;
}

Result<int64_t> LoadedMoe::packed_bytes() const {
  const Written w = written();
  const auto header = safetensors_header(w.tensors, w.metadata);
  if (!header.ok()) return header.status();
  auto sum = static_cast<int64_t>(header.value().size());
  for (const TensorToWrite& t : w.tensors) sum += stored_bytes(t.type, t.shape).value_or(0);
  return sum;
}

Status LoadedMoe::write_packed(const ByteSink& sink) const {
  const Written w = written();
  const auto header = safetensors_header(w.tensors, w.metadata);
  if (!header.ok()) return header.status();
  SLUICE_TRY(sink(std::as_bytes(std::span(header.value()))));
  std::vector<std::byte> stage(device_.shares_host_memory() ? 0 : kPiece);
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < w.weights.size(); ++i) {
    PieceHash hash;
    const auto* from = w.weights[i].as<const std::byte>();
    SLUICE_TRY(for_each_piece(w.bytes[i], [&](size_t at, size_t bytes) -> Status {
      std::span<const std::byte> piece(from + at, bytes);
      if (!stage.empty()) {
        SLUICE_TRY(device_.copy(stage.data(), from + at, bytes, device_.stream()));
        SLUICE_TRY(device_.wait(device_.stream()));
        piece = std::span(stage).first(bytes);
      }
      hash.add(piece);
      return sink(piece);
    }));
    hashes.push_back(hash.value());
  }
  PieceHash hash;
  hash.add(bytes_of_words(w.fingerprints));
  hashes.push_back(hash.value());
  SLUICE_TRY(sink(bytes_of_words(w.fingerprints)));
  return sink(bytes_of_words(hashes));
}

Status LoadedMoe::read_packed(std::span<const std::byte> file) {
  const auto bytes = static_cast<int64_t>(file.size());
  const auto header = parse_safetensors_header(file, bytes, "packed layer");
  if (!header.ok()) return header.status();
  const Written w = written();
  const auto& metadata = header.value().metadata;
  const auto said = [&](std::string_view key) {
    const auto at = metadata.find(std::string(key));
    return at == metadata.end() ? std::string() : at->second;
  };
  const std::string version = std::to_string(kPackedVersion);
  if (said(kVersionKey) != version)
    return corrupt(std::string(kVersionKey), version,
                   said(kVersionKey).empty() ? "none" : "'" + said(kVersionKey) + "'");
  SLUICE_TRY(same_config(w.metadata.at(std::string(kConfigKey)), said(kConfigKey)));
  const auto& found = header.value().tensors;
  if (found.size() != w.tensors.size())
    return corrupt("tensors", std::to_string(w.tensors.size()), std::to_string(found.size()));
  for (size_t i = 0; i < found.size(); ++i) {
    const TensorToWrite& want = w.tensors[i];
    const HeaderTensor& is = found[i];
    if (is.name != want.name || is.type != want.type || is.shape != want.shape)
      return corrupt("tensor " + std::to_string(i), want.name + " " + stored_text(want.type, want.shape),
                     is.name + " " + stored_text(is.type, is.shape));
  }
  // Checks every byte before writing the first one.
  const auto part = [&](size_t i) {
    return file.subspan(static_cast<size_t>(found[i].begin), static_cast<size_t>(found[i].bytes));
  };
  std::vector<uint64_t> hashes(w.weights.size() + 1), fingerprints(w.fingerprints.size());
  std::memcpy(hashes.data(), part(found.size() - 1).data(), 8 * hashes.size());
  std::memcpy(fingerprints.data(), part(found.size() - 2).data(), 8 * fingerprints.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    PieceHash hash;
    SLUICE_TRY(for_each_piece(part(i).size(), [&](size_t at, size_t count) -> Status {
      return hash.add(part(i).subspan(at, count)), Status{};
    }));
    if (hash.value() != hashes[i])
      return corrupt(w.tensors[i].name + ": hash", std::to_string(hashes[i]), std::to_string(hash.value()));
  }
  for (size_t i = 0; i < w.weights.size(); ++i)
    SLUICE_TRY(device_.copy(w.weights[i].data, part(i).data(), w.bytes[i], device_.stream()));
  SLUICE_TRY(device_.wait(device_.stream()));
  size_t at = 0;
  for (PackedExperts* p : {&up_, &down_, &shared_up_, &shared_down_, &latent_in_, &latent_out_})
    for (int64_t e = 0; e < p->header.experts; ++e) SLUICE_TRY(note_packed(p, e, fingerprints[at++]));
  return {};
}

}  // namespace sluice
