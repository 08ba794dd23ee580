#include "base/file_kind.h"

namespace sluice {

std::string_view file_kind(std::string_view begin) {
  if (begin.starts_with("version https://git-lfs.github.com/spec/"))
    return "a git-lfs pointer (`git lfs pull` fetches the file)";
  if (begin.starts_with("PK\x03\x04")) return "a zip archive, as torch.save() writes it";
  if (begin.starts_with("GGUF")) return "a GGUF file";
  const size_t text = begin.find_first_not_of(" \t\r\n");
  if (text == std::string_view::npos) return {};
  for (const std::string_view html : {"<!DOCTYPE html", "<!doctype html", "<html", "<HTML", "<?xml"})
    if (begin.substr(text).starts_with(html)) return "an HTML or XML page";
  return {};
}

}  // namespace sluice
