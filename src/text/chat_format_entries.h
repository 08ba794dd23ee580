// The formats that chat_formats.cc registers.
#pragma once
#include "text/chat_format.h"

namespace sluice {

extern const ChatFormatEntry kHarmonyFormat;
extern const ChatFormatEntry kQwen3Format, kQwen3ThinkingFormat, kQwen3InstructFormat;
extern const ChatFormatEntry kDeepSeekV3Format, kDeepSeekR1Format, kDeepSeekV31Format;

}  // namespace sluice
