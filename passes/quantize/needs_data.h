// What is said, by options and passes alike, where a method lacks what it learns from.
#pragma once

namespace quern::passes {

inline constexpr const char* kGptqNeedsData =
    "the method gptq needs data to see activations of: --calibration-data FILE (text, .jsonl, arrays)";
inline constexpr const char* kClipErrorNeedsData =
    "--clip error needs data to see activations of: --calibration-data FILE (text, .jsonl, arrays)";
inline constexpr const char* kBalanceNeedsData =
    "the methods smooth and awq need to know activations: --calibration-data FILE (text, .jsonl, arrays), or "
    "--calibration TABLE.json";
inline constexpr const char* kStaticNeedsData =
    "static activations need their ranges: --calibration-data FILE (text, .jsonl, arrays), or --calibration "
    "TABLE.json";

}  // namespace quern::passes
