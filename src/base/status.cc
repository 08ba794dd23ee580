#include "base/status.h"

namespace sluice {

const char* text(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kIo:
      return "i/o error";
    case Code::kCorrupt:
      return "corrupt data";
    case Code::kDevice:
      return "device error";
  }
  return "unknown";
}

}  // namespace sluice
